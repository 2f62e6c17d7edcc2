//! Completion channels: which completions cause events, and how events are handled.

use std::sync::Mutex;

use rdma_sys::{Errno, ibv_send_flags, ibv_wc_status as Status};
use test_support::rig::connect::{Knobs, Side, connect, endpoint};
use test_support::rig::events::Channel;
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Context, Cq, LOCAL_WRITE, Pd, Qp, Size, until};

use crate::case::cases;
use crate::device::Device;

cases![
    no_event_comes_unasked,
    an_event_names_its_queue,
    an_event_has_the_pointer_of_its_queue,
    each_event_goes_to_one_of_many_threads,
    one_event_comes_for_each_request_of_one,
    each_request_gets_an_event_of_its_own,
    requests_before_an_event_are_one,
    events_that_nobody_takes_wait,
    what_was_polled_before_the_request_is_no_event,
    what_came_before_the_request_is_found_by_a_poll_behind_it,
    a_queue_of_sends_has_events,
    a_solicited_event_waits_for_a_solicited_message,
    every_solicited_message_is_a_solicited_event,
    the_wider_request_holds,
    a_narrow_request_becomes_a_wide_one,
    a_flushed_receive_counts_as_solicited,
    a_failed_send_counts_as_solicited,
    the_descriptor_is_readable_while_there_is_an_event,
    getting_without_waiting_says_that_there_is_none,
    getting_an_event_waits_for_one,
    queues_that_share_a_channel_have_their_own_events,
    channels_of_one_context_have_their_own_events,
    one_queue_has_one_request_for_both_of_its_ends,
    a_channel_with_a_queue_stays,
    a_queue_without_a_channel_may_be_asked_for_events,
    events_are_moderated_only_where_the_device_says_so,
    events_are_acknowledged_many_at_once,
    destroying_a_queue_takes_its_events_along,
    destroying_a_queue_leaves_the_events_of_others,
    destroying_a_queue_waits_for_acknowledgements,
];

const PLAIN: ibv_send_flags = ibv_send_flags(0);
const SOLICITED: ibv_send_flags = ibv_send_flags::IBV_SEND_SOLICITED;

/// A receiver with one completion channel for both of its queues. The fields are dropped in the
/// order of their declaration, so each object is destroyed before those that it uses.
struct Receiver {
    qp: Qp,
    send_cq: Cq,
    receive_cq: Cq,
    pd: Pd,
    channel: Channel,
    context: Context,
}

impl Receiver {
    fn new(device: &str, peer: &Side) -> Self {
        let context = Context::open(device);
        let channel = context.channel();
        let (send_cq, receive_cq) = (context.cq_with(&channel, 64), context.cq_with(&channel, 64));
        let pd = context.pd();
        let qp = pd.qp(&send_cq, &receive_cq, &Size::default());
        let (there, here) = (peer.endpoint(), endpoint(&context, &qp));
        connect(&peer.qp, &there, &here, &Knobs::default());
        connect(&qp, &here, &there, &Knobs::default());
        channel.set_non_blocking(true);
        Self { qp, send_cq, receive_cq, pd, channel, context }
    }

    /// Gets the next event and checks that `cq` caused it.
    #[track_caller]
    fn expect(&self, cq: &Cq) {
        expect_event(&self.channel, cq);
    }

    /// Checks that no event is pending: makes the completion queue of sends cause one, and expects
    /// it to be the next.
    #[track_caller]
    fn expect_no_event(&self, peer: &Side) {
        self.send_cq.request_event(false);
        peer.qp.post_receive(98, &[]);
        self.qp.post(&Wr::send(99, &[]));
        self.send_cq.expect_success(99);
        peer.receive_cq.expect_success(98);
        self.expect(&self.send_cq);
    }
}

#[track_caller]
fn expect_event(channel: &Channel, cq: &Cq) {
    until("an event", || channel.is_readable());
    assert_eq!(channel.get(), Ok(cq.0));
    cq.acknowledge(1);
}

