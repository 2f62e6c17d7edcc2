//! Connections that are established, used, and ended.

use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use rdma_cm::{End, Error, EventKind, Step};
use rustix::event::{PollFd, PollFlags, poll};

use crate::common::{
    LIMIT, Node, address, connect, disconnected, messages_pass, open, system_device,
};

fn messages_pass_on(device: &str) {
    let context = open(device);
    let server = Node::new(&context);
    let listener = server.listen();
    messages_pass(Node::new(&context), server, &listener);
}

#[test]
fn messages_pass_on_ethernet() {
    messages_pass_on("soft0");
}

#[test]
fn messages_pass_on_infiniband() {
    messages_pass_on("softib0");
}

#[test]
fn addresses_are_resolved_by_events() {
    let node = Node::new(&open("soft0"));
    let listener = node.listen();
    let start = || node.channel.start_resolving(listener.local_address()).unwrap();
    let mut waiting = vec![start(), start(), start()];
    // One that is dropped has no event.
    drop(start());
    let mut connecting = Vec::new();
    while !waiting.is_empty() {
        let event = node.channel.next(Some(LIMIT)).unwrap().unwrap();
        assert_eq!(event.kind(), EventKind::Resolved);
        let mut event = Some(event);
        let mut others = Vec::new();
        for resolving in waiting {
            let Some(passed) = event.take() else {
                others.push(resolving);
                continue;
            };
            match resolving.advance(passed) {
                Step::Next(resolved) => {
                    connecting.push(resolved.connect(node.queue_pair(), b"").unwrap());
                }
                Step::Same(resolving, passed) => {
                    others.push(resolving);
                    event = Some(passed);
                }
                failed => panic!("{failed:?}"),
            }
        }
        assert!(event.is_none(), "it belongs to one of them");
        waiting = others;
        // The other events that arrive are those of the connections.
        connecting.drain(..).for_each(|connecting| {
            listener.incoming(LIMIT).unwrap().reject(b"").unwrap();
            assert!(matches!(connecting.wait(LIMIT), Err(Error::Ended(End::Rejected { .. }))));
        });
    }
    let none = node.channel.next(Some(Duration::ZERO)).unwrap();
    assert!(none.is_none(), "{none:?}");
}

#[test]
fn an_address_is_resolved_to_a_port_of_the_device() {
    let node = Node::new(&open("soft0"));
    let resolving = node.channel.start_resolving((address(), 9)).unwrap();
    let waited = node.channel.resolve((address(), 9)).unwrap();
    for resolved in [waited, resolving.wait(LIMIT).unwrap()] {
        let own = node.channel.context().device();
        assert_eq!((resolved.device().name(), resolved.device().guid()), (own.name(), own.guid()));
        assert_eq!(resolved.port(), 1);
    }
}

#[test]
fn the_file_of_a_resolution_is_readable_once_it_has_an_event() {
    let node = Node::new(&open("soft0"));
    let resolving = node.channel.start_resolving((address(), 9)).unwrap();
    let file = resolving.file().unwrap();
    let mut polled = [PollFd::new(&file, PollFlags::IN)];
    let (mut event, id) = (None, resolving.id());
    while event.is_none() {
        assert_eq!(poll(&mut polled, Some(&LIMIT.try_into().unwrap())).unwrap(), 1);
        event = node.channel.next_of(|of| of == id, Some(Duration::ZERO)).unwrap();
    }
    assert!(matches!(resolving.advance(event.unwrap()), Step::Next(_)));
}

#[test]
fn one_channel_serves_many_connections_by_events() {
    let context = open("soft0");
    let node = Node::new(&context);
    let listener = node.listen();
    let resolved = node.channel.resolve(listener.local_address()).unwrap();
    let mut connecting: Vec<_> =
        (0..20).map(|n| resolved.connect(node.queue_pair(), &[n]).unwrap()).collect();
    let (mut accepted, mut active, mut passive) = (Vec::new(), Vec::new(), Vec::new());
    while passive.len() < 20 {
        let event = node.channel.next(Some(LIMIT)).unwrap().unwrap();
        match event.kind() {
            EventKind::ConnectRequest => {
                let request = listener.request(event).unwrap();
                let answer = [request.private_data()[0]];
                let accepting = request.prepare(node.queue_pair()).unwrap();
                accepted.push(accepting.accept(&answer).unwrap());
            }
            EventKind::ConnectResponse => {
                let place = connecting.iter().position(|it| it.id() == event.id()).unwrap();
                let Step::Next(replied) = connecting.remove(place).advance(event) else {
                    panic!("a reply")
                };
                active.push(replied.establish().unwrap());
            }
            EventKind::Established => {
                let place = accepted.iter().position(|it| it.id() == event.id()).unwrap();
                let Step::Next(connection) = accepted.remove(place).advance(event) else {
                    panic!("an established connection")
                };
                passive.push(connection);
            }
            _ => panic!("{event:?}"),
        }
    }
    assert_eq!((active.len(), connecting.len(), accepted.len()), (20, 0, 0));
    drop(active);
    for connection in passive {
        assert_eq!(connection.wait(LIMIT).unwrap(), disconnected(b"", 220));
    }
}

