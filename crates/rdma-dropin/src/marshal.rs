//! Conversions between the kernel's structs and those of libibverbs. librdmacm calls them with the structs that it reads
//! from `/dev/infiniband/rdma_cm`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};

use rdma_sys::{
    ibv_ah_attr, ibv_gid, ibv_global_route, ibv_mig_state, ibv_mtu, ibv_qp_attr, ibv_qp_cap,
    ibv_qp_state,
};

/// `struct ib_uverbs_global_route` of `<rdma/ib_user_verbs.h>`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct KernelRoute {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved: u8,
}

/// `struct ib_uverbs_ah_attr` of `<rdma/ib_user_verbs.h>`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct KernelAddress {
    grh: KernelRoute,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved: u8,
}

/// `struct ib_uverbs_qp_attr` of `<rdma/ib_user_verbs.h>`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct KernelAttributes {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernelAddress,
    alt_ah_attr: KernelAddress,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

/// `struct ib_user_path_rec` of `<rdma/ib_user_sa.h>`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct KernelPath {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

/// `struct ibv_sa_path_rec` of `<infiniband/sa.h>`.
#[repr(C)]
struct Path {
    dgid: ibv_gid,
    sgid: ibv_gid,
    dlid: u16,
    slid: u16,
    raw_traffic: c_int,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: c_int,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

// The sizes in the headers.
const _: () = assert!(size_of::<KernelAddress>() == 32 && size_of::<KernelAttributes>() == 144);
const _: () = assert!(size_of::<KernelPath>() == 64 && size_of::<Path>() == 64);

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const KernelAddress) {
    // SAFETY: the caller passes the kernel's struct (SAFETY.md F1).
    let from = unsafe { from.read() };
    // SAFETY: the caller passes a writable struct (SAFETY.md F1).
    unsafe { to.write(from.into()) };
}

