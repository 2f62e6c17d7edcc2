//! Send and receive queues: they have the requested number of slots. A request keeps its slot until its completion, or
//! a later one, is polled.

use rdma_sys::{Errno, ibv_qp_init_attr};

use crate::device::rig::connect::{Knobs, pair_with};
use crate::device::rig::post::Wr;
use crate::device::rig::scene::{RECEIVE_B, Scene};
use crate::device::rig::{Pd, Size, on_each_device, open_default, soft, until};

const FULL: i32 = Errno::ENOMEM.raw();

#[test]
fn send_queue_is_full_until_completions_are_polled() {
    on_each_device("send-queue-full", |device| {
        let size = Size { send_wr: 3, ..Size::default() };
        let scene = Scene::with(device, &size, &Knobs::default());
        let write = |n| Wr::write(n, &[scene.at_a.sge(0, 4)], &scene.at_b, 0);
        let list = [write(1).unsignaled(), write(2), write(3), write(4)];
        assert_eq!(scene.a.qp.try_post_list(&list), Err((3, FULL)));
        until("all executed", || soft(device).in_flight(scene.a.qp.qpn()) == 0);
        assert_eq!(scene.a.qp.try_post(&write(4)), FULL, "executed, but not polled");
        // This frees two slots.
        scene.a.send_cq.expect_success(2);
        assert_eq!(scene.a.qp.try_post_list(&[write(5), write(6), write(7)]), Err((2, FULL)));
        for n in [3, 5, 6] {
            scene.a.send_cq.expect_success(n);
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
fn flushed_requests_hold_their_slots_until_they_are_polled() {
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
fn a_queue_pair_needs_both_completion_queues() {
    let context = open_default("soft0");
    let (pd, cq, none) = (context.pd(), context.cq(4), std::ptr::null_mut());
    let init = Pd::qp_init(&cq, &cq, &Size::default());
    for (send_cq, recv_cq) in [(none, cq.0), (cq.0, none), (none, none)] {
        let mut init = ibv_qp_init_attr { send_cq, recv_cq, ..init };
        assert_eq!(pd.try_qp_of(&mut init).err(), Some(Errno::EINVAL));
    }
}
