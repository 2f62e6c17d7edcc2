//! Datagrams: queue pairs without a peer, and the handles for the destinations of their messages.
#![allow(unsafe_code)]

use std::time::Duration;

use crate::common::{DEVICES, TestPeer, open, pair, parts};
use rdma_mem::{AccessFlags, GatherElement, Lid, MemoryWindow, ScatterElement, WindowType};
use rdma_qp::{
    AddressHandle, AddressVector, AtomicWorkRequest, BindWindow, CompletionQueue, Error,
    GlobalRouteHeader, HandshakeError, LocalInvalidate, MaximumTransferUnit, PostError,
    PostErrorKind, PreparedQueuePair, QpState, QueuePairBuilder, QueuePairEndpoint,
    QueuePairModification, QueuePairType, ReadWorkRequest, ReceiveWorkRequest, SendWithInvalidate,
    SendWorkRequest, WorkCompletion, WorkErrorCode, WorkRequest, WriteWorkRequest, prelude::*,
};

/// The bytes of a datagram's receive before the message.
const HEADER: usize = GlobalRouteHeader::BYTES;

fn prepare(
    device: &str,
    knobs: impl for<'a> Fn(QueuePairBuilder<'a>) -> QueuePairBuilder<'a>,
) -> (PreparedQueuePair, impl FnOnce(PreparedQueuePair) -> TestPeer) {
    let (pd, cq) = parts(device);
    let builder = pd.create_qp().qp_type(QueuePairType::UD).send_cq(&cq).recv_cq(&cq);
    let prepared = knobs(builder).build().unwrap();
    let end = move |prepared: PreparedQueuePair| {
        let board = pd.allocate_shared_region(4096, crate::common::everything()).unwrap();
        TestPeer { qp: prepared.activate().unwrap(), cq, pd, board }
    };
    (prepared, end)
}

/// Returns an end for datagrams, and its endpoint for the others.
fn end_with(
    device: &str,
    knobs: impl for<'a> Fn(QueuePairBuilder<'a>) -> QueuePairBuilder<'a>,
) -> (TestPeer, QueuePairEndpoint) {
    let (prepared, end) = prepare(device, knobs);
    let endpoint = prepared.endpoint();
    (end(prepared), endpoint)
}

fn end(device: &str) -> (TestPeer, QueuePairEndpoint) {
    end_with(device, |builder| builder)
}

/// Posts a receive for a datagram of at most 64 bytes at this offset of the board.
fn receive(end: &TestPeer, at: usize, wr_id: u64) {
    let mut room = [ScatterElement::from(end.board.element(at..at + HEADER + 64).unwrap())];
    // SAFETY: SAFETY.md F8: a shared region, which outlives the queue pair's requests.
    unsafe { end.qp.post_receive(ReceiveWorkRequest::new(&mut room), wr_id) }.unwrap();
}

/// Sends these bytes, from the end of the board.
fn send(from: &TestPeer, bytes: &[u8], handle: &AddressHandle, to: &QueuePairEndpoint) {
    from.board.write(4096 - bytes.len(), bytes).unwrap();
    let data = [GatherElement::from(from.board.element(4096 - bytes.len()..4096).unwrap())];
    let request = SendWorkRequest::new(&data).with_immediate(5).to(handle, to.qpn(), to.qkey());
    // SAFETY: SAFETY.md F8: as above; the handle outlives it too.
    unsafe { from.qp.post_send(request, 99) }.unwrap();
    from.next().result().unwrap();
}

