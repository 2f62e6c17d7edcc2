//! Connections by datagrams. The ends are devices of this process, each at an address of the loopback interface.
#![allow(unsafe_code)] // sending a MAD is unsafe

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV6};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rdma_cm::{Connecting, Counters, End, Error, EventChannel, Listener, Reason};
use rdma_mem::Context;
use rdma_proto::cm::wire::{Dreq, MAD_LEN, Mad, Message, Offer, Rej, Rejection, Subject};
use rdma_proto::cm::{CommId, Manager};
use rdma_soft::Builder;
use rdma_sys::AddressedMad;
use rdma_types::{Gid, Guid, Qpn};
use test_support::rig::until;

use crate::common::{LIMIT, Node, connect, disconnected, messages_pass, open, req};

/// A device that is alone at its address.
pub(crate) struct Host {
    pub(crate) ip: Ipv4Addr,
    pub(crate) context: Context,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(change: impl FnOnce(Builder) -> Builder) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let ip = Ipv4Addr::from_bits(0x7f00_0000 | (std::process::id() & 0xffff) << 7 | count);
        let name = format!("host{count}");
        let builder = Builder::new(&name).gids([]).listen(ip.to_string());
        change(builder).install().unwrap();
        Self { ip, context: rdma_mem::open_device(&name).unwrap() }
    }

    pub(crate) fn node(&self) -> Node {
        Node::new(&self.context)
    }

    pub(crate) fn listen(&self, channel: &EventChannel) -> Listener {
        Listener::bind(channel, (self.ip, 0)).unwrap()
    }

    fn gid(&self) -> Gid {
        Gid::from_ipv4(self.ip)
    }

    /// Sends a MAD without a communication manager.
    fn send(&self, to: &Self, mad: [u8; MAD_LEN]) {
        let (source, destination) = (self.gid().to_bytes(), to.gid().to_bytes());
        let mad = AddressedMad { source, destination, mad };
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table.
        unsafe { self.context.verbs().send_mad(self.context.as_raw(), &mad) }.unwrap();
    }
}

fn request(from: &Node, listener: &Listener) -> Connecting {
    let resolved = from.channel.resolve(listener.local_address()).unwrap();
    resolved.connect(from.queue_pair(), b"").unwrap()
}

/// Processes what arrives at a channel until its counters satisfy a condition. Nothing is for the program.
pub(crate) fn process_until(
    what: &str,
    channel: &EventChannel,
    is_reached: impl Fn(&Counters) -> bool,
) {
    until(what, || {
        assert!(channel.next(Some(Duration::ZERO)).unwrap().is_none());
        is_reached(&channel.counters())
    });
}

#[test]
fn messages_pass_between_hosts() {
    let (near, far) = (Host::new(), Host::new());
    let server = far.node();
    let listener = far.listen(&server.channel);
    let sent = server.channel.clone();
    messages_pass(near.node(), server, &listener);
    // REP and DREQ.
    assert_eq!(sent.counters().sent, 2);
}

#[test]
fn lost_messages_are_repeated() {
    let [near, far] = [7, 11].map(|seed| Host::with(|builder| builder.lossy(0.3, seed)));
    let (client, server) = (near.node(), far.node());
    let listener = far.listen(&server.channel);
    let [is_established, is_over] = [const { AtomicBool::new(false) }; 2];
    // Answers what arrives until the other end is done.
    let answer = |node: &Node, is_done: &AtomicBool| {
        until("the other end is done", || {
            assert!(node.channel.next(Some(Duration::ZERO)).unwrap().is_none());
            is_done.load(Ordering::Relaxed)
        });
    };
    thread::scope(|threads| {
        threads.spawn(|| {
            let request = listener.incoming(LIMIT).unwrap();
            let accepted = request.prepare(server.queue_pair()).unwrap().accept(b"").unwrap();
            let connection = accepted.wait(LIMIT).unwrap();
            is_established.store(true, Ordering::Relaxed);
            assert_eq!(connection.wait(LIMIT).unwrap(), disconnected(b"bye", 220));
            answer(&server, &is_over);
        });
        let connection = request(&client, &listener).wait(LIMIT).unwrap().establish().unwrap();
        answer(&client, &is_established);
        let ended = connection.disconnect(b"bye").unwrap().wait(LIMIT).unwrap();
        assert_eq!(*ended.end(), disconnected(b"", 224));
        is_over.store(true, Ordering::Relaxed);
    });
    let counters = [&client, &server].map(|node| node.channel.counters());
    assert!(counters.iter().any(|counters| counters.retries > 0), "{counters:?}");
}

