//! Capabilities of devices, as flags.

use crate::macros::open_flags;

open_flags! {
    /// Capabilities of a device (`enum ibv_device_cap_flags`, and the `IBV_DEVICE_*` above 32
    /// bits).
    ///
    /// ```
    /// use rdma_types::DeviceCapabilities;
    ///
    /// let can = DeviceCapabilities::from_bits_retain(0x20_1000);
    /// assert!(can.contains(DeviceCapabilities::RC_RNR_NAK_GEN));
    /// assert_eq!(can.to_string(), "RC_RNR_NAK_GEN | MEM_MGT_EXTENSIONS");
    /// ```
    #[doc(alias = "ibv_device_cap_flags")]
    DeviceCapabilities(u64) {
        /// The queue sizes of a queue pair can be changed after its creation.
        RESIZE_MAX_WR = 1;
        /// Packets with a bad partition key are counted.
        BAD_PKEY_CNTR = 1 << 1;
        /// Packets with a bad queue key are counted.
        BAD_QKEY_CNTR = 1 << 2;
        /// Raw packets can be multicast.
        RAW_MULTI = 1 << 3;
        /// The device supports automatic path migration of connections.
        AUTO_PATH_MIG = 1 << 4;
        /// A queue pair with a drained send queue can move to another port.
        CHANGE_PHY_PORT = 1 << 5;
        /// The device checks that the port of an address handle matches that of the queue pair.
        UD_AV_PORT_ENFORCE = 1 << 6;
        /// Modifying a queue pair can be made conditional on its current state.
        CURR_QP_STATE_MOD = 1 << 7;
        /// A port can be shut down.
        SHUTDOWN_PORT = 1 << 8;
        /// The device reports which type of initialisation the subnet manager performed on a port.
        INIT_TYPE = 1 << 9;
        /// The device reports an event when a port becomes active.
        PORT_ACTIVE_EVENT = 1 << 10;
        /// The system image GUID identifies the system.
        SYS_IMAGE_GUID = 1 << 11;
        /// The responder of a reliable connection sends an RNR NAK when no receive is posted.
        RC_RNR_NAK_GEN = 1 << 12;
        /// Shared receive queues can be resized.
        SRQ_RESIZE = 1 << 13;
        /// A completion queue can request an event after N completions.
        N_NOTIFY_CQ = 1 << 14;
        /// The device has type 1 memory windows.
        MEM_WINDOW = 1 << 17;
        /// The device computes and checks IP checksums of unreliable datagrams.
        UD_IP_CSUM = 1 << 18;
        /// The device supports extended reliable connections.
        XRC = 1 << 20;
        /// The device supports SEND with invalidate, local invalidate and the related operations.
        MEM_MGT_EXTENSIONS = 1 << 21;
        /// The device has type 2A memory windows, which are bound to a queue pair by number.
        MEM_WINDOW_TYPE_2A = 1 << 23;
        /// The device has type 2B memory windows, which are bound to a queue pair and its domain.
        MEM_WINDOW_TYPE_2B = 1 << 24;
        /// The device computes and checks IP checksums of reliable connections.
        RC_IP_CSUM = 1 << 25;
        /// The device computes and checks IP checksums of raw packets.
        RAW_IP_CSUM = 1 << 26;
        /// The device manages flow steering.
        MANAGED_FLOW_STEERING = 1 << 29;
        /// The device can deliver the frame check sequence of raw packets to the receiver.
        RAW_SCATTER_FCS = 1 << 34;
        /// Writes over PCI are padded to whole cache lines.
        PCI_WRITE_END_PADDING = 1 << 36;
    }
}

open_flags! {
    /// Capabilities of a device for on-demand paging (ODP), that is, for memory that is not pinned
    /// (`enum ibv_odp_general_caps`).
    #[doc(alias = "ibv_odp_general_caps")]
    OdpCapabilities(u64) {
        /// On-demand paging.
        SUPPORT = 1;
        /// One region can cover the whole address space.
        IMPLICIT = 1 << 1;
    }
}

open_flags! {
    /// The operations that can use ODP memory on a transport (`enum ibv_odp_transport_cap_bits`).
    #[doc(alias = "ibv_odp_transport_cap_bits")]
    OdpOperations(u32) {
        /// The data of a SEND.
        SEND = 1;
        /// The buffer of a receive.
        RECV = 1 << 1;
        /// RDMA WRITE.
        WRITE = 1 << 2;
        /// RDMA READ.
        READ = 1 << 3;
        /// Atomics.
        ATOMIC = 1 << 4;
        /// The buffer of a receive in a shared receive queue.
        SRQ_RECV = 1 << 5;
        /// FLUSH.
        FLUSH = 1 << 6;
        /// Atomic WRITE.
        ATOMIC_WRITE = 1 << 7;
    }
}

open_flags! {
    /// Capabilities of a device for raw packets (`enum ibv_raw_packet_caps`).
    #[doc(alias = "ibv_raw_packet_caps")]
    RawPacketCapabilities(u32) {
        /// The device strips VLAN tags.
        CVLAN_STRIPPING = 1;
        /// The device can deliver the frame check sequence to the receiver.
        SCATTER_FCS = 1 << 1;
        /// The device computes and checks IP checksums.
        IP_CSUM = 1 << 2;
        /// The device holds packets for a while if no receive is posted.
        DELAY_DROP = 1 << 3;
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn unnamed_bits_are_kept_and_shown() {
        let can = DeviceCapabilities::from_bits_retain(1 << 63 | 1 << 29);
        assert_eq!(can.bits(), 1 << 63 | 1 << 29);
        assert_eq!(format!("{can}"), "MANAGED_FLOW_STEERING | 0x8000000000000000");
        assert_eq!(format!("{}", OdpOperations::empty()), "none");
        assert_eq!(
            format!("{}", OdpCapabilities::SUPPORT | OdpCapabilities::IMPLICIT),
            "SUPPORT | IMPLICIT"
        );
        assert_eq!(RawPacketCapabilities::DELAY_DROP.bits(), 8);
    }
}
