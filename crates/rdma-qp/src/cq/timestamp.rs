//! Storage of a completion's timestamp in unused bits of its `ibv_wc`.
//!
//! A slot therefore has the layout that the provider fills, with or without timestamps. Queues without timestamps are
//! polled at no extra cost.

use rdma_sys::{ibv_wc, ibv_wc_status};

/// Marks a completion that has a timestamp. This bit of the QPN field is free, because a QPN has only 24 bits.
const STAMPED: u32 = 1 << 31;
const QPN: u32 = 0x00ff_ffff;
/// A bit that no defined flag uses.
const FLAG: u32 = 1 << 31;

/// Stores a timestamp in a completion.
///
/// The lower half goes into a field that the completion's status leaves undefined. For a success, that is the vendor's
/// code; for a failure, it is the length. The upper half is divided among the partition key index, the upper bits of
/// both QPNs, and an undefined flag. Only management packets use the index.
pub(crate) fn stamp(wc: &mut ibv_wc, ticks: u64) {
    let (low, high) = ((ticks & 0xffff_ffff) as u32, (ticks >> 32) as u32);
    if wc.status == ibv_wc_status::IBV_WC_SUCCESS {
        wc.vendor_err = low;
    } else {
        wc.byte_len = low;
    }
    wc.pkey_index = (high & 0xffff) as u16;
    wc.src_qp = wc.src_qp & QPN | high << 8 & !QPN;
    wc.qp_num = wc.qp_num & QPN | (high & 0x7f00_0000) | STAMPED;
    wc.wc_flags = wc.wc_flags & !FLAG | high & FLAG;
}

/// Returns the timestamp of a completion, if it has one.
#[inline]
pub(crate) fn of(wc: &ibv_wc) -> Option<u64> {
    if wc.qp_num & STAMPED == 0 {
        return None;
    }
    let success = wc.status == ibv_wc_status::IBV_WC_SUCCESS;
    let low = if success { wc.vendor_err } else { wc.byte_len };
    let middle = (wc.src_qp & !QPN) >> 8;
    let high = u32::from(wc.pkey_index) | middle | wc.qp_num & 0x7f00_0000 | wc.wc_flags & FLAG;
    Some(u64::from(high) << 32 | u64::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a completion with all bits set in its fields.
    fn full(status: u32) -> ibv_wc {
        ibv_wc {
            wr_id: u64::MAX,
            status: ibv_wc_status(status),
            opcode: rdma_sys::ibv_wc_opcode(u32::MAX),
            vendor_err: u32::MAX,
            byte_len: u32::MAX,
            qp_num: QPN,
            src_qp: QPN,
            wc_flags: !FLAG,
            pkey_index: u16::MAX,
            slid: u16::MAX,
            sl: u8::MAX,
            dlid_path_bits: u8::MAX,
            ..Default::default()
        }
    }

    #[test]
    fn any_timestamp_comes_back_and_what_is_defined_stays() {
        for ticks in (0..64).map(|bit| 1 << bit).chain([0, u64::MAX, 0x0123_4567_89ab_cdef]) {
            for (status, mut wc) in [(0, full(0)), (5, full(5)), (0, ibv_wc::default())] {
                let before = wc;
                stamp(&mut wc, ticks);
                assert_eq!(of(&wc), Some(ticks), "{ticks:#x}");
                assert_eq!((wc.wr_id, wc.status.0), (before.wr_id, status));
                assert_eq!((wc.qp_num & QPN, wc.opcode), (before.qp_num, before.opcode));
                assert_eq!(
                    (wc.src_qp & QPN, wc.wc_flags & !FLAG),
                    (before.src_qp, before.wc_flags)
                );
                assert_eq!((wc.slid, wc.sl), (before.slid, before.sl));
                assert_eq!(wc.dlid_path_bits, before.dlid_path_bits);
                if status == 0 {
                    assert_eq!(wc.byte_len, before.byte_len);
                } else {
                    assert_eq!(wc.vendor_err, before.vendor_err);
                }
            }
        }
    }

    #[test]
    fn completions_of_a_provider_have_no_timestamp() {
        for status in [0, 5] {
            assert_eq!(of(&ibv_wc { wc_flags: u32::MAX, ..full(status) }), None);
        }
    }
}
