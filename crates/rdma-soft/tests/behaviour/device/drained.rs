//! Draining a send queue: requests already begun are finished, no others, and the program is
//! notified on request.

use std::time::{Duration, Instant};

use rdma_sys::{
    ibv_event_type as Event, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State,
    ibv_wc_status as Status,
};

use crate::device::rig::connect::{Knobs, Side, pair, pair_with};
use crate::device::rig::post::Wr;
use crate::device::rig::{Qp, Size, on_each_device, on_each_held_device, soft, until};

/// Starts draining the queue pair, and requests an event if `notify` is set.
fn drain(qp: &Qp, notify: bool) {
    let mut attr = ibv_qp_attr::default();
    (attr.qp_state, attr.en_sqd_async_notify) = (State::IBV_QPS_SQD, notify.into());
    let mask = Mask::IBV_QP_STATE | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY;
    assert_eq!(qp.modify(attr, mask.0), 0);
}

fn is_draining(qp: &Qp) -> bool {
    qp.query().sq_draining != 0
}

/// The events of a side's queue pair.
fn events(side: &Side) -> Vec<Event> {
    side.context.async_events().into_iter().map(|(kind, _)| kind).collect()
}

const DRAINED: [Event; 1] = [Event::IBV_EVENT_SQ_DRAINED];

#[test]
fn a_request_that_waits_for_the_peer_is_finished_first() {
    on_each_device("drained-waits", |device| {
        let (a, b) = pair(device);
        a.qp.post(&Wr::send(1, &[]));
        a.qp.post(&Wr::send(2, &[]));
        soft(device).release(a.qp.qpn(), 1);
        drain(&a.qp, true);
        assert!(is_draining(&a.qp));
        assert_eq!(events(&a), []);
        // An attribute may change meanwhile.
        let mut attr = ibv_qp_attr::default();
        (attr.qp_state, attr.rnr_retry) = (State::IBV_QPS_SQD, 7);
        assert_eq!(a.qp.modify(attr, (Mask::IBV_QP_STATE | Mask::IBV_QP_RNR_RETRY).0), 0);
        assert_eq!(events(&a), []);
        b.qp.post_receive(1, &[]);
        a.send_cq.expect_success(1);
        // The device's thread reports it after the completion.
        let mut seen = Vec::new();
        until("drained", || {
            seen.extend(events(&a));
            !seen.is_empty()
        });
        assert_eq!(seen, DRAINED);
        assert!(!is_draining(&a.qp));
        b.qp.post_receive(2, &[]);
        assert!(a.send_cq.is_empty(), "the second request was not begun");
        assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
        a.send_cq.expect_success(2);
        assert_eq!(events(&a), [], "once");
    });
}

#[test]
fn a_half_copied_request_is_finished_first() {
    on_each_held_device("drained-half", |device| {
        let (a, b) = pair(device.name());
        let (source, sink) =
            (a.pd.register(8, 0), b.pd.register(8, crate::device::rig::ALL_ACCESS));
        for n in 0..2 {
            a.qp.post(&Wr::write(n, &[source.sge(0, 8)], &sink, 0));
        }
        assert!(device.release_half(a.qp.qpn()));
        drain(&a.qp, true);
        assert!(is_draining(&a.qp) && events(&a).is_empty());
        assert_eq!(device.release(a.qp.qpn(), 5), 1, "only the request that was begun");
        a.send_cq.expect_success(0);
        assert_eq!(events(&a), DRAINED);
        assert!(a.send_cq.is_empty());
        assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
        assert_eq!(device.release(a.qp.qpn(), 5), 1);
        a.send_cq.expect_success(1);
    });
}

#[test]
fn a_requested_event_is_dropped_when_the_queue_resumes() {
    on_each_device("drained-on", |device| {
        let (a, b) = pair(device);
        a.qp.post(&Wr::send(1, &[]));
        soft(device).release(a.qp.qpn(), 1);
        drain(&a.qp, true);
        assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
        assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
        b.qp.post_receive(1, &[]);
        a.send_cq.expect_success(1);
        assert_eq!(events(&a), []);
    });
}

#[test]
fn a_queue_that_fails_is_not_drained() {
    on_each_device("drained-not", |device| {
        // Long enough that it is draining when it fails: 655 ms.
        let knobs = Knobs { rnr_retries: 1, min_rnr_timer: 0, ..Knobs::default() };
        let (a, _b) = pair_with(device, &Size::default(), &knobs);
        a.qp.post(&Wr::send(1, &[]));
        soft(device).release(a.qp.qpn(), 1);
        drain(&a.qp, true);
        a.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
        a.qp.wait_for_error();
        assert_eq!(events(&a), []);
    });
}

/// A side that drains, and waits without limit for the answer of a peer that is gone.
fn waiting_for_nobody(device: &str) -> Side {
    let (a, b) = pair_with(device, &Size::default(), &Knobs { timeout: 0, ..Knobs::default() });
    b.qp.to_reset();
    a.qp.post(&Wr::send(1, &[]));
    soft(device).release(a.qp.qpn(), 1);
    drain(&a.qp, false);
    assert!(is_draining(&a.qp) && a.send_cq.is_empty());
    a
}

/// Sets them while the queue drains.
fn set_timeout(qp: &Qp, timeout: u8, retry_cnt: u8) {
    let qp_state = State::IBV_QPS_SQD;
    let attr = ibv_qp_attr { qp_state, timeout, retry_cnt, ..Default::default() };
    let mask = Mask::IBV_QP_STATE | Mask::IBV_QP_TIMEOUT | Mask::IBV_QP_RETRY_CNT;
    assert_eq!(qp.modify(attr, mask.0), 0);
}

/// A missing answer is waited for no longer than that, although nothing else is sent.
#[test]
fn a_timeout_set_while_draining_applies() {
    on_each_device("drained-timeout", |device| {
        let a = waiting_for_nobody(device);
        set_timeout(&a.qp, 8, 1);
        a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    });
}

/// The timeout starts when it is set, not when the request was sent, which may be long ago.
#[test]
#[allow(clippy::disallowed_methods)] // The program has a clock of its own.
fn a_timeout_set_while_draining_starts_when_it_is_set() {
    on_each_device("drained-since", |device| {
        let a = waiting_for_nobody(device);
        std::thread::sleep(Duration::from_millis(300));
        let begin = Instant::now();
        set_timeout(&a.qp, 16, 0); // 268 ms
        a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        assert!(begin.elapsed() >= Duration::from_micros(268_400), "{:?}", begin.elapsed());
    });
}
