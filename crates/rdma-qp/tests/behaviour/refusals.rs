//! Invalid options and requests: the side that refuses them, and the messages.

#![allow(unsafe_code)]

use crate::common::{DEVICES, everything, pair, pair_with, parts};
use rdma_mem::{GatherElement, Mtu, RemoteMemoryRegion};
use rdma_qp::{
    CompletionQueue, Error, HandshakeError, QpState, Qpn, QueuePair, QueuePairEndpoint,
    ReceiveWorkRequest, SendWorkRequest, WorkErrorClass, WorkErrorCode, WriteWorkRequest,
    prelude::*,
};

fn build_error(
    knobs: impl for<'a> Fn(rdma_qp::QueuePairBuilder<'a>) -> rdma_qp::QueuePairBuilder<'a>,
) -> Error {
    let (pd, cq) = parts("soft0");
    knobs(pd.create_qp().send_cq(&cq).recv_cq(&cq)).build().unwrap_err()
}

#[test]
fn completion_queues_are_needed_and_must_fit() {
    let ((pd, cq), (_, foreign)) = (parts("soft0"), parts("soft0"));
    let error = pd.create_qp().recv_cq(&cq).build().unwrap_err();
    assert!(matches!(error, Error::Missing { knob: "send_cq" }), "{error}");
    let error = pd.create_qp().send_cq(&cq).build().unwrap_err();
    assert_eq!(error.to_string(), "the queue pair needs a `recv_cq`: set it with .recv_cq(…)");
    let error = pd.create_qp().send_cq(&cq).recv_cq(&foreign).build().unwrap_err();
    assert!(matches!(error, Error::ForeignCompletionQueue { knob: "recv_cq" }), "{error}");

    let small = CompletionQueue::create(pd.context(), 16).unwrap();
    let capacity = small.min_capacity();
    assert!(capacity >= 16);
    let both = pd.create_qp().send_cq(&small).recv_cq(&small).max_send_wr(capacity);
    let error = both.strict_cq(true).build();
    let Err(Error::CompletionQueueTooSmall { capacity: found, needed, .. }) = error else {
        panic!("{error:?}");
    };
    assert_eq!((found, needed), (capacity, capacity + 16));
    let alone = pd.create_qp().send_cq(&small).recv_cq(&cq).max_send_wr(capacity);
    alone.strict_cq(true).build().unwrap();
}

#[test]
fn ports_gids_and_mtus_that_are_not_there() {
    let error = build_error(|builder| builder.port(9));
    assert_eq!(error.to_string(), "there is no port 9: the device has ports 1 to 1");
    assert!(matches!(build_error(|builder| builder.port(0)), Error::NoSuchPort { port: 0, .. }));
    let error = build_error(|builder| builder.gid_index(200));
    assert!(matches!(error, Error::NoSuchGid { port: 1, index: 200, .. }), "{error}");
    let (pd, cq) = parts("soft0");
    let active = pd.context().query_port(1).unwrap().active_mtu.unwrap();
    if active < Mtu::MTU4096 {
        let error = build_error(|builder| builder.mtu(Mtu::MTU4096));
        assert!(matches!(error, Error::MtuTooLarge { asked: Mtu::MTU4096, .. }), "{error}");
    }
    let one = pd.create_qp().send_cq(&cq).recv_cq(&cq).gid_index(2).build().unwrap();
    assert_eq!(one.endpoint().gids().len(), 1, "the index that was asked for and no other");
}

#[test]
fn sizes_beyond_the_device_are_refused_with_its_limits() {
    let (pd, _) = parts("soft0");
    let device = pd.context().query_device().unwrap();
    let cq = CompletionQueue::create(pd.context(), device.max_qp_wr + 64).unwrap();
    let builder = pd.create_qp().send_cq(&cq).recv_cq(&cq).max_send_wr(device.max_qp_wr + 1);
    let text = builder.build().unwrap_err().to_string();
    let limit = format!("the device allows {} work requests", device.max_qp_wr);
    assert!(text.starts_with("ibv_create_qp: ") && text.contains(&limit), "{text}");
    for capacity in [device.max_cqe + 1, u32::MAX] {
        let text = CompletionQueue::create(pd.context(), capacity).unwrap_err().to_string();
        let limit = format!("{} completions", device.max_cqe);
        assert!(text.contains(&limit) && text.contains(&capacity.to_string()), "{text}");
    }
}

