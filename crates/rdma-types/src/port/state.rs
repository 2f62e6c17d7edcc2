//! The link layer and the logical state of a port.

use crate::macros::open_enum;

open_enum! {
    /// The link layer of a port (`ibv_port_attr.link_layer`).
    #[doc(alias = "IBV_LINK_LAYER_UNSPECIFIED")]
    LinkLayer(u8), "link layer" {
        /// Unspecified; old providers mean InfiniBand by this.
        UNSPECIFIED = 0, "unspecified";
        /// InfiniBand: ports have LIDs.
        INFINIBAND = 1, "InfiniBand";
        /// Ethernet (RoCE): ports are addressed only by GID.
        ETHERNET = 2, "Ethernet";
    }
}

open_enum! {
    /// The logical state of a port (`enum ibv_port_state`).
    #[doc(alias = "ibv_port_state")]
    PortState(u32), "port state" {
        /// Not a state: in a request, it means "no change".
        NOP = 0, "no change";
        /// The link is down.
        DOWN = 1, "down";
        /// The link is up, but the subnet manager has not configured the port yet.
        INIT = 2, "initializing";
        /// The port is configured, but does not carry data yet.
        ARMED = 3, "armed";
        /// The port carries data.
        ACTIVE = 4, "active";
        /// Active; the port is recovering from a link error.
        ACTIVE_DEFER = 5, "active, deferred";
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn values_are_those_of_verbs_h() {
        let layers = [LinkLayer::UNSPECIFIED, LinkLayer::INFINIBAND, LinkLayer::ETHERNET];
        assert_eq!(layers.map(LinkLayer::raw), [0, 1, 2]);
        let states = [PortState::NOP, PortState::DOWN, PortState::INIT, PortState::ARMED];
        assert_eq!(states.map(PortState::raw), [0, 1, 2, 3]);
        assert_eq!([PortState::ACTIVE, PortState::ACTIVE_DEFER].map(PortState::raw), [4, 5]);
    }

    #[test]
    fn unknown_values_are_data() {
        assert_eq!(format!("{0} {0:?}", LinkLayer::from(9)), "unknown link layer 9 LinkLayer(9)");
        assert_eq!(format!("{}", PortState::from(u32::MAX)), "unknown port state 4294967295");
    }
}
