//! Servers whose clients connect by rdma_cm.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rdma_channel::{
    CloseReason, ConnectError, LeftReason, Operation, PeerId, Server, ServerEvent, prelude::*,
};
use rdma_qp::SendWorkRequest;

use super::{Ends, LATER, MODES, ROOM, SHORTLY, assert_gone, child, wait_in_child};
use crate::common::{must_end, open};

/// Returns the next event that is not about a send.
#[track_caller]
fn next(server: &mut Server) -> ServerEvent {
    loop {
        match server.next(Some(LATER)).unwrap().expect("an event") {
            ServerEvent::Sent { .. } | ServerEvent::Room { .. } => {}
            event => return event,
        }
    }
}

#[track_caller]
fn joined(server: &mut Server) -> (PeerId, Box<[u8]>) {
    match next(server) {
        ServerEvent::Joined { peer, user_bytes, .. } => (peer, user_bytes),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn gone(server: &mut Server) -> (PeerId, CloseReason) {
    match next(server) {
        ServerEvent::Left { peer, reason: LeftReason::Gone { reason } } => (peer, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn clients_join_send_and_leave() {
    for wait in MODES {
        for ends in Ends::both() {
            must_end(move || {
                let builder = ends.server.create_server().wait(wait).user_bytes(b"welcome");
                let mut server = builder.bind_cm(ends.address.as_str()).unwrap();
                let address = server.local_addr();
                let client = thread::spawn(move || {
                    let builder = Ends::builder(&ends.client).user_bytes(b"hello");
                    let (mut channel, greeting) = builder.connect_cm(address).unwrap();
                    assert_eq!(*greeting, *b"welcome");
                    let mut memory = ends.client.allocate_region(5).unwrap();
                    memory.copy_from_slice(b"12345");
                    channel.send_from(&memory).unwrap();
                    memory.fill(0);
                    assert_eq!(channel.receive_into(&mut memory).unwrap(), 5);
                    assert_eq!(*memory, *b"12345");
                    channel.disconnect_with(b"bye").unwrap();
                });
                let (peer, user_bytes) = joined(&mut server);
                assert_eq!(*user_bytes, *b"hello");
                let event = next(&mut server);
                let ServerEvent::Message { peer: from, buffer, length, .. } = event else {
                    panic!("{event:?}")
                };
                assert_eq!((from, &buffer[..length]), (peer, &b"12345"[..]));
                server.send(peer, buffer, length).unwrap();
                assert_eq!(gone(&mut server), (peer, CloseReason::Disconnected));
                client.join().unwrap();
            });
        }
    }
}

#[test]
fn a_client_of_a_full_server_is_refused_until_another_has_left() {
    for ends in Ends::both() {
        must_end(move || {
            let builder = ends.server.create_server().max_peers(1);
            let mut server = builder.bind_cm(ends.address.as_str()).unwrap();
            let address = server.local_addr();
            let pd = ends.client;
            let client = thread::spawn(move || {
                let first = Ends::builder(&pd).connect_cm(address).unwrap();
                let error = Ends::builder(&pd).connect_cm(address).unwrap_err();
                let ConnectError::Busy(why) = &error else { panic!("{error}") };
                assert!(why.contains("`max_peers` is 1"), "{why}");
                drop(first);
                loop {
                    match Ends::builder(&pd).connect_cm(address) {
                        Ok(second) => return second.0,
                        Err(ConnectError::Busy(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            let (first, _) = joined(&mut server);
            assert_eq!(gone(&mut server), (first, CloseReason::Disconnected));
            let (second, _) = joined(&mut server);
            assert!(server.refused() >= 1);
            let mut channel = client.join().unwrap();
            server.disconnect(second);
            let error = channel.receive(ROOM).unwrap_err();
            assert_gone(&error, Operation::Receive, CloseReason::Disconnected, &channel);
        });
    }
}

#[test]
fn clients_are_notified_when_the_server_ends() {
    for ends in Ends::both() {
        must_end(move || {
            let mut server = Server::bind_cm(ends.address.as_str(), &ends.server, 8).unwrap();
            let address = server.local_addr();
            let clients = [(); 3].map(|()| {
                let pd = ends.client.clone();
                thread::spawn(move || {
                    let mut channel = Ends::builder(&pd).connect_cm(address).unwrap().0;
                    let error = channel.receive(ROOM).unwrap_err();
                    assert_gone(&error, Operation::Receive, CloseReason::Disconnected, &channel);
                })
            });
            (0..3).for_each(|_| _ = joined(&mut server));
            drop(server);
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
    }
}

#[test]
fn a_client_whose_process_is_killed_leaves() {
    wait_in_child();
    must_end(|| {
        let pd = open("soft0").allocate_pd().unwrap();
        let mut server = Server::bind_cm("localhost:0", &pd, 8).unwrap();
        let test = "cm::server::a_client_whose_process_is_killed_leaves";
        let mut process = child(test, server.local_addr());
        let (peer, _) = joined(&mut server);
        assert!(matches!(next(&mut server), ServerEvent::Message { immediate: Some(8), .. }));
        process.kill().unwrap();
        assert_eq!(gone(&mut server), (peer, CloseReason::Died));
        process.wait().unwrap();
    });
}

/// A client may send as soon as it is connected, so before the server has processed its confirmation.
#[test]
fn messages_of_a_client_that_leaves_at_once_arrive() {
    for ends in Ends::both() {
        must_end(move || {
            let device_has_srq = ends.server.context().query_device().unwrap().max_srq > 0;
            let mut server = Server::bind_cm(ends.address.as_str(), &ends.server, 8).unwrap();
            let address = server.local_addr();
            let (connected, is_connected) = mpsc::channel();
            let client = thread::spawn(move || {
                let mut channel = Ends::builder(&ends.client).connect_cm(address).unwrap().0;
                connected.send(()).unwrap();
                for number in 0..8 {
                    channel.send(SendWorkRequest::only_immediate(number)).unwrap();
                }
            });
            let mut events = Vec::new();
            while is_connected.recv_timeout(SHORTLY).is_err() {
                events.extend(server.next(Some(Duration::ZERO)).unwrap());
            }
            // Without a shared receive queue, the messages wait until the client joins.
            if device_has_srq {
                client.join().unwrap();
            }
            while !matches!(events.last(), Some(ServerEvent::Left { .. })) {
                events.push(next(&mut server));
            }
            assert!(matches!(events[0], ServerEvent::Joined { .. }), "{events:?}");
            for (event, number) in events[1..].iter().zip(0..8) {
                let ServerEvent::Message { immediate, .. } = event else { panic!("{event:?}") };
                assert_eq!(*immediate, Some(number));
            }
            assert_eq!(events.len(), 10);
        });
    }
}

/// The server's thread sleeps meanwhile.
#[test]
fn a_server_in_an_event_loop_is_notified_of_clients() {
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, poll};

    for ends in Ends::both() {
        must_end(move || {
            let mut server = Server::bind_cm(ends.address.as_str(), &ends.server, 8).unwrap();
            let address = server.local_addr();
            assert!(server.next(Some(Duration::ZERO)).unwrap().is_none());
            let client = thread::spawn(move || {
                let mut channel = Ends::builder(&ends.client).connect_cm(address).unwrap().0;
                channel.receive(ROOM).unwrap_err();
            });
            let mut events = Vec::new();
            while events.len() < 2 {
                let mut files = [PollFd::from_borrowed_fd(server.as_fd(), PollFlags::IN)];
                assert_eq!(poll(&mut files, None).unwrap(), 1);
                while let Some(event) = server.next(Some(Duration::ZERO)).unwrap() {
                    if let ServerEvent::Joined { peer, .. } = event {
                        server.disconnect(peer);
                    }
                    events.push(event);
                }
            }
            assert!(matches!(events[..], [ServerEvent::Joined { .. }, ServerEvent::Left { .. }]));
            client.join().unwrap();
        });
    }
}
