//! Asynchronous events of queue pairs and completion queues, and how they are handled.

use rdma_sys::{
    Errno, ibv_event_type as Event, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State,
    ibv_wc_status as Status,
};
use test_support::rig::connect::{
    Knobs, Side, attributes, connect, connect_sides, pair, pair_with, to_init, to_rtr, to_rts,
};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Qp, Size, until};

use crate::case::cases;
use crate::device::Device;

cases![
    a_context_to_which_nothing_happens_has_no_event,
    the_descriptor_is_readable_while_there_is_an_event,
    getting_without_waiting_says_that_there_is_none,
    getting_an_event_waits_for_one,
    an_event_comes_to_the_context_of_its_object,
    events_come_in_order,
    a_completion_is_no_event,
    a_refused_access_is_an_event_of_the_responder,
    an_invalid_request_is_an_event_of_the_responder,
    a_requester_has_its_completion_and_no_event,
    a_first_message_establishes_the_connection_of_a_passive_side,
    the_events_of_a_destroyed_queue_pair_are_gone,
    destroying_a_queue_pair_waits_for_acknowledgements,
    ;
    destructive:
    an_overflow_is_an_event_of_the_queue,
];

/// Makes a queue pair report an event in a way that works on every device: by draining its send
/// queue.
fn provoke(qp: &Qp) {
    let attr =
        ibv_qp_attr { qp_state: State::IBV_QPS_SQD, en_sqd_async_notify: 1, ..Default::default() };
    let mask = Mask::IBV_QP_STATE | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY;
    assert_eq!(qp.modify(attr, mask.0), 0);
}

const PROVOKED: Event = Event::IBV_EVENT_SQ_DRAINED;

/// Waits until the side's context has events, and reads them.
#[track_caller]
fn events(side: &Side) -> Vec<(Event, usize)> {
    until("an event", || side.context.has_async_events());
    side.context.async_events()
}

/// Checks that the side has no event except the one that this function causes.
#[track_caller]
fn expect_no_event(side: &Side) {
    provoke(&side.qp);
    assert_eq!(events(side), [(PROVOKED, side.qp.0.addr())]);
}

fn a_context_to_which_nothing_happens_has_no_event(device: &Device) {
    let (a, b) = pair(device);
    for side in [&a, &b] {
        assert!(!side.context.has_async_events());
        expect_no_event(side);
    }
}

fn the_descriptor_is_readable_while_there_is_an_event(device: &Device) {
    let (a, _b) = pair(device);
    assert!(!a.context.has_async_events());
    provoke(&a.qp);
    until("an event", || a.context.has_async_events());
    assert_eq!(a.context.async_events().len(), 1);
    assert!(!a.context.has_async_events());
}

fn getting_without_waiting_says_that_there_is_none(device: &Device) {
    let (a, _b) = pair(device);
    a.context.set_async_non_blocking(true);
    assert_eq!(a.context.try_async_event(), Err(Errno::EAGAIN));
    provoke(&a.qp);
    until("an event", || a.context.has_async_events());
    assert_eq!(a.context.try_async_event(), Ok((PROVOKED, a.qp.0.addr())));
    assert_eq!(a.context.try_async_event(), Err(Errno::EAGAIN));
}

fn getting_an_event_waits_for_one(device: &Device) {
    let (a, _b) = pair(device);
    a.context.set_async_non_blocking(false);
    let (context, qp) = (&a.context, a.qp.0.addr());
    std::thread::scope(|threads| {
        let waiter = threads.spawn(move || context.try_async_event());
        provoke(&a.qp);
        assert_eq!(waiter.join().unwrap(), Ok((PROVOKED, qp)));
    });
}

fn an_event_comes_to_the_context_of_its_object(device: &Device) {
    let (a, b) = pair(device);
    provoke(&a.qp);
    assert_eq!(events(&a), [(PROVOKED, a.qp.0.addr())]);
    assert!(!b.context.has_async_events());
    expect_no_event(&b);
}

fn events_come_in_order(device: &Device) {
    let (a, _b) = pair(device);
    let others: Vec<_> =
        (0..4).map(|_| a.pd.qp(&a.send_cq, &a.receive_cq, &Size::default())).collect();
    let end = a.endpoint();
    for (n, qp) in others.iter().enumerate() {
        connect(qp, &end, &end, &Knobs::default());
        provoke(qp);
        // The next event is caused only after the device has reported this one.
        until("the queue is drained", || qp.query().sq_draining == 0);
        until("an event", || a.context.has_async_events());
        if n == 0 {
            assert!(a.context.has_async_events());
        }
    }
    let mut found = events(&a);
    until("all events", || {
        found.extend(a.context.async_events());
        found.len() >= others.len()
    });
    let provoked: Vec<_> = others.iter().map(|qp| (PROVOKED, qp.0.addr())).collect();
    assert_eq!(found, provoked);
}

fn a_completion_is_no_event(device: &Device) {
    let (a, b) = pair(device);
    b.qp.post_receive(1, &[]);
    a.qp.post(&Wr::send(2, &[]));
    a.send_cq.expect_success(2);
    b.receive_cq.expect_success(1);
    expect_no_event(&a);
    expect_no_event(&b);
}

