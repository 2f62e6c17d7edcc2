//! The error state: which requests are flushed, in which order, and what causes it.

use rdma_sys::ibv_wc_status as Status;
use test_support::rig::connect::{Knobs, connect_sides, expect_nothing_under_way, pair, pair_with};
use test_support::rig::post::Wr;
use test_support::rig::scene::{RECEIVE_A, RECEIVE_B, Scene};
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Size};

use crate::case::cases;
use crate::device::Device;

cases![
    failing_request_comes_first_then_the_rest_in_order,
    failure_flushes_the_receives_of_both_sides_in_order,
    refusal_flushes_what_the_responder_has_to_send,
    message_that_does_not_fit_flushes_what_is_behind_it_at_both_ends,
    error_state_flushes_both_queues_in_order,
    error_state_of_one_side_is_not_that_of_the_other,
    full_queues_are_flushed_whole,
    completions_from_before_the_error_stay_in_front,
    request_that_is_flushed_moves_no_bytes,
    send_request_posted_in_the_error_state_is_flushed,
    receive_request_posted_in_the_error_state_is_flushed,
    error_state_again_flushes_nothing_twice,
    queue_that_was_flushed_is_whole_after_a_reset,
];

/// Returns a request that B refuses.
fn bad(scene: &Scene, wr_id: u64) -> Wr {
    let wr = Wr::write(wr_id, &[scene.at_a.sge(0, 8)], &scene.at_b, 0);
    wr.remote(scene.at_b.address(), scene.at_b.key() ^ 1)
}

fn failing_request_comes_first_then_the_rest_in_order(device: &Device) {
    let scene = Scene::new(device);
    let good = |n| Wr::write(n, &[scene.at_a.sge(0, 8)], &scene.at_b, 0);
    scene.a.qp.post(&good(10));
    scene.a.qp.post(&bad(&scene, 11));
    for n in 12..=20 {
        let wr = good(n);
        scene.a.qp.post(&if n % 2 == 0 { wr.unsignaled() } else { wr });
    }
    scene.a.send_cq.expect_success(10);
    scene.a.send_cq.expect(11, Status::IBV_WC_REM_ACCESS_ERR);
    scene.a.send_cq.expect_flushed(12..=20);
    assert!(scene.a.send_cq.is_empty());
}

fn failure_flushes_the_receives_of_both_sides_in_order(device: &Device) {
    let scene = Scene::new(device);
    for n in 2..=4 {
        scene.a.qp.post_receive(n, &[]);
        scene.b.qp.post_receive(n, &[]);
    }
    scene.a.qp.post(&bad(&scene, 1));
    scene.a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
    scene.a.receive_cq.expect_flushed([RECEIVE_A, 2, 3, 4]);
    scene.b.receive_cq.expect_flushed([RECEIVE_B, 2, 3, 4]);
    assert!(scene.a.receive_cq.is_empty() && scene.b.receive_cq.is_empty());
    assert!(scene.b.send_cq.is_empty());
}

fn refusal_flushes_what_the_responder_has_to_send(device: &Device) {
    let scene = Scene::new(device);
    // The first send consumes A's only receive; the others wait for a receive that is never posted.
    scene.b.qp.post(&Wr::send(3, &[]));
    scene.b.qp.post(&Wr::send(4, &[]).unsignaled());
    scene.b.qp.post(&Wr::send(5, &[]));
    scene.b.send_cq.expect_success(3);
    scene.a.qp.post(&bad(&scene, 6));
    scene.a.send_cq.expect(6, Status::IBV_WC_REM_ACCESS_ERR);
    scene.b.send_cq.expect_flushed([4, 5]);
}

