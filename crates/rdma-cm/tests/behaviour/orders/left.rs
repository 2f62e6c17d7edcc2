//! Objects that a program can leave: IDs in each state, and events of each kind, read or queued.

use std::any::Any;
use std::net::SocketAddr;
use std::time::Duration;

use rdma_cm::unmanaged::{self, Id, Parameters, PortSpace};
use rdma_cm::{BindOptions, Event, EventChannel, IdToken, Listener, Step};
use rdma_types::{Psn, Qpn};

use crate::common::{LIMIT, Node, is_iwarp, system_device};

/// Objects that are dropped or forgotten later.
pub(super) type Left = Vec<Box<dyn Any + Send>>;

/// Puts values of any types into boxes.
macro_rules! left {
    ($($value:expr),+) => { vec![$(Box::new($value) as Box<dyn Any + Send>),+] };
}

/// The next event of a listener or connection. The other end's channel is polled in turn.
fn next(channel: &EventChannel, id: IdToken, other: &EventChannel) -> Event {
    loop {
        let limit = Some(Duration::from_millis(1));
        if let Some(event) = channel.next_of(|of| of == id, limit).unwrap() {
            return event;
        }
        assert!(other.next_of(|_| false, Some(Duration::ZERO)).unwrap().is_none());
    }
}

/// Connects two ends until they have reached a stage. Returns what is left of them.
fn connection(stage: u32, client: &Node, server: &Node, listener: &Listener) -> Left {
    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    if stage == 0 {
        return left![resolved, connecting];
    }
    let event = next(&server.channel, listener.id(), &client.channel);
    if stage == 1 {
        return left![connecting, event];
    }
    let request = listener.request(event).unwrap();
    if stage == 2 {
        return left![connecting, request];
    }
    let accepting = request.prepare(server.queue_pair()).unwrap();
    if stage == 3 {
        return left![connecting, accepting];
    }
    let accepted = accepting.accept(b"").unwrap();
    let event = next(&client.channel, connecting.id(), &server.channel);
    if stage == 4 {
        return left![connecting, event, accepted];
    }
    let Step::Next(replied) = connecting.advance(event) else { panic!("no answer") };
    if stage == 5 {
        return left![replied, accepted];
    }
    let active = replied.establish().unwrap();
    if stage == 6 {
        return left![active, accepted];
    }
    let event = next(&server.channel, accepted.id(), &client.channel);
    if stage == 7 {
        return left![active, accepted, event];
    }
    let Step::Next(passive) = accepted.advance(event) else { panic!("no confirmation") };
    match stage {
        8 => left![active.disconnect(b"").unwrap(), passive],
        9 => left![active.into_parts(), passive],
        10 => {
            let (queue_pair, id) = passive.into_parts();
            left![id.file().unwrap(), queue_pair, id, active]
        }
        11 => {
            let disconnecting = active.disconnect(b"").unwrap();
            let event = next(&server.channel, passive.id(), &client.channel);
            left![disconnecting, passive, event]
        }
        _ => left![active, passive],
    }
}

/// Leaves addresses whose event is queued, read or processed.
fn resolutions(client: &Node, to: SocketAddr) -> Left {
    let [queued, read, done] = [(); 3].map(|()| client.channel.start_resolving(to).unwrap());
    let event = client.channel.next_of(|of| of == read.id(), Some(LIMIT)).unwrap().unwrap();
    left![queued, read, event, done.wait(LIMIT).unwrap()]
}

/// Binds a free port at an address, and listens there. Puts the port and the listener into `left`.
fn listen(
    server: &Node,
    space: PortSpace,
    mut at: SocketAddr,
    left: &mut Left,
) -> (IdToken, SocketAddr) {
    at.set_port(0);
    let options = BindOptions::new();
    let port = unmanaged::bind(&server.channel, space, at, options).unwrap();
    let listener = unmanaged::listen(&server.channel, &port).unwrap();
    at.set_port(port.number());
    let token = listener.token();
    left.extend(left![port, listener]);
    (token, at)
}

