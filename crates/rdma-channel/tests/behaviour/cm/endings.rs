//! The end of a peer, which every wait detects.

use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rdma_channel::{CloseReason, Operation, TransportError};
use rdma_qp::SendWorkRequest;
use rustix::event::{PollFd, PollFlags, poll};

use super::{Ends, LATER, MODES, ROOM, SHORTLY, assert_gone, child, wait_in_child};
use crate::common::{must_end, open};

#[test]
fn a_receive_ends_when_the_peer_drops_its_channel() {
    for wait in MODES {
        for ends in Ends::both() {
            must_end(move || {
                let (mut here, there) = ends.connect(wait);
                let ending = thread::spawn(move || {
                    thread::sleep(SHORTLY);
                    drop(there);
                });
                let gone = here.receive(ROOM).unwrap_err();
                assert_gone(&gone, Operation::Receive, CloseReason::Disconnected, &here);
                assert_eq!(here.disconnect_reason().as_deref(), Some(&b""[..]));
                ending.join().unwrap();
                let again = here.send(SendWorkRequest::only_immediate(1)).unwrap_err();
                assert!(matches!(again, TransportError::Closed { .. }), "{again}");
            });
        }
    }
}

#[test]
fn the_reason_for_a_disconnect_arrives() {
    for ends in Ends::both() {
        must_end(move || {
            let (here, mut there) = ends.connect(MODES[1]);
            here.disconnect_with(&[7; 64]).unwrap();
            let gone = there.receive(ROOM).unwrap_err();
            assert_gone(&gone, Operation::Receive, CloseReason::Disconnected, &there);
            assert_eq!(there.disconnect_reason().as_deref(), Some(&[7; 64][..]));
        });
    }
}

#[test]
fn earlier_messages_are_received_first() {
    for wait in MODES {
        for ends in Ends::both() {
            must_end(move || {
                let (mut here, mut there) = ends.connect(wait);
                let peer = thread::spawn(move || {
                    for number in 0..3 {
                        there.send(SendWorkRequest::only_immediate(number)).unwrap();
                    }
                });
                for number in 0..3 {
                    assert_eq!(here.receive(ROOM).unwrap().immediate_data(), Some(number));
                }
                let gone = here.receive(ROOM).unwrap_err();
                assert_gone(&gone, Operation::Receive, CloseReason::Disconnected, &here);
                peer.join().unwrap();
            });
        }
    }
}

/// Each of them shares the listener's event channel.
#[test]
fn only_the_channel_whose_peer_is_gone_ends() {
    for ends in Ends::both() {
        must_end(move || {
            let mut listener = ends.listen();
            let address = listener.local_addr();
            let pd = ends.client.clone();
            let connecting = thread::spawn(move || {
                [(); 4].map(|()| Ends::builder(&pd).connect_cm(address).unwrap().0)
            });
            let (events, ended) = mpsc::channel();
            let threads = [0, 1, 2, 3].map(|number| {
                let (mut channel, events) = (listener.accept().unwrap(), events.clone());
                thread::spawn(move || {
                    let peer = channel.peer().map(|peer| peer.peer_qpn);
                    let outcome = channel.receive(ROOM);
                    events.send((number, peer, outcome.is_ok())).unwrap();
                })
            });
            drop(listener);
            let mut peers: Vec<_> = connecting.join().unwrap().into_iter().collect();
            thread::sleep(SHORTLY);
            for _ in 0..2 {
                let first = peers.remove(0);
                let qpn = first.qpn();
                drop(first);
                let (_, of, is_ok) = ended.recv_timeout(LATER).unwrap();
                assert_eq!((of, is_ok), (qpn, false));
            }
            for mut peer in peers {
                peer.send(SendWorkRequest::only_immediate(1)).unwrap();
                let (_, of, is_ok) = ended.recv_timeout(LATER).unwrap();
                assert_eq!((of, is_ok), (peer.qpn(), true));
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}

#[test]
fn a_killed_process_is_detected() {
    wait_in_child();
    for wait in MODES {
        must_end(move || {
            let pd = open("soft0").allocate_pd().unwrap();
            let builder = Ends::builder(&pd).wait(wait);
            let mut listener = builder.listen_cm("localhost:0").unwrap();
            let test = "cm::endings::a_killed_process_is_detected";
            let mut process = child(test, listener.local_addr());
            let mut channel = listener.accept().unwrap();
            assert_eq!(channel.receive(ROOM).unwrap().immediate_data(), Some(8));
            let killer = thread::spawn(move || {
                thread::sleep(SHORTLY);
                process.kill().unwrap();
                process.wait().unwrap();
            });
            let gone = channel.receive(ROOM).unwrap_err();
            assert_gone(&gone, Operation::Receive, CloseReason::Died, &channel);
            assert_eq!(channel.disconnect_reason(), None);
            killer.join().unwrap();
        });
    }
}

/// A program with its own event loop polls the file.
#[test]
fn the_watched_file_becomes_readable() {
    for ends in Ends::both() {
        must_end(move || {
            let (mut here, there) = ends.connect(MODES[2]);
            let file = here.watched_stream().unwrap().try_clone_to_owned().unwrap();
            drop(there);
            let mut files = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)];
            assert_eq!(poll(&mut files, None).unwrap(), 1);
            let gone = here.receive(ROOM).unwrap_err();
            assert_gone(&gone, Operation::Receive, CloseReason::Disconnected, &here);
        });
    }
}

#[test]
fn a_channel_that_watches_nothing_waits_until_its_limit() {
    for ends in Ends::both() {
        must_end(move || {
            let mut listener = ends.listen();
            let address = listener.local_addr();
            let client = thread::spawn(move || {
                let limit = Duration::from_millis(20);
                let builder = Ends::builder(&ends.client).receive_timeout(limit).watch_nothing();
                builder.connect_cm(address).unwrap().0
            });
            let server = listener.accept().unwrap();
            let mut channel = client.join().unwrap();
            drop(server);
            let error = channel.receive(ROOM).unwrap_err();
            assert!(matches!(error, TransportError::Timeout { .. }), "{error}");
        });
    }
}

/// The child does not disconnect the connection of its parent.
#[test]
fn channels_are_dropped_in_any_order() {
    for ends in Ends::both() {
        must_end(move || {
            let mut listener = ends.listen();
            let address = listener.local_addr();
            for is_first in [true, false] {
                let pd = ends.client.clone();
                let client =
                    thread::spawn(move || Ends::builder(&pd).connect_cm(address).unwrap().0);
                let mut server = listener.accept().unwrap();
                let mut client = client.join().unwrap();
                let (dropped, kept) =
                    if is_first { (client, &mut server) } else { (server, &mut client) };
                drop(dropped);
                let gone = kept.receive(ROOM).unwrap_err();
                assert_gone(&gone, Operation::Receive, CloseReason::Disconnected, kept);
            }
        });
    }
}
