//! Extended completion queues: polling completions one at a time (man `ibv_create_cq_ex`).

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rdma_sys::{Errno, ibv_cq_init_attr_ex, ibv_wc_status as Status};
use test_support::rig::connect::{Knobs, Side, connect, connect_sides, endpoint};
use test_support::rig::extended::STANDARD;
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Cq, Size, until};

use crate::case::cases;
use crate::device::Device;

cases![
    an_empty_queue_says_so_and_stays_usable,
    completions_are_come_to_in_order,
    what_a_batch_did_not_come_to_stays,
    what_completes_during_a_batch_is_come_to,
    the_end_of_a_batch_is_told,
    a_batch_that_came_to_its_end_leaves_the_queue_empty,
    many_batches_go_around_the_queue,
    classic_and_extended_polls_take_turns,
    batches_of_two_queues_are_polled_side_by_side,
    another_thread_waits_for_the_end_of_a_batch,
    two_threads_that_poll_take_each_completion_once,
    flushes_are_come_to_in_order,
    a_queue_wakes_its_channel,
    a_queue_in_use_is_not_destroyed,
    a_queue_has_at_least_the_entries_that_were_asked_for,
    one_thread_alone_may_be_promised,
    fields_that_nobody_has_defined_are_refused,
    attributes_that_nobody_has_defined_are_refused,
    flags_that_nobody_has_defined_are_refused,
    sizes_that_a_queue_cannot_have_are_refused,
    a_vector_that_is_not_there_is_refused,
];

const ENOENT: i32 = Errno::ENOENT.raw();
const EMPTY_ATTR: ibv_cq_init_attr_ex = ibv_cq_init_attr_ex {
    cqe: 4,
    cq_context: std::ptr::null_mut(),
    channel: std::ptr::null_mut(),
    comp_vector: 0,
    wc_flags: STANDARD,
    comp_mask: 0,
    flags: 0,
    parent_domain: std::ptr::null_mut(),
};

/// Skips the case unless the device has extended queues with these fields.
pub(super) fn needs_fields(device: &Device, wc_flags: u64) {
    let refused = device.open().try_cq_ex(&ibv_cq_init_attr_ex { wc_flags, ..EMPTY_ATTR }).err();
    let lacks = [Errno::EOPNOTSUPP, Errno::ENOSYS].map(Some).contains(&refused);
    device.needs(!lacks, "the device has no extended completion queues with these fields");
}

/// Connects two sides; B's queues are extended.
pub(super) fn to_extended(device: &Device) -> (Side, Side) {
    needs_fields(device, STANDARD);
    let a = Side::new(device, &Size::default(), 256);
    let b = Side::with_fields(device, 64, STANDARD);
    connect_sides(&a, &b, &Knobs::default());
    (a, b)
}

/// Sends an empty message for each ID, and waits until the sends and B's receives have completed.
fn exchange(a: &Side, b: &Side, wr_ids: std::ops::Range<u64>) {
    for wr_id in wr_ids.clone() {
        b.qp.post_receive(wr_id, &[]);
        a.qp.post(&Wr::send(wr_id, &[]));
    }
    for wr_id in wr_ids {
        a.send_cq.expect_success(wr_id);
    }
    complete_receives(a, b);
}

/// Waits until B's receives of acknowledged messages have completed. A device may acknowledge a
/// message before it completes the receive, but does so before it executes a later request.
pub(super) fn complete_receives(a: &Side, b: &Side) {
    let memory = b.pd.register(1, ALL_ACCESS);
    a.qp.post(&Wr::write(99, &[], &memory, 0));
    a.send_cq.expect_success(99);
}

/// Polls these completions in one batch. Does not advance beyond the last one, because advancing
/// further breaks the queue on SoftRoCE. A device may acknowledge a message before it completes the
/// receive, so this waits for each completion.
#[track_caller]
pub(super) fn take(cq: &Cq, wr_ids: std::ops::Range<u64>) {
    cq.start_at_next();
    for wr_id in wr_ids.clone() {
        assert_eq!(cq.at(), (wr_id, Status::IBV_WC_SUCCESS));
        if wr_id + 1 < wr_ids.end && cq.advance() != 0 {
            cq.end();
            cq.start_at_next();
        }
    }
    cq.end();
}