#[test]
fn an_event_of_another_connection_changes_nothing() {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listener = server.listen();
    let (first, _first_peer) = connect(&client, &server, &listener);
    let (second, second_peer) = connect(&client, &server, &listener);
    drop(second_peer);
    let event = client.channel.next(Some(LIMIT)).unwrap().unwrap();
    let Step::Same(first, event) = first.advance(event) else { panic!("an unchanged connection") };
    let event = listener.request(event).unwrap_err();
    assert!(matches!(second.advance(event), Step::Next(_)));
    assert!(matches!(first.wait(Duration::ZERO), Err(Error::TimedOut { .. })));
    assert_eq!(first.queue_pair().state().unwrap(), rdma_qp::QpState::RTS);
}

#[test]
fn both_ends_disconnect_at_once() {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listener = server.listen();
    let (active, passive) = connect(&client, &server, &listener);
    let (one, other) = (active.disconnect(b"1").unwrap(), passive.disconnect(b"2").unwrap());
    let end = one.wait(LIMIT).unwrap().end().clone();
    // librdmacm sends no private data.
    assert!(matches!(end, End::Disconnected { .. }));
    assert!(system_device().is_some() || end == disconnected(b"2", 220));
    assert!(matches!(other.wait(LIMIT).unwrap().end(), End::Disconnected { .. }));
}

#[test]
fn a_disconnect_arrives_although_its_sender_left_a_message_unread() {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listener = server.listen();
    let (active, passive) = connect(&client, &server, &listener);
    let (one, other) = (active.disconnect(b"1").unwrap(), passive.disconnect(b"2").unwrap());
    drop(one);
    assert_eq!(*other.wait(LIMIT).unwrap().end(), disconnected(b"1", 220));
}

#[test]
fn one_event_follows_a_late_disconnect() {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listener = server.listen();
    let (active, passive) = connect(&client, &server, &listener);
    drop(passive);
    assert_eq!(active.wait(LIMIT).unwrap(), disconnected(b"", 220));
    let disconnecting = active.disconnect(b"").unwrap();
    let event = client.channel.next(Some(LIMIT)).unwrap().unwrap();
    assert!(matches!(disconnecting.advance(event), Step::Next(_)));
    assert!(client.channel.next(Some(Duration::ZERO)).unwrap().is_none());
}

#[test]
fn the_file_is_readable_exactly_while_an_event_waits() {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listener = server.listen();
    let readable = |limit: &rustix::event::Timespec| {
        let file = server.channel.as_fd();
        poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(limit)).unwrap() == 1
    };
    let now = rustix::event::Timespec::default();
    assert!(!readable(&now));
    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    let connecting = [(); 2].map(|()| resolved.connect(client.queue_pair(), b"").unwrap());
    let limit = LIMIT.try_into().unwrap();
    assert!(readable(&limit));
    let first = server.channel.next(Some(Duration::ZERO)).unwrap().unwrap();
    // The kernel's rdma_cm may report them one by one.
    assert!(readable(&limit), "the second request");
    let second = server.channel.next(Some(Duration::ZERO)).unwrap().unwrap();
    assert!(!readable(&now));
    assert!(server.channel.next(Some(Duration::ZERO)).unwrap().is_none());
    drop((first, second));
    for connecting in connecting {
        let Err(Error::Ended(End::Rejected { reason, .. })) = connecting.wait(LIMIT) else {
            panic!("a rejection")
        };
        assert_eq!(reason, rdma_cm::Reason::CONSUMER_DEFINED);
    }
}

#[test]
fn threads_that_wait_for_their_connections_each_get_their_event() {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listener = server.listen();
    let pairs: Vec<_> = (0..8).map(|_| connect(&client, &server, &listener)).collect();
    let (active, passive): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    thread::scope(|threads| {
        let waits: Vec<_> = active
            .into_iter()
            .map(|connection| threads.spawn(move || connection.wait(LIMIT).unwrap()))
            .collect();
        let disconnecting: Vec<_> = (0_u8..)
            .zip(passive)
            .map(|(n, connection)| connection.disconnect(&[n]).unwrap())
            .collect();
        for (n, wait) in (0_u8..).zip(waits) {
            assert_eq!(wait.join().unwrap(), disconnected(&[n], 220));
        }
        drop(disconnecting);
    });
}

#[test]
fn closing_a_channel_wakes_the_threads_that_wait() {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listener = server.listen();
    let (active, _passive) = connect(&client, &server, &listener);
    thread::scope(|threads| {
        let any = threads.spawn(|| client.channel.next(None).map(|_| ()));
        let one = threads.spawn(|| active.wait(LIMIT));
        client.channel.close();
        assert!(matches!(any.join().unwrap(), Err(Error::Closed)));
        assert!(matches!(one.join().unwrap(), Err(Error::Closed)));
    });
    assert!(matches!(client.channel.next(None), Err(Error::Closed)));
}
