//! Connections in the time of a simulated network, whose links lose, repeat and delay MADs.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rdma_cm::unmanaged::{self, Parameters, PortSpace};
use rdma_cm::{
    BindOptions, Connecting, End, Error, Event, EventChannel, IdToken, Listener, Phase, Step,
};
use rdma_mem::GidType;
use rdma_proto::cm::Manager;
use rdma_soft::{Builder, LinkModel, Network, SoftDevice};
use rdma_types::{Psn, Qpn};

use crate::common::{Node, connect, disconnected, forget, messages_pass};

/// The port of all listeners. A port that the system selects would make runs differ.
const PORT: u16 = 7471;

const LATENCY: Duration = Duration::from_millis(2);

/// A simulated network of two hosts.
struct Hosts {
    network: Network,
    near: SoftDevice,
    far: SoftDevice,
}

impl Hosts {
    fn new(seed: u64, name: &str) -> Self {
        let network = Network::simulated(seed);
        network.set_all_links(LinkModel::new().latency(LATENCY).bandwidth(0));
        let [near, far] = ["near", "far"]
            .map(|end| Builder::new(format!("{name}-{end}")).network(&network).install().unwrap());
        Self { network, near, far }
    }

    fn nodes(&self) -> (Node, Node) {
        let open = |device: &SoftDevice| rdma_mem::open_device(device.name()).unwrap();
        (Node::new(&open(&self.near)), Node::new(&open(&self.far)))
    }

    fn cut(&self) {
        self.set_links(LinkModel::cut());
    }

    fn heal(&self) {
        self.set_links(LinkModel::new().latency(LATENCY).bandwidth(0));
    }

    fn set_links(&self, model: LinkModel) {
        self.network.set_link(&self.near, &self.far, model).unwrap();
        self.network.set_link(&self.far, &self.near, model).unwrap();
    }
}

fn ip_of(node: &Node) -> IpAddr {
    let table = node.channel.context().gid_table().unwrap();
    let mut v2 = table.iter().filter(|entry| entry.gid_type == GidType::ROCE_V2);
    let ip: Ipv4Addr = v2.find_map(|entry| entry.gid.to_ipv4()).unwrap();
    ip.into()
}

fn listen(node: &Node) -> Listener {
    Listener::bind(&node.channel, (ip_of(node), PORT)).unwrap()
}

fn request(from: &Node, to: &Node) -> Connecting {
    let resolved = from.channel.resolve((ip_of(to), PORT)).unwrap();
    resolved.connect(from.queue_pair(), b"").unwrap()
}

#[test]
fn messages_of_a_connection_take_the_latency_of_the_links() {
    let hosts = Hosts::new(3, "latency");
    let (client, server) = hosts.nodes();
    let listener = listen(&server);
    let ends = connect(&client, &server, &listener);
    // REQ, REP and RTU.
    assert_eq!((hosts.network.now(), hosts.network.packets()), (3 * LATENCY, 3));
    drop(ends);
    messages_pass(client, server, &listener);
}

#[test]
fn an_unanswered_request_ends_after_its_repetitions_in_virtual_time() {
    let hosts = Hosts::new(3, "unanswered");
    let (client, server) = hosts.nodes();
    let _listener = listen(&server);
    hosts.cut();
    let error = request(&client, &server).wait(Duration::from_secs(3600)).unwrap_err();
    let unanswered = Error::Ended(End::Unanswered { phase: Phase::Connect });
    assert_eq!(error.to_string(), unanswered.to_string());
    // 16 times 4.295 s, and the same number of the queue pair's timeouts.
    let (response, ack) = (4096 << 20, 4096 << 14);
    assert_eq!(hosts.network.now(), Duration::from_nanos(16 * (response + ack)));
    // The last one is the REJ that withdraws the request.
    assert_eq!((hosts.network.packets(), client.channel.counters().retries), (17, 15));
}

#[test]
fn a_wait_ends_at_its_limit_in_virtual_time() {
    let hosts = Hosts::new(3, "limit");
    let (_client, server) = hosts.nodes();
    let limit = Duration::from_secs(1 << 20);
    assert!(server.channel.next(Some(limit)).unwrap().is_none());
    assert_eq!(hosts.network.now(), limit);
}