fn an_empty_queue_says_so_and_stays_usable(device: &Device) {
    let (a, b) = to_extended(device);
    for round in 0..3 {
        assert_eq!((b.receive_cq.start(), b.receive_cq.start()), (ENOENT, ENOENT));
        assert!(b.receive_cq.is_empty());
        exchange(&a, &b, round..round + 1);
        take(&b.receive_cq, round..round + 1);
    }
    assert_eq!(b.receive_cq.start(), ENOENT);
}

fn completions_are_come_to_in_order(device: &Device) {
    let (a, b) = to_extended(device);
    for first in [0, 10, 20] {
        exchange(&a, &b, first..first + 5);
        take(&b.receive_cq, first..first + 5);
        assert_eq!(b.receive_cq.start(), ENOENT);
    }
}

fn what_a_batch_did_not_come_to_stays(device: &Device) {
    let (a, b) = to_extended(device);
    exchange(&a, &b, 0..6);
    take(&b.receive_cq, 0..1);
    take(&b.receive_cq, 1..4);
    exchange(&a, &b, 6..8);
    take(&b.receive_cq, 4..8);
    assert_eq!(b.receive_cq.start(), ENOENT);
}

fn what_completes_during_a_batch_is_come_to(device: &Device) {
    let (a, b) = to_extended(device);
    exchange(&a, &b, 0..1);
    b.receive_cq.start_at_next();
    for next in 1..4 {
        exchange(&a, &b, next..next + 1);
        assert_eq!((b.receive_cq.advance(), b.receive_cq.at().0), (0, next));
    }
    b.receive_cq.end();
    assert_eq!(b.receive_cq.start(), ENOENT);
}

fn the_end_of_a_batch_is_told(device: &Device) {
    let (a, b) = to_extended(device);
    exchange(&a, &b, 0..2);
    b.receive_cq.start_at_next();
    assert_eq!(b.receive_cq.advance(), 0);
    assert_eq!(b.receive_cq.advance(), ENOENT);
    b.receive_cq.end();
}

fn a_batch_that_came_to_its_end_leaves_the_queue_empty(device: &Device) {
    let (a, b) = to_extended(device);
    exchange(&a, &b, 1..2);
    b.receive_cq.start_at_next();
    assert_eq!(b.receive_cq.advance(), ENOENT);
    b.receive_cq.end();
    if device.differs("next-poll-of-the-last") {
        assert_eq!((b.receive_cq.start(), b.receive_cq.at()), (0, (0, Status::IBV_WC_SUCCESS)));
        return b.receive_cq.end();
    }
    assert_eq!(b.receive_cq.start(), ENOENT);
    exchange(&a, &b, 2..4);
    take(&b.receive_cq, 2..4);
    assert!(b.receive_cq.is_empty());
}

fn many_batches_go_around_the_queue(device: &Device) {
    needs_fields(device, STANDARD);
    let a = Side::new(device, &Size::default(), 256);
    let b = Side::with_fields(device, 5, STANDARD);
    connect_sides(&a, &b, &Knobs::default());
    let mut next = 0;
    for count in [1, 2, 3, 4, 5].repeat(4) {
        exchange(&a, &b, next..next + count);
        take(&b.receive_cq, next..next + count);
        next += count;
    }
    assert_eq!(b.receive_cq.start(), ENOENT);
}

fn classic_and_extended_polls_take_turns(device: &Device) {
    let (a, b) = to_extended(device);
    exchange(&a, &b, 0..7);
    b.receive_cq.expect_success(0);
    take(&b.receive_cq, 1..3);
    let two = b.receive_cq.try_poll::<2>().unwrap();
    assert_eq!(two.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [3, 4]);
    take(&b.receive_cq, 5..6);
    b.receive_cq.expect_success(6);
    assert!(b.receive_cq.is_empty());
    assert_eq!(b.receive_cq.start(), ENOENT);
}