#[test]
fn a_message_is_answered_by_what_came_with_it() {
    for device in DEVICES {
        for (with_header, extended) in [(false, false), (true, true), (false, true)] {
            // On Ethernet there always is a header; elsewhere it depends on the sender's handle.
            let ((a, a_end), (b, b_end)) =
                (end_with(device, |builder| builder.extended(extended)), end(device));
            assert_eq!(a.qp.is_extended(), extended);
            let to_b = if with_header {
                let own = a.pd.context().gid_table().unwrap()[0];
                let peer = b.pd.context().gid_table().unwrap()[0];
                let route = rdma_qp::GlobalRoute::new(own.index.try_into().unwrap(), peer.gid);
                let vector = AddressVector::new(own.port, b_end.lid()).with_route(route);
                AddressHandle::create(&a.pd, &vector).unwrap()
            } else {
                a.qp.address_handle(&b_end).unwrap()
            };
            b.board.write(0, &[0xee; HEADER]).unwrap();
            receive(&b, 0, 1);
            send(&a, b"ping", &to_b, &b_end);
            let completion = b.next();
            let success = completion.result().unwrap();
            assert_eq!(success.scattered_bytes(), Some(HEADER + 4));
            assert_eq!(success.immediate_data(), Some(5));
            let source = b.qp.datagram(&completion).unwrap();
            assert_eq!(source.qpn, a.qp.qpn());
            let has_header = with_header || device != "softib0";
            assert_eq!(source.has_header, has_header, "{device}");
            if device == "softib0" {
                assert_eq!(source.lid, a_end.lid());
            }
            let (header, message) = (b.read::<HEADER>(0), b.read::<4>(HEADER));
            assert_eq!((&message, header == [0xee; HEADER]), (b"ping", !has_header));

            let back = AddressHandle::from_completion(&b.qp, &completion, &header.into()).unwrap();
            assert!(back.pd().is_same(&b.pd));
            receive(&a, 0, 2);
            send(&b, b"pong", &back, &a_end);
            let completion = a.next();
            assert_eq!(a.qp.datagram(&completion).unwrap().qpn, b.qp.qpn());
            assert_eq!(&a.read::<4>(HEADER), b"pong");
            back.close().unwrap();
        }
    }
}

/// The receiver finds these values in the route header, and in the completion.
#[test]
fn the_values_of_an_address_vector_are_in_its_packets() {
    let ((a, _), (b, b_end)) = (end("softib0"), end("softib0"));
    let own = a.pd.context().gid_table().unwrap()[0];
    let peer = b.pd.context().gid_table().unwrap()[0];
    let route = rdma_qp::GlobalRoute::new(own.index.try_into().unwrap(), peer.gid);
    let vector = AddressVector::new(own.port, b_end.lid())
        .with_route(route)
        .with_service_level(3)
        .with_traffic_class(0x68)
        .with_hop_limit(9)
        .with_flow_label(0x1_2345);
    let to_b = AddressHandle::create(&a.pd, &vector).unwrap();
    receive(&b, 0, 1);
    send(&a, b"ping", &to_b, &b_end);
    let source = b.qp.datagram(&b.next()).unwrap();
    assert_eq!(source.service_level, 3);
    // IBTA volume 1, 8.3: version 6, traffic class and flow label; after length and next header the hop limit.
    let header = b.read::<HEADER>(0);
    let first = u32::from_be_bytes(*header.first_chunk().unwrap());
    assert_eq!(first >> 28, 6);
    assert_eq!((first >> 20) & 0xff, 0x68, "traffic class");
    assert_eq!(first & 0xf_ffff, 0x1_2345, "flow label");
    assert_eq!(header[7], 9, "hop limit");
}

#[test]
fn one_queue_pair_receives_from_many_and_from_itself() {
    for device in DEVICES {
        let (hub, hub_end) = end(device);
        let others = [end(device).0, end(device).0];
        for from in others.iter().chain([&hub]) {
            receive(&hub, 0, 1);
            let handle = from.qp.address_handle(&hub_end).unwrap();
            // The order of the two completions, of the send and of the receive, varies.
            let data = [GatherElement::from(from.board.element(4000..4001).unwrap())];
            let request = SendWorkRequest::new(&data).to(&handle, hub_end.qpn(), hub_end.qkey());
            // SAFETY: SAFETY.md F8: a shared region, and both outlive the request.
            unsafe { from.qp.post_send(request, 2) }.unwrap();
            let mut arrived = hub.next();
            if arrived.wr_id() == 2 {
                assert_eq!(hub.qp.datagram(&arrived), None, "a send has no source");
                arrived = hub.next();
            } else {
                from.next().result().unwrap();
            }
            assert_eq!(hub.qp.datagram(&arrived).unwrap().qpn, from.qp.qpn());
            assert_eq!(others[0].qp.datagram(&arrived), None, "of another queue pair");
        }
    }
}

