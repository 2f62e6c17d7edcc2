//! Completion queues that overflow, and the limits of a device.

use rdma_soft::{Builder, Limits};
use rdma_sys::{Errno, ibv_event_type as Event, ibv_qp_state as State, ibv_wc_status as Status};

use crate::device::rig::connect::{Knobs, Side, connect, connect_sides, endpoint, pair};
use crate::device::rig::post::Wr;
use crate::device::rig::{ALL_ACCESS, Context, Cq, Size, on_each_device};

/// The error from polling a queue that has overflowed.
const OVERFLOWED: Option<i32> = Some(-Errno::EOVERFLOW.raw());

/// A pair whose A has space for `capacity` send completions and `capacity` receive completions.
fn small(device: &str, capacity: i32) -> (Side, Side) {
    let size = Size::default();
    let (a, b) = (Side::new(device, &size, capacity), Side::new(device, &size, 256));
    connect_sides(&a, &b, &Knobs::prompt());
    (a, b)
}

/// Polls everything from a queue that overflowed: the kept successes, then the error, permanently.
#[track_caller]
fn expect_kept_then_overflow(cq: &Cq, wr_ids: impl IntoIterator<Item = u64>) {
    for wr_id in wr_ids {
        cq.expect_success(wr_id);
    }
    for _ in 0..3 {
        assert_eq!(cq.try_poll::<8>().err(), OVERFLOWED);
    }
}

#[test]
fn overflow_keeps_what_fitted_then_fails_with_its_queue_pairs() {
    on_each_device("cq-overflow", |device| {
        let (a, b) = small(device, 3);
        // A second, idle user of the same queue, whose peer is itself; and a bystander.
        let second = a.pd.qp(&a.send_cq, &a.receive_cq, &Size::default());
        let (other, bystander) = pair(device);
        let at_second = endpoint(&a.context, &second);
        connect(&second, &at_second, &at_second, &Knobs::prompt());
        second.post_receive(1, &[]);
        for n in 0..6 {
            b.qp.post_receive(n, &[]);
            a.qp.post(&Wr::send(n, &[]));
        }
        a.qp.wait_for_error();
        second.wait_for_error();
        expect_kept_then_overflow(&a.send_cq, 0..3);
        // The receive queue has lost nothing.
        a.receive_cq.expect_flushed([1]);
        assert!(a.receive_cq.is_empty());
        b.qp.assert_ready();
        for side in [&other, &bystander] {
            side.qp.assert_ready();
        }
        for n in 0..3 {
            b.receive_cq.expect_success(n);
        }
    });
}

#[test]
fn an_overflow_is_one_event_of_the_queue_and_one_of_each_queue_pair() {
    on_each_device("cq-overflow-event", |device| {
        let (a, b) = small(device, 2);
        let sink = b.pd.register(8, ALL_ACCESS);
        // The failure of its queue does not affect a queue pair that is not in use.
        let unused = a.pd.qp(&a.send_cq, &a.receive_cq, &Size::default());
        for n in 0..3 {
            a.qp.post(&Wr::write(n, &[], &sink, 0));
        }
        // The full queue is not polled: on a deferred device the other thread does the work.
        a.qp.wait_for_error();
        assert_eq!(unused.state(), State::IBV_QPS_RESET);
        let mut events = a.context.async_events();
        events.sort_by_key(|(kind, _)| kind.0);
        let of_queue = (Event::IBV_EVENT_CQ_ERR, a.send_cq.0.addr());
        assert_eq!(events, [of_queue, (Event::IBV_EVENT_QP_FATAL, a.qp.0.addr())]);
    });
}

#[test]
fn overflow_of_the_receivers_queue_stops_the_receiver() {
    on_each_device("cq-overflow-receive", |device| {
        let (b, a) = small(device, 2);
        for n in 0..5 {
            b.qp.post_receive(n, &[]);
            a.qp.post(&Wr::send(n, &[]));
        }
        b.qp.wait_for_error();
        // The message whose completion was lost had arrived; later ones get no answer.
        for n in 0..3 {
            a.send_cq.expect_success(n);
        }
        a.qp.post(&Wr::send(5, &[]));
        let ends: Vec<_> = (3..6).map(|n| (a.send_cq.next(), n)).collect();
        assert!(ends.iter().all(|(wc, n)| wc.wr_id == *n));
        let count = |status| ends.iter().filter(|(wc, _)| wc.status == status).count();
        assert_eq!(count(Status::IBV_WC_RETRY_EXC_ERR), 1);
        assert_ne!(ends[2].0.status, Status::IBV_WC_SUCCESS);
        expect_kept_then_overflow(&b.receive_cq, 0..2);
    });
}