/// Copies all attributes except `qp_state`, which keeps its value as in libibverbs, and `rate_limit`, which the kernel's
/// struct lacks.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    to: *mut ibv_qp_attr,
    from: *const KernelAttributes,
) {
    // SAFETY: the caller passes the kernel's struct (SAFETY.md F1).
    let attributes = ibv_qp_attr::from(unsafe { from.read() });
    let start = offset_of!(ibv_qp_attr, cur_qp_state);
    let length = offset_of!(ibv_qp_attr, rate_limit) - start;
    let source = (&raw const attributes).wrapping_byte_add(start).cast::<MaybeUninit<u8>>();
    let target = to.wrapping_byte_add(start).cast::<MaybeUninit<u8>>();
    // SAFETY: both ranges are parts of structs of this type (SAFETY.md F5). The caller passes a writable struct (F1),
    // and this function's own struct is a different one.
    unsafe { source.copy_to_nonoverlapping(target, length) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut Path, from: *const KernelPath) {
    // SAFETY: the caller passes the kernel's struct (SAFETY.md F1).
    let from = unsafe { from.read() };
    // SAFETY: the caller passes a writable struct (SAFETY.md F1).
    unsafe { to.write(from.into()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut KernelPath, from: *const Path) {
    // SAFETY: the caller passes an initialised record (SAFETY.md F1).
    let from = unsafe { from.read() };
    // SAFETY: the caller passes a writable struct (SAFETY.md F1).
    unsafe { to.write(from.into()) };
}

impl From<KernelAddress> for ibv_ah_attr {
    fn from(kernel: KernelAddress) -> Self {
        Self {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: kernel.grh.dgid },
                flow_label: kernel.grh.flow_label,
                sgid_index: kernel.grh.sgid_index,
                hop_limit: kernel.grh.hop_limit,
                traffic_class: kernel.grh.traffic_class,
            },
            dlid: kernel.dlid,
            sl: kernel.sl,
            src_path_bits: kernel.src_path_bits,
            static_rate: kernel.static_rate,
            is_global: kernel.is_global,
            port_num: kernel.port_num,
        }
    }
}

impl From<KernelAttributes> for ibv_qp_attr {
    fn from(kernel: KernelAttributes) -> Self {
        Self {
            qp_state: ibv_qp_state(kernel.qp_state),
            cur_qp_state: ibv_qp_state(kernel.cur_qp_state),
            path_mtu: ibv_mtu(kernel.path_mtu),
            path_mig_state: ibv_mig_state(kernel.path_mig_state),
            qkey: kernel.qkey,
            rq_psn: kernel.rq_psn,
            sq_psn: kernel.sq_psn,
            dest_qp_num: kernel.dest_qp_num,
            qp_access_flags: kernel.qp_access_flags,
            cap: ibv_qp_cap {
                max_send_wr: kernel.max_send_wr,
                max_recv_wr: kernel.max_recv_wr,
                max_send_sge: kernel.max_send_sge,
                max_recv_sge: kernel.max_recv_sge,
                max_inline_data: kernel.max_inline_data,
            },
            ah_attr: kernel.ah_attr.into(),
            alt_ah_attr: kernel.alt_ah_attr.into(),
            pkey_index: kernel.pkey_index,
            alt_pkey_index: kernel.alt_pkey_index,
            en_sqd_async_notify: kernel.en_sqd_async_notify,
            sq_draining: kernel.sq_draining,
            max_rd_atomic: kernel.max_rd_atomic,
            max_dest_rd_atomic: kernel.max_dest_rd_atomic,
            min_rnr_timer: kernel.min_rnr_timer,
            port_num: kernel.port_num,
            timeout: kernel.timeout,
            retry_cnt: kernel.retry_cnt,
            rnr_retry: kernel.rnr_retry,
            alt_port_num: kernel.alt_port_num,
            alt_timeout: kernel.alt_timeout,
            rate_limit: 0,
        }
    }
}

impl From<KernelPath> for Path {
    fn from(kernel: KernelPath) -> Self {
        Self {
            dgid: ibv_gid { raw: kernel.dgid },
            sgid: ibv_gid { raw: kernel.sgid },
            dlid: kernel.dlid,
            slid: kernel.slid,
            raw_traffic: kernel.raw_traffic.cast_signed(),
            flow_label: kernel.flow_label,
            hop_limit: kernel.hop_limit,
            traffic_class: kernel.traffic_class,
            reversible: kernel.reversible.cast_signed(),
            numb_path: kernel.numb_path,
            pkey: kernel.pkey,
            sl: kernel.sl,
            mtu_selector: kernel.mtu_selector,
            // The kernel's field is wider, but an MTU code has six bits (IBTA volume 1, 15.2.5.16).
            mtu: u8::try_from(kernel.mtu).unwrap_or(u8::MAX),
            rate_selector: kernel.rate_selector,
            rate: kernel.rate,
            packet_life_time_selector: kernel.packet_life_time_selector,
            packet_life_time: kernel.packet_life_time,
            preference: kernel.preference,
        }
    }
}

impl From<Path> for KernelPath {
    fn from(path: Path) -> Self {
        Self {
            dgid: gid_bytes(path.dgid),
            sgid: gid_bytes(path.sgid),
            dlid: path.dlid,
            slid: path.slid,
            raw_traffic: path.raw_traffic.cast_unsigned(),
            flow_label: path.flow_label,
            reversible: path.reversible.cast_unsigned(),
            mtu: path.mtu.into(),
            pkey: path.pkey,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            numb_path: path.numb_path,
            sl: path.sl,
            mtu_selector: path.mtu_selector,
            rate_selector: path.rate_selector,
            rate: path.rate,
            packet_life_time_selector: path.packet_life_time_selector,
            packet_life_time: path.packet_life_time,
            preference: path.preference,
        }
    }
}

fn gid_bytes(gid: ibv_gid) -> [u8; 16] {
    // SAFETY: all fields of the union have 16 bytes (SAFETY.md F5), which the caller has initialised (F1).
    unsafe { gid.raw }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_copied_except_the_state_and_the_rate_limit() {
        let from = KernelAttributes {
            qp_state: 6,
            cur_qp_state: 2,
            ah_attr: KernelAddress { dlid: 7, ..KernelAddress::default() },
            max_inline_data: 64,
            alt_timeout: 9,
            ..KernelAttributes::default()
        };
        let mut to = ibv_qp_attr { qp_state: ibv_qp_state(1), rate_limit: 5, ..Default::default() };
        // SAFETY: both structs are live and initialised.
        unsafe { ibv_copy_qp_attr_from_kern(&raw mut to, &raw const from) };
        assert_eq!((to.qp_state.0, to.cur_qp_state.0, to.rate_limit), (1, 2, 5));
        assert_eq!((to.ah_attr.dlid, to.cap.max_inline_data, to.alt_timeout), (7, 64, 9));
    }

    #[test]
    fn a_path_survives_both_conversions() {
        let from = KernelPath {
            dgid: [1; 16],
            sgid: [2; 16],
            flow_label: 3,
            reversible: 1,
            mtu: 4,
            pkey: 0xffff,
            preference: 5,
            ..KernelPath::default()
        };
        assert_eq!(KernelPath::from(Path::from(from)), from);
    }
}