#[test]
fn datagrams_with_a_wrong_key_are_dropped() {
    for device in DEVICES {
        let (a, _) = end(device);
        let (b, b_end) = end_with(device, |builder| builder.qkey(0x1234));
        assert_eq!(
            (b.qp.qkey(), b_end.qkey(), b.qp.query().unwrap().qkey),
            (Some(0x1234), 0x1234, 0x1234)
        );
        let to_b = a.qp.address_handle(&b_end).unwrap();
        receive(&b, 0, 1);
        send(&a, b"no", &to_b, &b_end.with_qkey(0x1235));
        send(&a, b"yes", &to_b, &b_end);
        assert_eq!(b.next().result().unwrap().scattered_bytes(), Some(HEADER + 3));
        assert!(b.is_idle());
        b.qp.modify(&QueuePairModification::new().qkey(0x1235)).unwrap();
        receive(&b, 0, 1);
        send(&a, b"new", &to_b, &b_end.with_qkey(0x1235));
        assert_eq!(b.next().result().unwrap().scattered_bytes(), Some(HEADER + 3));
    }
}

/// Posts what must be refused before the device sees it.
fn refusal(end: &TestPeer, request: impl WorkRequest) -> PostError {
    // SAFETY: SAFETY.md F8: shared regions, which outlive the test, or memory that is never used.
    let error = unsafe { end.qp.post(request, 1) }.unwrap_err();
    assert_eq!((error.posted(), error.errno()), (0, None), "{error}");
    assert!(end.is_idle());
    assert_eq!(end.qp.state().unwrap(), QpState::RTS);
    error
}

#[test]
fn only_datagrams_need_and_accept_a_destination() {
    for device in DEVICES {
        let ((a, end_of_a), (b, _)) = (end(device), pair(device));
        let own = a.qp.address_handle(&end_of_a).unwrap();
        let nowhere = refusal(&a, SendWorkRequest::only_immediate(1));
        assert_eq!(nowhere.kind(), PostErrorKind::NoDestination);
        assert!(nowhere.to_string().contains("`SendWorkRequest::to`"), "{nowhere}");
        let to_a = |request: SendWorkRequest<'static, 'static>| {
            request.to(&own, end_of_a.qpn(), end_of_a.qkey())
        };
        let connected = refusal(&b, to_a(SendWorkRequest::only_immediate(1)));
        assert_eq!(connected.kind(), PostErrorKind::Destination);
        assert!(connected.to_string().contains("is RC (reliable connection), and"), "{connected}");
        let mut batch = [
            to_a(SendWorkRequest::only_immediate(1)).with_id(1),
            SendWorkRequest::only_immediate(1).with_id(2),
        ];
        // SAFETY: SAFETY.md F8: no memory.
        let error = unsafe { a.qp.post_batch(&mut batch) }.unwrap_err();
        assert_eq!((error.posted(), error.refused()), (0, 1));
        assert_eq!(error.kind(), PostErrorKind::NoDestination);
        assert!(a.is_idle());
    }
}

#[test]
fn a_handle_of_another_domain_is_refused() {
    for device in DEVICES {
        let ((a, end_of_a), (b, _)) = (end(device), end(device));
        let foreign = b.qp.address_handle(&end_of_a).unwrap();
        let request = SendWorkRequest::only_immediate(1);
        let error = refusal(&a, request.to(&foreign, end_of_a.qpn(), end_of_a.qkey()));
        assert_eq!(error.kind(), PostErrorKind::ForeignHandle);
        assert!(error.to_string().contains("a different protection domain"), "{error}");
    }
}

