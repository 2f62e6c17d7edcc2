//! Unreliable connections: messages arrive whole and in order, or not at all.
#![allow(unsafe_code)]

use std::time::Duration;

use crate::common::{DEVICES, TestPeer, pair, pair_with, parts, try_connect};
use rdma_mem::{GatherElement, ScatterElement, open_device};
use rdma_qp::{
    AtomicWorkRequest, CompletionQueue, Error, HandshakeError, PostErrorKind, QpState,
    QueuePairModification, QueuePairType, ReadWorkRequest, ReceiveWorkRequest, SendWithInvalidate,
    SendWorkRequest, WorkErrorCode, WorkRequest, WriteWorkRequest, prelude::*,
};
use rdma_soft::Builder;

fn unreliable(device: &str) -> (TestPeer, TestPeer) {
    pair_with(device, |builder| builder.qp_type(QueuePairType::UC))
}

/// Posts a request that creates one completion, and polls it.
fn send(from: &TestPeer, request: impl WorkRequest) {
    // SAFETY: SAFETY.md F8: shared regions, which outlive the queue pair, or no memory.
    unsafe { from.qp.post(request, 1) }.unwrap();
    from.next().result().unwrap();
}

fn receive(end: &TestPeer) {
    let mut room = [ScatterElement::from(end.board.element(0..64).unwrap())];
    // SAFETY: SAFETY.md F8: a shared region, which outlives the queue pair.
    unsafe { end.qp.post_receive(ReceiveWorkRequest::new(&mut room), 2) }.unwrap();
}

#[test]
fn sends_and_writes_arrive() {
    for (device, extended) in DEVICES.into_iter().flat_map(|name| [(name, false), (name, true)]) {
        let (a, b) =
            pair_with(device, |builder| builder.qp_type(QueuePairType::UC).extended(extended));
        assert_eq!((a.qp.qp_type(), a.qp.is_extended()), (QueuePairType::UC, extended));
        assert_eq!(a.qp.peer().unwrap().peer_qpn, b.qp.qpn());
        let told = a.qp.query().unwrap();
        assert_eq!((told.state, told.peer_qpn), (QpState::RTS, b.qp.qpn()));
        a.board.write(0, b"unreliable").unwrap();
        let data = [GatherElement::from(a.board.element(0..10).unwrap())];
        receive(&b);
        send(&a, SendWorkRequest::new(&data));
        let completion = b.next();
        assert_eq!(completion.result().unwrap().scattered_bytes(), Some(10));
        assert_eq!((&b.read(0), b.qp.datagram(&completion)), (b"unreliable", None));
        let remote = b.board.remote().sub_region(100).unwrap();
        receive(&b);
        send(&a, WriteWorkRequest::new(&data, remote).with_immediate(3));
        assert_eq!(b.next().result().unwrap().immediate_data(), Some(3));
        assert_eq!(&b.read(100), b"unreliable");
    }
}

#[test]
fn a_message_without_a_receive_is_lost_and_later_ones_arrive() {
    for device in DEVICES {
        let (a, b) = unreliable(device);
        send(&a, SendWorkRequest::only_immediate(1));
        let wrong = b.board.remote();
        let wrong = rdma_mem::RemoteMemoryRegion::new(
            wrong.address(),
            wrong.length(),
            wrong.rkey().get() ^ 0x80,
        );
        let data = [GatherElement::from(a.board.element(0..10).unwrap())];
        send(&a, WriteWorkRequest::new(&data, wrong));
        receive(&b);
        send(&a, SendWorkRequest::only_immediate(2));
        assert_eq!(b.next().result().unwrap().immediate_data(), Some(2));
        drop(b);
        send(&a, SendWorkRequest::only_immediate(3));
        assert_eq!(a.qp.state().unwrap(), QpState::RTS);
    }
}

#[test]
fn requests_that_need_a_response_are_refused() {
    for device in DEVICES {
        let (a, b) = unreliable(device);
        let refused = |error: rdma_qp::PostError, name: &str| {
            assert_eq!((error.posted(), error.errno()), (0, None));
            assert_eq!(error.kind(), PostErrorKind::Opcode);
            let text = error.to_string();
            assert!(
                text.starts_with(name)
                    && text.ends_with("supports only sends, writes, binds and local invalidations"),
                "{text}"
            );
        };
        let mut room = [ScatterElement::from(a.board.element(0..8).unwrap())];
        let read = ReadWorkRequest::new(&mut room, b.board.remote());
        // SAFETY: SAFETY.md F8: shared regions, which outlive the test.
        refused(unsafe { a.qp.post(read, 1) }.unwrap_err(), "an RDMA read");
        let add = AtomicWorkRequest::fetch_and_add(&mut room[0], b.board.remote(), 1);
        // SAFETY: SAFETY.md F8: as above.
        refused(unsafe { a.qp.post(add, 1) }.unwrap_err(), "an atomic operation");
        let invalidate = SendWithInvalidate::new(&[], 1);
        // SAFETY: SAFETY.md F8: no memory.
        refused(unsafe { a.qp.post(invalidate, 1) }.unwrap_err(), "a send that invalidates");
        assert!(a.is_idle());
        send(&a, SendWorkRequest::only_immediate(1));
    }
}