#[test]
fn numbers_beyond_their_field_are_refused_by_knob() {
    let (pd, _) = parts("soft0");
    let device = pd.context().query_device().unwrap();
    let deep = |limit: u32| u8::try_from(limit + 1).unwrap();
    let (init, dest) = (deep(device.max_qp_init_rd_atom), deep(device.max_qp_rd_atom));
    let refused = [
        (build_error(|builder| builder.service_level(16)), "service_level", 16),
        (build_error(|builder| builder.flow_label(1 << 20)), "flow_label", 1 << 20),
        (build_error(|builder| builder.pkey_index(1)), "pkey_index", 1),
        (build_error(move |builder| builder.max_rd_atomic(init)), "max_rd_atomic", init.into()),
        (
            build_error(move |builder| builder.max_dest_rd_atomic(dest)),
            "max_dest_rd_atomic",
            dest.into(),
        ),
    ];
    for (error, name, number) in refused {
        let text = format!("the `{name}` cannot be {number}: the maximum here is {}", number - 1);
        assert_eq!(error.to_string(), text);
        assert!(matches!(error, Error::TooLarge { .. }));
    }
    let (a, b) = pair_with("soft0", |builder| builder.service_level(15).flow_label((1 << 20) - 1));
    assert_eq!((a.qp.state().unwrap(), b.qp.state().unwrap()), (QpState::RTS, QpState::RTS));
}

#[test]
fn endpoints_that_do_not_fit_are_refused_by_field() {
    let (pd, cq) = parts("soft0");
    let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap();
    let refused = |peer: QueuePairEndpoint| match prepare().handshake(peer).unwrap_err() {
        Error::Handshake(error) => *error,
        other => panic!("{other}"),
    };
    let (ib_pd, ib_cq) = parts("softib0");
    let ib = ib_pd.create_qp().send_cq(&ib_cq).recv_cq(&ib_cq).build().unwrap().endpoint();
    assert!(matches!(refused(ib), HandshakeError::LinkLayer { .. }));
    let end = prepare().endpoint();
    let other = QueuePairEndpoint::new(end.qpn(), end.psn())
        .with_gid("2001:db8::1".parse().unwrap(), rdma_mem::GidType::ROCE_V2);
    let error = refused(other);
    let text = error.to_string();
    assert!(matches!(error, HandshakeError::NoCommonGid { .. }));
    assert!(text.contains("2001:db8::1 (RoCE v2)"), "{text}");
    for own in end.gids() {
        assert!(text.contains(&own.gid.to_string()), "{own:?} in {text}");
    }
    assert!(matches!(
        refused(QueuePairEndpoint::new(Qpn::masked(0), end.psn())),
        HandshakeError::Qpn { .. }
    ));
}

#[test]
fn a_peer_that_refuses_is_an_error_with_a_hint_and_the_rest_is_flushed() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let right = b.board.remote();
        let wrong =
            RemoteMemoryRegion::new(right.address(), right.length(), right.rkey().get() ^ 1);
        let data = [GatherElement::from(a.board.element(0..8).unwrap())];
        // SAFETY: SAFETY.md F8: shared regions, which outlive the test.
        unsafe { a.qp.post_write(WriteWorkRequest::new(&data, wrong), 1) }.unwrap();
        let failed = a.next();
        let error = failed.result().unwrap_err();
        assert_eq!((failed.wr_id(), failed.qpn()), (1, a.qp.qpn()));
        assert_eq!(error.code(), WorkErrorCode::RemoteAccessError);
        assert_eq!((error.class(), error.raw_status()), (WorkErrorClass::Remote, 10));
        assert!(error.to_string().contains("check the rkey"), "{error}");
        assert_eq!(a.qp.state().unwrap(), QpState::ERR);
        // SAFETY: SAFETY.md F8: as above.
        unsafe { a.qp.post_write(WriteWorkRequest::new(&data, right), 2) }.unwrap();
        let flushed = a.next();
        assert_eq!(flushed.wr_id(), 2);
        assert_eq!(flushed.result().unwrap_err().class(), WorkErrorClass::Flushed);
    }
}

