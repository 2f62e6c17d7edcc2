//! What a device is and can, beyond what the first verbs knew.

use rdma_sys::ibv_device_attr_ex;
use rdma_types::{OdpCapabilities, OdpOperations, RawPacketCapabilities};

use crate::device::fields::attributes;

attributes! {
    /// What came after [`DeviceAttributes`](crate::DeviceAttributes), from
    /// [`Context::query_device_extended`](crate::Context::query_device_extended).
    ///
    /// What a device does not have is 0, and so is all of it with a provider that does not tell.
    #[doc(alias = "ibv_device_attr_ex")]
    ExtendedAttributes {
        /// What the device can with memory that is not pinned (on-demand paging).
        odp: OdpCapabilities => text,
        /// Which operations of reliable connections can use such memory.
        odp_rc: OdpOperations => text,
        /// Which operations of unreliable connections can.
        odp_uc: OdpOperations => text,
        /// Which operations of unreliable datagrams can.
        odp_ud: OdpOperations => text,
        /// Which operations of extended reliable connections can.
        odp_xrc: OdpOperations => text,
        /// Which bits of a completion's timestamp count; 0 if there are no timestamps.
        completion_timestamp_mask: u64 => hex,
        /// How fast the clock of these timestamps is, in kHz; 0 if that is not known.
        core_clock_khz: u64 => text,
        /// What it can with raw packets.
        raw_packet_capabilities: RawPacketCapabilities => text,
        /// The most bytes that it cuts into TCP segments by itself.
        tso_max_bytes: u32 => text,
        /// For which types of queue pairs, a bit for each `enum ibv_qp_type`.
        tso_qp_types: u32 => hex,
        /// For which types of queue pairs it distributes packets by hashes, a bit for each.
        rss_qp_types: u32 => hex,
        /// The most tables of queues for that.
        rss_max_tables: u32 => text,
        /// The most entries of such a table.
        rss_max_table_size: u32 => text,
        /// Which fields of a packet can be hashed: the bits of `enum ibv_rx_hash_fields`.
        rss_hash_fields: u64 => hex,
        /// By which functions: the bits of `enum ibv_rx_hash_function_flags`.
        rss_hash_functions: u8 => hex,
        /// The most receive work queues.
        max_wq_type_rq: u32 => text,
        /// The lowest rate that a queue pair can be limited to, in kbit/s.
        packet_pacing_min_kbps: u32 => text,
        /// The highest rate that a queue pair can be limited to, in kbit/s; 0 if there is no pacing.
        packet_pacing_max_kbps: u32 => text,
        /// For which types of queue pairs, a bit for each.
        packet_pacing_qp_types: u32 => hex,
        /// The most tags of one queue that matches tags; 0 if there is no matching.
        tag_matching_max_tags: u32 => text,
        /// The largest header of a rendezvous message, in bytes.
        tag_matching_max_header: u32 => text,
        /// What it can: the bits of `enum ibv_tm_cap_flags`.
        tag_matching_flags: u32 => hex,
        /// The most operations on a list of tags at a time.
        tag_matching_max_ops: u32 => text,
        /// The most elements of one matched message.
        tag_matching_max_sge: u32 => text,
        /// After how many completions an event can be asked for at most; 0 if not at all.
        cq_moderation_max_count: u16 => text,
        /// How long an event can be held back for more completions at most, in µs.
        cq_moderation_max_us: u16 => text,
        /// How much memory of its own the device lends, in bytes.
        max_device_memory: u64 => text,
        /// Which sizes of fetch-and-add it can do over PCI: the bits of `enum ibv_pci_atomic_op_size`.
        pci_fetch_add_sizes: u16 => hex,
        /// Which sizes of swap.
        pci_swap_sizes: u16 => hex,
        /// Which sizes of compare-and-swap.
        pci_compare_swap_sizes: u16 => hex,
    }
}

impl ExtendedAttributes {
    pub(crate) fn from_raw(raw: &ibv_device_attr_ex) -> Self {
        let transports = raw.odp_caps.per_transport_caps;
        Self {
            odp: OdpCapabilities::from_bits_retain(raw.odp_caps.general_caps),
            odp_rc: OdpOperations::from_bits_retain(transports.rc_odp_caps),
            odp_uc: OdpOperations::from_bits_retain(transports.uc_odp_caps),
            odp_ud: OdpOperations::from_bits_retain(transports.ud_odp_caps),
            odp_xrc: OdpOperations::from_bits_retain(raw.xrc_odp_caps),
            completion_timestamp_mask: raw.completion_timestamp_mask,
            core_clock_khz: raw.hca_core_clock,
            raw_packet_capabilities: RawPacketCapabilities::from_bits_retain(raw.raw_packet_caps),
            tso_max_bytes: raw.tso_caps.max_tso,
            tso_qp_types: raw.tso_caps.supported_qpts,
            rss_qp_types: raw.rss_caps.supported_qpts,
            rss_max_tables: raw.rss_caps.max_rwq_indirection_tables,
            rss_max_table_size: raw.rss_caps.max_rwq_indirection_table_size,
            rss_hash_fields: raw.rss_caps.rx_hash_fields_mask,
            rss_hash_functions: raw.rss_caps.rx_hash_function,
            max_wq_type_rq: raw.max_wq_type_rq,
            packet_pacing_min_kbps: raw.packet_pacing_caps.qp_rate_limit_min,
            packet_pacing_max_kbps: raw.packet_pacing_caps.qp_rate_limit_max,
            packet_pacing_qp_types: raw.packet_pacing_caps.supported_qpts,
            tag_matching_max_tags: raw.tm_caps.max_num_tags,
            tag_matching_max_header: raw.tm_caps.max_rndv_hdr_size,
            tag_matching_flags: raw.tm_caps.flags,
            tag_matching_max_ops: raw.tm_caps.max_ops,
            tag_matching_max_sge: raw.tm_caps.max_sge,
            cq_moderation_max_count: raw.cq_mod_caps.max_cq_count,
            cq_moderation_max_us: raw.cq_mod_caps.max_cq_period,
            max_device_memory: raw.max_dm_size,
            pci_fetch_add_sizes: raw.pci_atomic_caps.fetch_add,
            pci_swap_sizes: raw.pci_atomic_caps.swap,
            pci_compare_swap_sizes: raw.pci_atomic_caps.compare_swap,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_that_nobody_named_are_kept() {
        let mut raw = ibv_device_attr_ex::default();
        raw.odp_caps.general_caps = 1 | 1 << 40;
        raw.odp_caps.per_transport_caps.ud_odp_caps = 1 << 1 | 1 << 20;
        raw.tso_caps.max_tso = 1 << 18;
        let attributes = ExtendedAttributes::from_raw(&raw);
        assert_eq!(attributes.odp.to_string(), "SUPPORT | 0x10000000000");
        assert_eq!(attributes.odp_ud.to_string(), "RECV | 0x100000");
        assert_eq!(attributes.tso_max_bytes, 1 << 18);
        let fields: Vec<_> = attributes.fields().collect();
        assert_eq!(fields[0], ("odp", "SUPPORT | 0x10000000000".to_owned()));
        assert!(fields.contains(&("completion_timestamp_mask", "0x0".to_owned())));
    }
}
