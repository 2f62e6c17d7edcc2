//! Changing queue pairs: allowed changes, and the errors of the others.
#![allow(unsafe_code)]

use crate::common::{DEVICES, HANG, TestPeer, everything, pair};
use rdma_mem::AsyncEventKind;
use rdma_qp::{
    Error, MinRnrTimer, QpState, QueuePairModification, ReceiveWorkRequest, SendWorkRequest,
};

fn to(state: QpState) -> QueuePairModification {
    QueuePairModification::new().state(state)
}

/// Resets the end and brings it to `RTR` again, with the same peer.
fn passive(end: &TestPeer) {
    let (peer, was) = (end.qp.peer().unwrap(), end.qp.query().unwrap());
    end.qp.modify(&to(QpState::RESET)).unwrap();
    let init = to(QpState::INIT).port(was.port).pkey_index(was.pkey_index).access(everything());
    end.qp.modify(&init).unwrap();
    let rtr = to(QpState::RTR)
        .path(was.port, peer.peer_lid, peer.route)
        .mtu(peer.mtu)
        .peer_qpn(peer.peer_qpn)
        .recv_psn(peer.recv_psn)
        .max_dest_rd_atomic(peer.max_dest_rd_atomic)
        .min_rnr_timer(was.min_rnr_timer);
    end.qp.modify(&rtr).unwrap();
}

/// Sends from `a` to `b`, and polls both completions.
fn send(a: &TestPeer, b: &TestPeer) {
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { b.qp.post_receive(ReceiveWorkRequest::only_immediate(), 1) }.unwrap();
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { a.qp.post_send(SendWorkRequest::only_immediate(7), 2) }.unwrap();
    assert_eq!(b.next().result().unwrap().immediate_data(), Some(7));
    a.next().result().unwrap();
}

#[test]
fn a_first_message_establishes_the_connection_of_a_passive_end() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let events = b.pd.context().async_events().unwrap();
        let peer = b.qp.peer().unwrap();
        passive(&b);
        send(&a, &b);
        let event = events.get_event_timeout(HANG).unwrap().unwrap();
        assert_eq!(event.kind, AsyncEventKind::COMM_EST);
        assert_eq!(event.source, b.qp.event_source());
        let was = a.qp.query().unwrap();
        let rts = to(QpState::RTS)
            .ack_timeout(was.ack_timeout)
            .max_ack_retries(was.max_ack_retries)
            .max_rnr_retries(was.max_rnr_retries)
            .send_psn(peer.send_psn)
            .max_rd_atomic(peer.max_rd_atomic);
        b.qp.modify(&rts).unwrap();
        send(&b, &a);
        assert_eq!(events.try_get_event().unwrap(), None);
    }
}

#[test]
fn attributes_that_lack_or_do_not_belong_are_named() {
    for device in DEVICES {
        let (a, _b) = pair(device);
        let was = a.qp.query().unwrap();
        let change = QueuePairModification::new().mtu(was.mtu.unwrap()).send_psn(was.send_psn);
        let error = a.qp.modify(&change.min_rnr_timer(MinRnrTimer::longest())).unwrap_err();
        let qpn = a.qp.qpn();
        let rts = QpState::RTS;
        assert_eq!(
            error.to_string(),
            format!("queue pair {qpn}: {rts} to {rts} must not have `mtu`, `send_psn`")
        );
        assert_eq!(a.qp.query().unwrap().min_rnr_timer, was.min_rnr_timer, "nothing was changed");

        let error = a.qp.modify(&to(QpState::INIT)).unwrap_err();
        assert!(
            matches!(error, Error::NoTransition { from, to: QpState::INIT, .. } if from == rts)
        );
        assert!(error.to_string().contains("it cannot move from RTS"), "{error}");

        a.qp.modify(&to(QpState::RESET)).unwrap();
        let error = a.qp.modify(&to(QpState::INIT).port(1).mtu(was.mtu.unwrap())).unwrap_err();
        let Error::Attributes { from, lacking, forbidden, .. } = &error else { panic!("{error}") };
        assert_eq!(*from, QpState::RESET);
        assert_eq!(
            (lacking.as_slice(), forbidden.as_slice()),
            (&["pkey_index", "access"][..], &["mtu"][..])
        );
        let text = error.to_string();
        assert!(text.ends_with("lacks `pkey_index`, `access` and must not have `mtu`"), "{text}");
        let error = a.qp.modify(&to(QpState::ERR)).unwrap_err();
        assert!(matches!(error, Error::NoTransition { .. }), "{error}");
    }
}

#[test]
fn a_connected_queue_pair_accepts_allowed_changes() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let none = rdma_mem::AccessFlags::new();
        let change =
            QueuePairModification::new().access(none).min_rnr_timer(MinRnrTimer::longest());
        b.qp.modify(&change).unwrap();
        let now = b.qp.query().unwrap();
        assert_eq!((now.state, now.min_rnr_timer), (QpState::RTS, MinRnrTimer::longest()));
        assert!(!now.access.contains(rdma_mem::AccessFlags::REMOTE_WRITE));
        send(&a, &b);
        b.qp.modify(&to(QpState::SQD)).unwrap();
        b.qp.modify(&to(QpState::RTS)).unwrap();
        send(&b, &a);
        b.qp.modify(&to(QpState::ERR)).unwrap();
        b.qp.modify(&to(QpState::ERR)).unwrap();
    }
}