#[test]
fn flushes_can_overflow() {
    on_each_device("cq-overflow-flush", |device| {
        let (a, _b) = small(device, 2);
        for n in 0..4 {
            a.qp.post(&Wr::send(n, &[]));
        }
        a.qp.to_error();
        a.send_cq.expect_flushed([0, 1]);
        assert_eq!(a.send_cq.try_poll::<1>().err(), OVERFLOWED);
    });
}

#[test]
fn overflow_while_some_are_polled_duplicates_and_invents_nothing() {
    on_each_device("cq-overflow-polled", |device| {
        let (a, b) = small(device, 4);
        let source = a.pd.register(8, 0);
        let sink = b.pd.register(8, ALL_ACCESS);
        let (mut next, mut expected) = (0, 0);
        let polled = loop {
            for _ in 0..3 {
                // Fails with ENOMEM, as the lost completions release no slots, or is flushed.
                if a.qp.try_post(&Wr::write(next, &[source.sge(0, 8)], &sink, 0)) == 0 {
                    next += 1;
                }
            }
            match a.send_cq.try_poll::<2>() {
                Ok(completions) => {
                    for wc in completions {
                        assert_eq!((wc.wr_id, wc.status), (expected, Status::IBV_WC_SUCCESS));
                        expected += 1;
                    }
                }
                Err(errno) => break errno,
            }
        };
        assert_eq!(Some(polled), OVERFLOWED);
        assert!(expected < next, "something was lost");
        a.qp.wait_for_error();
    });
}

#[test]
fn queue_pair_on_a_queue_that_overflowed_before_fails_at_its_first_completion() {
    on_each_device("cq-overflow-late", |device| {
        let (a, b) = small(device, 1);
        for n in 0..2 {
            b.qp.post_receive(n, &[]);
            a.qp.post(&Wr::send(n, &[]));
        }
        a.qp.wait_for_error();
        a.qp.to_reset();
        b.qp.to_reset();
        connect_sides(&a, &b, &Knobs::prompt());
        b.qp.post_receive(2, &[]);
        a.qp.post(&Wr::send(3, &[]));
        a.qp.wait_for_error();
        b.receive_cq.expect_success(2);
        b.qp.assert_ready();
    });
}

#[test]
fn queue_of_too_many_completions_is_refused() {
    let device = "cq-capacity";
    Builder::new(device).limits(Limits::default().max_cqe(100)).install().unwrap();
    let context = Context::open(device);
    for capacity in [101, i32::MAX] {
        assert_eq!(context.try_cq(capacity, 0).err(), Some(Errno::EINVAL), "{capacity}");
    }
    assert!(context.try_cq(1, 0).is_ok() && context.try_cq(100, 0).is_ok());
}

#[test]
fn queue_pair_above_the_devices_sizes_is_refused() {
    let device = "qp-sizes";
    let limits = Limits::default().max_qp_wr(100).max_sge(3).max_inline_data(50);
    Builder::new(device).limits(limits).install().unwrap();
    let context = Context::open(device);
    let (cq, pd) = (context.cq(10), context.pd());
    let largest = Size {
        qp_type: rdma_sys::ibv_qp_type::IBV_QPT_RC,
        send_wr: 100,
        receive_wr: 100,
        sge: 3,
        inline: 50,
        signal_all: false,
    };
    assert!(pd.try_qp(&cq, &cq, &largest).is_ok());
    for larger in [
        Size { send_wr: 101, ..largest },
        Size { receive_wr: 101, ..largest },
        Size { sge: 4, ..largest },
        Size { inline: 51, ..largest },
        Size { send_wr: u32::MAX, ..largest },
    ] {
        assert_eq!(pd.try_qp(&cq, &cq, &larger).err(), Some(Errno::EINVAL));
    }
}

#[test]
fn objects_above_the_devices_limits_are_refused_until_one_is_destroyed() {
    let device = "limits";
    Builder::new(device).limits(Limits::default().max_qp(2).max_mr(2)).install().unwrap();
    let context = Context::open(device);
    let (cq, pd) = (context.cq(10), context.pd());
    let full = Some(Errno::ENOMEM);
    let first = pd.qp(&cq, &cq, &Size::default());
    let _second = pd.qp(&cq, &cq, &Size::default());
    assert_eq!(pd.try_qp(&cq, &cq, &Size::default()).err(), full);
    drop(first);
    let _third = pd.qp(&cq, &cq, &Size::default());
    assert_eq!(pd.try_qp(&cq, &cq, &Size::default()).err(), full);
    let region = pd.register(8, ALL_ACCESS);
    let _region = pd.register(8, ALL_ACCESS);
    let mut memory = [0u8; 8];
    assert_eq!(pd.try_register(memory.as_mut_ptr(), 8, ALL_ACCESS).err(), full);
    region.deregister();
    let _region = pd.register(8, ALL_ACCESS);
    assert_eq!(pd.try_register(memory.as_mut_ptr(), 8, ALL_ACCESS).err(), full);
}
