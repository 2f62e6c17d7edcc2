//! Connecting, and its errors.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use rdma_channel::message::{Messages, Options};
use rdma_channel::{Channel, ConnectError, prelude::*};
use rdma_mem::{BufferPool, Recovery};
use rdma_qp::SendWorkRequest;

use super::{Ends, LATER, ROOM};
use crate::common::{must_end, open};

#[test]
fn ends_exchange_messages_and_user_bytes() {
    for ends in [Ends::local("soft0"), Ends::local("softib0"), Ends::hosts()] {
        must_end(move || {
            let builder = Ends::builder(&ends.server).user_bytes(&[7; 192]);
            let mut listener = builder.listen_cm(ends.address.as_str()).unwrap();
            let address = listener.local_addr();
            let client = thread::spawn(move || {
                let builder = Ends::builder(&ends.client).user_bytes(&[5; 52]);
                let (mut channel, greeting) = builder.connect_cm(address).unwrap();
                channel.send(SendWorkRequest::only_immediate(1)).unwrap();
                assert_eq!(channel.receive(ROOM).unwrap().immediate_data(), Some(2));
                (channel.qpn(), greeting)
            });
            let mut channel = listener.accept().unwrap();
            assert_eq!(channel.receive(ROOM).unwrap().immediate_data(), Some(1));
            channel.send(SendWorkRequest::only_immediate(2)).unwrap();
            let (qpn, greeting) = client.join().unwrap();
            assert_eq!(*greeting, [7; 192]);
            assert_eq!(channel.peer().map(|peer| peer.peer_qpn), qpn);
        });
    }
}

#[test]
fn the_program_decides_by_the_user_bytes() {
    for ends in Ends::both() {
        must_end(move || {
            let mut listener = ends.listen();
            let address = listener.local_addr();
            let client = thread::spawn(move || {
                let pd = ends.client;
                let rejected = Ends::builder(&pd).user_bytes(b"let me in").connect_cm(address);
                let Err(ConnectError::Rejected(why)) = rejected else { panic!("{rejected:?}") };
                assert_eq!(&*why, "no password");
                Ends::builder(&pd).user_bytes(b"swordfish").connect_cm(address).unwrap()
            });
            let stranger = listener.incoming(Some(LATER)).unwrap();
            assert_eq!(stranger.user_bytes(), b"let me in");
            stranger.reject("no password");
            let friend = listener.incoming(Some(LATER)).unwrap();
            assert_eq!(friend.user_bytes(), b"swordfish");
            assert!(friend.peer_addr().ip().is_loopback(), "{}", friend.peer_addr());
            let channel = friend.accept(b"welcome").unwrap();
            let (peer, greeting) = client.join().unwrap();
            assert_eq!(*greeting, *b"welcome");
            assert_eq!(peer.peer().map(|peer| peer.peer_qpn), channel.qpn());
            assert_eq!(listener.refused(), 0);
        });
    }
}

#[test]
fn an_undecided_client_is_rejected() {
    must_end(|| {
        let ends = Ends::local("soft0");
        let mut listener = ends.listen();
        let address = listener.local_addr();
        let client =
            thread::spawn(move || Ends::builder(&ends.client).connect_cm(address).unwrap_err());
        drop(listener.incoming(Some(LATER)).unwrap());
        let error = client.join().unwrap();
        assert!(matches!(error, ConnectError::Rejected(_)), "{error}");
    });
}

#[test]
fn user_bytes_that_do_not_fit_are_refused() {
    let ends = Ends::local("soft0");
    let error = Ends::builder(&ends.client).user_bytes(&[1; 53]).connect_cm("localhost:9");
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::UserBytesTooLong { length: 53, most: 52 }), "{error}");
    let error = Ends::builder(&ends.server).user_bytes(&[1; 193]).listen_cm("localhost:0");
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::UserBytesTooLong { length: 193, most: 192 }), "{error}");
    must_end(move || {
        let mut listener = ends.listen();
        let address = listener.local_addr();
        let client =
            thread::spawn(move || Ends::builder(&ends.client).connect_cm(address).unwrap_err());
        let error = listener.incoming(Some(LATER)).unwrap().accept(&[1; 193]).unwrap_err();
        assert!(matches!(error, ConnectError::UserBytesTooLong { .. }), "{error}");
        let error = client.join().unwrap();
        assert!(matches!(error, ConnectError::Rejected(_)), "{error}");
        assert_eq!(listener.refused(), 1);
    });
}

#[test]
fn a_port_without_a_listener_is_reported() {
    for ends in Ends::both() {
        let listener = ends.listen();
        let address = listener.local_addr();
        drop(listener);
        // On another host, a thread of its process has to answer.
        let other = ends.listen();
        let answering = thread::spawn(move || {
            let mut other = other;
            other.incoming(Some(LATER)).map(drop)
        });
        let error = Ends::builder(&ends.client).connect_cm(address).unwrap_err();
        let ConnectError::NobodyListens { tried } = &error else { panic!("{error}") };
        assert_eq!((&**tried, error.recovery()), (&[address][..], Recovery::Retry));
        drop(answering);
    }
}

