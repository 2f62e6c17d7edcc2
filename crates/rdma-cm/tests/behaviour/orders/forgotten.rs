//! Events, IDs in each state, listeners and channels that are forgotten (`mem::forget`).

use std::os::fd::AsFd;
use std::time::Duration;

use rdma_cm::{Connecting, Error, EventChannel, Listener};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_support::program::in_own_process;
use test_support::rig::until;

use super::left;
use crate::common::{LIMIT, Node, connect, forget, messages_pass, open};
use crate::other_hosts::Host;

/// The greatest number of connections of a listener that are not established.
const HALF_OPEN: usize = 128;

/// Reads and forgets the events of both channels until their files are not readable.
fn forget_events(client: &EventChannel, server: &EventChannel) {
    until("the files are not readable without an event", || {
        for channel in [client, server] {
            while let Some(event) = channel.next(Some(Duration::ZERO)).unwrap() {
                forget(event);
            }
        }
        let mut files = [client, server]
            .map(|channel| PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN));
        poll(&mut files, Some(&Timespec::default())).unwrap() == 0
    });
}

/// Forgets IDs in all states with their events, and a listener. The channels still connect others.
fn forget_everything(client: Node, server: Node, listener: &Listener) {
    left::everything(&client, &server, listener).into_iter().for_each(forget);
    let forgotten = Listener::bind(&server.channel, (listener.local_address().ip(), 0)).unwrap();
    let resolved = client.channel.resolve(forgotten.local_address()).unwrap();
    forget((forgotten, resolved.connect(client.queue_pair(), b"").unwrap()));
    forget([client.channel.clone(), server.channel.clone()]);
    forget_events(&client.channel, &server.channel);
    for _ in 0..2 {
        forget(connect(&client, &server, listener));
    }
    messages_pass(client, server, listener);
}

/// The process exits with everything that was forgotten.
#[test]
fn forgotten_ids_and_events_leave_their_channels_usable() {
    in_own_process(
        "orders::forgotten::forgotten_ids_and_events_leave_their_channels_usable",
        || {
            let context = open("soft0");
            let (client, server) = (Node::new(&context), Node::new(&context));
            let listener = server.listen();
            forget_everything(client, server, &listener);
        },
    );
}

#[test]
fn forgotten_ids_and_events_leave_their_channels_usable_on_two_hosts() {
    let test =
        "orders::forgotten::forgotten_ids_and_events_leave_their_channels_usable_on_two_hosts";
    in_own_process(test, || {
        let (near, far) = (Host::new(), Host::new());
        let (client, server) = (near.node(), far.node());
        let listener = far.listen(&server.channel);
        forget_everything(client, server, &listener);
    });
}

fn request(client: &Node, listener: &Listener) -> Connecting {
    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    resolved.connect(client.queue_pair(), b"").unwrap()
}

/// Forgets as many requests as a listener can have, as events and in each later state.
fn fill(client: &Node, server: &Node, listener: &Listener) -> Vec<Connecting> {
    let forgotten = |place| {
        let connecting = request(client, listener);
        let is_listener = |of| of == listener.id();
        let event = server.channel.next_of(is_listener, Some(LIMIT)).unwrap().unwrap();
        if place % 4 == 0 {
            forget(event);
            return connecting;
        }
        let request = listener.request(event).unwrap();
        if place % 4 == 1 {
            forget(request);
            return connecting;
        }
        let accepting = request.prepare(server.queue_pair()).unwrap();
        if place % 4 == 2 {
            forget(accepting);
        } else {
            forget(accepting.accept(b"").unwrap());
        }
        connecting
    };
    (0..HALF_OPEN).map(forgotten).collect()
}

/// Forgotten requests keep the places of one listener until their peers withdraw them.
fn keep_places(client: Node, server: Node, [listener, other]: [&Listener; 2]) {
    let forgotten = fill(&client, &server, listener);
    let waiting = request(&client, listener);
    let none = listener.incoming(Duration::ZERO);
    assert!(matches!(none, Err(Error::TimedOut { .. })), "{none:?}");
    forget(connect(&client, &server, other));
    drop((forgotten, waiting));
    forget_events(&client.channel, &server.channel);
    messages_pass(client, server, listener);
}

#[test]
fn forgotten_requests_keep_the_places_of_their_listener_until_they_are_withdrawn() {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listeners = [server.listen(), server.listen()];
    keep_places(client, server, listeners.each_ref());

    let (near, far) = (Host::new(), Host::new());
    let (client, server) = (near.node(), far.node());
    let listeners = [far.listen(&server.channel), far.listen(&server.channel)];
    keep_places(client, server, listeners.each_ref());
}
