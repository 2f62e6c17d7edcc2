//! Events between the last look and a sleep are not missed.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::{Channel, PeerId, Server, ServerEvent, TransportError, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_support::features::Feature;

use crate::common::{lacks, must_end};
use crate::server::{DEVICES, KINDS, LATER, connect, join, message, next, server, server_with};

/// More completions than a server polls per call; an answer follows them.
const MANY: u32 = 60;

/// Sleeps on the file until it is readable.
fn sleep_on(server: &Server) {
    let mut files = [PollFd::new(server, PollFlags::IN)];
    let limit = Timespec::try_from(LATER).unwrap();
    assert_eq!(poll(&mut files, Some(&limit)).unwrap(), 1, "nothing wakes it");
}

/// Receives the next event like an event loop of the program.
fn next_by_file(server: &mut Server) -> ServerEvent {
    loop {
        match server.next(Some(Duration::ZERO)).unwrap() {
            Some(event) => return event,
            None => sleep_on(server),
        }
    }
}

fn joined_with_room(device: &'static str, wait: Wait) -> (Server, PeerId, Channel) {
    let mut server =
        server_with(device, |builder| builder.wait(wait).max_send_wr(MANY).max_inline_data(8));
    let (peer, client) = join(device, &mut server);
    (server, peer, client)
}

/// Completed inline sends are no events: the message follows many completions that are none.
fn send_many_and_hear(server: &mut Server, peer: PeerId, client: &mut Channel) {
    for _ in 0..MANY {
        server.send_inline(peer, b"x").unwrap();
    }
    let mut room = client.pd().allocate_region(8).unwrap();
    for _ in 0..MANY {
        client.receive_into(&mut room).unwrap();
    }
    client.send_inline(b"heard").unwrap();
}

#[test]
fn a_message_after_many_completions_wakes_a_sleeping_server() {
    if lacks("soft0", Feature::Inline(8)) {
        return;
    }
    must_end(|| {
        for device in DEVICES {
            for wait in [Wait::Sleep, Wait::SpinThenSleep] {
                let (mut server, peer, mut client) = joined_with_room(device, wait);
                for _ in 0..5 {
                    send_many_and_hear(&mut server, peer, &mut client);
                    assert_eq!(&message(&mut server).1[..5], b"heard");
                }
            }
        }
    });
}

#[test]
fn a_message_after_many_completions_wakes_an_event_loop() {
    if lacks("soft0", Feature::Inline(8)) {
        return;
    }
    must_end(|| {
        for device in DEVICES {
            let (mut server, peer, mut client) = joined_with_room(device, Wait::SpinThenSleep);
            for _ in 0..5 {
                send_many_and_hear(&mut server, peer, &mut client);
                assert!(matches!(next_by_file(&mut server), ServerEvent::Message { .. }));
            }
        }
    });
}

#[test]
fn every_message_wakes_an_event_loop() {
    must_end(|| {
        for device in DEVICES {
            for wait in [Wait::Sleep, Wait::SpinThenSleep] {
                let mut server = server_with(device, |builder| builder.wait(wait));
                let (peer, mut client) = join(device, &mut server);
                for round in 0..50_u8 {
                    assert!(server.next(Some(Duration::ZERO)).unwrap().is_none());
                    client.send_inline(&[round]).unwrap();
                    let ServerEvent::Message { peer: from, buffer, .. } = next_by_file(&mut server)
                    else {
                        panic!("{device}, {wait:?}, {round}");
                    };
                    assert_eq!((from, buffer[0]), (peer, round));
                }
            }
        }
    });
}

/// Its file shows events that were not returned yet.
#[test]
fn a_woken_server_misses_no_event() {
    must_end(|| {
        for device in DEVICES {
            let mut server = server(device);
            let (_, mut client) = join(device, &mut server);
            let waker = server.waker();
            let mut heard = 0;
            for round in 0..20 {
                for _ in 0..3 {
                    client.send_inline(b"x").unwrap();
                }
                waker.wake();
                let mut woken = 0;
                while (heard, woken) != (3 * (round + 1), 1) {
                    match server.next(Some(Duration::ZERO)).unwrap() {
                        Some(ServerEvent::Message { .. }) => heard += 1,
                        Some(other) => panic!("{other:?}"),
                        None if woken == 0 && heard < 3 * (round + 1) => {
                            // Either the waker caused it, or nothing has arrived yet: the file shows which.
                            sleep_on(&server);
                        }
                        None => woken = 1,
                    }
                }
            }
        }
    });
}

