//! Channels, listeners, events and connections that are dropped in any order.

use std::any::Any;
use std::time::Duration;

use rdma_cm::{Event, EventChannel, IdToken, Listener, Step};

use crate::common::{LIMIT, Node, messages_pass, open};
use crate::other_hosts::Host;

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
fn leave_at(stage: u32, client: &Node, server: &Node, listener: &Listener) -> Vec<Box<dyn Any>> {
    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    if stage == 0 {
        return vec![Box::new(resolved), Box::new(connecting)];
    }
    let event = next(&server.channel, listener.id(), &client.channel);
    if stage == 1 {
        return vec![Box::new(connecting), Box::new(event)];
    }
    let request = listener.request(event).unwrap();
    if stage == 2 {
        return vec![Box::new(connecting), Box::new(request)];
    }
    let accepting = request.prepare(server.queue_pair()).unwrap();
    if stage == 3 {
        return vec![Box::new(connecting), Box::new(accepting)];
    }
    let accepted = accepting.accept(b"").unwrap();
    let event = next(&client.channel, connecting.id(), &server.channel);
    if stage == 4 {
        return vec![Box::new(connecting), Box::new(event), Box::new(accepted)];
    }
    let Step::Next(replied) = connecting.advance(event) else { panic!("no answer") };
    if stage == 5 {
        return vec![Box::new(replied), Box::new(accepted)];
    }
    let active = replied.establish().unwrap();
    if stage == 6 {
        return vec![Box::new(active), Box::new(accepted)];
    }
    let passive = accepted.wait(LIMIT).unwrap();
    match stage {
        7 => vec![Box::new(active.disconnect(b"").unwrap()), Box::new(passive)],
        8 => vec![Box::new(active.into_parts()), Box::new(passive)],
        9 => {
            let (queue_pair, id) = passive.into_parts();
            vec![Box::new(id.file().unwrap()), Box::new(queue_pair), Box::new(id), Box::new(active)]
        }
        _ => vec![Box::new(active), Box::new(passive)],
    }
}

/// Leaves connections in all stages, some of them with unread events, and drops everything in a random order.
fn abandon(client: Node, server: Node, listener: Listener, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    // The request of the last one stays unread.
    let stages = (0..=10).rev();
    let left = stages.flat_map(|stage| leave_at(stage, &client, &server, &listener));
    let mut left: Vec<_> = left.collect();
    left.extend([Box::new(listener) as Box<dyn Any>, Box::new(client), Box::new(server)]);
    random.shuffle(&mut left);
    left.into_iter().for_each(drop);
}

#[test]
fn everything_is_dropped_in_any_order_on_one_host() {
    let context = open("soft0");
    for seed in 0..20 {
        let (client, server) = (Node::new(&context), Node::new(&context));
        let listener = server.listen();
        abandon(client, server, listener, seed);
    }
    let server = Node::new(&context);
    let listener = server.listen();
    messages_pass(Node::new(&context), server, &listener);
}

#[test]
fn everything_is_dropped_in_any_order_on_two_hosts() {
    let (near, far) = (Host::new(), Host::new());
    for seed in 0..20 {
        let server = far.node();
        let listener = far.listen(&server.channel);
        abandon(near.node(), server, listener, seed);
    }
    let server = far.node();
    let listener = far.listen(&server.channel);
    messages_pass(near.node(), server, &listener);
}