/// Returns a sender, connected to a receiver with a completion channel.
fn with_channel(device: &Device) -> (Side, Receiver) {
    let a = Side::new(device, &Size::default(), 64);
    let b = Receiver::new(device, &a);
    (a, b)
}

/// Sends an empty message and waits until both sides have their completions.
#[track_caller]
fn send(a: &Side, b: &Receiver, flags: ibv_send_flags) {
    b.qp.post_receive(1, &[]);
    a.qp.post(&Wr::send(2, &[]).flags(flags));
    a.send_cq.expect_success(2);
    b.receive_cq.expect_success(1);
}

fn no_event_comes_unasked(device: &Device) {
    let (a, b) = with_channel(device);
    send(&a, &b, PLAIN);
    send(&a, &b, SOLICITED);
    b.expect_no_event(&a);
}

fn an_event_names_its_queue(device: &Device) {
    let (a, b) = with_channel(device);
    b.receive_cq.request_event(false);
    send(&a, &b, PLAIN);
    b.expect(&b.receive_cq);
}

fn one_event_comes_for_each_request_of_one(device: &Device) {
    let (a, b) = with_channel(device);
    b.receive_cq.request_event(false);
    for _ in 0..3 {
        send(&a, &b, PLAIN);
    }
    b.expect(&b.receive_cq);
    b.expect_no_event(&a);
}

fn each_request_gets_an_event_of_its_own(device: &Device) {
    let (a, b) = with_channel(device);
    for _ in 0..10 {
        b.receive_cq.request_event(false);
        send(&a, &b, PLAIN);
        b.expect(&b.receive_cq);
    }
    b.expect_no_event(&a);
}

fn requests_before_an_event_are_one(device: &Device) {
    let (a, b) = with_channel(device);
    for _ in 0..3 {
        b.receive_cq.request_event(false);
    }
    send(&a, &b, PLAIN);
    send(&a, &b, PLAIN);
    b.expect(&b.receive_cq);
    b.expect_no_event(&a);
}

fn events_that_nobody_takes_wait(device: &Device) {
    let (a, b) = with_channel(device);
    for _ in 0..3 {
        b.receive_cq.request_event(false);
        send(&a, &b, PLAIN);
    }
    for _ in 0..3 {
        b.expect(&b.receive_cq);
    }
    b.expect_no_event(&a);
}

fn what_was_polled_before_the_request_is_no_event(device: &Device) {
    let (a, b) = with_channel(device);
    send(&a, &b, PLAIN);
    b.receive_cq.request_event(false);
    b.expect_no_event(&a);
    send(&a, &b, PLAIN);
    b.expect(&b.receive_cq);
}

fn what_came_before_the_request_is_found_by_a_poll_behind_it(device: &Device) {
    let (a, b) = with_channel(device);
    b.qp.post_receive(1, &[]);
    a.qp.post(&Wr::send(2, &[]));
    a.send_cq.expect_success(2);
    // Whether the message arrives before or after the event is requested, either the poll or the
    // event reports it.
    b.receive_cq.request_event(false);
    if b.receive_cq.is_empty() {
        b.expect(&b.receive_cq);
        b.receive_cq.expect_success(1);
    }
}

fn a_queue_of_sends_has_events(device: &Device) {
    let (a, b) = with_channel(device);
    let memory = a.pd.register(8, ALL_ACCESS);
    b.send_cq.request_event(false);
    b.qp.post(&Wr::write(1, &[], &memory, 0));
    b.expect(&b.send_cq);
    b.send_cq.expect_success(1);
}

fn a_solicited_event_waits_for_a_solicited_message(device: &Device) {
    let (a, b) = with_channel(device);
    b.receive_cq.request_event(true);
    send(&a, &b, PLAIN);
    b.expect_no_event(&a);
    send(&a, &b, SOLICITED);
    b.expect(&b.receive_cq);
    send(&a, &b, SOLICITED);
    b.expect_no_event(&a);
}