/// Makes A write with an invalid remote key, and checks that the request is refused.
fn refused_access(a: &Side) {
    let memory = a.pd.register(8, LOCAL_WRITE);
    a.qp.post(&Wr::write(1, &[memory.sge(0, 8)], &memory, 0).remote(64, 0));
    a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
}

/// Checks that B reports this event after a failure. SoftRoCE reports none.
#[track_caller]
fn expect_failure(device: &Device, b: &Side, event: Event) {
    b.qp.wait_for_error();
    if device.differs("refused-requests-are-no-events") {
        assert!(!b.context.has_async_events());
        return;
    }
    assert_eq!(events(b), [(event, b.qp.0.addr())]);
}

fn a_refused_access_is_an_event_of_the_responder(device: &Device) {
    let (a, b) = pair(device);
    refused_access(&a);
    expect_failure(device, &b, Event::IBV_EVENT_QP_ACCESS_ERR);
}

fn an_invalid_request_is_an_event_of_the_responder(device: &Device) {
    let forbidden = Knobs { access: 0, ..Knobs::default() };
    let (a, b) = pair_with(device, &Size::default(), &forbidden);
    let (from, to) = (a.pd.register(8, LOCAL_WRITE), b.pd.register(8, ALL_ACCESS));
    a.qp.post(&Wr::write(1, &[from.sge(0, 8)], &to, 0));
    a.send_cq.expect(1, Status::IBV_WC_REM_INV_REQ_ERR);
    expect_failure(device, &b, Event::IBV_EVENT_QP_REQ_ERR);
}

fn a_requester_has_its_completion_and_no_event(device: &Device) {
    let (a, b) = pair(device);
    refused_access(&a);
    b.qp.wait_for_error();
    // Causes an event of another queue pair in the same context.
    let other = a.pd.qp(&a.send_cq, &a.receive_cq, &Size::default());
    let end = a.endpoint();
    connect(&other, &end, &end, &Knobs::default());
    provoke(&other);
    assert_eq!(events(&a), [(PROVOKED, other.0.addr())]);
}

fn a_first_message_establishes_the_connection_of_a_passive_side(device: &Device) {
    let (a, b) = (Side::new(device, &Size::default(), 64), Side::new(device, &Size::default(), 64));
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let passive = attributes(&at_b, &at_a, &Knobs::default());
    to_init(&b.qp, &passive);
    to_rtr(&b.qp, &passive);
    connect(&a.qp, &at_a, &at_b, &Knobs::default());
    for n in 0..2 {
        b.qp.post_receive(n, &[]);
        a.qp.post(&Wr::send(n, &[]));
        a.send_cq.expect_success(n);
        b.receive_cq.expect_success(n);
    }
    if device.differs("established-connections-are-no-events") {
        to_rts(&b.qp, &passive);
        return expect_no_event(&b);
    }
    assert_eq!(events(&b), [(Event::IBV_EVENT_COMM_EST, b.qp.0.addr())]);
}

fn the_events_of_a_destroyed_queue_pair_are_gone(device: &Device) {
    let (mut a, _b) = pair(device);
    provoke(&a.qp);
    until("an event", || a.context.has_async_events());
    a.qp.destroy();
    assert!(!a.context.has_async_events());
}

fn destroying_a_queue_pair_waits_for_acknowledgements(device: &Device) {
    let (a, _b) = pair(device);
    provoke(&a.qp);
    until("an event", || a.context.has_async_events());
    let taken = a.context.take_async_events(false);
    assert_eq!(taken, [(PROVOKED, a.qp.0.addr())]);
    // Causes another event, which the case does not read.
    assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
    provoke(&a.qp);
    until("an event", || a.context.has_async_events());
    let Side { qp, send_cq, receive_cq, pd, context } = a;
    let name = qp.name();
    std::thread::scope(|threads| {
        let destroyer = threads.spawn(move || drop(qp));
        // The destruction first discards the unread event, and then waits until the other one is
        // acknowledged.
        until("the discard of the unread event", || !context.has_async_events());
        assert!(!destroyer.is_finished());
        name.acknowledge(PROVOKED);
        destroyer.join().unwrap();
    });
    drop((send_cq, receive_cq, pd));
    drop(context);
}

/// Returns a side whose send completion queue has overflowed, and its peer.
fn overflowed(device: &Device) -> (Side, Side) {
    let (a, b) = (Side::new(device, &Size::default(), 2), Side::new(device, &Size::default(), 64));
    connect_sides(&a, &b, &Knobs::default());
    let sink = b.pd.register(8, ALL_ACCESS);
    for n in 0..=u64::try_from(a.send_cq.entries()).unwrap() {
        a.qp.post(&Wr::write(n, &[], &sink, 0));
    }
    until("an event", || a.context.has_async_events());
    (a, b)
}

fn an_overflow_is_an_event_of_the_queue(device: &Device) {
    let (a, _b) = overflowed(device);
    let found = a.context.async_events();
    let of_queue = (Event::IBV_EVENT_CQ_ERR, a.send_cq.0.addr());
    assert_eq!(found.iter().filter(|event| **event == of_queue).count(), 1, "{found:?}");
}
