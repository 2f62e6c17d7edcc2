//! What a device is and can.

use rdma_sys::ibv_device_attr;
use rdma_types::{AtomicCapability, DeviceCapabilities, Guid};

use crate::device::fields::attributes;

attributes! {
    /// What a device is and can, from [`Context::query_device`](crate::Context::query_device).
    ///
    /// Limits are upper bounds: how much there really is depends on what else is in use.
    #[doc(alias = "ibv_device_attr")]
    DeviceAttributes {
        /// The firmware's version, as the vendor writes it.
        firmware_version: String => text,
        /// The GUID of the device.
        node_guid: Guid => text,
        /// The GUID of what the device is a part of: the same for all devices of one card.
        system_image_guid: Guid => text,
        /// The vendor's number.
        vendor_id: u32 => hex,
        /// The vendor's number of the model.
        vendor_part_id: u32 => text,
        /// The hardware's version.
        hardware_version: u32 => hex,
        /// The most bytes that one region can have.
        max_mr_size: u64 => hex,
        /// The page sizes that it can have, a bit for each.
        page_size_capabilities: u64 => hex,
        /// The most queue pairs.
        max_qp: u32 => text,
        /// The most work requests in one queue.
        max_qp_wr: u32 => text,
        /// The most scatter/gather elements of one work request, reads apart.
        max_sge: u32 => text,
        /// The most scatter/gather elements of one RDMA read.
        max_sge_rd: u32 => text,
        /// The most completion queues.
        max_cq: u32 => text,
        /// The most completions that one queue can hold.
        max_cqe: u32 => text,
        /// The most memory regions.
        max_mr: u32 => text,
        /// The most memory windows; 0 if the device has none.
        max_mw: u32 => text,
        /// The most protection domains.
        max_pd: u32 => text,
        /// The most RDMA reads and atomics of peers that one queue pair answers at a time.
        max_qp_rd_atom: u32 => text,
        /// The most RDMA reads and atomics that one queue pair has in flight.
        max_qp_init_rd_atom: u32 => text,
        /// The most RDMA reads and atomics of peers that the whole device answers at a time.
        max_res_rd_atom: u32 => text,
        /// What its atomic operations are atomic to.
        atomic_capability: AtomicCapability => text,
        /// What it can.
        capabilities: DeviceCapabilities => text,
        /// The most end-to-end contexts of reliable datagrams, which no device has.
        max_ee: u32 => text,
        /// The most domains of reliable datagrams.
        max_rdd: u32 => text,
        /// The most RDMA reads and atomics that one end-to-end context answers at a time.
        max_ee_rd_atom: u32 => text,
        /// The most RDMA reads and atomics that one end-to-end context has in flight.
        max_ee_init_rd_atom: u32 => text,
        /// The most address handles.
        max_ah: u32 => text,
        /// The most fast memory regions of the old kind, which no device has any more.
        max_fmr: u32 => text,
        /// How often one of those can be mapped.
        max_map_per_fmr: u32 => text,
        /// The most shared receive queues.
        max_srq: u32 => text,
        /// The most receives in one shared receive queue.
        max_srq_wr: u32 => text,
        /// The most scatter elements of a receive in a shared receive queue.
        max_srq_sge: u32 => text,
        /// The most multicast groups.
        max_mcast_grp: u32 => text,
        /// The most queue pairs in one multicast group.
        max_mcast_qp_attach: u32 => text,
        /// The most queue pairs in all multicast groups together.
        max_total_mcast_qp_attach: u32 => text,
        /// The most raw IPv6 queue pairs.
        max_raw_ipv6_qp: u32 => text,
        /// The most raw Ethernet queue pairs.
        max_raw_ethernet_qp: u32 => text,
        /// The most partition keys.
        max_pkeys: u16 => text,
        /// How long it takes to acknowledge, as the specification encodes it: 4.096 µs times two to the
        /// power of this.
        local_ack_delay_code: u8 => text,
        /// How many ports there are. They are numbered from 1.
        port_count: u8 => text,
    }
}

impl DeviceAttributes {
    /// `more` are the flags of the extended attributes: those of the classic ones again, and above.
    pub(crate) fn from_raw(raw: &ibv_device_attr, more: u64) -> Self {
        // C has them as signed numbers, and no meaning for negative ones.
        let limit = |number: i32| u32::try_from(number).unwrap_or(0);
        let firmware = raw.fw_ver.iter().map(|c| c.cast_unsigned_byte()).take_while(|&c| c != 0);
        let firmware: Vec<u8> = firmware.collect();
        Self {
            firmware_version: String::from_utf8_lossy(&firmware).into_owned(),
            node_guid: Guid::from_be(raw.node_guid),
            system_image_guid: Guid::from_be(raw.sys_image_guid),
            vendor_id: raw.vendor_id,
            vendor_part_id: raw.vendor_part_id,
            hardware_version: raw.hw_ver,
            max_mr_size: raw.max_mr_size,
            page_size_capabilities: raw.page_size_cap,
            max_qp: limit(raw.max_qp),
            max_qp_wr: limit(raw.max_qp_wr),
            max_sge: limit(raw.max_sge),
            max_sge_rd: limit(raw.max_sge_rd),
            max_cq: limit(raw.max_cq),
            max_cqe: limit(raw.max_cqe),
            max_mr: limit(raw.max_mr),
            max_mw: limit(raw.max_mw),
            max_pd: limit(raw.max_pd),
            max_qp_rd_atom: limit(raw.max_qp_rd_atom),
            max_qp_init_rd_atom: limit(raw.max_qp_init_rd_atom),
            max_res_rd_atom: limit(raw.max_res_rd_atom),
            atomic_capability: AtomicCapability::from_raw(raw.atomic_cap.0),
            capabilities: DeviceCapabilities::from_bits_retain(
                u64::from(raw.device_cap_flags) | more,
            ),
            max_ee: limit(raw.max_ee),
            max_rdd: limit(raw.max_rdd),
            max_ee_rd_atom: limit(raw.max_ee_rd_atom),
            max_ee_init_rd_atom: limit(raw.max_ee_init_rd_atom),
            max_ah: limit(raw.max_ah),
            max_srq: limit(raw.max_srq),
            max_srq_wr: limit(raw.max_srq_wr),
            max_srq_sge: limit(raw.max_srq_sge),
            max_mcast_grp: limit(raw.max_mcast_grp),
            max_mcast_qp_attach: limit(raw.max_mcast_qp_attach),
            max_total_mcast_qp_attach: limit(raw.max_total_mcast_qp_attach),
            max_raw_ipv6_qp: limit(raw.max_raw_ipv6_qp),
            max_fmr: limit(raw.max_fmr),
            max_map_per_fmr: limit(raw.max_map_per_fmr),
            max_raw_ethernet_qp: limit(raw.max_raw_ethy_qp),
            max_pkeys: raw.max_pkeys,
            local_ack_delay_code: raw.local_ca_ack_delay,
            port_count: raw.phys_port_cnt,
        }
    }
}

/// `c_char` is signed on some machines and unsigned on others.
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