fn every_solicited_message_is_a_solicited_event(device: &Device) {
    let (a, b) = with_channel(device);
    let memory = b.pd.register(8, ALL_ACCESS);
    let write = Wr::write(2, &[], &memory, 0);
    for wr in [Wr::send(2, &[]), Wr::send(2, &[]).with_imm(7), write.with_imm(8)] {
        b.receive_cq.request_event(true);
        b.qp.post_receive(1, &[]);
        a.qp.post(&wr.flags(SOLICITED));
        a.send_cq.expect_success(2);
        b.receive_cq.expect_success(1);
        b.expect(&b.receive_cq);
    }
}

fn the_wider_request_holds(device: &Device) {
    let (a, b) = with_channel(device);
    b.receive_cq.request_event(false);
    b.receive_cq.request_event(true);
    send(&a, &b, PLAIN);
    b.expect(&b.receive_cq);
}

fn a_narrow_request_becomes_a_wide_one(device: &Device) {
    let (a, b) = with_channel(device);
    b.receive_cq.request_event(true);
    b.receive_cq.request_event(false);
    send(&a, &b, PLAIN);
    b.expect(&b.receive_cq);
}

fn a_flushed_receive_counts_as_solicited(device: &Device) {
    let (_a, b) = with_channel(device);
    b.receive_cq.request_event(true);
    b.qp.post_receive(1, &[]);
    b.qp.to_error();
    b.expect(&b.receive_cq);
    b.receive_cq.expect_flushed([1]);
}

fn a_failed_send_counts_as_solicited(device: &Device) {
    let (a, b) = with_channel(device);
    let memory = a.pd.register(8, LOCAL_WRITE);
    b.send_cq.request_event(true);
    b.qp.post(&Wr::write(1, &[], &memory, 0).remote(64, 0));
    // The key of an empty write is not checked, so only the next write, of eight bytes, fails.
    b.send_cq.expect_success(1);
    let local = b.pd.register(8, LOCAL_WRITE);
    b.qp.post(&Wr::write(2, &[local.sge(0, 8)], &memory, 0).remote(64, 0));
    b.send_cq.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
    if device.differs("failed-sends-are-not-solicited") {
        let (c, d) = with_channel(device);
        d.expect_no_event(&c);
        assert!(!b.channel.is_readable());
        return;
    }
    b.expect(&b.send_cq);
}

fn the_descriptor_is_readable_while_there_is_an_event(device: &Device) {
    let (a, b) = with_channel(device);
    assert!(!b.channel.is_readable());
    b.receive_cq.request_event(false);
    assert!(!b.channel.is_readable());
    send(&a, &b, PLAIN);
    until("an event", || b.channel.is_readable());
    assert!(b.channel.is_readable(), "the event must still be queued");
    b.expect(&b.receive_cq);
    assert!(!b.channel.is_readable());
}

fn getting_without_waiting_says_that_there_is_none(device: &Device) {
    let (a, b) = with_channel(device);
    assert_eq!(b.channel.get(), Err(Errno::EAGAIN));
    b.receive_cq.request_event(false);
    send(&a, &b, PLAIN);
    b.expect(&b.receive_cq);
    assert_eq!(b.channel.get(), Err(Errno::EAGAIN));
}

fn getting_an_event_waits_for_one(device: &Device) {
    let (a, b) = with_channel(device);
    b.channel.set_non_blocking(false);
    b.receive_cq.request_event(false);
    let (queue, waiting) = (b.receive_cq.0.addr(), &b.channel);
    std::thread::scope(|threads| {
        let waiter = threads.spawn(move || waiting.get().map(<*mut _>::addr));
        send(&a, &b, PLAIN);
        assert_eq!(waiter.join().unwrap(), Ok(queue));
    });
    b.receive_cq.acknowledge(1);
}

fn queues_that_share_a_channel_have_their_own_events(device: &Device) {
    let (a, b) = with_channel(device);
    for cq in [&b.send_cq, &b.receive_cq] {
        cq.request_event(false);
    }
    send(&a, &b, PLAIN);
    b.expect(&b.receive_cq);
    a.qp.post_receive(4, &[]);
    b.qp.post(&Wr::send(5, &[]));
    b.expect(&b.send_cq);
    b.send_cq.expect_success(5);
}

