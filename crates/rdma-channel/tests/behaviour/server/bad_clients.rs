//! Other programs that connect to the address of a server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::Duration;

use rdma_channel::{QueuePairEndpoint, ServerEvent, TransportError, prelude::*};
use test_support::crowd::{ELSEWHERE, allow_files, crowd, is_kept, last_words};
use test_support::features::Feature;

use crate::common::lacks;
use crate::server::{
    KINDS, SOON, assert_quiet, connect, domain, join, message, next, server, server_with,
};

#[test]
fn garbage_silence_and_floods_do_not_disturb_clients() {
    for device in KINDS {
        let mut server =
            server_with(device, |builder| builder.rendezvous_timeout(Duration::from_secs(5)));
        let (peer, mut client) = join(device, &mut server);
        let to = server.local_addr();
        let silent: Vec<_> = (0..70).map(|_| TcpStream::connect(to).unwrap()).collect();
        for garbage in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0; 2000], b"RDRV\0\x07\0\x01\0\0"] {
            TcpStream::connect(to).unwrap().write_all(garbage).unwrap();
        }
        for _ in 0..10 {
            client.send_inline(b"goes on").unwrap();
            assert_eq!(message(&mut server).0, peer);
        }
        while server.refused() < 73 {
            assert!(server.next(Some(SOON)).unwrap().is_none());
        }
        let _ = join(device, &mut server);
        drop(silent);
    }
}

#[test]
fn silent_clients_do_not_block_others() {
    for device in KINDS {
        allow_files(3_000);
        for from in [ELSEWHERE, Ipv4Addr::LOCALHOST] {
            let mut server =
                server_with(device, |builder| builder.rendezvous_timeout(Duration::MAX));
            let (peer, mut client) = join(device, &mut server);
            let silent = crowd(from, server.local_addr(), 300, b"");
            let to = server.local_addr();
            let honest = thread::spawn(move || connect(device, to));
            client.send_inline(b"goes on").unwrap();
            let (mut joined, mut messages) = (0, 0);
            while (joined, messages) != (1, 1) {
                match next(&mut server) {
                    ServerEvent::Joined { .. } => joined += 1,
                    ServerEvent::Message { peer: from, .. } => {
                        assert_eq!(from, peer);
                        messages += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            drop(honest.join().unwrap());
            // Clients without room have been dropped.
            let dropped = server.dropped_half_open();
            assert!((44..=45).contains(&dropped), "{dropped}");
            assert!(last_words(&silent[0]).ends_with(b"connect again"));
            let kept = silent.iter().filter(|client| is_kept(client)).count();
            assert_eq!(kept as u64 + dropped, 300);
        }
    }
}

/// All places are taken by clients that have sent their HELLO, but not READY.
#[test]
fn clients_that_keep_places_make_room_for_a_client_of_another_address() {
    for device in KINDS {
        const PLACES: usize = 4;
        let mut server =
            server_with(device, |builder| builder.max_peers(4).rendezvous_timeout(Duration::MAX));
        let endpoint = domain(device).create_channel().build().unwrap().endpoint().to_bytes();
        let hello = [b"RDRV\0\x02\0\x01\0\0".as_slice(), &endpoint].concat();
        let begun = crowd(ELSEWHERE, server.local_addr(), PLACES, &hello);
        while begun.iter().any(is_kept) {
            assert!(server.next(Some(Duration::from_millis(1))).unwrap().is_none());
        }
        let _ = join(device, &mut server);
        assert_eq!(server.dropped_half_open(), 1);
    }
}

/// It has a queue pair before the server has accepted it, and sends with it.
#[test]
fn messages_of_a_client_that_was_not_accepted_are_ignored() {
    if lacks("soft0", Feature::Inline(9)) {
        return;
    }
    for device in KINDS {
        let mut server = server(device);
        for _ in 0..3 {
            // The steps of a client, except the last one.
            let prepared = domain(device)
                .create_channel()
                .max_inline_data(9)
                .send_timeout(SOON)
                .build()
                .unwrap();
            let mut stream = TcpStream::connect(server.local_addr()).unwrap();
            let hello =
                [b"RDRV\0\x02\0\x01\0\0".as_slice(), &prepared.endpoint().to_bytes()].concat();
            stream.write_all(&hello).unwrap();
            let mut answer = [0; 10 + QueuePairEndpoint::BYTES];
            stream.set_nonblocking(true).unwrap();
            let mut come = 0;
            while come < answer.len() {
                assert!(server.next(Some(Duration::from_millis(5))).unwrap().is_none());
                come += stream.read(&mut answer[come..]).unwrap_or(0);
            }
            let endpoint = QueuePairEndpoint::from_bytes(&answer[10..]).unwrap();
            let mut channel = prepared.handshake(endpoint).unwrap();
            // Whether it arrives is up to the device.
            let sent = channel.send_inline(b"let me in");
            assert!(matches!(sent, Ok(()) | Err(TransportError::Timeout { .. })), "{sent:?}");
            assert_quiet(&mut server);
        }
        let (peer, mut client) = join(device, &mut server);
        client.send_inline(b"good").unwrap();
        let (from, buffer, length) = message(&mut server);
        assert_eq!((from, &buffer[..length]), (peer, b"good".as_slice()));
    }
}
