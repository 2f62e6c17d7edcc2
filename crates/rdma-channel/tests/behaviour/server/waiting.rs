//! Waiting of a server.

use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::{ServerEvent, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::common::must_end;
use crate::server::{
    DEVICES, KINDS, LATER, SOON, assert_quiet, connect, join, joined, message, server, server_with,
};

const MODES: [Wait; 3] = [Wait::Spin, Wait::SpinThenSleep, Wait::Sleep];

/// The processor time of this thread.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

#[test]
fn limits_are_kept_in_each_mode() {
    for device in DEVICES {
        for wait in MODES {
            let mut server = server_with(device, |builder| builder.wait(wait));
            assert_quiet(&mut server);
            let (peer, mut client) = join(device, &mut server);
            assert_quiet(&mut server);
            assert!(server.next(Some(Duration::ZERO)).unwrap().is_none());
            client.send_inline(b"now").unwrap();
            let begin = Instant::now();
            let message = loop {
                // A device that works by itself may need a moment.
                if let Some(event) = server.next(Some(Duration::ZERO)).unwrap() {
                    break event;
                }
                assert!(begin.elapsed() < LATER);
            };
            assert!(matches!(message, ServerEvent::Message { peer: from, .. } if from == peer));
        }
    }
}

#[test]
fn a_sleeping_server_wakes_for_each_kind_of_event() {
    must_end(|| {
        for device in DEVICES {
            let mut server = server_with(device, |builder| builder.wait(Wait::Sleep));
            let to = server.local_addr();
            for _ in 0..20 {
                let client = thread::spawn(move || {
                    let mut channel = connect(device, to);
                    thread::sleep(Duration::from_millis(1));
                    channel.send_inline(b"x").unwrap();
                    let mut room = channel.pd().allocate_region(1).unwrap();
                    thread::sleep(Duration::from_millis(1));
                    channel.receive_into(&mut room).unwrap();
                });
                let peer = joined(&mut server);
                let (_, buffer, length) = message(&mut server);
                server.send(peer, buffer, length).unwrap();
                // The acknowledgement may be lost with the client.
                while !matches!(crate::server::next(&mut server), ServerEvent::Left { .. }) {}
                client.join().unwrap();
            }
        }
    });
}

#[test]
fn a_hundred_idle_clients_use_no_processor_time() {
    must_end(|| {
        for device in KINDS {
            let mut server = server_with(device, |builder| builder.max_peers(100).max_send_wr(1));
            let clients: Vec<_> = (0..100).map(|_| join(device, &mut server).1).collect();
            let limit = Duration::from_millis(500);
            let before = processor_time();
            assert!(server.next(Some(limit)).unwrap().is_none());
            let had = processor_time() - before;
            assert!(had < limit / 2, "{had:?}");
            drop(clients);
        }
    });
}

#[test]
fn a_waker_ends_a_wait_and_loses_nothing() {
    must_end(|| {
        for device in KINDS {
            let mut server = server(device);
            let (_, mut client) = join(device, &mut server);
            let waker = server.waker();
            waker.wake();
            waker.clone().wake();
            assert!(server.next(None).unwrap().is_none(), "woken before the wait");
            assert_quiet(&mut server);
            let other = thread::spawn(move || {
                thread::sleep(Duration::from_millis(10));
                client.send_inline(b"first").unwrap();
                waker.wake();
                client
            });
            let (mut woken, mut messages) = (0, 0);
            while (woken, messages) != (1, 1) {
                match server.next(None).unwrap() {
                    None => woken += 1,
                    Some(ServerEvent::Message { .. }) => messages += 1,
                    Some(other) => panic!("{other:?}"),
                }
            }
            drop(other.join().unwrap());
        }
    });
}

/// This is the structure of `select` loops: sleep on the file, then receive what has arrived.
#[test]
fn an_event_loop_of_the_program_receives_all_events() {
    must_end(|| {
        for device in DEVICES {
            let mut server = server(device);
            let to = server.local_addr();
            let clients = thread::spawn(move || {
                for _ in 0..5 {
                    let mut channel = connect(device, to);
                    for _ in 0..5 {
                        channel.send_inline(b"x").unwrap();
                        thread::sleep(Duration::from_micros(300));
                    }
                }
            });
            let (mut joined, mut messages, mut left) = (0, 0, 0);
            while left < 5 {
                match server.next(Some(Duration::ZERO)).unwrap() {
                    None => {
                        let mut files = [PollFd::new(&server, PollFlags::IN)];
                        let limit = Timespec::try_from(LATER).unwrap();
                        assert_eq!(poll(&mut files, Some(&limit)).unwrap(), 1, "nothing comes");
                    }
                    Some(ServerEvent::Joined { .. }) => joined += 1,
                    Some(ServerEvent::Message { .. }) => messages += 1,
                    Some(ServerEvent::Left { .. }) => left += 1,
                    Some(other) => panic!("{other:?}"),
                }
            }
            assert_eq!((joined, messages), (5, 25), "{device}");
            clients.join().unwrap();
            // Nothing is left to wake it.
            assert!(server.next(Some(Duration::ZERO)).unwrap().is_none());
            let mut files = [PollFd::new(&server, PollFlags::IN)];
            poll(&mut files, Some(&Timespec::try_from(SOON).unwrap())).unwrap();
        }
    });
}