#[test]
fn a_datagram_is_no_longer_than_the_mtu() {
    for device in DEVICES {
        let (a, end_of_a) = end_with(device, |builder| builder.mtu(MaximumTransferUnit::MTU512));
        let own = a.qp.address_handle(&end_of_a).unwrap();
        let data = |bytes| [GatherElement::from(a.board.element(0..bytes).unwrap())];
        let data = [data(512), data(513)];
        let [fits, too_long] = data
            .each_ref()
            .map(|data| SendWorkRequest::new(data).to(&own, end_of_a.qpn(), end_of_a.qkey()));
        let error = refusal(&a, too_long);
        assert_eq!(error.kind(), PostErrorKind::LongerThanMtu);
        assert!(
            error
                .to_string()
                .starts_with("a datagram of 513 bytes does not fit into the MTU of 512"),
            "{error}"
        );
        // SAFETY: SAFETY.md F8: a shared region, which outlives the queue pair.
        unsafe { a.qp.post_send(fits, 1) }.unwrap();
        a.next().result().unwrap();
    }
}

#[test]
fn datagrams_know_only_sends() {
    for device in DEVICES {
        let (a, _) = end(device);
        let remote = a.board.remote();
        let mut result = [ScatterElement::from(a.board.element(0..8).unwrap())];
        let kind = |error: PostError, name: &str| {
            assert_eq!(error.kind(), PostErrorKind::Opcode);
            let text = error.to_string();
            assert!(text.starts_with(name) && text.ends_with("supports only sends"), "{text}");
        };
        kind(refusal(&a, WriteWorkRequest::only_immediate(1)), "an RDMA write");
        kind(refusal(&a, ReadWorkRequest::new(&mut result, remote)), "an RDMA read");
        let add = AtomicWorkRequest::fetch_and_add(&mut result[0], remote, 1);
        kind(refusal(&a, add), "an atomic operation");
        kind(refusal(&a, SendWithInvalidate::new(&[], 1)), "a send that invalidates");
        kind(refusal(&a, LocalInvalidate::new(1)), "an invalidation");
        let region = a.pd.allocate_bindable_region(64).unwrap();
        let mut window =
            MemoryWindow::allocate(region, WindowType::Two).map_err(|(_, e)| e).unwrap();
        let access = AccessFlags::new().with_remote_read();
        let bind = BindWindow::new(&mut window, 0..8, access).unwrap();
        kind(refusal(&a, bind), "a bind of a memory window");
    }
}

#[test]
fn queue_pairs_of_datagrams_are_not_connected_and_the_others_are_not_activated() {
    let (ud, _) = prepare("soft0", |builder| builder);
    let endpoint = ud.endpoint();
    let error = ud.connect_attributes(&endpoint).unwrap_err();
    assert!(error.to_string().contains("`activate`"), "{error}");
    assert!(matches!(ud.handshake(endpoint), Err(Error::NotConnected)));
    for qp_type in [QueuePairType::RC, QueuePairType::UC] {
        let (connected, _) = prepare("soft0", |builder| builder.qp_type(qp_type));
        let error = connected.activate().unwrap_err();
        assert!(matches!(error, Error::NotDatagrams { qp_type: told } if told == qp_type));
        assert!(error.to_string().contains("`handshake`"), "{error}");
    }
    let (a, _) = pair("soft0");
    assert_eq!((a.qp.qkey(), a.qp.qp_type()), (None, QueuePairType::RC));
    assert!(matches!(a.qp.address_handle(&endpoint), Err(Error::NotDatagrams { .. })));
    let (datagrams, _) = end("soft0");
    assert_eq!((datagrams.qp.peer(), datagrams.qp.qp_type()), (None, QueuePairType::UD));
}

#[test]
fn a_handle_leads_to_queue_pairs_of_datagrams_on_a_network_in_common() {
    let ((a, _), (_, infiniband)) = (end("soft0"), end("softib0"));
    let why = |endpoint: &QueuePairEndpoint| match a.qp.address_vector(endpoint) {
        Err(Error::Handshake(error)) => *error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(why(&infiniband), HandshakeError::LinkLayer { .. }));
    let (pd, cq) = parts("soft0");
    let connected = pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap();
    let (own, peer) = (QueuePairType::UD, QueuePairType::RC);
    assert_eq!(why(&connected.endpoint()), HandshakeError::QueuePairType { own, peer });
}

