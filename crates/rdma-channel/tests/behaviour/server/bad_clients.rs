//! What others do at the address of a server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rdma_channel::{QueuePairEndpoint, prelude::*};

use crate::server::{SOON, assert_quiet, domain, join, message, server, server_with};

#[test]
fn garbage_silence_and_floods_disturb_nobody() {
    let mut server =
        server_with("soft0", |builder| builder.rendezvous_timeout(Duration::from_secs(2)));
    let (peer, mut client) = join("soft0", &mut server);
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
    let _ = join("soft0", &mut server);
    drop(silent);
}

/// It has a queue pair before the server has accepted it, and sends by that.
#[test]
fn a_client_that_was_not_accepted_is_not_heard() {
    let mut server = server("soft0");
    for _ in 0..3 {
        // The same steps as a client's, but the last.
        let prepared = domain("soft0").create_channel().max_inline_data(8).build().unwrap();
        let mut stream = TcpStream::connect(server.local_addr()).unwrap();
        let hello = [b"RDRV\0\x01\0\x01\0\0".as_slice(), &prepared.endpoint().to_bytes()].concat();
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
        for _ in 0..300 {
            channel.send_inline(b"let me in").unwrap_or_default();
        }
        assert_quiet(&mut server);
    }
    let (peer, mut client) = join("soft0", &mut server);
    client.send_inline(b"good").unwrap();
    let (from, buffer, length) = message(&mut server);
    assert_eq!((from, &buffer[..length]), (peer, b"good".as_slice()));
}
