//! Peers that use rdma_cm directly, as C programs do: their private data has no particular format.

use std::thread;

use rdma_channel::{CloseReason, ConnectError, Operation, prelude::*};
use rdma_cm::{EventChannel, Listener, PreparedQueuePair};
use rdma_mem::ProtectionDomain;
use rdma_qp::CompletionQueue;

use super::{Ends, LATER, ROOM, assert_gone};
use crate::common::must_end;

fn queue_pair(pd: &ProtectionDomain) -> PreparedQueuePair {
    let cq = CompletionQueue::create(pd.context(), 4).unwrap();
    pd.create_qp().send_cq(&cq).recv_cq(&cq).build().unwrap()
}

#[test]
fn a_channel_connects_to_a_plain_listener() {
    for ends in Ends::both() {
        must_end(move || {
            let events = EventChannel::open(ends.server.context()).unwrap();
            let listener = Listener::bind(&events, ends.address.as_str()).unwrap();
            let address = listener.local_address();
            let client = thread::spawn(move || {
                let builder = Ends::builder(&ends.client).user_bytes(b"hello");
                let (mut channel, greeting) = builder.connect_cm(address).unwrap();
                assert_eq!((greeting.len(), &greeting[..8]), (196, &b"welcome\0"[..]));
                let gone = channel.receive(ROOM).unwrap_err();
                assert_gone(&gone, Operation::Receive, CloseReason::Disconnected, &channel);
                assert_eq!(channel.disconnect_reason().as_deref(), Some(&b""[..]));
                let rejected = Ends::builder(&ends.client).connect_cm(address).unwrap_err();
                assert!(matches!(&rejected, ConnectError::Rejected(why) if why.is_empty()));
            });
            let request = listener.incoming(LATER).unwrap();
            assert_eq!(&request.private_data()[..6], b"hello\0");
            let accepting = request.prepare(queue_pair(&ends.server)).unwrap();
            let connection = accepting.accept(b"welcome").unwrap().wait(LATER).unwrap();
            connection.disconnect(b"").unwrap().wait(LATER).unwrap();
            listener.incoming(LATER).unwrap().reject(b"no").unwrap();
            client.join().unwrap();
        });
    }
}

#[test]
fn a_plain_client_connects_to_a_channel() {
    for ends in Ends::both() {
        must_end(move || {
            let mut listener = ends.listen();
            let address = listener.local_addr();
            let client = thread::spawn(move || {
                let events = EventChannel::open(ends.client.context()).unwrap();
                let resolved = events.resolve(address).unwrap();
                let connecting = resolved.connect(queue_pair(&ends.client), b"hello").unwrap();
                let replied = connecting.wait(LATER).unwrap();
                assert_eq!(&replied.private_data()[..8], b"welcome\0");
                let connection = replied.establish().unwrap();
                connection.disconnect(b"").unwrap().wait(LATER).unwrap();
            });
            let incoming = listener.incoming(Some(LATER)).unwrap();
            assert_eq!(
                (incoming.user_bytes().len(), &incoming.user_bytes()[..6]),
                (56, &b"hello\0"[..])
            );
            let mut channel = incoming.accept(b"welcome").unwrap();
            let gone = channel.receive(ROOM).unwrap_err();
            assert_gone(&gone, Operation::Receive, CloseReason::Disconnected, &channel);
            client.join().unwrap();
        });
    }
}

/// A client that does not confirm keeps no other client waiting.
#[test]
fn clients_that_do_not_confirm_are_dropped() {
    for ends in Ends::both() {
        must_end(move || {
            let mut listener = ends.listen();
            let address = listener.local_addr();
            let events = EventChannel::open(ends.client.context()).unwrap();
            let resolved = events.resolve(address).unwrap();
            // More than the listener keeps.
            let _silent: Vec<_> =
                (0..70).map(|_| resolved.connect(queue_pair(&ends.client), b"").unwrap()).collect();
            let client = thread::spawn(move || Ends::builder(&ends.client).connect_cm(address));
            let channel = listener.accept().unwrap();
            let (peer, _) = client.join().unwrap().unwrap();
            assert_eq!(channel.peer().map(|peer| peer.peer_qpn), peer.qpn());
            assert!(listener.dropped_half_open() >= 7, "{listener:?}");
        });
    }
}
