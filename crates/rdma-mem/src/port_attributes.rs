//! What a port is and can.

use rdma_sys::ibv_port_attr;
use rdma_types::{Lid, LinkLayer, Mtu, PortState};

/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;

/// What a port is and can, from [`Context::query_port`](crate::Context::query_port).
#[doc(alias = "ibv_port_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttributes {
    /// The port's number, from 1.
    pub number: u8,
    /// Whether it passes data.
    pub state: PortState,
    /// What it is plugged into.
    pub link_layer: LinkLayer,
    /// The largest MTU that it could have; `None` for a code that the specification does not have,
    /// which is in [`max_mtu_code`](Self::max_mtu_code).
    pub max_mtu: Option<Mtu>,
    /// [`max_mtu`](Self::max_mtu) as C has it.
    pub max_mtu_code: u32,
    /// The MTU that it has; `None` for an unknown code.
    pub active_mtu: Option<Mtu>,
    /// [`active_mtu`](Self::active_mtu) as C has it.
    pub active_mtu_code: u32,
    /// Its local identifier; [`Lid::NONE`] on Ethernet.
    pub lid: Lid,
    /// That of the subnet manager.
    pub sm_lid: Lid,
    /// How many low bits of the LID the port ignores (LID mask control).
    pub lmc: u8,
    /// Packets to this port need a global route header, also within the subnet.
    pub grh_required: bool,
    /// How many places the port's table of GIDs has.
    pub gid_table_length: u32,
    /// How many places its table of partition keys has.
    pub pkey_table_length: u16,
    /// The longest message, in bytes.
    pub max_message_size: u32,
    /// The link's width, as C encodes it.
    pub active_width_code: u8,
    /// The link's speed for each lane, as C encodes it.
    pub active_speed_code: u32,
    /// The state of the physical link, as C encodes it.
    pub physical_state_code: u8,
    /// What it can, as C has it: the bits of `enum ibv_port_cap_flags`.
    pub capability_flags: u32,
    /// More of that: the bits of `enum ibv_port_cap_flags2`.
    pub capability_flags2: u16,
    /// How many virtual lanes it could have, as C encodes it.
    pub max_vl_code: u8,
    /// How many packets came with a partition key that the port does not have.
    pub bad_pkey_count: u32,
    /// How many packets came with a queue key that a queue pair does not have.
    pub qkey_violation_count: u32,
    /// The service level to the subnet manager.
    pub sm_service_level: u8,
    /// How long packets within the subnet take at most, as the specification encodes it.
    pub subnet_timeout_code: u8,
    /// What the subnet manager did when it initialised the port, as the specification encodes it.
    pub init_type_reply: u8,
}

impl PortAttributes {
    pub(crate) fn from_raw(number: u8, raw: &ibv_port_attr) -> Self {
        let mtu = |code: u32| u8::try_from(code).ok().and_then(Mtu::from_code);
        Self {
            number,
            state: PortState::from_raw(raw.state.0),
            link_layer: LinkLayer::from_raw(raw.link_layer),
            max_mtu: mtu(raw.max_mtu.0),
            max_mtu_code: raw.max_mtu.0,
            active_mtu: mtu(raw.active_mtu.0),
            active_mtu_code: raw.active_mtu.0,
            lid: Lid::new(raw.lid),
            sm_lid: Lid::new(raw.sm_lid),
            lmc: raw.lmc,
            grh_required: raw.flags & GRH_REQUIRED != 0,
            gid_table_length: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            pkey_table_length: raw.pkey_tbl_len,
            max_message_size: raw.max_msg_sz,
            active_width_code: raw.active_width,
            active_speed_code: match raw.active_speed_ex {
                0 => raw.active_speed.into(),
                more => more,
            },
            physical_state_code: raw.phys_state,
            capability_flags: raw.port_cap_flags,
            capability_flags2: raw.port_cap_flags2,
            max_vl_code: raw.max_vl_num,
            bad_pkey_count: raw.bad_pkey_cntr,
            qkey_violation_count: raw.qkey_viol_cntr,
            sm_service_level: raw.sm_sl,
            subnet_timeout_code: raw.subnet_timeout,
            init_type_reply: raw.init_type_reply,
        }
    }

    /// How many lanes the link has; `None` for a code that the specification does not have. IBTA vol 1,
    /// section 14.2.5.6.
    #[must_use]
    pub const fn lanes(&self) -> Option<u8> {
        match self.active_width_code {
            1 => Some(1),
            2 => Some(4),
            4 => Some(8),
            8 => Some(12),
            16 => Some(2),
            _ => None,
        }
    }

    /// How much one lane carries, in Mbit/s; `None` for a code that the specification does not have.
    #[must_use]
    pub const fn lane_speed_mbps(&self) -> Option<u32> {
        match self.active_speed_code {
            1 => Some(2_500),
            2 => Some(5_000),
            4 | 8 => Some(10_000),
            16 => Some(14_000),
            32 => Some(25_000),
            64 => Some(50_000),
            128 => Some(100_000),
            256 => Some(200_000),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rdma_sys::{ibv_mtu, ibv_port_state};

    use super::*;

    #[test]
    fn unknown_codes_are_kept() {
        let raw = ibv_port_attr {
            state: ibv_port_state(99),
            active_mtu: ibv_mtu(6),
            max_mtu: ibv_mtu(5),
            link_layer: 77,
            flags: 0b11,
            ..Default::default()
        };
        let port = PortAttributes::from_raw(2, &raw);
        assert_eq!((port.number, port.state.raw(), port.link_layer.raw()), (2, 99, 77));
        assert_eq!((port.active_mtu, port.active_mtu_code), (None, 6));
        assert_eq!(port.max_mtu, Some(Mtu::MTU4096));
        assert!(port.grh_required);
        assert_eq!((port.lanes(), port.lane_speed_mbps()), (None, None));
    }

    #[test]
    fn widths_and_speeds_are_those_of_the_specification() {
        let of = |active_width, active_speed, active_speed_ex| {
            let raw =
                ibv_port_attr { active_width, active_speed, active_speed_ex, ..Default::default() };
            let port = PortAttributes::from_raw(1, &raw);
            (port.lanes(), port.lane_speed_mbps())
        };
        assert_eq!(of(2, 32, 0), (Some(4), Some(25_000)), "EDR");
        assert_eq!(of(16, 1, 0), (Some(2), Some(2_500)), "SDR");
        assert_eq!(
            of(1, 128, 256),
            (Some(1), Some(200_000)),
            "XDR, which does not fit into 8 bits"
        );
    }
}