#[test]
fn a_handle_takes_the_way_that_a_connection_would() {
    for device in DEVICES {
        let (prepared, _) = prepare(device, |builder| builder.qp_type(QueuePairType::UC));
        let (peer, _) = prepare(device, |builder| builder.qp_type(QueuePairType::UC));
        let connection = prepared.connect_attributes(&peer.endpoint()).unwrap();
        let ((a, _), (_, b_end)) = (
            end_with(device, |builder| builder.service_level(3).traffic_class(0x68).hop_limit(7)),
            end(device),
        );
        let vector = a.qp.address_vector(&b_end).unwrap();
        assert_eq!((vector.lid, vector.route), (connection.peer_lid, connection.route));
        let told = (vector.service_level, vector.traffic_class, vector.hop_limit);
        assert_eq!(told, (3, 0x68, 7));
    }
}

#[test]
fn only_what_was_received_here_can_be_answered() {
    let ((a, a_end), (b, _)) = (end("soft0"), end("soft0"));
    let header = GlobalRouteHeader::from([0; HEADER]);
    let own = a.qp.address_handle(&a_end).unwrap();
    receive(&a, 0, 1);
    let request = SendWorkRequest::only_immediate(1).to(&own, a_end.qpn(), a_end.qkey());
    // SAFETY: SAFETY.md F8: no memory, and the handle outlives it.
    unsafe { a.qp.post_send(request, 2) }.unwrap();
    let mut both = [a.next(), a.next()];
    both.sort_by_key(WorkCompletion::wr_id);
    let answer =
        |end: &TestPeer, completion| AddressHandle::from_completion(&end.qp, completion, &header);
    assert!(matches!(answer(&a, &both[1]), Err(Error::NoDatagram { .. })), "a send");
    assert!(matches!(answer(&b, &both[0]), Err(Error::NoDatagram { .. })), "of another");
    let junk = answer(&a, &both[0]).unwrap_err();
    assert!(matches!(junk, Error::Verb(_)), "a header that was not in the packet: {junk}");
    let (connected, _) = pair("soft0");
    assert!(matches!(answer(&connected, &both[0]), Err(Error::NotDatagrams { .. })));
    receive(&b, 0, 3);
    b.qp.to_error().unwrap();
    assert!(matches!(answer(&b, &b.next()), Err(Error::NoDatagram { .. })), "flushed");
}

#[test]
fn a_vector_that_the_port_does_not_have_is_refused_with_a_hint() {
    for device in DEVICES {
        let (pd, _) = parts(device);
        let error = AddressHandle::create(&pd, &AddressVector::new(9, Lid::new(1))).unwrap_err();
        assert!(error.to_string().contains("the port number, the LID"), "{error}");
    }
}

#[test]
fn handles_beyond_the_devices_limit_are_refused_with_a_hint() {
    rdma_soft::install();
    let name = "softfewhandles0";
    rdma_soft::Builder::new(name).limits(rdma_soft::Limits::default().max_ah(1)).install().unwrap();
    let (a, a_end) = end(name);
    let first = a.qp.address_handle(&a_end).unwrap();
    let error = a.qp.address_handle(&a_end).unwrap_err();
    assert!(error.to_string().contains("`max_ah`"), "{error}");
    first.close().unwrap();
    a.qp.address_handle(&a_end).unwrap();
}

#[test]
fn a_handle_keeps_its_domain() {
    let ((a, a_end), (pd, _)) = (end("soft0"), parts("soft0"));
    let vector = a.qp.address_vector(&a_end).unwrap();
    let handle = AddressHandle::create(&pd, &vector).unwrap();
    let (pd, error) = pd.close().unwrap_err();
    assert!(error.to_string().contains("still in use"), "{error}");
    handle.close().unwrap();
    pd.close().unwrap();
}