#[test]
fn refusals_arrive() {
    let (near, far) = (Host::new(), Host::new());
    let (client, server) = (near.node(), far.node());
    let listener = far.listen(&server.channel);

    let connecting = request(&client, &listener);
    listener.incoming(LIMIT).unwrap().reject(b"no").unwrap();
    let Err(Error::Ended(End::Rejected { reason, private_data })) = connecting.wait(LIMIT) else {
        panic!("a rejection");
    };
    assert_eq!((reason, &private_data[..3]), (Reason::CONSUMER_DEFINED, &b"no\0"[..]));

    // A request that is dropped is withdrawn.
    let connecting = request(&client, &listener);
    let incoming = listener.incoming(LIMIT).unwrap();
    drop(connecting);
    let accepted = incoming.prepare(server.queue_pair()).unwrap().accept(b"");
    assert!(matches!(accepted.and_then(|it| it.wait(LIMIT)), Err(Error::Ended(_))));

    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    drop(listener);
    let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    process_until("the REQ is rejected", &server.channel, |counters| counters.rejects > 1);
    let Err(Error::Ended(End::Rejected { reason, .. })) = connecting.wait(LIMIT) else {
        panic!("a rejection");
    };
    assert_eq!(reason, Reason::INVALID_SERVICE_ID);
}

#[test]
fn each_channel_of_a_device_receives_its_messages() {
    let (near, far) = (Host::new(), Host::new());
    // The messages of each are read by the threads that wait for the others.
    let (clients, servers) = ([near.node(), near.node()], [far.node(), far.node()]);
    let listeners = [0, 1].map(|n: usize| far.listen(&servers[n].channel));
    for n in [0, 1] {
        let (active, passive) = connect(&clients[n], &servers[1 - n], &listeners[1 - n]);
        assert!(clients[1 - n].channel.next(Some(Duration::ZERO)).unwrap().is_none());
        drop(active);
        assert_eq!(passive.wait(LIMIT).unwrap(), disconnected(b"", 220));
    }
}

#[test]
fn a_flood_of_requests_is_bounded() {
    let (enemy, far) = (Host::new(), Host::new());
    let server = far.node();
    let listener = far.listen(&server.channel);
    let port = listener.local_address().port();
    let mut requests = Vec::new();
    for n in 0..200 {
        let qpn = |offer: &mut Offer<'_>| offer.qpn = Qpn::masked(n + 2);
        enemy.send(&far, req(n + 1, [enemy.gid(), far.gid()], port, qpn));
        if n < Manager::MAX_HALF_OPEN {
            requests.push(listener.incoming(LIMIT).unwrap());
        }
    }
    process_until("the others are dropped", &server.channel, |counters| {
        counters.half_open_full == 72
    });
    // They do not keep the processes of the host out.
    let local = Node::new(&far.context);
    let resolved = local.channel.resolve(listener.local_address()).unwrap();
    let connecting = resolved.connect(local.queue_pair(), b"").unwrap();
    let request = listener.incoming(LIMIT).unwrap();
    let _accepted = request.prepare(server.queue_pair()).unwrap().accept(b"").unwrap();
    assert!(connecting.wait(LIMIT).unwrap().establish().is_ok());
}

#[test]
fn messages_of_strangers_change_nothing() {
    let (enemy, near, far) = (Host::new(), Host::new(), Host::new());
    let (client, server) = (near.node(), far.node());
    let listener = far.listen(&server.channel);
    let port = listener.local_address().port();

    // The path of a REQ begins at its source.
    let forged = req(1, [near.gid(), far.gid()], port, |_| ());
    enemy.send(&far, forged);
    process_until("it is dropped", &server.channel, |counters| counters.wrong_source == 1);

    let (active, passive) = connect(&client, &server, &listener);
    let mut random = fastrand::Rng::with_seed(41);
    let before = server.channel.counters().received;
    for n in 1..=300 {
        let mut mad = req(n, [near.gid(), far.gid()], port, |_| ());
        match n % 3 {
            0 => random.fill(&mut mad),
            1 => mad[random.usize(..24)] = random.u8(..),
            // Any message for any ID.
            _ => {
                mad[16..18].copy_from_slice(&random.u16(0x10..0x1a).to_be_bytes());
                random.fill(&mut mad[24..40]);
            }
        }
        enemy.send(&far, mad);
        // The socket has space for some.
        process_until("it is processed", &server.channel, |counters| {
            counters.received >= before + u64::from(n)
        });
    }
    drop(active);
    assert_eq!(passive.wait(LIMIT).unwrap(), disconnected(b"", 220));
}