/// Returns the events of the time that some messages take, but no repetition.
fn events(hosts: &Hosts, channels: [&EventChannel; 2]) -> Vec<(IdToken, unmanaged::Event)> {
    let mut events = Vec::new();
    for _ in 0..10 {
        for channel in channels {
            while let Some(event) = channel.next(Some(Duration::ZERO)).unwrap() {
                events.push(unmanaged::event(event));
            }
        }
        hosts.network.run_for(LATENCY);
    }
    events
}

/// A host that has restarted uses a QPN again. Its peer ends the earlier connection by itself, which its program
/// disconnects at the same time.
#[test]
fn a_stale_connection_that_its_program_disconnects_ends_once() {
    let hosts = Hosts::new(3, "stale");
    let (near, far) = hosts.nodes();
    let address = (ip_of(&far), PORT).into();
    let port = unmanaged::bind(&far.channel, PortSpace::Tcp, address, BindOptions::new()).unwrap();
    let _listener = unmanaged::listen(&far.channel, &port).unwrap();
    let own = Parameters::new(Qpn::masked(0x77), Psn::masked(1));
    let connect = |channel: &EventChannel| {
        let route = unmanaged::route(channel, address).unwrap();
        unmanaged::connect(channel, PortSpace::Tcp, &route, &own, b"").unwrap()
    };

    let first = connect(&near.channel);
    let mut arrived = events(&hosts, [&near.channel, &far.channel]);
    let Some((_, unmanaged::Event::Requested { id: passive, .. })) = arrived.pop() else {
        panic!("a request")
    };
    passive.accept(&own, b"").unwrap();
    assert!(matches!(
        events(&hosts, [&near.channel, &far.channel])[..],
        [(_, unmanaged::Event::Replied { .. })]
    ));
    first.establish().unwrap();
    assert_eq!(events(&hosts, [&near.channel, &far.channel]).len(), 1);

    hosts.cut();
    let context = near.channel.context().clone();
    drop((first, near));
    hosts.heal();
    let reborn = EventChannel::open(&context).unwrap();
    let second = connect(&reborn);
    hosts.network.run_for(LATENCY + Duration::from_micros(1));
    assert!(far.channel.next(Some(Duration::ZERO)).unwrap().is_none());
    // The REQ has arrived, and the DREQ is on its way.
    assert_eq!(far.channel.counters().stale, 1);
    passive.disconnect().unwrap();
    let ended = events(&hosts, [&reborn, &far.channel]);
    let is_end =
        |(_, event): &(IdToken, unmanaged::Event)| matches!(event, unmanaged::Event::Ended(_));
    assert!(ended.iter().all(is_end), "{ended:?}");
    let of = |id: IdToken| ended.iter().filter(|(of, _)| *of == id).count();
    assert_eq!((of(passive.token()), of(second.token())), (1, 1), "{ended:?}");
}

/// The time is the ACK timeout, and applies to the connections of one channel to other hosts.
#[test]
fn the_number_of_a_queue_pair_is_used_again_after_its_time() {
    let hosts = Hosts::new(3, "time-wait");
    let (near, far) = hosts.nodes();
    let address = (ip_of(&far), PORT).into();
    let port = unmanaged::bind(&far.channel, PortSpace::Tcp, address, BindOptions::new()).unwrap();
    let _listener = unmanaged::listen(&far.channel, &port).unwrap();
    let other = EventChannel::open(near.channel.context()).unwrap();
    let own = Parameters::new(Qpn::masked(0x77), Psn::masked(1));
    let connect = |channel: &EventChannel| {
        let route = unmanaged::route(channel, address).unwrap();
        unmanaged::connect(channel, PortSpace::Tcp, &route, &own, b"")
    };
    let first = connect(&near.channel).unwrap();
    let mut arrived = events(&hosts, [&near.channel, &far.channel]);
    let Some((_, unmanaged::Event::Requested { id: passive, .. })) = arrived.pop() else {
        panic!("a request")
    };
    passive.accept(&own, b"").unwrap();
    assert_eq!(events(&hosts, [&near.channel, &far.channel]).len(), 1);
    first.establish().unwrap();
    assert_eq!(events(&hosts, [&near.channel, &far.channel]).len(), 1);
    first.disconnect().unwrap();
    hosts.network.run_for(2 * LATENCY);
    assert!(far.channel.next(Some(Duration::ZERO)).unwrap().is_some());
    let begin = hosts.network.now();
    let end = near.channel.next_of(|of| of == first.token(), Some(LATENCY * 2)).unwrap();
    assert!(end.unwrap().end().is_some());

    let is_used = |channel| match connect(channel).map(drop) {
        Ok(()) => true,
        Err(Error::QueuePairInUse { qpn }) => {
            assert_eq!(qpn, own.qpn);
            false
        }
        Err(error) => panic!("{error}"),
    };
    assert!(!is_used(&near.channel));
    assert!(is_used(&other), "another channel does not know the number");
    let time = Duration::from_nanos(4096 << 14);
    let mut tried = hosts.network.now();
    while !is_used(&near.channel) {
        tried = hosts.network.now();
        assert!(tried < begin + time + 4 * LATENCY, "{tried:?}");
        hosts.network.run_for(LATENCY);
        let _ = near.channel.next(Some(Duration::ZERO)).unwrap();
    }
    assert!(tried + LATENCY >= begin + time, "{tried:?}");
}