#[test]
fn draining_takes_everything_that_was_posted() {
    for device in DEVICES {
        let (a, a_end) = end(device);
        receive(&a, 0, 1);
        receive(&a, 128, 2);
        let mut flushed = Vec::new();
        a.qp.drain(Duration::from_secs(10), |completion| flushed.push(completion)).unwrap();
        let codes = flushed.iter().map(|flushed| flushed.result().unwrap_err().code());
        assert!(codes.eq([WorkErrorCode::WorkRequestFlushError; 2]));
        assert!(a.is_idle());
        let own = a.qp.address_handle(&a_end).unwrap();
        let request = SendWorkRequest::only_immediate(1).to(&own, a_end.qpn(), a_end.qkey());
        // SAFETY: SAFETY.md F8: no memory.
        unsafe { a.qp.post_send(request, 3) }.unwrap();
        assert!(a.next().result().is_err());
    }
}

#[test]
fn a_transition_back_to_ready_names_missing_attributes() {
    let (a, _) = end("soft0");
    a.qp.modify(&QueuePairModification::new().state(QpState::RESET)).unwrap();
    let init = QueuePairModification::new().state(QpState::INIT).port(1).pkey_index(0);
    let error = a.qp.modify(&init).unwrap_err().to_string();
    assert!(error.ends_with(" lacks `qkey`"), "{error}");
    a.qp.modify(&init.qkey(7)).unwrap();
    a.qp.modify(&QueuePairModification::new().state(QpState::RTR)).unwrap();
    let error = a.qp.modify(&QueuePairModification::new().state(QpState::RTS)).unwrap_err();
    assert!(error.to_string().ends_with(" lacks `send_psn`"), "{error}");
}

#[test]
fn types_without_code_here_are_refused_by_name() {
    let context = open("soft0");
    let cq = CompletionQueue::create(&context, 64).unwrap();
    let pd = context.allocate_pd().unwrap();
    for other in [QueuePairType::XRC_SEND, QueuePairType::XRC_RECV, QueuePairType::RAW_PACKET] {
        let builder = pd.create_qp().qp_type(other).send_cq(&cq).recv_cq(&cq);
        let error = builder.build().unwrap_err();
        assert!(matches!(error, Error::UnsupportedType { qp_type } if qp_type == other));
        let text = error.to_string();
        assert!(text.starts_with(&format!("{other} queue pairs are not supported")), "{text}");
    }
}

#[test]
fn the_source_is_known_with_a_timestamp_and_from_a_shared_receive_queue() {
    for device in DEVICES {
        let ((a, a_end), context) = (end(device), open(device));
        let cq = CompletionQueue::builder(&context).timestamps(true).build(256).unwrap();
        let pd = context.allocate_pd().unwrap();
        let srq = pd.create_srq().build().unwrap();
        let builder = pd.create_qp().qp_type(QueuePairType::UD).srq(&srq);
        let prepared = builder.send_cq(&cq).recv_cq(&cq).build().unwrap();
        let endpoint = prepared.endpoint();
        let board = pd.allocate_shared_region(4096, crate::common::everything()).unwrap();
        let b = TestPeer { qp: prepared.activate().unwrap(), cq, pd, board };
        let mut room = [ScatterElement::from(b.board.element(0..HEADER + 64).unwrap())];
        // SAFETY: SAFETY.md F8: a shared region, which outlives the test.
        unsafe { srq.post_receive(ReceiveWorkRequest::new(&mut room), 1) }.unwrap();
        send(&a, b"ping", &a.qp.address_handle(&endpoint).unwrap(), &endpoint);
        let completion = b.next();
        let source = b.qp.datagram(&completion).unwrap();
        assert!(completion.timestamp().is_some());
        assert_eq!((source.qpn, source.has_header), (a.qp.qpn(), device != "softib0"));
        if device == "softib0" {
            assert_eq!(source.lid, a_end.lid());
        }
        let header = b.read::<HEADER>(0).into();
        let back = AddressHandle::from_completion(&b.qp, &completion, &header).unwrap();
        receive(&a, 0, 2);
        send(&b, b"pong", &back, &a_end);
        a.next().result().unwrap();
        assert_eq!(&a.read::<4>(HEADER), b"pong");
    }
}