#[test]
fn reliable_and_unreliable_ends_are_not_connected() {
    let (pd, cq) = parts("soft0");
    let prepare =
        |qp_type| pd.create_qp().qp_type(qp_type).send_cq(&cq).recv_cq(&cq).build().unwrap();
    let (own, peer) = (QueuePairType::RC, QueuePairType::UC);
    let (rc, uc) = (prepare(own), prepare(peer));
    let endpoint = rdma_qp::QueuePairEndpoint::from_bytes(&uc.endpoint().to_bytes()).unwrap();
    match rc.handshake(endpoint) {
        Err(Error::Handshake(error)) => {
            assert_eq!(*error, HandshakeError::QueuePairType { own, peer });
            let text = error.to_string();
            assert!(
                text.starts_with("type: this queue pair is RC (reliable connection)"),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(try_connect(parts("soft0"), parts("soft0"), |builder| builder.qp_type(peer)).is_ok());
}

#[test]
fn a_failed_send_stops_only_the_send_queue_until_it_is_restarted() {
    for device in DEVICES {
        let (a, b) = unreliable(device);
        let (foreign, _) = parts(device);
        let region = foreign.allocate_region(8).unwrap();
        let data = [region.get_ref(0, 8).unwrap().gather_element()];
        let mut batch =
            [SendWorkRequest::new(&data).with_id(5), SendWorkRequest::only_immediate(1).with_id(6)];
        // SAFETY: SAFETY.md F8: the region outlives both.
        unsafe { a.qp.post_batch(&mut batch) }.unwrap();
        let failed = a.next().result().unwrap_err().code();
        assert_eq!(failed, WorkErrorCode::LocalProtectionError);
        let flushed = a.next().result().unwrap_err().code();
        assert_eq!(flushed, WorkErrorCode::WorkRequestFlushError);
        assert_eq!(a.qp.state().unwrap(), QpState::SQE);
        receive(&a);
        send(&b, SendWorkRequest::only_immediate(7));
        assert_eq!(a.next().result().unwrap().immediate_data(), Some(7), "receives go on");
        a.qp.modify(&QueuePairModification::new().state(QpState::RTS)).unwrap();
        receive(&b);
        send(&a, SendWorkRequest::only_immediate(8));
        assert_eq!(b.next().result().unwrap().immediate_data(), Some(8));
    }
}

#[test]
fn a_reliable_connection_has_no_way_through_a_failed_send_queue() {
    let (a, _b) = pair("soft0");
    let error = a.qp.modify(&QueuePairModification::new().state(QpState::SQE)).unwrap_err();
    assert!(matches!(error, Error::NoTransition { .. }), "{error}");
}

#[test]
fn draining_takes_everything_that_was_posted() {
    for device in DEVICES {
        let (a, _b) = unreliable(device);
        receive(&a);
        let mut count = 0;
        a.qp.drain(Duration::from_secs(10), |_| count += 1).unwrap();
        assert!(count == 1 && a.is_idle());
    }
}

#[test]
fn unreliable_connections_are_refused_by_a_device_without_them() {
    let lacks = Builder::new("reliable-only").without_uc().without_ud();
    lacks.install().unwrap();
    let pd = open_device("reliable-only").unwrap().allocate_pd().unwrap();
    let cq = CompletionQueue::create(pd.context(), 64).unwrap();
    for qp_type in [QueuePairType::UC, QueuePairType::UD] {
        let refused = pd.create_qp().qp_type(qp_type).send_cq(&cq).recv_cq(&cq).build();
        let Err(Error::Verb(error)) = refused else { panic!("{qp_type} was created") };
        let hint = error.hint.as_deref().unwrap();
        assert_eq!(
            hint,
            format!(
                "the device refuses the type {qp_type}, but accepts the same attributes for RC: \
                 not every device supports both"
            )
        );
    }
}
