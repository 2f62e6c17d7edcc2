//! Channels, listeners, events and IDs that are dropped in any order.

mod forgotten;
mod left;

use std::any::Any;

use rdma_cm::Listener;

use crate::common::{Node, messages_pass, open};
use crate::other_hosts::Host;

/// Leaves IDs in all states, some of them with queued events, and drops everything in a random order.
fn abandon(client: Node, server: Node, listener: Listener, seed: u64) {
    let mut left = left::everything(&client, &server, &listener);
    left.extend([Box::new(listener) as Box<dyn Any + Send>, Box::new(client), Box::new(server)]);
    fastrand::Rng::with_seed(seed).shuffle(&mut left);
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