/// Connects queue pairs that the program manages until they have reached a stage.
fn unmanaged_connection(stage: u32, client: &Node, server: &Node, at: SocketAddr) -> Left {
    let mut left = Left::new();
    let (listener, to) = listen(server, PortSpace::Tcp, at, &mut left);
    let route = unmanaged::route(&client.channel, to).unwrap();
    let queue_pairs = [client.queue_pair(), server.queue_pair()];
    let [one, other] =
        queue_pairs.each_ref().map(|it| Parameters::new(it.endpoint().qpn(), Psn::masked(8)));
    let active = unmanaged::connect(&client.channel, PortSpace::Tcp, &route, &one, b"").unwrap();
    left.push(Box::new(queue_pairs));
    let at_server = |id: IdToken| next(&server.channel, id, &client.channel);
    let at_client = |id: &Id| next(&client.channel, id.token(), &server.channel);
    if stage == 0 {
        left.push(Box::new(active));
        return left;
    }
    let (_, unmanaged::Event::Requested { id: passive, .. }) =
        unmanaged::event(at_server(listener))
    else {
        panic!("no request")
    };
    if stage > 1 {
        passive.accept(&other, b"").unwrap();
    }
    if stage > 2 {
        left.extend(left![at_client(&active)]);
    }
    if stage > 3 {
        active.establish().unwrap();
    }
    if stage > 4 {
        left.extend(left![at_server(passive.token())]);
    }
    if stage > 5 {
        active.disconnect().unwrap();
        left.extend(left![at_server(passive.token()), at_client(&active)]);
    }
    left.extend(left![active, passive]);
    left
}

/// Queries a datagram service until its query has reached a stage.
fn query(stage: u32, client: &Node, server: &Node, at: SocketAddr) -> Left {
    let mut left = Left::new();
    let (listener, to) = listen(server, PortSpace::Udp, at, &mut left);
    let route = unmanaged::route(&client.channel, to).unwrap();
    let asking = unmanaged::query(&client.channel, PortSpace::Udp, &route, b"").unwrap();
    let token = asking.token();
    left.push(Box::new(asking));
    if stage == 0 {
        return left;
    }
    let event = next(&server.channel, listener, &client.channel);
    if stage == 1 {
        left.push(Box::new(event));
        return left;
    }
    let (_, unmanaged::Event::Queried { id, .. }) = unmanaged::event(event) else {
        panic!("no query")
    };
    if stage > 2 {
        id.answer(Qpn::masked(7), unmanaged::QKEY, b"").unwrap();
    }
    if stage > 3 {
        left.push(Box::new(next(&client.channel, token, &server.channel)));
    }
    left.push(Box::new(id));
    left
}

/// Leaves memberships in a multicast group, whose event is queued or read.
fn memberships(client: &Node) -> Left {
    let join = |()| unmanaged::join(&client.channel, [239, 1, 2, 3].into(), None).unwrap();
    let [queued, read] = [(); 2].map(join);
    let event = client.channel.next_of(|of| of == read.token(), Some(LIMIT)).unwrap().unwrap();
    left![queued, read, event]
}

/// Leaves connections, resolutions, ports, queries and memberships in all states.
pub(super) fn everything(client: &Node, server: &Node, listener: &Listener) -> Left {
    let at = listener.local_address();
    let mut left = resolutions(client, at);
    // The request of the last one stays queued.
    left.extend((0..=12).rev().flat_map(|stage| connection(stage, client, server, listener)));
    if is_iwarp() {
        // It has neither datagrams nor groups. `unmanaged` has no connections of the system's devices.
        return left;
    }
    left.extend((0..=4).flat_map(|stage| query(stage, client, server, at)));
    left.extend(memberships(client));
    let space = if system_device().is_none() {
        left.extend((0..=6).flat_map(|stage| unmanaged_connection(stage, client, server, at)));
        PortSpace::Tcp
    } else {
        PortSpace::Udp
    };
    let free = SocketAddr::new(at.ip(), 0);
    let port = unmanaged::bind(&server.channel, space, free, BindOptions::new()).unwrap();
    left.push(Box::new(port));
    left
}
