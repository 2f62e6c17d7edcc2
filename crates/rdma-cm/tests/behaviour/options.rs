//! The options of ports, and those of queue pairs that requests contain.
#![allow(unsafe_code)] // querying the traffic class is unsafe

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rdma_cm::unmanaged::{self, Event, Parameters, PortSpace};
use rdma_cm::{
    BindOptions, End, Error, EventChannel, Listener, PreparedQueuePair, QueuePair, Reason,
};
use rdma_qp::prelude::*;
use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr};
use rdma_types::{AckTimeout, MaxAckRetries, MaxRnrRetries};
use test_support::program::in_own_process;

use crate::common::{LIMIT, Node, is_over_kernel, open};

/// Returns true if the listener receives a request to its port at this address, and false if the request is rejected.
pub(crate) fn serves(node: &Node, listener: &Listener, ip: IpAddr) -> bool {
    let resolved = node.channel.resolve((ip, listener.local_address().port())).unwrap();
    let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
    let event = node.channel.next(Some(LIMIT)).unwrap().unwrap();
    if event.id() == listener.id() {
        listener.request(event).unwrap().reject(b"").unwrap();
        assert!(connecting.wait(LIMIT).is_err());
        return true;
    }
    let Some(End::Rejected { reason, .. }) = event.end() else { panic!("{event:?}") };
    // The kernel rejects it like a program.
    let expected =
        if is_over_kernel() { Reason::CONSUMER_DEFINED } else { Reason::INVALID_SERVICE_ID };
    assert_eq!((event.id(), *reason), (connecting.id(), expected));
    false
}

#[test]
fn a_listener_of_one_ip_version_rejects_requests_of_the_other() {
    let node = Node::new(&open("soft0"));
    let one = BindOptions::new().with_one_ip_version(true);
    for (address, options, expected) in [
        ("[::]:0", BindOptions::new(), [true, true]),
        ("[::]:0", one, [false, true]),
        ("0.0.0.0:0", one, [true, false]),
        ("127.0.0.1:0", BindOptions::new(), [true, true]),
        ("127.0.0.1:0", one, [true, false]),
        ("[::1]:0", one, [false, true]),
    ] {
        let listener = Listener::bind_with(&node.channel, address, options).unwrap();
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        let served = loopback.map(|ip| serves(&node, &listener, ip));
        assert_eq!(served, expected, "{address} {options:?}");
    }
}

/// Runs in its own process: until it has executed its program, a child that another test starts keeps all ports in use.
#[test]
fn owners_of_a_shared_port_do_not_exclude_each_other() {
    let name = "options::owners_of_a_shared_port_do_not_exclude_each_other";
    in_own_process(name, share_a_port);
}

fn share_a_port() {
    let channel = EventChannel::open(&open("soft0")).unwrap();
    let shared = BindOptions::new().with_shared_port(true);
    let bind = |port: u16, options| {
        unmanaged::bind(&channel, PortSpace::Tcp, ([127, 0, 0, 1], port).into(), options)
    };
    let is_in_use = |result: Result<_, Error>| matches!(result, Err(Error::PortInUse { .. }));

    let first = bind(0, shared).unwrap();
    let port = first.number();
    assert!(is_in_use(bind(port, BindOptions::new()).map(drop)));
    let second = bind(port, shared).unwrap();
    assert!(is_in_use(unmanaged::listen(&channel, &first).map(drop)), "it has two owners");
    drop(second);
    // The owner that failed can listen once it is alone.
    let listener = unmanaged::listen(&channel, &first).unwrap();
    let third = bind(port, shared).unwrap();
    assert!(is_in_use(unmanaged::listen(&channel, &third).map(drop)), "it has a listener");

    drop((listener, first));
    assert!(is_in_use(unmanaged::listen(&channel, &third).map(drop)), "it had a listener");
    drop(third);
    // All owners have ended.
    let _alone = bind(port, BindOptions::new()).unwrap();
    assert!(is_in_use(bind(port, shared).map(drop)));
}

