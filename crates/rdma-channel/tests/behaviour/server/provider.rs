//! Providers that refuse requests or lie.

use rdma_channel::{LeftReason, Server, ServerError, ServerEvent, TransportError, prelude::*};

use crate::common::provider::{POLL, POST, Post, edit, faulty, honest};
use crate::server::{KINDS, LOCALHOST, connect, left, message, next};

/// A server on a device whose provider has faults on this thread, and a client on another thread.
pub(crate) fn pair(device: &'static str) -> (Server, rdma_channel::PeerId, rdma_channel::Channel) {
    let pd = faulty(device).allocate_pd().unwrap();
    let builder = pd.create_server().max_peers(1).max_recv_wr(4).max_send_wr(4);
    let mut server = builder.bind(LOCALHOST).unwrap();
    let to = server.local_addr();
    let client = std::thread::spawn(move || connect(device, to));
    let ServerEvent::Joined { peer, .. } = next(&mut server) else { panic!() };
    (server, peer, client.join().unwrap())
}

#[test]
fn duplicate_completions_are_handled_once() {
    for device in KINDS {
        let (mut server, peer, mut client) = pair(device);
        edit(|completion| vec![completion, completion]);
        let mut room = client.pd().allocate_region(8).unwrap();
        for number in 0..50_u8 {
            client.send_inline(&[number]).unwrap();
            let (_, buffer, _) = message(&mut server);
            assert_eq!(buffer[0], number);
            server.send(peer, buffer, 1).unwrap();
            client.receive_into(&mut room).unwrap();
            assert!(matches!(next(&mut server), ServerEvent::Sent { .. }));
        }
        assert_eq!(server.pool().usage().buffers, 4);
        honest();
    }
}

#[test]
fn a_failed_completion_queue_ends_the_server() {
    for device in KINDS {
        let (mut server, _, _client) = pair(device);
        POLL.set(Some(-1));
        for _ in 0..2 {
            let error = server.next(None).unwrap_err();
            assert!(
                matches!(error, ServerError::Transport(TransportError::PollError(_))),
                "{error}"
            );
        }
        honest();
    }
}

/// A post with an unknown outcome: the program gets the buffer back only when the outcome is known.
#[test]
fn a_doubtful_post_ends_its_connection() {
    for device in KINDS {
        for post in [Post::Doubtful, Post::DoubtfulAndRefused] {
            let (mut server, peer, _client) = pair(device);
            let pool = server.pool().clone();
            POST.set(post);
            server.send(peer, pool.allocate(8).unwrap(), 8).unwrap();
            honest();
            let (gone, reason) = left(&mut server);
            assert_eq!(gone, peer);
            let LeftReason::Failed(TransportError::PostError(_)) = reason else {
                panic!("{reason}")
            };
            assert_eq!(pool.usage().buffers, 4, "it has ended with the queue pair");
        }
    }
}