fn batches_of_two_queues_are_polled_side_by_side(device: &Device) {
    let ((a, b), (c, d)) = (to_extended(device), to_extended(device));
    exchange(&a, &b, 0..3);
    exchange(&c, &d, 10..13);
    let (first, second) = (&b.receive_cq, &d.receive_cq);
    [first, second].iter().for_each(|cq| cq.start_at_next());
    for n in 0..3 {
        assert_eq!((first.at().0, second.at().0), (n, 10 + n));
        assert_eq!((first.read().qp_num, second.read().qp_num), (b.qp.number(), d.qp.number()));
        if n < 2 {
            assert_eq!((first.advance(), second.advance()), (0, 0));
        }
    }
    first.end();
    second.end();
    assert_eq!((first.start(), second.start()), (ENOENT, ENOENT));
}

fn another_thread_waits_for_the_end_of_a_batch(device: &Device) {
    let (a, b) = to_extended(device);
    exchange(&a, &b, 0..2);
    let cq = &b.receive_cq;
    let (trying, got) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        assert_eq!(cq.start(), 0);
        scope.spawn(|| {
            trying.store(true, Ordering::SeqCst);
            assert_eq!(cq.start(), 0);
            got.store(true, Ordering::SeqCst);
            assert_eq!(cq.at(), (1, Status::IBV_WC_SUCCESS));
            cq.end();
        });
        until("the other thread", || trying.load(Ordering::SeqCst));
        for _ in 0..1000 {
            thread::yield_now();
            assert!(!got.load(Ordering::SeqCst), "two threads in one batch");
        }
        assert_eq!(cq.at(), (0, Status::IBV_WC_SUCCESS));
        cq.end();
    });
    assert!(got.load(Ordering::SeqCst));
}

fn two_threads_that_poll_take_each_completion_once(device: &Device) {
    let (a, b) = to_extended(device);
    let taken = Mutex::new(BTreeSet::new());
    let take_some = |extended: bool| {
        while taken.lock().unwrap().len() < 60 {
            let wr_id = if extended {
                let started = b.receive_cq.start();
                (started == 0).then(|| {
                    let wr_id = b.receive_cq.at().0;
                    b.receive_cq.end();
                    wr_id
                })
            } else {
                b.receive_cq.try_poll::<1>().unwrap().pop().map(|wc| wc.wr_id)
            };
            match wr_id {
                Some(wr_id) => assert!(taken.lock().unwrap().insert(wr_id), "{wr_id} twice"),
                None => thread::yield_now(),
            }
        }
    };
    thread::scope(|scope| {
        for extended in [true, true, false] {
            scope.spawn(move || take_some(extended));
        }
        exchange(&a, &b, 0..60);
    });
    assert!(taken.into_inner().unwrap().into_iter().eq(0..60));
}

fn flushes_are_come_to_in_order(device: &Device) {
    let (_a, b) = to_extended(device);
    (0..4).for_each(|n| b.qp.post_receive(n, &[]));
    b.qp.to_error();
    for n in 0..4 {
        b.receive_cq.start_at_next();
        assert_eq!(b.receive_cq.at(), (n, Status::IBV_WC_WR_FLUSH_ERR));
        b.receive_cq.end();
    }
    assert_eq!(b.receive_cq.start(), ENOENT);
}

