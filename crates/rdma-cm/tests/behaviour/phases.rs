//! Many connections that pass each phase together, like those of `cmtime` in librdmacm and in the crate sideway. One
//! thread receives the events of a channel, and other threads process them.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rdma_cm::{Connection, End, Event, EventChannel, EventKind, Listener, Step};
use rdma_qp::QpState;

use crate::common::{LIMIT, Node, open};

const CONNECTIONS: usize = 50;

/// The receivers of a channel's events, by their kind.
struct Queues {
    requests: Sender<Event>,
    replies: Sender<Event>,
    established: Sender<Event>,
    ended: Sender<Event>,
}

/// Receives this number of events, and passes each on.
fn dispatch(channel: &EventChannel, count: usize, queues: &Queues) {
    for _ in 0..count {
        let event = channel.next(Some(LIMIT)).unwrap().unwrap();
        let queue = match event.kind() {
            EventKind::ConnectRequest => &queues.requests,
            EventKind::ConnectResponse => &queues.replies,
            EventKind::Established => &queues.established,
            _ => &queues.ended,
        };
        queue.send(event).unwrap();
    }
}

/// Moves each connection on by its event. The events arrive in any order.
fn advance<T, N>(
    mut all: Vec<T>,
    events: &Receiver<Event>,
    step: impl Fn(T, Event) -> Step<T, N>,
) -> Vec<N> {
    let mut next = Vec::new();
    while !all.is_empty() {
        let mut event = events.recv_timeout(LIMIT).unwrap();
        for _ in 0..all.len() {
            match step(all.remove(0), event) {
                Step::Same(one, unchanged) => {
                    all.push(one);
                    event = unchanged;
                }
                Step::Next(one) => {
                    next.push(one);
                    break;
                }
                _ => panic!("a connection was not established"),
            }
        }
    }
    next
}

/// Accepts and disconnects all connections, each phase in its own thread.
fn serve(server: &Node, listener: &Listener) {
    let ((requests, requested), (established, confirmed), (ended, over), (replies, _)) =
        (channel(), channel(), channel(), channel());
    let queues = Queues { requests, replies, established, ended };
    thread::scope(|scope| {
        scope.spawn(|| dispatch(&server.channel, 3 * CONNECTIONS, &queues));
        let accept = |event| {
            let request = listener.request(event).unwrap();
            request.prepare(server.queue_pair()).unwrap().accept(b"").unwrap()
        };
        let requests = requested.iter().take(CONNECTIONS);
        let accepted: Vec<_> = requests.map(accept).collect();
        let connected = advance(accepted, &confirmed, |accepted, event| accepted.advance(event));
        for ended in advance(connected, &over, Connection::advance) {
            assert!(matches!(ended.end(), End::Disconnected { .. }), "{ended:?}");
        }
    });
}

#[test]
fn many_connections_pass_each_phase_together() {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listener = server.listen();
    let ((replies, replied), (ended, over), (requests, _), (established, _)) =
        (channel(), channel(), channel(), channel());
    let queues = Queues { requests, replies, established, ended };
    thread::scope(|scope| {
        scope.spawn(|| serve(&server, &listener));
        let to = listener.local_address();
        let resolved: Vec<_> =
            (0..CONNECTIONS).map(|_| client.channel.resolve(to).unwrap()).collect();
        let queue_pairs: Vec<_> = (0..CONNECTIONS).map(|_| client.queue_pair()).collect();
        let ends = resolved.iter().zip(queue_pairs);
        let connecting: Vec<_> = ends.map(|(it, own)| it.connect(own, b"").unwrap()).collect();
        scope.spawn(|| dispatch(&client.channel, 2 * CONNECTIONS, &queues));
        let replied = advance(connecting, &replied, |connecting, event| connecting.advance(event));
        let connected: Vec<_> = replied.into_iter().map(|it| it.establish().unwrap()).collect();
        for connection in &connected {
            assert_eq!(connection.queue_pair().state().unwrap(), QpState::RTS);
        }
        let leaving: Vec<_> = connected.into_iter().map(|it| it.disconnect(b"").unwrap()).collect();
        let ended = advance(leaving, &over, |leaving, event| leaving.advance(event));
        assert_eq!(ended.len(), CONNECTIONS);
    });
}