fn message_that_does_not_fit_flushes_what_is_behind_it_at_both_ends(device: &Device) {
    let (a, b) = pair(device);
    let source = a.pd.register(8, 0);
    b.qp.post_receive(1, &[]);
    b.qp.post_receive(2, &[]);
    // B's sends wait for a receive at A, which never posts one.
    b.qp.post(&Wr::send(3, &[]).unsignaled());
    b.qp.post(&Wr::send(4, &[]));
    a.qp.post(&Wr::send(5, &[source.sge(0, 8)]));
    a.qp.post(&Wr::send(6, &[]));
    let (sent, received) = (a.send_cq.next(), b.receive_cq.next());
    assert_eq!((sent.wr_id, received.wr_id), (5, 1));
    for wc in [sent, received] {
        assert!(![Status::IBV_WC_SUCCESS, Status::IBV_WC_WR_FLUSH_ERR].contains(&wc.status));
    }
    a.send_cq.expect_flushed([6]);
    b.receive_cq.expect_flushed([2]);
    b.send_cq.expect_flushed([3, 4]);
}

fn error_state_flushes_both_queues_in_order(device: &Device) {
    // B has no receives posted, so A's send requests stay queued.
    let (a, _b) = pair(device);
    for n in 0..10 {
        a.qp.post(&Wr::send(n, &[]).unsignaled());
        a.qp.post_receive(n + 20, &[]);
    }
    a.qp.to_error();
    a.send_cq.expect_flushed(0..10);
    a.receive_cq.expect_flushed(20..30);
    assert!(a.send_cq.is_empty() && a.receive_cq.is_empty());
}

fn error_state_of_one_side_is_not_that_of_the_other(device: &Device) {
    let (a, b) = pair(device);
    b.qp.post_receive(1, &[]);
    a.qp.post_receive(2, &[]);
    a.qp.to_error();
    a.receive_cq.expect_flushed([2]);
    b.qp.assert_ready();
    assert!(b.receive_cq.is_empty());
}

fn full_queues_are_flushed_whole(device: &Device) {
    let size = Size { send_wr: 16, receive_wr: 16, ..Size::default() };
    let (a, _b) = pair_with(device, &size, &Knobs::default());
    let cap = a.qp.query().cap;
    let (sends, receives) = (u64::from(cap.max_send_wr), u64::from(cap.max_recv_wr));
    for n in 0..sends {
        a.qp.post(&Wr::send(n, &[]));
    }
    for n in 0..receives {
        a.qp.post_receive(n, &[]);
    }
    a.qp.to_error();
    a.send_cq.expect_flushed(0..sends);
    a.receive_cq.expect_flushed(0..receives);
}

fn completions_from_before_the_error_stay_in_front(device: &Device) {
    let (a, b) = pair(device);
    for n in 0..3 {
        b.qp.post_receive(n, &[]);
        a.qp.post(&Wr::send(n, &[]));
    }
    for n in 0..3 {
        b.receive_cq.expect_success(n);
    }
    // B has received all three messages. The acknowledgement of the third may still be missing, so
    // the third request either succeeds or is flushed. In both cases, it completes before the
    // fourth.
    a.send_cq.expect_success(0);
    a.send_cq.expect_success(1);
    a.qp.post(&Wr::send(3, &[]));
    a.qp.to_error();
    let third = a.send_cq.next();
    assert_eq!(third.wr_id, 2);
    a.send_cq.expect_flushed([3]);
}

fn request_that_is_flushed_moves_no_bytes(device: &Device) {
    let (a, b) = pair(device);
    let source = a.pd.register_filled(vec![7; 8], 0);
    let sink = b.pd.register(8, ALL_ACCESS);
    // The first request waits for a receive, so the others do not begin.
    a.qp.post(&Wr::send(1, &[source.sge(0, 8)]));
    a.qp.post(&Wr::write(2, &[source.sge(0, 8)], &sink, 0));
    a.qp.post(&Wr::write(3, &[source.sge(0, 8)], &sink, 0).with_imm(4));
    a.qp.to_error();
    a.send_cq.expect_flushed([1, 2, 3]);
    // Packets sent before the error may still arrive now, and find no receive.
    expect_nothing_under_way(device);
    b.qp.post_receive(1, &[sink.sge(0, 8)]);
    // Both sides are reset, so packets from before the reset no longer arrive.
    a.qp.to_reset();
    b.qp.to_reset();
    connect_sides(&a, &b, &Knobs::default());
    b.qp.post_receive(2, &[]);
    a.qp.post(&Wr::send(4, &[]));
    a.send_cq.expect_success(4);
    b.receive_cq.expect_success(2);
    sink.assert_filled(0);
}

