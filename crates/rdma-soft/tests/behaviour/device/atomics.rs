//! Atomics: the choices of this device.

use rdma_sys::ibv_wc_status as Status;

use crate::device::rig::connect::{Knobs, pair, pair_with};
use crate::device::rig::post::Wr;
use crate::device::rig::{LOCAL_WRITE, REMOTE_ATOMIC, Size, on_each_device};

/// Rights of queue pair and region for atomics alone.
const ATOMIC: u32 = LOCAL_WRITE | REMOTE_ATOMIC;

#[test]
fn alignment_and_length_are_refused_by_completions() {
    on_each_device("atomic-refused", |device| {
        let refused = |offset: usize, length: usize, status| {
            let knobs = Knobs { access: ATOMIC, ..Knobs::default() };
            let (a, b) = pair_with(device, &Size::default(), &knobs);
            let result = a.pd.register(16, LOCAL_WRITE);
            let word = b.pd.register_filled(vec![7; 16], ATOMIC);
            a.qp.post(&Wr::fetch_add(1, &[result.sge(0, length)], &word, offset, 1));
            a.send_cq.expect(1, status);
            assert_eq!(word.deregister(), [7; 16]);
        };
        refused(4, 8, Status::IBV_WC_REM_INV_REQ_ERR);
        refused(0, 4, Status::IBV_WC_LOC_LEN_ERR);
        refused(0, 16, Status::IBV_WC_LOC_LEN_ERR);
    });
}

#[test]
fn an_atomic_takes_a_resource_and_is_never_inline() {
    on_each_device("atomic-post", |device| {
        let (a, b) = pair(device);
        let (result, word) = (a.pd.register(8, LOCAL_WRITE), b.pd.register(8, ATOMIC));
        let wr = Wr::fetch_add(1, &[result.sge(0, 8)], &word, 0, 1);
        assert_eq!(a.qp.try_post(&wr.clone().inline()), rdma_sys::Errno::EINVAL.raw());
        let (c, _d) =
            pair_with(device, &Size::default(), &Knobs { rd_atomic: 0, ..Knobs::default() });
        assert_eq!(c.qp.try_post(&wr), rdma_sys::Errno::EINVAL.raw());
    });
}
