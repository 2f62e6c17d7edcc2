//! Draining a send queue: requests that have begun complete, no others begin, and the program is
//! notified if it requested that.

use rdma_sys::{
    ibv_event_type as Event, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State,
    ibv_wc_status as Status,
};
use test_support::rig::connect::{Knobs, Side, acquaint, pair, pair_with};
use test_support::rig::post::Wr;
use test_support::rig::{LOCAL_WRITE, Qp, Size, until};

use crate::case::cases;
use crate::device::Device;

cases![
    queue_that_has_begun_nothing_is_drained_at_once,
    nobody_is_told_who_did_not_ask,
    queue_is_drained_when_what_it_began_is_finished,
    queue_says_that_it_drains_until_what_it_began_is_finished,
    queue_may_be_drained_again_and_again,
    requests_of_a_drained_queue_are_begun_when_it_sends_again,
];

/// Starts draining the queue pair's send queue. Requests an event if `notify` is set.
fn drain(qp: &Qp, notify: bool) {
    let mut attr = ibv_qp_attr::default();
    (attr.qp_state, attr.en_sqd_async_notify) = (State::IBV_QPS_SQD, notify.into());
    let mask = Mask::IBV_QP_STATE | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY;
    assert_eq!(qp.modify(attr, mask.0), 0);
}

/// Waits for the event that the queue is drained, and checks that it is the only event.
#[track_caller]
fn expect_drained(side: &Side) {
    let mut events = Vec::new();
    until("the event", || {
        events.extend(side.context.async_events());
        !events.is_empty()
    });
    assert_eq!(events, [(Event::IBV_EVENT_SQ_DRAINED, side.qp.0.addr())]);
    assert_eq!(side.qp.query().sq_draining, 0);
}

fn queue_that_has_begun_nothing_is_drained_at_once(device: &Device) {
    let (a, _b) = pair(device);
    drain(&a.qp, true);
    expect_drained(&a);
}

fn nobody_is_told_who_did_not_ask(device: &Device) {
    let (a, _b) = pair(device);
    drain(&a.qp, false);
    until("the end of draining", || a.qp.query().sq_draining == 0);
    if device.differs("drained-event-unasked") {
        expect_drained(&a);
    } else {
        assert_eq!(a.context.async_events(), []);
    }
}

fn queue_is_drained_when_what_it_began_is_finished(device: &Device) {
    let (a, b) = pair(device);
    for n in 0..3 {
        a.qp.post(&Wr::send(n, &[]));
    }
    // The device decides how many of the requests have begun.
    drain(&a.qp, true);
    for n in 0..3 {
        b.qp.post_receive(n, &[]);
    }
    expect_drained(&a);
    let mut finished = 0;
    while let Some(wc) = a.send_cq.try_poll::<1>().unwrap().pop() {
        assert_eq!((wc.wr_id, wc.status), (finished, Status::IBV_WC_SUCCESS));
        finished += 1;
    }
    // The peer has received the messages of the finished requests, and no others are in flight.
    for n in 0..finished {
        b.receive_cq.expect_success(n);
    }
    assert!(b.receive_cq.is_empty());
}

fn queue_says_that_it_drains_until_what_it_began_is_finished(device: &Device) {
    let mut begun = None;
    until("a send that was begun before the queue was drained", || {
        let (a, b) =
            pair_with(device, &Size::default(), &Knobs { rnr_retries: 7, ..Knobs::default() });
        a.qp.post(&Wr::send(1, &[]));
        assert!(a.send_cq.is_empty());
        drain(&a.qp, true);
        let draining = a.qp.query().sq_draining != 0;
        if draining {
            begun = Some((a, b));
        }
        draining
    });
    let (a, b) = begun.unwrap();
    if device.differs("drained-while-a-send-waits") {
        return expect_drained(&a);
    }
    assert!(!a.context.has_async_events());
    b.qp.post_receive(2, &[]);
    expect_drained(&a);
    a.send_cq.expect_success(1);
    b.receive_cq.expect_success(2);
}

fn queue_may_be_drained_again_and_again(device: &Device) {
    let (a, b) = pair(device);
    for n in 0..3 {
        drain(&a.qp, true);
        expect_drained(&a);
        assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
        b.qp.post_receive(n, &[]);
        a.qp.post(&Wr::send(n, &[]));
        a.send_cq.expect_success(n);
        b.receive_cq.expect_success(n);
    }
}

fn requests_of_a_drained_queue_are_begun_when_it_sends_again(device: &Device) {
    let (a, b) = pair(device);
    // After this exchange, the requester knows its peer, and may execute posts on a fast path.
    acquaint(&a, &b);
    let source = a.pd.register_filled(vec![1; 8], 0);
    let sinks = [(); 3].map(|()| b.pd.register(8, LOCAL_WRITE));
    drain(&a.qp, true);
    expect_drained(&a);
    for (n, sink) in (0..).zip(&sinks) {
        b.qp.post_receive(n, &[sink.sge(0, 8)]);
        a.qp.post(&Wr::send(n, &[source.sge(0, 8)]));
    }
    assert!(a.send_cq.is_empty() && b.receive_cq.is_empty());
    sinks.iter().for_each(|sink| sink.assert_filled(0));
    assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
    if device.differs("drained-queue-waits-for-a-post") {
        let (c, d) = pair(device);
        d.qp.post_receive(5, &[]);
        c.qp.post(&Wr::send(6, &[]));
        c.send_cq.expect_success(6);
        assert!(a.send_cq.is_empty() && b.receive_cq.is_empty());
        a.qp.post(&Wr::send(3, &[]));
    }
    for (n, sink) in (0..).zip(&sinks) {
        a.send_cq.expect_success(n);
        b.receive_cq.expect_success(n);
        sink.assert_filled(1);
    }
}
