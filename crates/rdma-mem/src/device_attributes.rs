//! What a device is and can.

use rdma_sys::ibv_device_attr;
use rdma_types::{AtomicCapability, Guid};

/// What a device is and can, from [`Context::query_device`](crate::Context::query_device).
///
/// Limits are upper bounds: how much there really is depends on what else is in use.
#[doc(alias = "ibv_device_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// The firmware's version, as the vendor writes it.
    pub firmware_version: String,
    /// The GUID of the device.
    pub node_guid: Guid,
    /// The GUID of what the device is a part of: the same for all devices of one card.
    pub system_image_guid: Guid,
    /// The vendor's number.
    pub vendor_id: u32,
    /// The vendor's number of the model.
    pub vendor_part_id: u32,
    /// The hardware's version.
    pub hardware_version: u32,
    /// The most bytes that one region can have.
    pub max_mr_size: u64,
    /// The page sizes that it can have, a bit for each.
    pub page_size_capabilities: u64,
    /// The most queue pairs.
    pub max_qp: u32,
    /// The most work requests in one queue.
    pub max_qp_wr: u32,
    /// The most scatter/gather elements of one work request, reads apart.
    pub max_sge: u32,
    /// The most scatter/gather elements of one RDMA read.
    pub max_sge_rd: u32,
    /// The most completion queues.
    pub max_cq: u32,
    /// The most completions that one queue can hold.
    pub max_cqe: u32,
    /// The most memory regions.
    pub max_mr: u32,
    /// The most memory windows; 0 if the device has none.
    pub max_mw: u32,
    /// The most protection domains.
    pub max_pd: u32,
    /// The most RDMA reads and atomics of peers that one queue pair answers at a time.
    pub max_qp_rd_atom: u32,
    /// The most RDMA reads and atomics that one queue pair has in flight.
    pub max_qp_init_rd_atom: u32,
    /// The most RDMA reads and atomics of peers that the whole device answers at a time.
    pub max_res_rd_atom: u32,
    /// What its atomic operations are atomic to.
    pub atomic_capability: AtomicCapability,
    /// What it can, as C has it: the bits of `enum ibv_device_cap_flags`.
    pub capability_flags: u32,
    /// The most address handles.
    pub max_ah: u32,
    /// The most shared receive queues.
    pub max_srq: u32,
    /// The most receives in one shared receive queue.
    pub max_srq_wr: u32,
    /// The most scatter elements of a receive in a shared receive queue.
    pub max_srq_sge: u32,
    /// The most multicast groups.
    pub max_mcast_grp: u32,
    /// The most queue pairs in one multicast group.
    pub max_mcast_qp_attach: u32,
    /// The most queue pairs in all multicast groups together.
    pub max_total_mcast_qp_attach: u32,
    /// The most raw Ethernet queue pairs.
    pub max_raw_ethernet_qp: u32,
    /// The most partition keys.
    pub max_pkeys: u16,
    /// How long it takes to acknowledge, as the specification encodes it: 4.096 µs times two to the
    /// power of this.
    pub local_ack_delay_code: u8,
    /// How many ports there are. They are numbered from 1.
    pub port_count: u8,
}

impl DeviceAttributes {
    pub(crate) fn from_raw(raw: &ibv_device_attr) -> Self {
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
            capability_flags: raw.device_cap_flags,
            max_ah: limit(raw.max_ah),
            max_srq: limit(raw.max_srq),
            max_srq_wr: limit(raw.max_srq_wr),
            max_srq_sge: limit(raw.max_srq_sge),
            max_mcast_grp: limit(raw.max_mcast_grp),
            max_mcast_qp_attach: limit(raw.max_mcast_qp_attach),
            max_total_mcast_qp_attach: limit(raw.max_total_mcast_qp_attach),
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
        let attributes = DeviceAttributes::from_raw(&raw);
        assert_eq!((attributes.max_qp, attributes.max_cq), (0, 7));
        assert_eq!(attributes.firmware_version, "1.2");
    }
}
