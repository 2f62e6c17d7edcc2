//! Device attributes that the original verbs did not have.

use rdma_sys::ibv_device_attr_ex;
use rdma_types::{OdpCapabilities, OdpOperations, RawPacketCapabilities};

use crate::device::fields::attributes;

attributes! {
    /// Attributes that are not part of [`DeviceAttributes`](crate::DeviceAttributes), from
    /// [`Context::query_device_extended`](crate::Context::query_device_extended).
    ///
    /// An attribute is 0 if the device lacks the feature. All attributes are 0 if the provider does
    /// not report them.
    #[doc(alias = "ibv_device_attr_ex")]
    ExtendedAttributes(raw: &ibv_device_attr_ex) {
        /// The device's capabilities for on-demand paging (ODP), that is, for memory that is not
        /// pinned.
        odp: OdpCapabilities => text = OdpCapabilities::from_bits_retain(raw.odp_caps.general_caps),
        /// The operations that can use ODP memory on reliable connections.
        odp_rc: OdpOperations => text =
            OdpOperations::from_bits_retain(raw.odp_caps.per_transport_caps.rc_odp_caps),
        /// The operations that can use ODP memory on unreliable connections.
        odp_uc: OdpOperations => text =
            OdpOperations::from_bits_retain(raw.odp_caps.per_transport_caps.uc_odp_caps),
        /// The operations that can use ODP memory with unreliable datagrams.
        odp_ud: OdpOperations => text =
            OdpOperations::from_bits_retain(raw.odp_caps.per_transport_caps.ud_odp_caps),
        /// The operations that can use ODP memory on extended reliable connections (XRC).
        odp_xrc: OdpOperations => text = OdpOperations::from_bits_retain(raw.xrc_odp_caps),
        /// The mask of the valid bits in a completion's timestamp; 0 if the device has no
        /// timestamps.
        completion_timestamp_mask: u64 => hex = raw.completion_timestamp_mask,
        /// The frequency of the timestamp clock, in kHz; 0 if unknown.
        core_clock_khz: u64 => text = raw.hca_core_clock,
        /// The capabilities for raw packets.
        raw_packet_capabilities: RawPacketCapabilities => text =
            RawPacketCapabilities::from_bits_retain(raw.raw_packet_caps),
        /// The maximum size of a TCP segmentation offload (TSO) request, in bytes.
        tso_max_bytes: u32 => text = raw.tso_caps.max_tso,
        /// The queue pair types that support TSO: one bit for each value of `enum ibv_qp_type`.
        tso_qp_types: u32 => hex = raw.tso_caps.supported_qpts,
        /// The queue pair types that support receive side scaling (RSS): one bit for each value of
        /// `enum ibv_qp_type`.
        rss_qp_types: u32 => hex = raw.rss_caps.supported_qpts,
        /// The maximum number of RSS indirection tables.
        rss_max_tables: u32 => text = raw.rss_caps.max_rwq_indirection_tables,
        /// The maximum number of entries in an RSS indirection table.
        rss_max_table_size: u32 => text = raw.rss_caps.max_rwq_indirection_table_size,
        /// The packet fields that RSS can hash: the bits of `enum ibv_rx_hash_fields`.
        rss_hash_fields: u64 => hex = raw.rss_caps.rx_hash_fields_mask,
        /// The hash functions for RSS: the bits of `enum ibv_rx_hash_function_flags`.
        rss_hash_functions: u8 => hex = raw.rss_caps.rx_hash_function,
        /// The maximum number of receive work queues.
        max_wq_type_rq: u32 => text = raw.max_wq_type_rq,
        /// The lowest rate to which a queue pair can be limited, in kbit/s.
        packet_pacing_min_kbps: u32 => text = raw.packet_pacing_caps.qp_rate_limit_min,
        /// The highest rate to which a queue pair can be limited, in kbit/s; 0 without pacing.
        packet_pacing_max_kbps: u32 => text = raw.packet_pacing_caps.qp_rate_limit_max,
        /// The queue pair types that support pacing: one bit for each value of `enum ibv_qp_type`.
        packet_pacing_qp_types: u32 => hex = raw.packet_pacing_caps.supported_qpts,
        /// The maximum number of tags in one tag-matching queue; 0 without tag matching.
        tag_matching_max_tags: u32 => text = raw.tm_caps.max_num_tags,
        /// The largest header of a rendezvous message, in bytes.
        tag_matching_max_header: u32 => text = raw.tm_caps.max_rndv_hdr_size,
        /// The tag-matching capabilities: the bits of `enum ibv_tm_cap_flags`.
        tag_matching_flags: u32 => hex = raw.tm_caps.flags,
        /// The maximum number of outstanding operations on a tag list.
        tag_matching_max_ops: u32 => text = raw.tm_caps.max_ops,
        /// The maximum number of scatter/gather elements in a tagged buffer.
        tag_matching_max_sge: u32 => text = raw.tm_caps.max_sge,
        /// The maximum number of completions that can be combined into one event; 0 without
        /// moderation.
        cq_moderation_max_count: u16 => text = raw.cq_mod_caps.max_cq_count,
        /// The maximum time that an event can be delayed to combine completions, in µs.
        cq_moderation_max_us: u16 => text = raw.cq_mod_caps.max_cq_period,
        /// The size of the device memory that programs can allocate, in bytes.
        max_device_memory: u64 => text = raw.max_dm_size,
        /// The operand sizes of fetch-and-add over PCI: the bits of `enum ibv_pci_atomic_op_size`.
        pci_fetch_add_sizes: u16 => hex = raw.pci_atomic_caps.fetch_add,
        /// The operand sizes of swap over PCI.
        pci_swap_sizes: u16 => hex = raw.pci_atomic_caps.swap,
        /// The operand sizes of compare-and-swap over PCI.
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
