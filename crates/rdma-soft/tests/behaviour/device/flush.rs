//! The error state: the flushed requests, their order, and the fields of a failed completion.

use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_status as Status};

use crate::device::rig::connect::{Knobs, connect, endpoint, pair};
use crate::device::rig::post::Wr;
use crate::device::rig::scene::{RECEIVE_A, RECEIVE_B, Scene};
use crate::device::rig::{Size, imm_of, on_each_device, on_each_held_device};

/// A request that B refuses.
fn bad(scene: &Scene, wr_id: u64) -> Wr {
    let wr = Wr::write(wr_id, &[scene.at_a.sge(0, 8)], &scene.at_b, 0);
    wr.remote(scene.at_b.address(), scene.at_b.key() ^ 1)
}

#[test]
fn requests_after_one_in_flight_are_flushed_in_order() {
    on_each_held_device("flush-held", |device| {
        let scene = Scene::new(device.name());
        let good = |n| Wr::write(n, &[scene.at_a.sge(0, 8)], &scene.at_b, 0);
        scene.a.qp.post(&good(10).unsignaled());
        scene.a.qp.post(&bad(&scene, 11).unsignaled());
        for n in 12..=15 {
            scene.a.qp.post(&good(n).unsignaled());
        }
        assert_eq!(device.in_flight(scene.a.qp.qpn()), 6);
        assert_eq!(device.release_all(), 2, "one succeeds, one fails, none is tried after that");
        scene.a.send_cq.expect(11, Status::IBV_WC_REM_ACCESS_ERR);
        scene.a.send_cq.expect_flushed(12..=15);
        assert!(scene.a.send_cq.is_empty());
        assert_eq!(device.in_flight(scene.a.qp.qpn()), 0);
    });
}

#[test]
fn send_queue_is_flushed_before_the_receive_queue() {
    on_each_held_device("flush-queues", |device| {
        let (a, b) = pair(device.name());
        // Both queues complete into one.
        let qp = a.pd.qp(&a.send_cq, &a.send_cq, &Size::default());
        let at_qp = endpoint(&a.context, &qp);
        connect(&qp, &at_qp, &b.endpoint(), &Knobs::default());
        for n in 0..4 {
            qp.post_receive(n, &[]);
            qp.post(&Wr::send(n + 10, &[]).unsignaled());
        }
        qp.to_error();
        a.send_cq.expect_flushed([10, 11, 12, 13, 0, 1, 2, 3]);
        assert!(a.send_cq.is_empty());
    });
}

/// Checks that these fields of a failed completion hold the right values, and all others junk.
fn assert_failed_completion(wc: &ibv_wc, wr_id: u64, status: Status, qpn: u32) {
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (wr_id, status, qpn));
    assert_ne!(wc.vendor_err, 0);
    assert!(wc.opcode.0 > 1 << 16, "no opcode: {:?}", wc.opcode);
    for field in [wc.byte_len, wc.wc_flags, imm_of(wc), wc.src_qp] {
        assert!(field > 1 << 16, "the field looks valid: {field}");
    }
    assert!(wc.pkey_index > 1 && wc.slid > 1 && wc.sl > 15 && wc.dlid_path_bits > 1);
}

#[test]
fn failed_completion_has_only_the_request_and_the_status() {
    on_each_device("junk-failed", |device| {
        let scene = Scene::new(device);
        scene.a.qp.post(&bad(&scene, 11));
        scene.a.qp.post(&Wr::send(12, &[]));
        let (a, b) = (scene.a.qp.number(), scene.b.qp.number());
        let flushed = Status::IBV_WC_WR_FLUSH_ERR;
        let failed = Status::IBV_WC_REM_ACCESS_ERR;
        assert_failed_completion(&scene.a.send_cq.next(), 11, failed, a);
        assert_failed_completion(&scene.a.send_cq.next(), 12, flushed, a);
        assert_failed_completion(&scene.a.receive_cq.next(), RECEIVE_A, flushed, a);
        assert_failed_completion(&scene.b.receive_cq.next(), RECEIVE_B, flushed, b);
    });
}

#[test]
fn undefined_fields_of_a_success_hold_junk() {
    on_each_device("junk-success", |device| {
        let scene = Scene::new(device);
        scene.a.qp.post(&Wr::send(1, &[scene.at_a.sge(0, 8)]));
        let sent = scene.a.send_cq.expect_success(1);
        assert!(sent.byte_len > 1 << 16, "defined for receives and reads only");
        let received = scene.b.receive_cq.expect_success(RECEIVE_B);
        assert_eq!((received.byte_len, received.wc_flags), (8, 0));
        for wc in [sent, received] {
            assert_eq!(wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0, 0);
            assert!(imm_of(&wc) > 1 << 16, "no immediate data was sent");
            // Only defined for datagrams.
            assert!(wc.src_qp > 0x00ff_ffff && wc.slid > 1 && wc.sl > 15);
        }
    });
}
