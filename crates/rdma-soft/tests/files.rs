//! Descriptors of a context are closed with it, whoever knew its queue pairs. One test, since it counts
//! the descriptors of its process.
#![allow(clippy::unwrap_used)]

use rdma_sys::ibv_qp_type;
use test_support::rig::Size;
use test_support::rig::connect::{Knobs, Side, connect_sides, connect_unreliably};
use test_support::rig::datagram;
use test_support::rig::post::Wr;

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs a scene with a queue pair that stays, and says how many descriptors are left open by those that
/// went.
fn left_open(qp_type: ibv_qp_type, scene: impl Fn(&Side, &Side)) -> isize {
    let size = Size { qp_type, ..Size::default() };
    let stays = Side::new("soft0", &size, 64);
    let before = open_files().cast_signed();
    let goes = Side::new("soft0", &size, 64);
    scene(&stays, &goes);
    drop(goes);
    let left = open_files().cast_signed() - before;
    drop(stays);
    left
}

#[test]
fn a_context_takes_its_files_along() {
    rdma_soft::install();
    let knobs = Knobs { rnr_retries: 7, ..Knobs::default() };
    // The requester stays, and has sent to the one that goes.
    let sent = left_open(ibv_qp_type::IBV_QPT_RC, |stays, goes| {
        connect_sides(stays, goes, &knobs);
        goes.qp.post_receive(1, &[]);
        stays.qp.post(&Wr::send(1, &[]));
        stays.send_cq.expect_success(1);
    });
    // The responder stays, and the requester that goes waits for a receive request there.
    let waited = left_open(ibv_qp_type::IBV_QPT_RC, |stays, goes| {
        connect_sides(stays, goes, &knobs);
        goes.qp.post(&Wr::send(1, &[]));
        assert!(goes.send_cq.is_empty());
    });
    // The one that goes was connected anew to another before, which had nothing to say.
    let moved = left_open(ibv_qp_type::IBV_QPT_RC, |stays, goes| {
        connect_sides(stays, goes, &knobs);
        goes.qp.post_receive(1, &[]);
        stays.qp.post(&Wr::send(1, &[]));
        stays.send_cq.expect_success(1);
        goes.qp.to_reset();
        let other = Side::new("soft0", &Size::default(), 64);
        connect_sides(&other, goes, &knobs);
        goes.qp.post_receive(2, &[]);
        other.qp.post(&Wr::send(2, &[]));
        other.send_cq.expect_success(2);
        goes.receive_cq.expect_success(2);
    });
    // What sends without acknowledgements remembers where it sent to last.
    let lost = left_open(ibv_qp_type::IBV_QPT_UC, |stays, goes| {
        let (at_stays, at_goes) = (stays.endpoint(), goes.endpoint());
        connect_unreliably(&stays.qp, &at_stays, &at_goes, &knobs);
        connect_unreliably(&goes.qp, &at_goes, &at_stays, &knobs);
        stays.qp.post(&Wr::send(1, &[]));
        stays.send_cq.expect_success(1);
    });
    let datagram = left_open(ibv_qp_type::IBV_QPT_UD, |stays, goes| {
        [stays, goes].into_iter().for_each(|side| datagram::activate(&side.qp, datagram::QKEY));
        let to = goes.endpoint();
        let ah = stays.pd.ah_to(&stays.endpoint(), &to);
        stays.qp.post(&Wr::send(1, &[]).to(&ah, to.qpn, datagram::QKEY));
        stays.send_cq.expect_success(1);
    });
    let left = [sent, waited, moved, lost, datagram];
    assert_eq!(left, [0; 5], "descriptors of closed contexts");
}