/// Communication IDs are guessable, but messages that end a connection must also come from its peer.
#[test]
fn storms_of_endings_with_guessed_ids_end_nothing() {
    const REQUESTS: u32 = 32;
    let (enemy, near, far) = (Host::new(), Host::new(), Host::new());
    let (client, server) = (near.node(), far.node());
    let listener = far.listen(&server.channel);
    let port = listener.local_address().port();
    let (active, passive) = connect(&client, &server, &listener);
    let requests: Vec<_> = (1..=REQUESTS)
        .map(|n| {
            let qpn = |offer: &mut Offer<'_>| offer.qpn = Qpn::masked(n + 1000);
            near.send(&far, req(n, [near.gid(), far.gid()], port, qpn));
            listener.incoming(LIMIT).unwrap()
        })
        .collect();

    let mut random = fastrand::Rng::with_seed(41);
    let before = server.channel.counters();
    let guid = Guid::from_u64(1).to_bytes();
    let mut storm = 0;
    for n in 1..=REQUESTS {
        let [local_id, guessed] = [n, random.u32(..1 << 20)].map(CommId::new);
        let rejection = Rejection { info: &guid, ..Rejection::new(Reason::TIMEOUT) };
        let rej = |remote_id| Rej { local_id, remote_id, subject: Subject::Req, rejection };
        let remote_qpn = passive.queue_pair().qpn();
        let dreq = Dreq { local_id, remote_id: guessed, remote_qpn, private_data: &[] };
        for message in
            [Message::Rej(rej(CommId::NONE)), Message::Rej(rej(guessed)), Message::Dreq(dreq)]
        {
            storm += 1;
            enemy.send(&far, Mad { tid: 1, message }.emit().unwrap());
            process_until("it is dropped", &server.channel, |counters| {
                counters.unmatched >= before.unmatched + storm
            });
        }
    }
    assert_eq!(server.channel.counters().unmatched, before.unmatched + storm);
    for request in requests {
        request.reject(b"").unwrap();
    }
    drop(active);
    assert_eq!(passive.wait(LIMIT).unwrap(), disconnected(b"", 220));
}

#[test]
fn the_error_names_the_address_that_is_not_reached() {
    let near = Host::new();
    let channel = near.node().channel;
    // No address of this IP version.
    let error = channel.resolve("[2001:db8::1]:7471").unwrap_err();
    let IpAddr::V6(address) = "2001:db8::1".parse().unwrap() else { panic!("an address") };
    assert!(matches!(error, Error::NoRoute { address: it, .. } if it == IpAddr::V6(address)));
}

#[test]
fn the_scope_of_a_link_local_address_has_no_effect() {
    let context = open("soft0");
    let table = context.gid_table().unwrap();
    let own = table.iter().map(|entry| Ipv6Addr::from(entry.gid.to_bytes()));
    let own = own.into_iter().find(Ipv6Addr::is_unicast_link_local).unwrap();
    let at = |port, scope| SocketAddrV6::new(own, port, 0, scope);
    for [near, far] in [[0, 0], [0, 7], [7, 0], [7, 8]] {
        let (client, server) = (Node::new(&context), Node::new(&context));
        let listener = Listener::bind(&server.channel, at(0, far)).unwrap();
        let resolved = client.channel.resolve(at(listener.local_address().port(), near)).unwrap();
        let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
        let request = listener.incoming(LIMIT).unwrap();
        let accepted = request.prepare(server.queue_pair()).unwrap().accept(b"").unwrap();
        let active = connecting.wait(LIMIT).unwrap().establish().unwrap();
        drop((active, accepted.wait(LIMIT).unwrap()));
    }
    // A device that listens at no address of the IP version reaches no other host.
    let host = Host::new();
    let channel = EventChannel::open(&host.context).unwrap();
    let error = channel.resolve(("fe80::9", 7471)).unwrap_err();
    assert!(matches!(error, Error::NoRoute { .. }), "{error}");
}