fn send_request_posted_in_the_error_state_is_flushed(device: &Device) {
    let (a, _b) = pair(device);
    let source = a.pd.register(8, 0);
    a.qp.to_error();
    a.qp.wait_for_error();
    for n in 1..4 {
        a.qp.post(&Wr::send(n, &[source.sge(0, 8)]).unsignaled());
    }
    a.send_cq.expect_flushed(1..4);
    assert!(a.send_cq.is_empty());
}

/// Makes requests fail and be flushed on another connection.
fn refuse_something(device: &Device) {
    let scene = Scene::new(device);
    scene.a.qp.post(&bad(&scene, 1));
    scene.a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
    scene.b.receive_cq.expect_flushed([RECEIVE_B]);
}

fn receive_request_posted_in_the_error_state_is_flushed(device: &Device) {
    let (a, _b) = pair(device);
    let sink = a.pd.register(8, LOCAL_WRITE);
    a.qp.to_error();
    a.qp.wait_for_error();
    for n in 1..4 {
        a.qp.post_receive(n, &[sink.sge(0, 8)]);
    }
    if device.differs("receive-posted-in-error-waits") {
        // Meanwhile, the device has enough time for its background work.
        refuse_something(device);
        assert!(a.receive_cq.is_empty());
        a.qp.to_error();
    }
    a.receive_cq.expect_flushed(1..4);
    assert!(a.receive_cq.is_empty());
}

fn error_state_again_flushes_nothing_twice(device: &Device) {
    let (a, _b) = pair(device);
    for n in 0..3 {
        a.qp.post(&Wr::send(n, &[]));
        a.qp.post_receive(n, &[]);
    }
    a.qp.to_error();
    a.qp.to_error();
    a.send_cq.expect_flushed(0..3);
    a.receive_cq.expect_flushed(0..3);
    a.qp.to_error();
    assert!(a.send_cq.is_empty() && a.receive_cq.is_empty());
}

fn queue_that_was_flushed_is_whole_after_a_reset(device: &Device) {
    let size = Size { send_wr: 3, receive_wr: 3, ..Size::default() };
    let (a, b) = pair_with(device, &size, &Knobs::default());
    let source = a.pd.register_filled(vec![7; 8], 0);
    let sink = b.pd.register(8, LOCAL_WRITE);
    let cap = b.qp.query().cap;
    let places = u64::from(cap.max_send_wr.min(cap.max_recv_wr));
    for round in 0..places {
        for n in 0..=round {
            b.qp.post(&Wr::send(n, &[sink.sge(0, 2)]));
            b.qp.post_receive(n, &[sink.sge(0, 1)]);
        }
        b.qp.to_error();
        b.send_cq.expect_flushed(0..=round);
        b.receive_cq.expect_flushed(0..=round);
        a.qp.to_reset();
        b.qp.to_reset();
        connect_sides(&a, &b, &Knobs::default());
        // The flush has freed all slots: several rounds use each of them again, and find nothing of
        // the flushed requests.
        for first in [100, 200] {
            for n in first..first + places {
                b.qp.post_receive(n, &[sink.sge(0, 4), sink.sge(4, 4)]);
                a.qp.post_receive(n, &[]);
                a.qp.post(&Wr::send(n, &[source.sge(0, 8)]));
                b.qp.post(&Wr::send(n, &[]));
            }
            for n in first..first + places {
                a.send_cq.expect_success(n);
                b.send_cq.expect_success(n);
                a.receive_cq.expect_success(n);
                assert_eq!(b.receive_cq.expect_success(n).byte_len, 8);
            }
        }
        sink.assert_filled(7);
    }
}
