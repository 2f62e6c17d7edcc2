//! The attributes of a port.

use rdma_sys::ibv_port_attr;
use rdma_types::{Lid, LinkLayer, LinkSpeed, LinkWidth, Mtu, PhysicalState, PortState};

use crate::device::fields::attributes;

/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;

attributes! {
    /// The attributes of a port, from [`Context::query_port`](crate::Context::query_port).
    #[doc(alias = "ibv_port_attr")]
    PortAttributes(number: u8, raw: &ibv_port_attr) {
        /// The port's number, starting at 1.
        number: u8 => text = number,
        /// The state of the port; only an active port transfers data.
        state: PortState => text = PortState::from_raw(raw.state.0),
        /// The link layer of the port.
        link_layer: LinkLayer => text = LinkLayer::from_raw(raw.link_layer),
        /// The largest MTU that the port supports. `None` if the specification does not define its
        /// code, which is in [`max_mtu_code`](Self::max_mtu_code).
        max_mtu: Option<Mtu> => or_unknown = mtu(raw.max_mtu.0),
        /// The raw code of [`max_mtu`](Self::max_mtu).
        max_mtu_code: u32 => text = raw.max_mtu.0,
        /// The current MTU; `None` for an unknown code.
        active_mtu: Option<Mtu> => or_unknown = mtu(raw.active_mtu.0),
        /// The raw code of [`active_mtu`](Self::active_mtu).
        active_mtu_code: u32 => text = raw.active_mtu.0,
        /// The port's local identifier; [`Lid::NONE`] on Ethernet.
        lid: Lid => text = Lid::new(raw.lid),
        /// The LID of the subnet manager.
        sm_lid: Lid => text = Lid::new(raw.sm_lid),
        /// The number of low bits of the LID that the port ignores (LID mask control).
        lmc: u8 => text = raw.lmc,
        /// Whether packets to this port need a global route header even inside the subnet.
        grh_required: bool => text = raw.flags & GRH_REQUIRED != 0,
        /// The number of entries in the port's GID table.
        gid_table_length: u32 => text = u32::try_from(raw.gid_tbl_len).unwrap_or(0),
        /// The number of entries in the port's partition key table.
        pkey_table_length: u16 => text = raw.pkey_tbl_len,
        /// The maximum message size, in bytes.
        max_message_size: u32 => text = raw.max_msg_sz,
        /// The number of lanes that the link uses.
        active_width: LinkWidth => text = LinkWidth::from_raw(raw.active_width),
        /// The speed of each lane.
        active_speed: LinkSpeed => text = LinkSpeed::from_raw(match raw.active_speed_ex {
            0 => raw.active_speed.into(),
            more => more,
        }),
        /// The state of the physical link.
        physical_state: PhysicalState => text = PhysicalState::from_raw(raw.phys_state),
        /// The capabilities as the bits of `enum ibv_port_cap_flags`.
        capability_flags: u32 => hex = raw.port_cap_flags,
        /// Further capabilities: the bits of `enum ibv_port_cap_flags2`.
        capability_flags2: u16 => hex = raw.port_cap_flags2,
        /// The maximum number of virtual lanes, in C's encoding.
        max_vl_code: u8 => text = raw.max_vl_num,
        /// The number of received packets whose partition key is not in the port's table.
        bad_pkey_count: u32 => text = raw.bad_pkey_cntr,
        /// The number of received packets whose queue key does not match the queue pair's.
        qkey_violation_count: u32 => text = raw.qkey_viol_cntr,
        /// The service level for packets to the subnet manager.
        sm_service_level: u8 => text = raw.sm_sl,
        /// The maximum time that a packet can spend in the subnet, in the specification's encoding.
        subnet_timeout_code: u8 => text = raw.subnet_timeout,
        /// The action that the subnet manager took when it initialised the port, in the
        /// specification's encoding.
        init_type_reply: u8 => text = raw.init_type_reply,
    }
}

fn mtu(code: u32) -> Option<Mtu> {
    u8::try_from(code).ok().and_then(Mtu::from_code)
}

impl PortAttributes {
    /// Returns the maximum number of data virtual lanes; `None` for a code that the specification
    /// does not define. IBTA vol 1, section 14.2.5.6.
    #[must_use]
    pub const fn virtual_lanes(&self) -> Option<u8> {
        match self.max_vl_code {
            1 => Some(1),
            2 => Some(2),
            3 => Some(4),
            4 => Some(8),
            5 => Some(15),
            _ => None,
        }
    }

    /// Returns the link's rate over all lanes, in Mbit/s; `None` for unknown codes.
    #[must_use]
    pub fn rate_mbps(&self) -> Option<u32> {
        Some(u32::from(self.active_width.lanes()?) * self.active_speed.lane_mbps()?)
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
        assert_eq!((port.rate_mbps(), port.virtual_lanes()), (None, None));
        let fields: Vec<_> = port.fields().collect();
        assert!(fields.contains(&("active_mtu", "unknown".to_owned())));
        assert!(fields.contains(&("link_layer", "unknown link layer 77".to_owned())));
    }

    #[test]
    fn a_rate_is_lanes_times_speed_also_beyond_eight_bits_of_code() {
        let of = |active_width, active_speed, active_speed_ex, max_vl_num| {
            let raw = ibv_port_attr {
                active_width,
                active_speed,
                active_speed_ex,
                max_vl_num,
                ..Default::default()
            };
            let port = PortAttributes::from_raw(1, &raw);
            (port.rate_mbps(), port.virtual_lanes())
        };
        assert_eq!(of(2, 32, 0, 1), (Some(100_000), Some(1)), "4X EDR");
        assert_eq!(of(16, 1, 0, 3), (Some(5_000), Some(4)), "2X SDR");
        assert_eq!(of(1, 128, 256, 5), (Some(200_000), Some(15)), "1X XDR");
    }
}
