//! Connections whose queue pairs the program manages, and datagram services.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rdma_cm::unmanaged::{self, Answered, Event, Id, Parameters, PortSpace, Route, SidrStatus};
use rdma_cm::{BindOptions, End, Error, EventChannel, IdToken, Reason};
use rdma_types::{Psn, Qpn};
use test_support::rig::until;

use crate::common::{LIMIT, disconnected, open, system_device};
use crate::other_hosts::{Host, process_until};

fn next(channel: &EventChannel) -> (IdToken, Event) {
    unmanaged::event(channel.next(Some(LIMIT)).unwrap().unwrap())
}

/// Returns the next event of an ID.
fn next_of(channel: &EventChannel, id: &Id) -> Event {
    let event = channel.next_of(|of| of == id.token(), Some(LIMIT)).unwrap();
    unmanaged::event(event.unwrap()).1
}

/// Returns a listener on a free port of an address, and the route to it.
fn listen(
    [near, far]: [&EventChannel; 2],
    space: PortSpace,
    mut address: SocketAddr,
) -> (Id, Route) {
    let port = unmanaged::bind(far, space, address, BindOptions::new()).unwrap();
    address.set_port(port.number());
    let listener = unmanaged::listen(far, &port).unwrap();
    (listener, unmanaged::route(near, address).unwrap())
}