/// Processes the messages of both ends until an event of `id` arrives at the first one.
fn event(hosts: &Hosts, ends: [&Node; 2], id: IdToken) -> Event {
    loop {
        for end in ends.iter().rev() {
            let wants = |other| other == id;
            if let Some(event) = end.channel.next_of(wants, Some(Duration::ZERO)).unwrap() {
                return event;
            }
        }
        assert!(hosts.network.step(), "nothing happens before the event");
    }
}

fn advanced<S, N>(step: Step<S, N>) -> N {
    match step {
        Step::Next(next) => next,
        Step::Failed(error) => panic!("{error}"),
        _ => panic!("an event of another connection"),
    }
}

/// A program forgets as many connections as a listener can have, and their client disappears.
#[test]
fn forgotten_connections_keep_their_places_for_the_time_limit_of_an_answer() {
    let hosts = Hosts::new(3, "forgotten");
    let (client, server) = hosts.nodes();
    let listener = listen(&server);
    let accept = |_| {
        let connecting = request(&client, &server);
        let requested = event(&hosts, [&server, &client], listener.id());
        let accepting = listener.request(requested).unwrap().prepare(server.queue_pair()).unwrap();
        forget(accepting.accept(b"").unwrap());
        connecting
    };
    let forgotten: Vec<_> = (0..Manager::MAX_HALF_OPEN).map(accept).collect();
    let further = request(&client, &server);
    hosts.network.run_for(2 * LATENCY);
    assert!(server.channel.next_of(|of| of == listener.id(), Some(LATENCY)).unwrap().is_none());
    assert_eq!(server.channel.counters().half_open_full, 1);

    hosts.cut();
    drop((forgotten, further));
    let end = End::Unanswered { phase: Phase::Accept };
    for _ in 0..Manager::MAX_HALF_OPEN {
        let event = server.channel.next(Some(Duration::from_secs(3600))).unwrap().unwrap();
        assert_eq!(event.end(), Some(&end));
        forget(event);
    }
    assert!(hosts.network.now() < Duration::from_secs(71), "{:?}", hosts.network.now());
    hosts.heal();
    messages_pass(client, server, &listener);
}

/// Connects and disconnects on links that lose, repeat and delay. Returns the time and the number of packets.
fn bad_links(seed: u64) -> (Duration, u64) {
    let hosts = Hosts::new(seed, "bad");
    let model = LinkModel::new().latency(Duration::from_secs(1));
    hosts.network.set_all_links(model.loss(0.2).duplication(0.2).reordering(0.2));
    let (client, server) = hosts.nodes();
    let (at_client, at_server) = ([&client, &server], [&server, &client]);
    let listener = listen(&server);
    let connecting = request(&client, &server);
    let requested = event(&hosts, at_server, listener.id());
    let accepting = listener.request(requested).unwrap().prepare(server.queue_pair()).unwrap();
    let accepted = accepting.accept(b"").unwrap();
    let replied = event(&hosts, at_client, connecting.id());
    let active = advanced(connecting.advance(replied)).establish().unwrap();
    let established = event(&hosts, at_server, accepted.id());
    let passive = advanced(accepted.advance(established));
    let ending = active.disconnect(b"bye").unwrap();
    let ended = event(&hosts, at_server, passive.id());
    assert_eq!(*advanced(passive.advance(ended)).end(), disconnected(b"bye", 220));
    let ended = event(&hosts, at_client, ending.id());
    let End::Disconnected { .. } = advanced(ending.advance(ended)).end() else { panic!("an end") };
    (hosts.network.now(), hosts.network.packets())
}

#[test]
fn connections_survive_bad_links_and_their_runs_repeat() {
    for seed in 0..20 {
        assert_eq!(bad_links(seed), bad_links(seed), "{seed}");
    }
}
