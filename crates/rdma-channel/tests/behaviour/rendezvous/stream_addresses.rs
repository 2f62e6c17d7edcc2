//! The endpoints that two ends exchange name the addresses of the stream: by these both choose their GIDs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use rdma_channel::prelude::*;

use super::{LOCALHOST, PREFACE, WITH_ENDPOINT, domain, hello, listener};

/// The addresses in a message with an endpoint, if it has some: this end's, the peer's.
fn addresses_in(message: &[u8]) -> Option<[String; 2]> {
    let endpoint = &message[PREFACE..WITH_ENDPOINT];
    let addresses = endpoint.len() - 32;
    (endpoint[20] & 2 != 0).then(|| {
        [0, 16].map(|at| {
            let gid: [u8; 16] = endpoint[addresses + at..][..16].try_into().unwrap();
            std::net::Ipv6Addr::from(gid).to_canonical().to_string()
        })
    })
}

#[test]
fn a_client_names_the_addresses_of_its_stream() {
    let server = TcpListener::bind(LOCALHOST).unwrap();
    let address = server.local_addr().unwrap();
    thread::scope(|threads| {
        threads.spawn(move || domain("soft0").create_channel().connect(address).unwrap_err());
        let mut message = [0; WITH_ENDPOINT];
        server.accept().unwrap().0.read_exact(&mut message).unwrap();
        assert_eq!(addresses_in(&message).unwrap(), ["127.0.0.1", "127.0.0.1"]);
    });
}

#[test]
fn a_server_names_the_addresses_of_its_stream() {
    let mut listener = listener("soft0");
    let mut client = TcpStream::connect(listener.local_addr()).unwrap();
    client.write_all(&hello(b"")).unwrap();
    thread::scope(|threads| {
        threads.spawn(|| {
            let mut message = [0; WITH_ENDPOINT];
            client.read_exact(&mut message).unwrap();
            assert_eq!(addresses_in(&message).unwrap(), ["127.0.0.1", "127.0.0.1"]);
            // Ends the client, which the listener has waited for.
            drop(client);
        });
        while listener.refused() == 0 {
            let _ = listener.incoming(Some(std::time::Duration::from_millis(10)));
        }
    });
}
