//! Clients that join.

use std::thread;

use rdma_channel::{Channel, ConnectError, Error, Recovery, Server, ServerEvent, prelude::*};
use test_support::features::Feature;

use crate::common::lacks;
use crate::server::{
    DEVICES, KINDS, LATER, LOCALHOST, SOON, assert_quiet, connect, domain, join, left, message,
    next, server, server_with,
};

#[test]
fn both_ends_receive_the_user_bytes_of_the_other() {
    for device in DEVICES {
        let mut server = server_with(device, |builder| builder.user_bytes(b"welcome"));
        let to = server.local_addr();
        let client = thread::spawn(move || {
            let (channel, told) =
                domain(device).create_channel().user_bytes(b"it is me").connect(to).unwrap();
            assert_eq!(*told, *b"welcome");
            channel
        });
        let ServerEvent::Joined { peer, address, user_bytes } = next(&mut server) else { panic!() };
        assert_eq!((*user_bytes).to_vec(), b"it is me");
        assert!(address.ip().is_loopback() && address != to);
        assert_eq!(peer.to_string(), "client 0");
        drop(client.join().unwrap());
        assert_eq!(left(&mut server).0, peer);
    }
}

#[test]
fn one_client_too_many_is_refused_and_may_retry() {
    for device in KINDS {
        let mut server = server_with(device, |builder| builder.max_peers(2));
        let (first, channel) = join(device, &mut server);
        let (second, _stays) = join(device, &mut server);
        assert_eq!((first.index(), second.index()), (0, 1));
        let to = server.local_addr();
        let third = thread::spawn(move || Channel::connect(to, &domain(device)));
        while server.refused() == 0 {
            assert!(server.next(Some(SOON)).unwrap().is_none());
        }
        let refused = third.join().unwrap().unwrap_err();
        let ConnectError::Busy(why) = &refused else { panic!("{refused}") };
        assert!(why.contains("its limit (`max_peers` is 2)"), "{why}");
        assert_eq!(refused.recovery(), Recovery::Retry);
        assert!(server.last_refused().unwrap().contains("its limit (`max_peers` is 2)"));
        drop(channel);
        assert_eq!(left(&mut server).0, first);
        let (again, _channel) = join(device, &mut server);
        assert_eq!(again.index(), first.index(), "the place is used again");
        assert_ne!(again, first, "the ID is not");
    }
}

/// The place is free when the program has received `Left`, and a new client waits until then.
#[test]
fn a_place_is_taken_until_the_program_has_received_left() {
    for device in KINDS {
        let mut server = server_with(device, |builder| builder.max_peers(1));
        let to = server.local_addr();
        for round in 0..20 {
            let client = thread::spawn(move || connect(device, to));
            let peer = loop {
                match next(&mut server) {
                    ServerEvent::Joined { peer, .. } => break peer,
                    ServerEvent::Left { peer, .. } => assert_eq!(peer.index(), 0),
                    other => panic!("{other:?}"),
                }
            };
            let later = if round == 0 { String::new() } else { format!(" (generation {round})") };
            assert_eq!(peer.to_string(), format!("client 0{later}"));
            drop(client.join().unwrap());
            assert_eq!(left(&mut server).0, peer);
        }
    }
}

#[test]
fn clients_join_while_others_send_without_end() {
    for device in KINDS {
        let mut server = server(device);
        let (talks, mut channel) = join(device, &mut server);
        let to = server.local_addr();
        let others =
            thread::spawn(move || (0..10).map(|_| connect(device, to)).collect::<Vec<_>>());
        let mut room = channel.pd().allocate_region(1).unwrap();
        channel.send_inline(b"x").unwrap();
        let mut came = 0;
        while came < 10 {
            match next(&mut server) {
                ServerEvent::Message { peer, buffer, length, .. } => {
                    assert_eq!(peer, talks);
                    server.send(peer, buffer, length).unwrap();
                    channel.receive_into(&mut room).unwrap();
                    channel.send_inline(b"x").unwrap();
                }
                ServerEvent::Joined { .. } => came += 1,
                ServerEvent::Sent { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        drop(others.join().unwrap());
    }
}

#[test]
fn invalid_options_of_a_builder_are_reported() {
    let pd = domain("soft0");
    let zeros = [
        ("max_peers", pd.create_server().max_peers(0)),
        ("message_size", pd.create_server().message_size(0)),
        ("max_recv_wr", pd.create_server().max_recv_wr(0)),
        ("max_send_wr", pd.create_server().max_send_wr(0)),
        ("max_recv_wr_per_peer", pd.create_server().max_recv_wr_per_peer(0)),
    ];
    for (knob, builder) in zeros {
        let error = builder.bind(LOCALHOST).unwrap_err();
        assert!(error.to_string().contains(knob), "{error}");
        assert!(matches!(error, ConnectError::Verbs(_)), "{error:?}");
    }
    let error = pd.create_server().max_peers(u32::MAX).bind(LOCALHOST).unwrap_err();
    let ConnectError::Verbs(verbs) = &error else { panic!("{error}") };
    assert!(matches!(**verbs, Error::TooLarge { knob: "max_peers", .. }), "{error}");
    // More than the device supports for all clients together.
    let builder = pd.create_server().max_peers(100_000).max_send_wr(100);
    let error = builder.bind(LOCALHOST).unwrap_err().to_string();
    assert!(error.starts_with("ibv_create_cq") && error.contains("`max_peers`"), "{error}");
    let error = pd.create_server().user_bytes(&[0; 1025]).bind(LOCALHOST).unwrap_err();
    assert!(matches!(error, ConnectError::UserBytesTooLong { .. }), "{error}");
    let other = Server::bind(LOCALHOST, &pd, 1).unwrap();
    let error = Server::bind(other.local_addr(), &pd, 1).unwrap_err();
    assert!(matches!(error, ConnectError::Io { .. }), "{error}");
    assert!(error.to_string().contains(&other.local_addr().to_string()), "{error}");
    let error = pd.create_server().message_size(usize::MAX / 2).bind(LOCALHOST).unwrap_err();
    assert!(matches!(error, ConnectError::Verbs(_)), "{error}");
}

/// A server that is not called for a while loses no client.
#[test]
fn clients_wait_for_a_server_that_is_busy() {
    if lacks("soft0", Feature::Inline(8)) {
        return;
    }
    for device in KINDS {
        let mut server = server(device);
        let to = server.local_addr();
        let clients: Vec<_> = (0..30)
            .map(|number| {
                thread::spawn(move || {
                    let pd = domain(device);
                    let builder = pd.create_channel().rendezvous_timeout(LATER);
                    let mut channel = builder.max_inline_data(8).connect(to).unwrap().0;
                    channel.send_inline(&[number]).unwrap();
                    channel
                })
            })
            .collect();
        thread::sleep(SOON);
        let (mut joined, mut numbers) = (0, Vec::new());
        while numbers.len() < 30 {
            match next(&mut server) {
                ServerEvent::Joined { .. } => joined += 1,
                ServerEvent::Message { buffer, .. } => numbers.push(buffer[0]),
                other => panic!("{other:?}"),
            }
        }
        numbers.sort_unstable();
        assert_eq!((joined, numbers), (30, (0..30).collect()));
        let channels: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        assert_quiet(&mut server);
        drop(channels);
        for _ in 0..30 {
            left(&mut server);
        }
        let (_, mut channel) = join(device, &mut server);
        channel.send_inline(b"after all").unwrap();
        message(&mut server);
        assert_eq!(server.refused(), 0);
    }
}