fn channels_of_one_context_have_their_own_events(device: &Device) {
    let (a, b) = with_channel(device);
    let other = b.context.channel();
    other.set_non_blocking(true);
    let cq = b.context.cq_with(&other, 8);
    for cq in [&cq, &b.receive_cq] {
        cq.request_event(false);
    }
    send(&a, &b, PLAIN);
    b.expect(&b.receive_cq);
    assert_eq!(other.get(), Err(Errno::EAGAIN));
    // The other channel works too: it reports the completions of its own queue, and no others.
    let peer = Side::new(device, &Size::default(), 8);
    let qp = b.pd.qp(&cq, &cq, &Size::default());
    let (here, there) = (endpoint(&b.context, &qp), peer.endpoint());
    connect(&qp, &here, &there, &Knobs::default());
    connect(&peer.qp, &there, &here, &Knobs::default());
    peer.qp.post_receive(1, &[]);
    qp.post(&Wr::send(2, &[]));
    expect_event(&other, &cq);
    cq.expect_success(2);
    assert_eq!(b.channel.get(), Err(Errno::EAGAIN));
}

fn one_queue_has_one_request_for_both_of_its_ends(device: &Device) {
    let a = Side::new(device, &Size::default(), 64);
    let context = device.open();
    let channel = context.channel();
    channel.set_non_blocking(true);
    let (cq, pd) = (context.cq_with(&channel, 64), context.pd());
    let qp = pd.qp(&cq, &cq, &Size::default());
    let (there, here) = (a.endpoint(), endpoint(&context, &qp));
    connect(&a.qp, &there, &here, &Knobs::default());
    connect(&qp, &here, &there, &Knobs::default());
    cq.request_event(false);
    qp.post_receive(1, &[]);
    a.qp.post_receive(1, &[]);
    qp.post(&Wr::send(2, &[]));
    cq.expect_success(2);
    a.qp.post(&Wr::send(2, &[]));
    cq.expect_success(1);
    expect_event(&channel, &cq);
    assert_eq!(channel.get(), Err(Errno::EAGAIN));
}

fn a_channel_with_a_queue_stays(device: &Device) {
    let context = device.open();
    let channel = context.channel();
    let cq = context.cq_with(&channel, 8);
    assert_eq!(channel.try_destroy(), Errno::EBUSY.raw());
    drop(cq);
    // The drop asserts that the channel can be destroyed now.
    drop(channel);
}

fn a_queue_without_a_channel_may_be_asked_for_events(device: &Device) {
    let (a, b) = with_channel(device);
    for solicited_only in [true, false] {
        a.send_cq.request_event(solicited_only);
        send(&a, &b, SOLICITED);
    }
    b.expect_no_event(&a);
}

fn events_are_moderated_only_where_the_device_says_so(device: &Device) {
    let (a, b) = with_channel(device);
    let largest = b.context.query_device_ex().cq_mod_caps;
    let expected = if largest.max_cq_count == 0 { Errno::EOPNOTSUPP.raw() } else { 0 };
    assert_eq!(b.receive_cq.moderate(1, 1), expected);
    b.receive_cq.request_event(false);
    send(&a, &b, PLAIN);
    b.expect(&b.receive_cq);
}

fn events_are_acknowledged_many_at_once(device: &Device) {
    let (a, b) = with_channel(device);
    for _ in 0..5 {
        b.receive_cq.request_event(false);
        send(&a, &b, PLAIN);
        until("an event", || b.channel.is_readable());
        assert_eq!(b.channel.get(), Ok(b.receive_cq.0));
    }
    // Without this acknowledgement, destroying the queue at the end of the case would not return.
    b.receive_cq.acknowledge(5);
}

