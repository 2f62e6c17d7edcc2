//! Send and receive queues: which requests complete aloud, and when a queue is full.

use rdma_sys::{Errno, ibv_wc_status as Status};

use crate::rig::connect::{Knobs, pair_with};
use crate::rig::post::Wr;
use crate::rig::scene::{RECEIVE_B, Scene};
use crate::rig::{LOCAL_WRITE, Size, on_each_device, soft, until};

const FULL: i32 = Errno::ENOMEM.raw();

#[test]
fn unsignaled_success_is_silent() {
    on_each_device("unsignaled", |device| {
        let scene = Scene::new(device);
        for n in 1..=5 {
            let wr = Wr::write(n, &[scene.at_a.sge(0, 4)], &scene.at_b, 4 * n as usize);
            scene.a.qp.post(&if n == 5 { wr } else { wr.unsignaled() });
        }
        scene.a.send_cq.expect_success(5);
        assert!(scene.a.send_cq.is_empty());
    });
}

#[test]
fn unsignaled_failure_is_reported() {
    on_each_device("unsignaled-failure", |device| {
        let scene = Scene::new(device);
        let wr = scene.requests()[0].clone().unsignaled();
        let wr = wr.remote(scene.at_b.address(), scene.at_b.key() ^ 1);
        scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
    });
}

#[test]
fn unsignaled_request_is_reported_when_every_request_is() {
    on_each_device("signal-all", |device| {
        let size = Size { signal_all: true, ..Size::default() };
        let scene = Scene::with(device, &size, &Knobs::default());
        scene.a.qp.post(&scene.requests()[0].clone().unsignaled());
        scene.a.send_cq.expect_success(1);
    });
}

#[test]
fn send_queue_is_full_until_completions_are_polled() {
    on_each_device("send-queue-full", |device| {
        let size = Size { send_wr: 2, ..Size::default() };
        let scene = Scene::with(device, &size, &Knobs::default());
        let write = |n| Wr::write(n, &[scene.at_a.sge(0, 4)], &scene.at_b, 0);
        assert_eq!(
            scene.a.qp.try_post_list(&[write(1), write(2), write(3)]),
            Err((2, FULL)),
            "the third finds no room"
        );
        let done = || soft(device).in_flight(scene.a.qp.qpn()) == 0;
        until("both executed", done);
        assert_eq!(scene.a.qp.try_post(&write(3)), FULL, "executed, but not polled");
        scene.a.send_cq.expect_success(1);
        scene.a.qp.post(&write(4));
        assert_eq!(scene.a.qp.try_post(&write(5)), FULL);
        scene.a.send_cq.expect_success(2);
        scene.a.send_cq.expect_success(4);
    });
}

#[test]
fn unsignaled_requests_hold_their_place_until_a_later_completion_is_polled() {
    on_each_device("unsignaled-place", |device| {
        let size = Size { send_wr: 3, ..Size::default() };
        let scene = Scene::with(device, &size, &Knobs::default());
        let write = |n| Wr::write(n, &[scene.at_a.sge(0, 4)], &scene.at_b, 0);
        for round in 0..5 {
            scene.a.qp.post(&write(1).unsignaled());
            scene.a.qp.post(&write(2).unsignaled());
            scene.a.qp.post(&write(round + 10));
            assert_eq!(scene.a.qp.try_post(&write(4)), FULL);
            scene.a.send_cq.expect_success(round + 10);
        }
    });
}

#[test]
fn receive_queue_is_full_until_completions_are_polled() {
    on_each_device("receive-queue-full", |device| {
        let size = Size { receive_wr: 2, ..Size::default() };
        let scene = Scene::with(device, &size, &Knobs::default());
        scene.b.qp.post_receive(2, &[]);
        assert_eq!(scene.b.qp.try_post_receive(3, &[]), FULL);
        scene.a.qp.post(&Wr::send(1, &[]));
        scene.a.qp.post(&Wr::send(2, &[]));
        scene.a.send_cq.expect_success(1);
        scene.a.send_cq.expect_success(2);
        assert_eq!(scene.b.qp.try_post_receive(3, &[]), FULL, "used, but not polled");
        scene.b.receive_cq.expect_success(RECEIVE_B);
        scene.b.qp.post_receive(3, &[]);
        assert_eq!(scene.b.qp.try_post_receive(4, &[]), FULL);
        scene.b.receive_cq.expect_success(2);
    });
}

#[test]
fn flushed_requests_hold_their_place_until_they_are_polled() {
    on_each_device("flushed-place", |device| {
        let size = Size { send_wr: 2, receive_wr: 2, ..Size::default() };
        let (a, _b) = pair_with(device, &size, &Knobs::default());
        a.qp.to_error();
        for n in 0..2 {
            a.qp.post(&Wr::send(n, &[]));
            a.qp.post_receive(n, &[]);
        }
        assert_eq!(a.qp.try_post(&Wr::send(2, &[])), FULL);
        assert_eq!(a.qp.try_post_receive(2, &[]), FULL);
        a.send_cq.expect_flushed([0]);
        a.receive_cq.expect_flushed([0]);
        a.qp.post(&Wr::send(2, &[]));
        a.qp.post_receive(2, &[]);
        a.send_cq.expect_flushed([1, 2]);
        a.receive_cq.expect_flushed([1, 2]);
    });
}

#[test]
fn queue_of_no_requests_is_always_full() {
    on_each_device("empty-queues", |device| {
        let size = Size { send_wr: 0, receive_wr: 0, ..Size::default() };
        let (a, _b) = pair_with(device, &size, &Knobs::default());
        assert_eq!(a.qp.try_post(&Wr::send(1, &[])), FULL);
        assert_eq!(a.qp.try_post_receive(1, &[]), FULL);
    });
}

#[test]
fn many_requests_go_through_a_small_queue_in_order() {
    on_each_device("small-queue", |device| {
        let size = Size { send_wr: 3, receive_wr: 3, ..Size::default() };
        let (a, b) = pair_with(device, &size, &Knobs::default());
        let source = a.pd.register_filled((0..=255).collect(), 0);
        let sink = b.pd.register(3, LOCAL_WRITE);
        let (mut posted, mut sent, mut received) = (0u64, 0u64, 0u64);
        for n in 0..3 {
            b.qp.post_receive(n, &[sink.sge(n as usize, 1)]);
        }
        while received < 256 {
            while posted < 256 && posted - sent < 3 {
                a.qp.post(&Wr::send(posted, &[source.sge(posted as usize, 1)]));
                posted += 1;
            }
            a.send_cq.expect_success(sent);
            sent += 1;
            b.receive_cq.expect_success(received);
            let place = (received % 3) as usize;
            assert_eq!(u64::from(sink.bytes()[place]), received);
            received += 1;
            b.qp.post_receive(received + 2, &[sink.sge(place, 1)]);
        }
    });
}
