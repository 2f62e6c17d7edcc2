//! The types of devices and their transports.

use crate::macros::open_enum;

open_enum! {
    /// A device's role in its network (`enum ibv_node_type`).
    #[doc(alias = "ibv_node_type")]
    #[doc(alias = "ibv_node_type_str")]
    NodeType(i32), "node type" {
        /// The provider does not know the type.
        UNKNOWN = -1, "unknown node type";
        /// A channel adapter: an InfiniBand or RoCE device in a host.
        CA = 1, "InfiniBand channel adapter";
        /// A switch.
        SWITCH = 2, "InfiniBand switch";
        /// A router.
        ROUTER = 3, "InfiniBand router";
        /// An iWARP device.
        RNIC = 4, "iWARP NIC";
        /// A usNIC device.
        USNIC = 5, "usNIC";
        /// A usNIC device over UDP.
        USNIC_UDP = 6, "usNIC UDP";
        /// None of the other types: the protocol is vendor-specific.
        UNSPECIFIED = 7, "unspecified";
    }
}

open_enum! {
    /// The transport protocol of a device (`enum ibv_transport_type`). RoCE devices report InfiniBand: only the link
    /// layer of their ports differs.
    #[doc(alias = "ibv_transport_type")]
    TransportType(i32), "transport type" {
        /// The provider does not know the transport.
        UNKNOWN = -1, "unknown transport";
        /// InfiniBand, including InfiniBand over Ethernet (RoCE).
        IB = 0, "InfiniBand";
        /// iWARP.
        IWARP = 1, "iWARP";
        /// usNIC.
        USNIC = 2, "usNIC";
        /// usNIC over UDP.
        USNIC_UDP = 3, "usNIC UDP";
        /// A vendor-specific protocol.
        UNSPECIFIED = 4, "unspecified";
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn values_are_those_of_verbs_h() {
        let nodes = [NodeType::CA, NodeType::SWITCH, NodeType::ROUTER, NodeType::RNIC];
        assert_eq!(nodes.map(NodeType::raw), [1, 2, 3, 4]);
        let nodes = [NodeType::USNIC, NodeType::USNIC_UDP, NodeType::UNSPECIFIED];
        assert_eq!(nodes.map(NodeType::raw), [5, 6, 7]);
        let transports = (-1..5).map(TransportType::from_raw).map(TransportType::name);
        assert!(transports.into_iter().all(|name| name.is_some()));
        assert_eq!((NodeType::UNKNOWN.raw(), TransportType::UNKNOWN.raw()), (-1, -1));
        assert_eq!(format!("{}", TransportType::from(9)), "unknown transport type 9");
    }

    #[test]
    fn texts_are_there_for_c_too() {
        assert_eq!(NodeType::RNIC.c_text(), Some(c"iWARP NIC"));
        assert_eq!(NodeType::from(0).c_text(), None);
    }
}