fn destroying_a_queue_takes_its_events_along(device: &Device) {
    let (a, b) = with_channel(device);
    b.receive_cq.request_event(false);
    send(&a, &b, PLAIN);
    until("an event", || b.channel.is_readable());
    let Receiver { qp, send_cq, receive_cq, pd, channel, context } = b;
    drop((qp, receive_cq));
    assert_eq!(channel.get(), Err(Errno::EAGAIN));
    drop((send_cq, pd, channel));
    drop(context);
}

fn destroying_a_queue_leaves_the_events_of_others(device: &Device) {
    let (a, b) = with_channel(device);
    let third = b.context.cq_with(&b.channel, 8);
    for cq in [&b.receive_cq, &third] {
        cq.request_event(false);
    }
    send(&a, &b, PLAIN);
    until("an event", || b.channel.is_readable());
    drop(third);
    b.expect(&b.receive_cq);
}

fn destroying_a_queue_waits_for_acknowledgements(device: &Device) {
    let (a, b) = with_channel(device);
    for _ in 0..2 {
        b.receive_cq.request_event(false);
        send(&a, &b, PLAIN);
        until("an event", || b.channel.is_readable());
        assert_eq!(b.channel.get(), Ok(b.receive_cq.0));
    }
    b.receive_cq.request_event(false);
    send(&a, &b, PLAIN);
    until("an event", || b.channel.is_readable());
    let Receiver { qp, send_cq, receive_cq, pd, channel, context } = b;
    drop(qp);
    let name = receive_cq.name();
    std::thread::scope(|threads| {
        let destroyer = threads.spawn(move || drop(receive_cq));
        // The destruction first discards the unread event. Then it waits until the two events that
        // were read are acknowledged.
        until("the discard of the unread event", || !channel.is_readable());
        assert!(!destroyer.is_finished());
        name.acknowledge(1);
        assert!(!destroyer.is_finished(), "one of two acknowledgements is missing");
        name.acknowledge(1);
        destroyer.join().unwrap();
    });
    drop((send_cq, pd, channel));
    drop(context);
}

fn an_event_has_the_pointer_of_its_queue(device: &Device) {
    let context = device.open();
    let channel = context.channel();
    let (cq, pd) = (context.cq_tagged(&channel, 64, 0x5ca1_ab1e), context.pd());
    assert_eq!(cq.tag(), 0x5ca1_ab1e);
    let qp = pd.qp(&cq, &cq, &Size::default());
    let end = endpoint(&context, &qp);
    connect(&qp, &end, &end, &Knobs::default());
    cq.request_event(false);
    qp.post_receive(1, &[]);
    qp.to_error();
    assert_eq!(channel.get_tagged(), Ok((cq.0, 0x5ca1_ab1e)));
    cq.acknowledge(1);
    cq.expect_flushed([1]);
}

fn each_event_goes_to_one_of_many_threads(device: &Device) {
    const EVENTS: usize = 24;
    let context = device.open();
    let (channel, pd) = (context.channel(), context.pd());
    channel.set_non_blocking(true);
    let queues: Vec<_> = (0..EVENTS).map(|_| context.cq_with(&channel, 8)).collect();
    let qps: Vec<_> = queues.iter().map(|cq| pd.qp(cq, cq, &Size::default())).collect();
    let taken = Mutex::new(Vec::new());
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                until("all events", || {
                    let event = channel.get().map(<*mut _>::addr);
                    let mut taken = taken.lock().unwrap();
                    taken.extend(event);
                    taken.len() >= EVENTS
                });
            });
        }
        for (qp, cq) in qps.iter().zip(&queues) {
            let end = endpoint(&context, qp);
            connect(qp, &end, &end, &Knobs::default());
            cq.request_event(false);
            qp.post_receive(1, &[]);
            qp.to_error();
        }
    });
    let mut taken = taken.into_inner().unwrap();
    taken.sort_unstable();
    let mut wanted: Vec<_> = queues.iter().map(|cq| cq.0.addr()).collect();
    wanted.sort_unstable();
    assert_eq!(taken, wanted);
    queues.iter().for_each(|cq| cq.acknowledge(1));
}
