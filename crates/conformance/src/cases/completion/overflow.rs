//! Full and overflowing completion queues. The verbs specify only an event for an overflow, so of
//! the completions, the cases check only that none is duplicated or made up.

use rdma_sys::{ibv_event_type as Event, ibv_wc_status as Status};
use test_support::rig::connect::{Knobs, Side, connect_sides, pair};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Cq, Size, until};

use crate::case::cases;
use crate::device::Device;

cases![
    queue_that_is_exactly_full_loses_nothing,
    queue_that_was_full_takes_as_many_again,
    ;
    destructive:
    overflow_of_sends_duplicates_and_invents_nothing,
    overflow_of_receives_duplicates_and_invents_nothing,
    overflow_of_flushes_duplicates_and_invents_nothing,
    overflow_leaves_the_queues_of_others,
    a_queue_that_overflowed_can_be_destroyed,
];

/// Returns a pair in which A's queues have space for few completions, and the capacity of the
/// smaller queue.
fn small(device: &Device, capacity: i32) -> (Side, Side, u64) {
    let (a, b) =
        (Side::new(device, &Size::default(), capacity), Side::new(device, &Size::default(), 256));
    connect_sides(&a, &b, &Knobs::default());
    let room = a.send_cq.entries().min(a.receive_cq.entries());
    assert!(room < 32, "the queue pairs must have space for twice as many requests");
    let room = u64::try_from(room).unwrap();
    (a, b, room)
}

fn fill_and_take(a: &Side, b: &Side, first: u64, room: u64) {
    for n in 0..room {
        b.qp.post_receive(n, &[]);
        a.qp.post(&Wr::send(first + n, &[]));
    }
    for n in 0..room {
        b.receive_cq.expect_success(n);
    }
    for n in 0..room {
        a.send_cq.expect_success(first + n);
    }
}

fn queue_that_is_exactly_full_loses_nothing(device: &Device) {
    let (a, b, room) = small(device, 3);
    fill_and_take(&a, &b, 100, room);
    assert!(a.send_cq.is_empty());
    a.qp.assert_ready();
}

fn queue_that_was_full_takes_as_many_again(device: &Device) {
    let (a, b, room) = small(device, 3);
    for round in 0..5 {
        fill_and_take(&a, &b, 100 * round, room);
    }
    assert!(!a.context.has_async_events());
}

/// Waits for the event that reports the overflow of this queue.
#[track_caller]
fn expect_overflow(side: &Side, cq: &Cq) {
    let mut found = Vec::new();
    until("the event of the queue", || {
        found.extend(side.context.async_events());
        found.contains(&(Event::IBV_EVENT_CQ_ERR, cq.0.addr()))
    });
}

/// Polls the remaining completions, and checks that their IDs are from `wr_ids`, in order and each
/// at most once.
#[track_caller]
fn expect_some_of(cq: &Cq, wr_ids: std::ops::Range<u64>, status: Status) {
    let mut next = wr_ids.start;
    while let Ok(completions) = cq.try_poll::<4>() {
        if completions.is_empty() {
            break;
        }
        for wc in completions {
            assert!((next..wr_ids.end).contains(&wc.wr_id), "{} after {next}", wc.wr_id);
            assert!([status, Status::IBV_WC_WR_FLUSH_ERR].contains(&wc.status), "{:?}", wc.status);
            next = wc.wr_id + 1;
        }
    }
}

fn overflow_of_sends_duplicates_and_invents_nothing(device: &Device) {
    let (a, b, room) = small(device, 3);
    let sink = b.pd.register(8, ALL_ACCESS);
    for n in 0..2 * room {
        a.qp.post(&Wr::write(n, &[], &sink, 0));
    }
    expect_overflow(&a, &a.send_cq);
    expect_some_of(&a.send_cq, 0..2 * room, Status::IBV_WC_SUCCESS);
}

fn overflow_of_receives_duplicates_and_invents_nothing(device: &Device) {
    let (a, b, room) = small(device, 3);
    for n in 0..2 * room {
        a.qp.post_receive(n, &[]);
    }
    for n in 0..2 * room {
        b.qp.post(&Wr::send(n, &[]));
    }
    expect_overflow(&a, &a.receive_cq);
    expect_some_of(&a.receive_cq, 0..2 * room, Status::IBV_WC_SUCCESS);
}

fn overflow_of_flushes_duplicates_and_invents_nothing(device: &Device) {
    let (a, _b, room) = small(device, 3);
    for n in 0..2 * room {
        a.qp.post_receive(n, &[]);
    }
    a.qp.to_error();
    expect_overflow(&a, &a.receive_cq);
    expect_some_of(&a.receive_cq, 0..2 * room, Status::IBV_WC_WR_FLUSH_ERR);
}

fn overflow_leaves_the_queues_of_others(device: &Device) {
    let (a, b, room) = small(device, 3);
    let (c, d) = pair(device);
    let sink = b.pd.register(8, ALL_ACCESS);
    d.qp.post_receive(1, &[]);
    for n in 0..2 * room {
        a.qp.post(&Wr::write(n, &[], &sink, 0));
    }
    expect_overflow(&a, &a.send_cq);
    c.qp.post(&Wr::send(2, &[]));
    c.send_cq.expect_success(2);
    d.receive_cq.expect_success(1);
    assert!(!c.context.has_async_events() && !d.context.has_async_events());
}

fn a_queue_that_overflowed_can_be_destroyed(device: &Device) {
    let (a, b, room) = small(device, 3);
    let sink = b.pd.register(8, ALL_ACCESS);
    for n in 0..2 * room {
        a.qp.post(&Wr::write(n, &[], &sink, 0));
    }
    expect_overflow(&a, &a.send_cq);
    // Destroying each object succeeds, although no completion was polled.
    drop((a, sink, b));
}