/// Returns the traffic class and the ACK timeout of a connected queue pair.
fn path_of(queue_pair: &QueuePair) -> (u8, AckTimeout) {
    let (mut attributes, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    let mask = ibv_qp_attr_mask::IBV_QP_AV.0.cast_signed();
    let (verbs, raw) = (queue_pair.pd().verbs(), queue_pair.as_raw());
    // SAFETY: SAFETY.md F1, F2: the queue pair is live and belongs to this table, and the attributes are writable.
    let returned = unsafe { (verbs.query_qp)(raw, &raw mut attributes, mask, &raw mut init) };
    assert_eq!(returned, 0);
    (attributes.ah_attr.grh.traffic_class, queue_pair.query().unwrap().ack_timeout)
}

/// Connects these active queue pairs, of traffic class 0x68, to others without and with a class of their own. Passes the
/// expected class of the passive one, and the paths of both, to `check`.
pub(crate) fn connect_traffic_classes(
    node: &Node,
    active: impl Fn() -> PreparedQueuePair,
    check: impl Fn(u8, [(u8, AckTimeout); 2]),
) {
    let listener = node.listen();
    let new = || node.pd.create_qp().send_cq(&node.cq).recv_cq(&node.cq);
    for (passive, expected) in
        [(new(), 0x68), (new().traffic_class(0x20), 0x20), (new().traffic_class(0), 0)]
    {
        let resolved = node.channel.resolve(listener.local_address()).unwrap();
        let connecting = resolved.connect(active(), b"").unwrap();
        let request = listener.incoming(LIMIT).unwrap();
        let accepting = request.prepare(passive.build().unwrap()).unwrap();
        let path = path_of(accepting.queue_pair());
        let _accepted = accepting.accept(b"").unwrap();
        let replied = connecting.wait(LIMIT).unwrap();
        check(expected, [path, path_of(replied.queue_pair())]);
    }
}

#[test]
fn both_ends_state_the_retries_and_the_shared_receive_queues_of_their_queue_pairs() {
    let node = Node::new(&open("soft0"));
    let (srq, channel) = (node.pd.create_srq().build().unwrap(), &node.channel);
    let new = || {
        let builder = node.pd.create_qp().send_cq(&node.cq).recv_cq(&node.cq).srq(&srq);
        let rnr = MaxRnrRetries::limited(4).unwrap();
        builder.max_ack_retries(MaxAckRetries::limited(3).unwrap()).max_rnr_retries(rnr)
    };
    let next = || unmanaged::event(channel.next(Some(LIMIT)).unwrap().unwrap()).1;

    let to = "127.0.0.1:0".parse().unwrap();
    let port = unmanaged::bind(channel, PortSpace::Tcp, to, BindOptions::new()).unwrap();
    let _listening = unmanaged::listen(channel, &port).unwrap();
    let resolved = channel.resolve(("127.0.0.1", port.number())).unwrap();
    let _connecting = resolved.connect(new().build().unwrap(), b"").unwrap();
    let event = next();
    let Event::Requested { parameters, .. } = event else { panic!("{event:?}") };
    let stated = (parameters.retry_count, parameters.rnr_retry_count, parameters.srq);
    // `max_rnr_retries` limits the sends of the queue pair, not those of its peer.
    assert_eq!(stated, (3, 7, true));

    let listener = node.listen();
    let route = unmanaged::route(channel, listener.local_address()).unwrap();
    let own = node.queue_pair();
    let own = Parameters::new(own.endpoint().qpn(), own.endpoint().psn());
    let _active = unmanaged::connect(channel, PortSpace::Tcp, &route, &own, b"").unwrap();
    let request = listener.incoming(LIMIT).unwrap();
    let _accepted = request.prepare(new().build().unwrap()).unwrap().accept(b"").unwrap();
    let event = next();
    let Event::Replied { parameters, .. } = event else { panic!("{event:?}") };
    assert_eq!((parameters.rnr_retry_count, parameters.srq), (7, true));
}

#[test]
fn a_request_contains_the_traffic_class_and_the_timeout_of_its_queue_pair() {
    let node = Node::new(&open("soft0"));
    let timeout = AckTimeout::limited(17).unwrap();
    let new = || node.pd.create_qp().send_cq(&node.cq).recv_cq(&node.cq);
    let active = || new().traffic_class(0x68).ack_timeout(timeout).build().unwrap();

    let to = "127.0.0.1:0".parse().unwrap();
    let port = unmanaged::bind(&node.channel, PortSpace::Tcp, to, BindOptions::new()).unwrap();
    let resolved = node.channel.resolve(("127.0.0.1", port.number())).unwrap();
    let _listener = unmanaged::listen(&node.channel, &port).unwrap();
    let _connecting = resolved.connect(active(), b"").unwrap();
    let (_, event) = unmanaged::event(node.channel.next(Some(LIMIT)).unwrap().unwrap());
    let Event::Requested { route, .. } = event else { panic!("{event:?}") };
    assert_eq!((route.traffic_class, route.ack_timeout), (0x68, timeout));

    // The passive end uses the traffic class of the request unless it has its own. It keeps its timeout.
    connect_traffic_classes(&node, active, |expected, [passive, active]| {
        assert_eq!(passive, (expected, AckTimeout::default()));
        assert_eq!(active, (0x68, timeout));
    });
}