/// The server checks its files before each sleep, and sometimes in between. A client found by a check in between joins
/// before the sleep, whenever it connects.
#[test]
fn a_client_that_connects_just_before_a_sleep_joins() {
    must_end(|| {
        for device in KINDS {
            for wait in [Wait::Sleep, Wait::SpinThenSleep] {
                let mut server = server_with(device, |builder| builder.wait(wait));
                let to = server.local_addr();
                let clients = thread::spawn(move || {
                    // Each connects a little later after the previous one has gone, up to longer than a server spins.
                    for pause in 0..300 {
                        let begin = Instant::now();
                        while begin.elapsed() < Duration::from_micros(pause) {
                            thread::yield_now();
                        }
                        drop(connect(device, to));
                    }
                });
                // A server that is late may find the next client before the end of the previous one.
                let (mut joined, mut left) = (0, 0);
                while left < 300 {
                    match next(&mut server) {
                        ServerEvent::Joined { .. } => joined += 1,
                        ServerEvent::Left { .. } => left += 1,
                        other => panic!("{other:?}"),
                    }
                    assert!(left <= joined && joined <= 300);
                }
                clients.join().unwrap();
            }
        }
    });
}

/// A flood of messages does not delay a waker.
#[test]
fn a_waker_ends_a_wait_during_endless_messages() {
    must_end(|| {
        for device in KINDS {
            let mut server = server(device);
            let to = server.local_addr();
            let (waker, begin) = (server.waker(), Instant::now());
            let flood = thread::spawn(move || {
                let mut channel = connect(device, to);
                while channel.send_inline(b"x").is_ok() {}
            });
            assert!(matches!(next(&mut server), ServerEvent::Joined { .. }));
            waker.wake();
            while server.next(None).unwrap().is_some() {
                assert!(begin.elapsed() < LATER);
            }
            drop(server);
            flood.join().unwrap();
        }
    });
}

/// All places of half-open clients are taken, and then become free at once.
#[test]
fn clients_in_the_backlog_wake_an_event_loop() {
    must_end(|| {
        for device in KINDS {
            let mut server = server(device);
            let to = server.local_addr();
            let begun: Vec<_> = (0..64).map(|_| TcpStream::connect(to).unwrap()).collect();
            // Each is accepted in its own check.
            for _ in 0..200 {
                assert!(server.next(Some(Duration::ZERO)).unwrap().is_none());
            }
            let client = thread::spawn(move || connect(device, to));
            drop(begun);
            assert!(matches!(next_by_file(&mut server), ServerEvent::Joined { .. }));
            client.join().unwrap();
        }
    });
}

#[test]
fn a_refused_send_is_followed_by_an_event_when_there_is_room() {
    if lacks("soft0", Feature::Inline(8)) {
        return;
    }
    for device in DEVICES {
        let mut server = server_with(device, |builder| builder.max_send_wr(2).max_inline_data(8));
        let (peer, mut client) = join(device, &mut server);
        let mut room = client.pd().allocate_region(8).unwrap();
        for _ in 0..5 {
            for _ in 0..2 {
                // Sends of the previous round may not be acknowledged yet.
                while let Err(error) = server.send_inline(peer, b"x") {
                    assert!(matches!(error, TransportError::WouldBlock), "{device}: {error}");
                    let event = next(&mut server);
                    assert!(matches!(event, ServerEvent::Room { .. }), "{device}: {event:?}");
                }
            }
            assert!(matches!(server.send_inline(peer, b"x"), Err(TransportError::WouldBlock)));
            client.receive_into(&mut room).unwrap();
            let ServerEvent::Room { peer: to } = next(&mut server) else { panic!("{device}") };
            assert_eq!(to, peer);
            server.send_inline(peer, b"x").unwrap();
            for _ in 0..2 {
                client.receive_into(&mut room).unwrap();
            }
            // No send was refused, so there are no events for these.
            client.send_inline(b"x").unwrap();
            message(&mut server);
        }
    }
}
