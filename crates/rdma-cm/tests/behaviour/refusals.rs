//! Connections that are refused, and ends that vanish within their process.

use std::thread;
use std::time::Duration;

use rdma_cm::unmanaged::{self, Parameters, PortSpace};
use rdma_cm::{End, Error, EventChannel, Listener, Mtu, Reason};
use rdma_qp::{CompletionQueue, QueuePairType, prelude::*};
use rdma_types::{Psn, Qpn};
use test_support::rig::until;

use crate::common::{LIMIT, Node, ended, open, open_twin};
use crate::other_hosts::Host;

fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> Reason {
    match ended(result) {
        End::Rejected { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

#[test]
fn a_port_without_a_listener_rejects() {
    let node = Node::new(&open("soft0"));
    let listener = node.listen();
    let address = listener.local_address();
    drop(listener);
    let connecting =
        node.channel.resolve(address).unwrap().connect(node.queue_pair(), b"").unwrap();
    assert_eq!(reason(connecting.wait(LIMIT)), Reason::INVALID_SERVICE_ID);
}

#[test]
fn a_port_has_one_listener_per_device() {
    let (context, other) = (open("soft0"), open("softib0"));
    let node = Node::new(&context);
    let listener = node.listen();
    let port = listener.local_address().port();
    let error = Listener::bind(&Node::new(&context).channel, ("0.0.0.0", port)).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("port {port} of `soft0` is in use: use another port, or 0 for any free one")
    );
    let elsewhere = Listener::bind(&Node::new(&other).channel, ("127.0.0.1", port)).unwrap();
    assert_eq!(elsewhere.local_address().port(), port);
    drop(listener);
    // Until its `exec`, a child that another test has forked keeps the listener's socket open.
    until("the port is free", || Listener::bind(&node.channel, ("::", port)).is_ok());
}

#[test]
fn a_rejection_has_its_private_data() {
    let node = Node::new(&open("soft0"));
    let listener = node.listen();
    let resolved = node.channel.resolve(listener.local_address()).unwrap();
    let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
    listener.incoming(LIMIT).unwrap().reject(b"full").unwrap();
    let mut private_data = b"full".to_vec();
    private_data.resize(148, 0);
    let expected = End::Rejected { reason: Reason::CONSUMER_DEFINED, private_data };
    assert_eq!(ended(connecting.wait(LIMIT)), expected);

    let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
    let accepted =
        listener.incoming(LIMIT).unwrap().prepare(node.queue_pair()).unwrap().accept(b"").unwrap();
    drop(connecting.wait(LIMIT).unwrap());
    assert_eq!(reason(accepted.wait(LIMIT)), Reason::CONSUMER_DEFINED);
}

#[test]
fn a_listener_at_one_address_rejects_requests_for_others() {
    let node = Node::new(&open("soft0"));
    let listener = node.listen();
    let port = listener.local_address().port();
    let connecting = node.channel.resolve(("127.0.0.2", port)).unwrap();
    let connecting = connecting.connect(node.queue_pair(), b"").unwrap();
    assert_eq!(reason(connecting.wait(LIMIT)), Reason::INVALID_SERVICE_ID);
    assert!(matches!(listener.incoming(Duration::ZERO), Err(Error::TimedOut { .. })));

    let any = Listener::bind(&node.channel, "0.0.0.0:0").unwrap();
    let resolved = node.channel.resolve(("127.0.0.2", any.local_address().port())).unwrap();
    let _connecting = resolved.connect(node.queue_pair(), b"").unwrap();
    assert!(any.incoming(LIMIT).is_ok());

    // A mapped address is the IPv4 address, and the unspecified one the host itself. `localhost` may stand for `::1`.
    for same in ["::ffff:127.0.0.1", "0.0.0.0", "::1"] {
        let resolved = node.channel.resolve((same, port)).unwrap();
        let _connecting = resolved.connect(node.queue_pair(), b"").unwrap();
        assert!(listener.incoming(LIMIT).is_ok(), "{same}");
    }
}

#[test]
fn addresses_of_other_hosts_and_unknown_names_are_errors() {
    let node = Node::new(&open("soft0"));
    let error = node.channel.resolve("192.0.2.1:7471").unwrap_err();
    assert!(
        matches!(&error, Error::NotThisHost { address, .. } if address.to_string() == "192.0.2.1")
    );
    assert!(error.to_string().contains("`soft0` reaches no other"), "{error}");
    assert!(matches!(node.channel.resolve("no port"), Err(Error::Resolve(_))));
    assert!(matches!(node.channel.resolve(&[][..]), Err(Error::Resolve(_))));
    let error = Listener::bind(&node.channel, "192.0.2.1:0").unwrap_err();
    assert!(matches!(error, Error::NotOwn { .. }));
}

/// A device of InfiniBand cannot listen, so its error names another device.
#[test]
fn the_cure_of_a_device_that_cannot_listen_is_another_device() {
    for (device, cure) in [
        ("soft0", "reaches no other: let the software device listen at an address of the network"),
        ("softib0", "use one of RoCE that listens at an address of the network (`soft0` with"),
    ] {
        let channel = EventChannel::open(&open(device)).unwrap();
        let text = channel.resolve("192.0.2.1:7471").unwrap_err().to_string();
        assert!(text.contains(cure), "{text}");
        assert_eq!(text.contains("Builder::listen"), device == "soft0", "{text}");
    }
    let new = rdma_soft::Builder::new("ib-listens").link(rdma_soft::Link::InfiniBand);
    let error = new.listen("127.0.0.1").install().unwrap_err().to_string();
    assert!(error.contains("a device of InfiniBand"), "{error}");
}

#[test]
fn the_addresses_of_the_device_lead_to_it() {
    let context = open("soft0");
    let node = Node::new(&context);
    let listener = Listener::bind(&node.channel, "[::]:0").unwrap();
    let port = listener.local_address().port();
    let ip = context.gid_table().unwrap().iter().find_map(|entry| entry.gid.to_ipv4()).unwrap();
    let resolved = node.channel.resolve((ip, port)).unwrap();
    let _connecting = resolved.connect(node.queue_pair(), b"").unwrap();
    assert!(listener.incoming(LIMIT).is_ok());
}

#[test]
fn private_data_that_is_too_long_is_named() {
    let node = Node::new(&open("soft0"));
    let listener = node.listen();
    let resolved = node.channel.resolve(listener.local_address()).unwrap();
    let error = resolved.connect(node.queue_pair(), &[0; 57]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "57 bytes of private data do not fit into a REQ: pass at most 56"
    );
    let connecting = resolved.connect(node.queue_pair(), &[1; 56]).unwrap();
    let request = listener.incoming(LIMIT).unwrap();
    assert_eq!(request.private_data(), [1; 56]);
    let accepting = request.prepare(node.queue_pair()).unwrap();
    let error = accepting.accept(&[0; 197]).unwrap_err();
    assert!(matches!(error, Error::PrivateData { message: "REP", length: 197, most: 196 }));
    assert_eq!(reason(connecting.wait(LIMIT)), Reason::CONSUMER_DEFINED);

    let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
    let error = listener.incoming(LIMIT).unwrap().reject(&[0; 149]).unwrap_err();
    assert!(matches!(error, Error::PrivateData { message: "REJ", length: 149, most: 148 }));
    assert_eq!(reason(connecting.wait(LIMIT)), Reason::CONSUMER_DEFINED);
}

#[test]
fn queue_pairs_that_do_not_fit_are_refused() {
    let node = Node::new(&open("soft0"));
    let listener = node.listen();
    let resolved = node.channel.resolve(listener.local_address()).unwrap();
    let new = || node.pd.create_qp().send_cq(&node.cq).recv_cq(&node.cq);
    let datagrams = new().qp_type(QueuePairType::UD).build().unwrap();
    assert_eq!(
        resolved.connect(datagrams, b"").unwrap_err().to_string(),
        "queue pairs of type UD (unreliable datagrams) are not connected: build one of type RC or UC"
    );

    let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
    let small = new().mtu(Mtu::MTU256).build().unwrap();
    let error = listener.incoming(LIMIT).unwrap().prepare(small).unwrap_err();
    assert!(matches!(error, Error::Mtu { own: Mtu::MTU256, .. }), "{error}");
    assert_eq!(reason(connecting.wait(LIMIT)), Reason::INVALID_MTU);

    let unreliable = || new().qp_type(QueuePairType::UC).build().unwrap();
    let connecting = resolved.connect(unreliable(), b"").unwrap();
    let error = listener.incoming(LIMIT).unwrap().prepare(node.queue_pair()).unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error}");
    assert_eq!(reason(connecting.wait(LIMIT)), Reason::CONSUMER_DEFINED);

    let connecting = resolved.connect(unreliable(), b"").unwrap();
    let accepting = listener.incoming(LIMIT).unwrap().prepare(unreliable()).unwrap();
    let accepted = accepting.accept(b"").unwrap();
    let active = connecting.wait(LIMIT).unwrap().establish().unwrap();
    assert_eq!(active.queue_pair().qp_type(), QueuePairType::UC);
    assert!(accepted.wait(LIMIT).is_ok());
}

#[test]
fn queue_pairs_of_another_device_are_refused() {
    let (node, other) = (Node::new(&open("soft0")), Node::new(&open("softib0")));
    let listener = node.listen();
    let resolved = node.channel.resolve(listener.local_address()).unwrap();
    let name = node.channel.context().device().name();
    let text = format!(
        "the queue pair belongs to `softib0`, but the channel to `{name}`: create it on the channel's device"
    );
    let error = resolved.connect(other.queue_pair(), b"").unwrap_err();
    assert_eq!(error.to_string(), text);
    let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
    let error = listener.incoming(LIMIT).unwrap().prepare(other.queue_pair()).unwrap_err();
    assert_eq!(error.to_string(), text);
    assert_eq!(reason(connecting.wait(LIMIT)), Reason::CONSUMER_DEFINED);
}

/// The devices have the same name and GUID.
#[test]
fn queue_pairs_of_another_provider_are_refused() {
    let (node, twin) = (Node::new(&open("soft0")), open_twin("soft0"));
    assert_eq!(node.channel.context().device().guid(), twin.device().guid());
    let (pd, cq) = (twin.allocate_pd().unwrap(), CompletionQueue::create(&twin, 16).unwrap());
    let other = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap();
    let listener = node.listen();
    let resolved = node.channel.resolve(listener.local_address()).unwrap();
    let text = "the queue pair belongs to `soft0` of another provider, but the channel to `soft0`: create it on the channel's device";
    assert_eq!(resolved.connect(other(), b"").unwrap_err().to_string(), text);
    let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
    let error = listener.incoming(LIMIT).unwrap().prepare(other()).unwrap_err();
    assert_eq!(error.to_string(), text);
    assert_eq!(reason(connecting.wait(LIMIT)), Reason::CONSUMER_DEFINED);
    // The channels that a process shares are two, too.
    let _shared = EventChannel::shared(node.channel.context()).unwrap();
    let resolved = EventChannel::shared(&twin).unwrap().resolve("127.0.0.1:9").unwrap();
    assert!(resolved.connect(other(), b"").is_ok());
}

#[test]
fn a_port_without_an_address_is_named() {
    rdma_soft::Builder::new("no-address").gids([]).install().unwrap();
    let channel = EventChannel::open(&open("no-address")).unwrap();
    let error = unmanaged::route(&channel, "127.0.0.1:9".parse().unwrap()).unwrap_err();
    assert!(
        error.to_string().starts_with("the port of `no-address` has no address: check that it"),
        "{error}"
    );
}

#[test]
fn a_queue_pair_has_one_connection_to_another_host() {
    let (near, far) = (Host::new(), Host::new());
    let channel = near.node().channel;
    let route = unmanaged::route(&channel, (far.ip, 9).into()).unwrap();
    let parameters = Parameters::new(Qpn::masked(7), Psn::masked(8));
    let connect = || unmanaged::connect(&channel, PortSpace::Tcp, &route, &parameters, b"");
    let _first = connect().unwrap();
    let error = connect().unwrap_err();
    assert!(matches!(error, Error::QueuePairInUse { qpn } if qpn.get() == 7), "{error}");
}

/// Each connection has a socket of its own.
#[test]
fn a_queue_pair_has_several_connections_to_its_own_host() {
    let node = Node::new(&open("soft0"));
    let listener = node.listen();
    let route = unmanaged::route(&node.channel, listener.local_address()).unwrap();
    let parameters = Parameters::new(Qpn::masked(7), Psn::masked(8));
    let connect = |()| unmanaged::connect(&node.channel, PortSpace::Tcp, &route, &parameters, b"");
    let _connecting = [(); 2].map(|it| connect(it).unwrap());
    let requests = [(); 2].map(|()| listener.incoming(LIMIT).unwrap());
    assert_ne!(requests[0].id(), requests[1].id());
}

#[test]
fn a_request_that_is_withdrawn_cannot_be_accepted() {
    let node = Node::new(&open("soft0"));
    let server = Node::new(node.channel.context());
    let listener = server.listen();
    let resolved = node.channel.resolve(listener.local_address()).unwrap();
    let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
    let request = listener.incoming(LIMIT).unwrap();
    let id = request.id();
    drop(connecting);
    let event = server.channel.next(Some(LIMIT)).unwrap().unwrap();
    assert_eq!((event.id(), event.end()), (id, Some(&End::PeerGone)));
    let accepting = request.prepare(server.queue_pair()).unwrap();
    assert_eq!(ended(accepting.accept(b"")), End::PeerGone);

    // The event may also still be queued.
    let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
    let request = listener.incoming(LIMIT).unwrap();
    drop(connecting);
    let _ = server.channel.next(Some(Duration::ZERO)).unwrap();
    assert_eq!(ended(request.reject(b"")), End::PeerGone);
}

#[test]
fn a_listener_that_is_dropped_ends_the_requests_in_its_queue() {
    let (client, server) = (Node::new(&open("soft0")), Node::new(&open("soft0")));
    let listener = server.listen();
    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    let connect = |name| resolved.connect(client.queue_pair(), &[name]).unwrap();
    let mut others = vec![connect(0), connect(1), connect(2)];
    // The three requests may arrive in any order.
    let request = listener.incoming(LIMIT).unwrap();
    let taken = others.remove(request.private_data()[0].into());
    drop(listener);
    for connecting in others {
        let end = ended(connecting.wait(LIMIT));
        assert!(matches!(end, End::Rejected { .. } | End::PeerGone), "{end}");
    }
    let accepted = request.prepare(server.queue_pair()).unwrap().accept(b"").unwrap();
    let active = taken.wait(LIMIT).unwrap().establish().unwrap();
    drop(accepted.wait(LIMIT).unwrap());
    assert!(matches!(active.wait(LIMIT).unwrap(), End::Disconnected { .. }));
}

#[test]
fn a_channel_that_is_dropped_ends_what_nothing_else_holds() {
    let (client, server) = (Node::new(&open("soft0")), Node::new(&open("soft0")));
    let listener = server.listen();
    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    let event = thread::scope(|threads| {
        threads.spawn(|| server.channel.next(Some(LIMIT)).unwrap().unwrap()).join().unwrap()
    });
    drop((listener, server));
    drop(event);
    assert_eq!(reason(connecting.wait(LIMIT)), Reason::CONSUMER_DEFINED);
}
