//! What a device can, as flags.

use crate::macros::open_flags;

open_flags! {
    /// What a device can (`enum ibv_device_cap_flags`, and the `IBV_DEVICE_*` above 32 bits).
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
        /// The most work requests of a queue pair can be changed.
        RESIZE_MAX_WR = 1;
        /// Packets with a bad partition key are counted.
        BAD_PKEY_CNTR = 1 << 1;
        /// Packets with a bad queue key are counted.
        BAD_QKEY_CNTR = 1 << 2;
        /// Raw packets can be multicast.
        RAW_MULTI = 1 << 3;
        /// A connection can move to another path by itself.
        AUTO_PATH_MIG = 1 << 4;
        /// A queue pair that drained its send queue can go to another port.
        CHANGE_PHY_PORT = 1 << 5;
        /// The port of an address handle is compared with that of the queue pair.
        UD_AV_PORT_ENFORCE = 1 << 6;
        /// Modifying a queue pair can be bound to the state that it is in.
        CURR_QP_STATE_MOD = 1 << 7;
        /// A port can be shut down.
        SHUTDOWN_PORT = 1 << 8;
        /// What the subnet manager did when it initialised a port is known.
        INIT_TYPE = 1 << 9;
        /// There is an event when a port becomes active.
        PORT_ACTIVE_EVENT = 1 << 10;
        /// The system image GUID is that of the system.
        SYS_IMAGE_GUID = 1 << 11;
        /// A receiver of a reliable connection says when it is not ready.
        RC_RNR_NAK_GEN = 1 << 12;
        /// Shared receive queues can be resized.
        SRQ_RESIZE = 1 << 13;
        /// A completion queue can be asked for an event after so many completions.
        N_NOTIFY_CQ = 1 << 14;
        /// There are memory windows of type 1.
        MEM_WINDOW = 1 << 17;
        /// Checksums of IP over unreliable datagrams are the device's affair.
        UD_IP_CSUM = 1 << 18;
        /// There are extended reliable connections.
        XRC = 1 << 20;
        /// SEND with invalidation, local invalidation, and what goes with them.
        MEM_MGT_EXTENSIONS = 1 << 21;
        /// There are memory windows of type 2A: bound to a queue pair by number.
        MEM_WINDOW_TYPE_2A = 1 << 23;
        /// There are memory windows of type 2B: bound to a queue pair and its domain.
        MEM_WINDOW_TYPE_2B = 1 << 24;
        /// Checksums of IP over reliable connections are the device's affair.
        RC_IP_CSUM = 1 << 25;
        /// Checksums of IP in raw packets are the device's affair.
        RAW_IP_CSUM = 1 << 26;
        /// Flow steering is managed by the device.
        MANAGED_FLOW_STEERING = 1 << 29;
        /// The frame check sequence of raw packets can be received too.
        RAW_SCATTER_FCS = 1 << 34;
        /// Writes over PCI are padded to whole cache lines.
        PCI_WRITE_END_PADDING = 1 << 36;
    }
}

open_flags! {
    /// What a device can with memory that is not pinned (`enum ibv_odp_general_caps`).
    #[doc(alias = "ibv_odp_general_caps")]
    OdpCapabilities(u64) {
        /// On-demand paging.
        SUPPORT = 1;
        /// One region for the whole address space.
        IMPLICIT = 1 << 1;
    }
}

open_flags! {
    /// Which operations of a transport can use memory that is not pinned
    /// (`enum ibv_odp_transport_cap_bits`).
    #[doc(alias = "ibv_odp_transport_cap_bits")]
    OdpOperations(u32) {
        /// The data of a SEND.
        SEND = 1;
        /// The room of a receive.
        RECV = 1 << 1;
        /// RDMA WRITE.
        WRITE = 1 << 2;
        /// RDMA READ.
        READ = 1 << 3;
        /// Atomics.
        ATOMIC = 1 << 4;
        /// The room of a receive of a shared receive queue.
        SRQ_RECV = 1 << 5;
        /// FLUSH.
        FLUSH = 1 << 6;
        /// Atomic WRITE.
        ATOMIC_WRITE = 1 << 7;
    }
}

open_flags! {
    /// What a device can with raw packets (`enum ibv_raw_packet_caps`).
    #[doc(alias = "ibv_raw_packet_caps")]
    RawPacketCapabilities(u32) {
        /// VLAN tags are taken off.
        CVLAN_STRIPPING = 1;
        /// The frame check sequence can be received too.
        SCATTER_FCS = 1 << 1;
        /// Checksums of IP are the device's affair.
        IP_CSUM = 1 << 2;
        /// Packets wait a while for a receive.
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
