//! The attributes of a device.

use std::ffi::c_char;

use rdma_sys::ibv_device_attr;
use rdma_types::{AtomicCapability, DeviceCapabilities, Guid};

use crate::device::fields::attributes;

// `more` holds the extended capability flags. They include the classic flags if the provider
// reports them, and are 0 otherwise.
attributes! {
    /// The attributes of a device, from [`Context::query_device`](crate::Context::query_device).
    ///
    /// Limits are upper bounds: how many objects can still be created depends on those that exist.
    #[doc(alias = "ibv_device_attr")]
    DeviceAttributes(raw: &ibv_device_attr, more: u64) {
        /// The firmware's version, in the vendor's format.
        firmware_version: String => text = string(&raw.fw_ver),
        /// The GUID of the device.
        node_guid: Guid => text = Guid::from_be(raw.node_guid),
        /// The GUID of the system that contains the device. All devices on one card share it.
        system_image_guid: Guid => text = Guid::from_be(raw.sys_image_guid),
        /// The vendor's number.
        vendor_id: u32 => hex = raw.vendor_id,
        /// The vendor's number for this model.
        vendor_part_id: u32 => text = raw.vendor_part_id,
        /// The hardware's version.
        hardware_version: u32 => hex = raw.hw_ver,
        /// The maximum size of a region, in bytes.
        max_mr_size: u64 => hex = raw.max_mr_size,
        /// The supported page sizes, one bit for each.
        page_size_capabilities: u64 => hex = raw.page_size_cap,
        /// The maximum number of queue pairs.
        max_qp: u32 => text = limit(raw.max_qp),
        /// The maximum number of work requests in one queue.
        max_qp_wr: u32 => text = limit(raw.max_qp_wr),
        /// The maximum number of scatter/gather elements of one work request other than a read.
        max_sge: u32 => text = limit(raw.max_sge),
        /// The maximum number of scatter/gather elements of one RDMA read.
        max_sge_rd: u32 => text = limit(raw.max_sge_rd),
        /// The maximum number of completion queues.
        max_cq: u32 => text = limit(raw.max_cq),
        /// The maximum number of completions that one queue can hold.
        max_cqe: u32 => text = limit(raw.max_cqe),
        /// The maximum number of memory regions.
        max_mr: u32 => text = limit(raw.max_mr),
        /// The maximum number of memory windows; 0 if the device has none.
        max_mw: u32 => text = limit(raw.max_mw),
        /// The maximum number of protection domains.
        max_pd: u32 => text = limit(raw.max_pd),
        /// The maximum number of incoming RDMA reads and atomics that one queue pair serves at a
        /// time.
        max_qp_rd_atom: u32 => text = limit(raw.max_qp_rd_atom),
        /// The maximum number of RDMA reads and atomics that one queue pair can have in flight.
        max_qp_init_rd_atom: u32 => text = limit(raw.max_qp_init_rd_atom),
        /// The maximum number of incoming RDMA reads and atomics that the whole device serves at a
        /// time.
        max_res_rd_atom: u32 => text = limit(raw.max_res_rd_atom),
        /// The scope of the device's atomic operations.
        atomic_capability: AtomicCapability => text = AtomicCapability::from_raw(raw.atomic_cap.0),
        /// The device's capabilities.
        capabilities: DeviceCapabilities => text =
            DeviceCapabilities::from_bits_retain(u64::from(raw.device_cap_flags) | more),
        /// The maximum number of end-to-end contexts for reliable datagrams, which no device
        /// implements.
        max_ee: u32 => text = limit(raw.max_ee),
        /// The maximum number of reliable datagram domains.
        max_rdd: u32 => text = limit(raw.max_rdd),
        /// The maximum number of incoming RDMA reads and atomics that one end-to-end context serves
        /// at a time.
        max_ee_rd_atom: u32 => text = limit(raw.max_ee_rd_atom),
        /// The maximum number of RDMA reads and atomics that one end-to-end context can have in
        /// flight.
        max_ee_init_rd_atom: u32 => text = limit(raw.max_ee_init_rd_atom),
        /// The maximum number of address handles.
        max_ah: u32 => text = limit(raw.max_ah),
        /// The maximum number of fast memory regions (FMRs), an obsolete interface that no current
        /// device implements.
        max_fmr: u32 => text = limit(raw.max_fmr),
        /// The maximum number of times that one FMR can be remapped.
        max_map_per_fmr: u32 => text = limit(raw.max_map_per_fmr),
        /// The maximum number of shared receive queues.
        max_srq: u32 => text = limit(raw.max_srq),
        /// The maximum number of receives in one shared receive queue.
        max_srq_wr: u32 => text = limit(raw.max_srq_wr),
        /// The maximum number of scatter elements of a receive in a shared receive queue.
        max_srq_sge: u32 => text = limit(raw.max_srq_sge),
        /// The maximum number of multicast groups.
        max_mcast_grp: u32 => text = limit(raw.max_mcast_grp),
        /// The maximum number of queue pairs in one multicast group.
        max_mcast_qp_attach: u32 => text = limit(raw.max_mcast_qp_attach),
        /// The maximum number of attached queue pairs, summed over all multicast groups.
        max_total_mcast_qp_attach: u32 => text = limit(raw.max_total_mcast_qp_attach),
        /// The maximum number of raw IPv6 queue pairs.
        max_raw_ipv6_qp: u32 => text = limit(raw.max_raw_ipv6_qp),
        /// The maximum number of raw Ethernet queue pairs.
        max_raw_ethernet_qp: u32 => text = limit(raw.max_raw_ethy_qp),
        /// The maximum number of partition keys.
        max_pkeys: u16 => text = raw.max_pkeys,
        /// The longest time by which the device may delay an acknowledgement, encoded as in the
        /// specification: 4.096 µs · 2^code.
        local_ack_delay_code: u8 => text = raw.local_ca_ack_delay,
        /// The number of ports. They are numbered from 1.
        port_count: u8 => text = raw.phys_port_cnt,
    }
}

/// Converts a limit. C declares limits as signed numbers; a negative one has no meaning and becomes
/// 0.
fn limit(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// Returns the characters before the first zero byte.
fn string(c: &[c_char]) -> String {
    let bytes = c.iter().map(|c| c.cast_unsigned_byte()).take_while(|&c| c != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// Converts a `c_char`, which is signed on some architectures and unsigned on others, to a byte.
trait CastUnsignedByte {
    fn cast_unsigned_byte(self) -> u8;
}

impl CastUnsignedByte for i8 {
    fn cast_unsigned_byte(self) -> u8 {
        self.cast_unsigned()
    }
}

impl CastUnsignedByte for u8 {
    fn cast_unsigned_byte(self) -> u8 {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_limits_are_none_and_texts_end_at_zero() {
        let mut raw = ibv_device_attr { max_qp: -1, max_cq: 7, ..Default::default() };
        for (place, byte) in raw.fw_ver.iter_mut().zip(*b"1.2\0x") {
            *place = byte as _;
        }
        let attributes = DeviceAttributes::from_raw(&raw, 1 << 34);
        assert_eq!((attributes.max_qp, attributes.max_cq), (0, 7));
        assert_eq!(attributes.firmware_version, "1.2");
        assert_eq!(attributes.capabilities, DeviceCapabilities::RAW_SCATTER_FCS);
        let fields: Vec<_> = attributes.fields().collect();
        assert_eq!(fields[0], ("firmware_version", "1.2".to_owned()));
        assert!(fields.contains(&("capabilities", "RAW_SCATTER_FCS".to_owned())));
    }
}
