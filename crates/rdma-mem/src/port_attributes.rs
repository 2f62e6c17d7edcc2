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
    pub active_speed_code: u8,
    /// The state of the physical link, as C encodes it.
    pub physical_state_code: u8,
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
            active_speed_code: raw.active_speed,
            physical_state_code: raw.phys_state,
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
    }
}