#[test]
fn access_that_was_not_given_is_not_there() {
    let (a, b) = pair_with("soft0", |builder| builder.access(rdma_mem::AccessFlags::new()));
    let data = [GatherElement::from(a.board.element(0..8).unwrap())];
    // SAFETY: SAFETY.md F8: shared regions, which outlive the test.
    unsafe { a.qp.post_write(WriteWorkRequest::new(&data, b.board.remote()), 1) }.unwrap();
    let class = a.next().result().unwrap_err().class();
    assert_eq!(class, WorkErrorClass::Remote, "the queue pair's own access counts too");
    assert_eq!(b.read(0), [0; 8]);
    let _ = everything();
}

#[test]
fn to_error_flushes_what_waits() {
    for device in DEVICES {
        let (a, b) = pair(device);
        for id in [4, 5] {
            // SAFETY: SAFETY.md F8: no memory.
            unsafe { b.qp.post_receive(ReceiveWorkRequest::only_immediate(), id) }.unwrap();
        }
        b.qp.to_error().unwrap();
        for id in [4, 5] {
            let flushed = b.next();
            assert_eq!(flushed.wr_id(), id);
            let code = flushed.result().unwrap_err().code();
            assert_eq!(code, WorkErrorCode::WorkRequestFlushError);
        }
        assert_eq!(b.qp.state().unwrap(), QpState::ERR);
        assert_eq!(a.qp.state().unwrap(), QpState::RTS, "the peer is not notified");
    }
}

#[test]
fn an_overflowing_queue_fails_and_is_no_completion() {
    let (a, b) = pair("soft0");
    let (pd, cq) = (&a.pd, CompletionQueue::create(a.pd.context(), 32).unwrap());
    let capacity = u64::from(cq.min_capacity());
    let pairs: Vec<QueuePair> = (0..4)
        .map(|_| {
            let one = pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap();
            let other = b.pd.create_qp().send_cq(&b.cq).recv_cq(&b.cq).build().unwrap();
            let (one_end, other_end) = (one.endpoint(), other.endpoint());
            drop(other.handshake(one_end).unwrap());
            one.handshake(other_end).unwrap()
        })
        .collect();
    let mut posted = 0;
    for qp in &pairs {
        for _ in 0..qp.capabilities().max_recv_wr {
            // SAFETY: SAFETY.md F8: no memory.
            posted += u64::from(unsafe {
                qp.post_receive(ReceiveWorkRequest::only_immediate(), 1).is_ok()
            });
        }
    }
    assert!(posted > capacity, "{posted} receives for {capacity} completions");
    for qp in &pairs {
        // The first ones fill the queue. The overflow may already have failed this queue pair.
        let _ = qp.to_error();
    }
    let mut slots = [rdma_qp::PollSlot::default(); 8];
    let mut taken = 0;
    let error = loop {
        match cq.poll(&mut slots) {
            Ok(completions) if completions.is_empty() => panic!("no error after {taken}"),
            Ok(completions) => taken += completions.len() as u64,
            Err(error) => break error,
        }
    };
    assert!(taken <= capacity);
    assert!(error.to_string().contains("overflowed"), "{error}");
}

#[test]
fn closing_goes_from_the_queue_pair_down() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let crate::common::TestPeer { qp, cq, pd, board } = a;
        let (cq, error) = cq.close().unwrap_err();
        assert!(matches!(error, Error::StillUsed { what: "completion queue" }), "{error}");
        let (pd, _) = pd.close().unwrap_err();
        qp.close().unwrap();
        cq.close().unwrap();
        board.close().unwrap();
        pd.close().unwrap();
        drop(b);
    }
}

#[test]
fn a_send_without_receive_ends_when_the_retries_do() {
    let (a, _b) = pair_with("soft0", |builder| {
        let timer = rdma_qp::MinRnrTimer::limited(1).unwrap();
        builder.max_rnr_retries(rdma_qp::MaxRnrRetries::limited(1).unwrap()).min_rnr_timer(timer)
    });
    // SAFETY: SAFETY.md F8: no memory.
    unsafe { a.qp.post_send(SendWorkRequest::only_immediate(1), 1) }.unwrap();
    let error = a.next().result().unwrap_err();
    assert_eq!(error.code(), WorkErrorCode::RnrRetryExceededError);
    assert_eq!(error.class(), WorkErrorClass::Transport);
}
