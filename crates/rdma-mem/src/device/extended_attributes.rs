//! The attributes of a device that the original verbs did not have.

use rdma_sys::ibv_device_attr_ex;
use rdma_types::{OdpCapabilities, OdpOperations, RawPacketCapabilities};

use crate::device::fields::attributes;

attributes! {
    /// Attributes that [`DeviceAttributes`](crate::DeviceAttributes) does not have, from
    /// [`Context::query_device_extended`](crate::Context::query_device_extended).
    ///
    /// An attribute that a device does not have is 0, and so are all of them if the provider does not report them.
    #[doc(alias = "ibv_device_attr_ex")]
    ExtendedAttributes(raw: &ibv_device_attr_ex) {
        /// The capabilities of the device for memory that is not pinned (on-demand paging).
        odp: OdpCapabilities => text = OdpCapabilities::from_bits_retain(raw.odp_caps.general_caps),
        /// The operations of reliable connections that can use such memory.
        odp_rc: OdpOperations => text =
            OdpOperations::from_bits_retain(raw.odp_caps.per_transport_caps.rc_odp_caps),
        /// The operations of unreliable connections that can use such memory.
        odp_uc: OdpOperations => text =
            OdpOperations::from_bits_retain(raw.odp_caps.per_transport_caps.uc_odp_caps),
        /// The operations of unreliable datagrams that can use such memory.
        odp_ud: OdpOperations => text =
            OdpOperations::from_bits_retain(raw.odp_caps.per_transport_caps.ud_odp_caps),
        /// The operations of extended reliable connections that can use such memory.
        odp_xrc: OdpOperations => text = OdpOperations::from_bits_retain(raw.xrc_odp_caps),
        /// The mask of the valid bits of a completion's timestamp; 0 without timestamps.
        completion_timestamp_mask: u64 => hex = raw.completion_timestamp_mask,
        /// The frequency of the clock of these timestamps, in kHz; 0 if unknown.
        core_clock_khz: u64 => text = raw.hca_core_clock,
        /// The capabilities for raw packets.
        raw_packet_capabilities: RawPacketCapabilities => text =
            RawPacketCapabilities::from_bits_retain(raw.raw_packet_caps),
        /// The most bytes that the device segments into TCP segments.
        tso_max_bytes: u32 => text = raw.tso_caps.max_tso,
        /// The types of queue pairs with segmentation, a bit for each `enum ibv_qp_type`.
        tso_qp_types: u32 => hex = raw.tso_caps.supported_qpts,
        /// The types of queue pairs that can distribute packets by hash (RSS), a bit for each.
        rss_qp_types: u32 => hex = raw.rss_caps.supported_qpts,
        /// The most RSS indirection tables.
        rss_max_tables: u32 => text = raw.rss_caps.max_rwq_indirection_tables,
        /// The most entries of such a table.
        rss_max_table_size: u32 => text = raw.rss_caps.max_rwq_indirection_table_size,
        /// The fields of a packet that can be hashed: the bits of `enum ibv_rx_hash_fields`.
        rss_hash_fields: u64 => hex = raw.rss_caps.rx_hash_fields_mask,
        /// The hash functions: the bits of `enum ibv_rx_hash_function_flags`.
        rss_hash_functions: u8 => hex = raw.rss_caps.rx_hash_function,
        /// The most receive work queues.
        max_wq_type_rq: u32 => text = raw.max_wq_type_rq,
        /// The lowest rate that a queue pair can be limited to, in kbit/s.
        packet_pacing_min_kbps: u32 => text = raw.packet_pacing_caps.qp_rate_limit_min,
        /// The highest rate that a queue pair can be limited to, in kbit/s; 0 without pacing.
        packet_pacing_max_kbps: u32 => text = raw.packet_pacing_caps.qp_rate_limit_max,
        /// The types of queue pairs with pacing, a bit for each.
        packet_pacing_qp_types: u32 => hex = raw.packet_pacing_caps.supported_qpts,
        /// The most tags of one tag-matching queue; 0 without tag matching.
        tag_matching_max_tags: u32 => text = raw.tm_caps.max_num_tags,
        /// The largest header of a rendezvous message, in bytes.
        tag_matching_max_header: u32 => text = raw.tm_caps.max_rndv_hdr_size,
        /// The capabilities of tag matching: the bits of `enum ibv_tm_cap_flags`.
        tag_matching_flags: u32 => hex = raw.tm_caps.flags,
        /// The most operations on a list of tags at a time.
        tag_matching_max_ops: u32 => text = raw.tm_caps.max_ops,
        /// The most elements of one matched message.
        tag_matching_max_sge: u32 => text = raw.tm_caps.max_sge,
        /// The most completions that can be combined into one event; 0 without moderation.
        cq_moderation_max_count: u16 => text = raw.cq_mod_caps.max_cq_count,
        /// The longest time that an event can be delayed for more completions, in µs.
        cq_moderation_max_us: u16 => text = raw.cq_mod_caps.max_cq_period,
        /// The size of the device's own memory for programs, in bytes.
        max_device_memory: u64 => text = raw.max_dm_size,
        /// The sizes of fetch-and-add over PCI: the bits of `enum ibv_pci_atomic_op_size`.
        pci_fetch_add_sizes: u16 => hex = raw.pci_atomic_caps.fetch_add,
        /// The sizes of swap over PCI.
        pci_swap_sizes: u16 => hex = raw.pci_atomic_caps.swap,
        /// The sizes of compare-and-swap over PCI.
        pci_compare_swap_sizes: u16 => hex = raw.pci_atomic_caps.compare_swap,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unnamed_bits_are_kept() {
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