fn requested(channel: &EventChannel, listener: &Id) -> (Id, Parameters, Route, Vec<u8>) {
    match next(channel) {
        (of, Event::Requested { id, parameters, route, private_data }) => {
            assert_eq!(of, listener.token());
            (id, parameters, route, private_data)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_parameters_of_both_ends_arrive() {
    let context = open("soft0");
    let channel = EventChannel::open(&context).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let (listener, mut route) = listen([&channel, &channel], PortSpace::Tcp, address);
    route.source.set_port(4711);
    let active = Parameters {
        responder_resources: 3,
        initiator_depth: 4,
        retry_count: 5,
        rnr_retry_count: 6,
        flow_control: false,
        srq: true,
        is_unreliable: true,
        ..Parameters::new(Qpn::masked(0x111), Psn::masked(0x222))
    };
    let client = unmanaged::connect(&channel, PortSpace::Tcp, &route, &active, b"hello").unwrap();
    let (server, arrived, back, private_data) = requested(&channel, &listener);
    assert_eq!((arrived, private_data.len()), (active, 56));
    assert!(private_data.starts_with(b"hello\0"));
    assert_eq!((back.source, back.destination), (route.destination, route.source));
    assert_eq!((back.local, back.remote, back.mtu), (route.remote, route.local, route.mtu));

    let passive = Parameters {
        responder_resources: 2,
        initiator_depth: 1,
        rnr_retry_count: 3,
        srq: true,
        is_unreliable: true,
        ..Parameters::new(Qpn::masked(0x333), Psn::masked(0x444))
    };
    server.accept(&passive, b"welcome").unwrap();
    let (of, Event::Replied { parameters, private_data }) = next(&channel) else { panic!() };
    assert_eq!((of, parameters, private_data.len()), (client.token(), passive, 196));
    client.establish().unwrap();
    let (of, Event::Established { .. }) = next(&channel) else { panic!() };
    assert_eq!(of, server.token());

    // Repeating it has no effect.
    client.disconnect().unwrap();
    client.disconnect().unwrap();
    let mut ended = [(); 2].map(|()| {
        let (of, Event::Ended(End::Disconnected { .. })) = next(&channel) else { panic!() };
        of
    });
    ended.sort_unstable();
    assert_eq!(ended, [client.token(), server.token()]);
}

#[test]
fn the_event_of_a_resolution_has_the_address() {
    let channel = EventChannel::open(&open("soft0")).unwrap();
    let resolving = channel.start_resolving("127.0.0.1:7471").unwrap();
    let (of, Event::Resolved(Ok(address))) = next(&channel) else { panic!() };
    assert_eq!((of, address), (resolving.id(), "127.0.0.1:7471".parse().unwrap()));
}

#[test]
fn a_packet_can_establish_a_connection_before_its_confirmation() {
    let channel = EventChannel::open(&open("soft0")).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let (listener, route) = listen([&channel, &channel], PortSpace::Ib, address);
    let parameters = Parameters::new(Qpn::masked(7), Psn::masked(8));
    let client = unmanaged::connect(&channel, PortSpace::Ib, &route, &parameters, b"").unwrap();
    let (server, ..) = requested(&channel, &listener);
    server.accept(&Parameters::new(Qpn::masked(9), Psn::masked(8)), b"").unwrap();
    server.communication_established().unwrap();
    let events = [next(&channel), next(&channel)];
    let of = |wanted: &Id| &events.iter().find(|(id, _)| *id == wanted.token()).unwrap().1;
    assert!(matches!(of(&client), Event::Replied { .. }), "{events:?}");
    assert!(matches!(of(&server), Event::Established { .. }), "{events:?}");
    assert!(matches!(server.communication_established(), Err(Error::Ended(_))));
    client.establish().unwrap();
    drop(client);
    let (_, Event::Ended(end)) = next(&channel) else { panic!() };
    assert_eq!(end, disconnected(b"", 220));
}

/// The progress of a connection when an end disconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Requested,
    Accepted,
    Replied,
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// Disconnects an end of a connection that is not established, and checks that each end has one end event, after which it
/// has no other. With `crosses`, the client confirms the connection before it receives the server's message.
fn disconnects_early(
    [near, far]: [&EventChannel; 2],
    address: SocketAddr,
    progress: Progress,
    side: Side,
    crosses: bool,
) {
    let (listener, route) = listen([near, far], PortSpace::Tcp, address);
    // A number is not used again soon.
    static QPNS: AtomicU32 = AtomicU32::new(0x100);
    let [one, other] = [(); 2].map(|()| {
        let qpn = Qpn::masked(QPNS.fetch_add(1, Ordering::Relaxed));
        Parameters::new(qpn, Psn::masked(8))
    });
    let client = unmanaged::connect(near, PortSpace::Tcp, &route, &one, b"").unwrap();
    let (server, ..) = requested(far, &listener);
    if progress != Progress::Requested {
        server.accept(&other, b"").unwrap();
    }
    if progress == Progress::Replied || crosses {
        let (_, Event::Replied { .. }) = next(near) else { panic!() };
    }
    let disconnecting = if side == Side::Client { &client } else { &server };
    disconnecting.disconnect().unwrap();
    if crosses {
        client.establish().unwrap();
    }
    for (channel, id) in [(near, &client), (far, &server)] {
        while !matches!(next_of(channel, id), Event::Ended(_)) {}
        let is_of = |token: IdToken| token == id.token();
        let later = channel.next_of(is_of, Some(Duration::ZERO)).unwrap();
        assert!(later.is_none(), "{progress:?} {side:?} {crosses}: {later:?}");
    }
}

#[test]
fn nothing_follows_the_end_of_a_connection_that_was_not_established() {
    let context = open("soft0");
    let hosts = (Host::new(), Host::new());
    let same = [(); 2].map(|()| EventChannel::open(&context).unwrap());
    let far = [&hosts.0, &hosts.1].map(|host| EventChannel::open(&host.context).unwrap());
    for ([near, far], address) in
        [(&same, "127.0.0.1:0".parse().unwrap()), (&far, (hosts.1.ip, 0).into())]
    {
        for side in [Side::Client, Side::Server] {
            for progress in [Progress::Requested, Progress::Accepted, Progress::Replied] {
                disconnects_early([near, far], address, progress, side, false);
            }
        }
        disconnects_early([near, far], address, Progress::Accepted, Side::Server, true);
    }
}

#[test]
fn a_reserved_port_rejects_requests_and_is_in_use() {
    let channel = EventChannel::open(&open("soft0")).unwrap();
    let bind = |space, address| unmanaged::bind(&channel, space, address, BindOptions::new());
    let port = bind(PortSpace::Tcp, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
    let again = bind(PortSpace::Tcp, address);
    assert!(matches!(again, Err(Error::PortInUse { .. })), "{again:?}");
    // Each port space has its own ports.
    drop(bind(PortSpace::Udp, address).unwrap());
    let route = unmanaged::route(&channel, address).unwrap();
    let parameters = Parameters::new(Qpn::masked(7), Psn::masked(8));
    let client = unmanaged::connect(&channel, PortSpace::Tcp, &route, &parameters, b"").unwrap();
    let (of, Event::Ended(End::Rejected { reason, .. })) = next(&channel) else { panic!() };
    assert_eq!((of, reason), (client.token(), Reason::INVALID_SERVICE_ID));
    drop(port);
    // Until its `exec`, a child that another test has forked keeps the port's socket open.
    until("the port is free", || bind(PortSpace::Tcp, address).is_ok());
}

/// Queries a service from one channel to another, and answers as `answer` does.
fn query(ends: [&EventChannel; 2], address: SocketAddr, answer: impl FnOnce(&Id)) -> Answered {
    let (listener, route) = listen(ends, PortSpace::Udp, address);
    let [near, far] = ends;
    let client = unmanaged::query(near, PortSpace::Udp, &route, b"who?").unwrap();
    let (of, Event::Queried { id, route: back, private_data }) = next(far) else { panic!() };
    assert_eq!((of, private_data.len()), (listener.token(), 180));
    assert!(private_data.starts_with(b"who?\0"));
    assert_eq!((back.local, back.source), (route.remote, route.destination));
    assert_eq!((back.gid_type, back.is_outside), (route.gid_type, route.is_outside));
    answer(&id);
    drop(id);
    let (of, Event::Answered(answered)) = next(near) else { panic!() };
    assert_eq!(of, client.token());
    answered
}

/// The answer to a query that the program has ended arrives before that of a later query.
#[test]
fn nothing_follows_the_end_of_a_query() {
    let hosts = (Host::new(), Host::new());
    let [near, far] = [&hosts.0, &hosts.1].map(|host| EventChannel::open(&host.context).unwrap());
    let address = (hosts.1.ip, 0).into();
    let (_listener, route) = listen([&near, &far], PortSpace::Udp, address);
    let client = unmanaged::query(&near, PortSpace::Udp, &route, b"who?").unwrap();
    let (_, Event::Queried { id, .. }) = next(&far) else { panic!() };
    client.disconnect().unwrap();
    let (of, Event::Ended(_)) = next(&near) else { panic!() };
    assert_eq!(of, client.token());
    id.answer(Qpn::masked(7), unmanaged::QKEY, b"late").unwrap();
    query([&near, &far], address, |id| id.refuse(b"").unwrap());
}

/// Queries a service that answers, one that refuses, and one whose program drops the query.
pub(crate) fn queries(ends: [&EventChannel; 2], address: SocketAddr) {
    // The kernel's rdma_cm has only one Q_Key.
    let (qpn, qkey) = (Qpn::masked(0x123), system_device().map_or(0x4567, |_| unmanaged::QKEY));
    let answered = query(ends, address, |id| id.answer(qpn, qkey, b"me").unwrap());
    assert_eq!((answered.status, answered.qpn, answered.qkey), (SidrStatus::VALID, qpn, qkey));
    assert_eq!((answered.private_data.len(), &answered.private_data[..3]), (136, &b"me\0"[..]));
    let answered = query(ends, address, |id| id.refuse(b"no").unwrap());
    assert_eq!(answered.status, SidrStatus::REJECTED);
    assert_eq!(&answered.private_data[..3], b"no\0");
    let answered = query(ends, address, |_| {});
    assert_eq!(answered.status, SidrStatus::REJECTED);
}

#[test]
fn a_datagram_service_answers_queries_of_its_host() {
    for device in ["soft0", "softib0"] {
        let channels = [device; 2].map(|name| EventChannel::open(&open(name)).unwrap());
        queries([&channels[0], &channels[1]], "127.0.0.1:0".parse().unwrap());
    }
}

#[test]
fn a_datagram_service_answers_queries_of_other_hosts() {
    let (near, far) = (Host::new(), Host::new());
    let [near, far] = [(&near, near.ip), (&far, far.ip)]
        .map(|(host, ip)| (EventChannel::open(&host.context).unwrap(), ip));
    queries([&near.0, &far.0], (far.1, 0).into());
    // Without a listener, the other host refuses.
    let route = unmanaged::route(&near.0, (far.1, 9).into()).unwrap();
    let query = unmanaged::query(&near.0, PortSpace::Udp, &route, b"").unwrap();
    let sent = far.0.counters().sent;
    process_until("the query is answered", &far.0, |counters| counters.sent > sent);
    let (of, Event::Answered(answered)) = next(&near.0) else { panic!() };
    assert_eq!((of, answered.status), (query.token(), SidrStatus::UNSUPPORTED));
}

#[test]
fn private_data_that_is_too_long_is_refused() {
    let channel = EventChannel::open(&open("soft0")).unwrap();
    let route = unmanaged::route(&channel, "127.0.0.1:9".parse().unwrap()).unwrap();
    let parameters = Parameters::new(Qpn::masked(7), Psn::masked(8));
    let long = |error| matches!(error, Err(Error::PrivateData { .. }));
    let connected =
        unmanaged::connect(&channel, PortSpace::Tcp, &route, &parameters, &[0; 57]).map(drop);
    assert!(long(connected));
    assert!(long(unmanaged::query(&channel, PortSpace::Udp, &route, &[0; 181]).map(drop)));
}

#[test]
fn the_event_of_an_early_packet_precedes_the_end() {
    let [clients, servers] = [(); 2].map(|()| EventChannel::open(&open("soft0")).unwrap());
    let address = "127.0.0.1:0".parse().unwrap();
    let (listener, route) = listen([&clients, &servers], PortSpace::Ib, address);
    for _ in 0..2000 {
        let active = Parameters::new(Qpn::masked(7), Psn::masked(8));
        let client = unmanaged::connect(&clients, PortSpace::Ib, &route, &active, b"").unwrap();
        let (server, ..) = requested(&servers, &listener);
        server.accept(&Parameters::new(Qpn::masked(9), Psn::masked(8)), b"").unwrap();
        let (start, is_done) = (Barrier::new(3), AtomicBool::new(false));
        // Other threads receive the client's end meanwhile.
        let process = || {
            start.wait();
            while !is_done.load(Ordering::Relaxed) {
                assert!(servers.next_of(|_| false, Some(Duration::ZERO)).unwrap().is_none());
            }
        };
        thread::scope(|threads| {
            threads.spawn(process);
            threads.spawn(process);
            start.wait();
            drop(client);
            let _ = server.communication_established();
            is_done.store(true, Ordering::Relaxed);
        });
        let mut has_ended = false;
        let next = || servers.next_of(|of| of == server.token(), Some(Duration::ZERO)).unwrap();
        while let Some(event) = next() {
            assert!(!has_ended, "{event:?} follows the end");
            has_ended = event.end().is_some();
        }
    }
}