fn a_queue_wakes_its_channel(device: &Device) {
    needs_fields(device, STANDARD);
    let context = device.open();
    let channel = context.channel();
    let attr = ibv_cq_init_attr_ex { channel: channel.as_raw(), ..EMPTY_ATTR };
    let (pd, send_cq) = (context.pd(), context.cq(16));
    let receive_cq = context.try_cq_ex(&attr).unwrap();
    let receiver = pd.qp(&send_cq, &receive_cq, &Size::default());
    let a = Side::new(device, &Size::default(), 16);
    let (there, here) = (a.endpoint(), endpoint(&context, &receiver));
    connect(&a.qp, &there, &here, &Knobs::default());
    connect(&receiver, &here, &there, &Knobs::default());
    receive_cq.request_event(false);
    assert!(!channel.is_readable());
    receiver.post_receive(1, &[]);
    a.qp.post(&Wr::send(1, &[]));
    a.send_cq.expect_success(1);
    until("the event", || channel.is_readable());
    assert_eq!(channel.get(), Ok(receive_cq.0));
    receive_cq.acknowledge(1);
    take(&receive_cq, 1..2);
}

fn a_queue_in_use_is_not_destroyed(device: &Device) {
    let (a, mut b) = to_extended(device);
    assert_eq!(b.receive_cq.try_destroy(), Errno::EBUSY.raw());
    exchange(&a, &b, 0..1);
    take(&b.receive_cq, 0..1);
    b.qp.destroy();
}

fn a_queue_has_at_least_the_entries_that_were_asked_for(device: &Device) {
    needs_fields(device, STANDARD);
    let context = device.open();
    for cqe in [1, 2, 5, 64, 255] {
        let cq = context.cq_ex(cqe, STANDARD);
        assert!(cq.entries().cast_unsigned() >= cqe, "{}", cq.entries());
    }
}

fn one_thread_alone_may_be_promised(device: &Device) {
    needs_fields(device, STANDARD);
    let attr = ibv_cq_init_attr_ex { comp_mask: 1, flags: 1, ..EMPTY_ATTR };
    let context = device.open();
    let (pd, cq) = (context.pd(), context.try_cq_ex(&attr).unwrap());
    let qp = pd.qp(&cq, &cq, &Size::default());
    let own = endpoint(&context, &qp);
    connect(&qp, &own, &own, &Knobs::default());
    qp.post_receive(1, &[]);
    qp.post(&Wr::send(2, &[]));
    let mut taken = [0, 0].map(|_| {
        cq.start_at_next();
        let (wr_id, status) = cq.at();
        cq.end();
        assert_eq!(status, Status::IBV_WC_SUCCESS);
        wr_id
    });
    taken.sort_unstable();
    assert_eq!(taken, [1, 2]);
}

/// Checks that the changed attributes are refused, and that the unchanged ones are accepted.
#[track_caller]
fn expect_refusal(device: &Device, change: impl Fn(&mut ibv_cq_init_attr_ex)) {
    needs_fields(device, STANDARD);
    let context = device.open();
    let mut attr = EMPTY_ATTR;
    assert!(context.try_cq_ex(&attr).is_ok());
    change(&mut attr);
    assert!(context.try_cq_ex(&attr).is_err());
}

fn fields_that_nobody_has_defined_are_refused(device: &Device) {
    expect_refusal(device, |attr| attr.wc_flags |= 1 << 63);
}

fn attributes_that_nobody_has_defined_are_refused(device: &Device) {
    expect_refusal(device, |attr| attr.comp_mask = 1 << 31);
}

fn flags_that_nobody_has_defined_are_refused(device: &Device) {
    let unknown = ibv_cq_init_attr_ex { comp_mask: 1, flags: 1 << 31, ..EMPTY_ATTR };
    if device.differs("create-cq-ex-flags") {
        return drop(device.open().try_cq_ex(&unknown).unwrap());
    }
    expect_refusal(device, |attr| *attr = unknown);
}

fn sizes_that_a_queue_cannot_have_are_refused(device: &Device) {
    let most = u32::try_from(device.attributes().max_cqe).unwrap();
    for cqe in [0, most + 1, u32::MAX] {
        expect_refusal(device, |attr| attr.cqe = cqe);
    }
}

fn a_vector_that_is_not_there_is_refused(device: &Device) {
    let vectors = device.open().completion_vectors().cast_unsigned();
    expect_refusal(device, |attr| attr.comp_vector = vectors);
}