#[test]
fn a_port_in_use_is_reported() {
    let ends = Ends::local("soft0");
    let listener = ends.listen();
    let error = Ends::builder(&ends.server).listen_cm(listener.local_addr()).unwrap_err();
    let ConnectError::Io { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), ErrorKind::AddrInUse);
    assert_eq!(error.recovery(), Recovery::Programming);
}

#[test]
fn addresses_that_are_not_reached_are_reported() {
    let ends = Ends::local("soft0");
    let far = (Ipv4Addr::new(192, 0, 2, 1), 7471);
    let error = Ends::builder(&ends.server).listen_cm(far).unwrap_err();
    let ConnectError::Io { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), ErrorKind::AddrNotAvailable);
    let error = Channel::connect_cm(far, &ends.client).unwrap_err();
    assert!(error.to_string().contains("RDMA_SOFT_LISTEN"), "{error}");
    assert_eq!(error.recovery(), Recovery::Programming);
    let error = Channel::connect_cm("localhost", &ends.client).unwrap_err();
    assert!(matches!(error, ConnectError::Resolve { .. }), "{error}");
    let error = Channel::connect_cm(&[][..], &ends.client).unwrap_err();
    assert!(matches!(error, ConnectError::NoAddress), "{error}");
}

#[test]
fn waits_end_at_their_limits() {
    for ends in Ends::both() {
        must_end(move || {
            let limit = Duration::from_millis(30);
            let mut listener = ends.listen();
            let error = listener.incoming(Some(limit)).unwrap_err();
            assert!(matches!(error, ConnectError::Timeout { .. }), "{error}");
            // The listener's program does not call it.
            let builder = Ends::builder(&ends.client).rendezvous_timeout(limit);
            let error = builder.connect_cm(listener.local_addr()).unwrap_err();
            let ConnectError::Timeout { limit: passed, .. } = error else { panic!("{error}") };
            assert_eq!(passed, limit);
            assert!(error.to_string().contains("that it calls `incoming`"), "{error}");
        });
    }
}

#[test]
fn a_server_that_ends_meanwhile_is_reported() {
    must_end(|| {
        let ends = Ends::local("soft0");
        let listener = ends.listen();
        let address = listener.local_addr();
        let client =
            thread::spawn(move || Ends::builder(&ends.client).connect_cm(address).unwrap_err());
        thread::sleep(super::SHORTLY);
        drop(listener);
        let error = client.join().unwrap();
        // If the thread was late, the listener had gone before.
        let is_expected =
            matches!(error, ConnectError::Closed { .. } | ConnectError::NobodyListens { .. });
        assert!(is_expected, "{error}");
    });
}

#[test]
fn many_clients_connect_at_a_time() {
    for ends in Ends::both() {
        must_end(move || {
            let mut listener = ends.listen();
            let address = listener.local_addr();
            let clients: Vec<_> = (0..40)
                .map(|number| {
                    let pd = ends.client.clone();
                    thread::spawn(move || {
                        let (mut channel, _) = Ends::builder(&pd).connect_cm(address).unwrap();
                        channel.send(SendWorkRequest::only_immediate(number)).unwrap();
                    })
                })
                .collect();
            let mut numbers: Vec<_> = (0..40)
                .map(|_| {
                    let mut channel = listener.accept().unwrap();
                    channel.receive(ROOM).unwrap().immediate_data().unwrap()
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..40));
        });
    }
}

#[test]
fn messages_pass_over_a_channel_by_rdma_cm() {
    must_end(|| {
        let pd = open("soft0").allocate_pd().unwrap();
        let (pool, options) = (BufferPool::new(&pd), Options::default());
        let builder = pd.create_channel().fit(&options).rendezvous_timeout(LATER);
        let mut listener = builder.listen_cm("localhost:0").unwrap();
        let address = listener.local_addr();
        let client = thread::spawn({
            let (pd, pool) = (pd.clone(), pool.clone());
            move || {
                let builder = pd.create_channel().fit(&options).rendezvous_timeout(LATER);
                let (channel, _) = builder.connect_cm(address).unwrap();
                let messages = Messages::new(channel, &pool, options).unwrap();
                assert_eq!(messages.peer_addr().unwrap(), address);
                messages.send(&[7; 100_000]).unwrap();
                messages.receive().unwrap().map(drop)
            }
        });
        let channel = listener.accept().unwrap();
        let messages = Messages::new(channel, &pool, options).unwrap();
        let message = messages.receive().unwrap().unwrap();
        assert_eq!(message.to_vec(), [7; 100_000]);
        drop((message, messages));
        assert!(client.join().unwrap().is_none());
    });
}
