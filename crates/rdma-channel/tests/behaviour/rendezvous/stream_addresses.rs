//! The endpoints that two ends exchange contain the addresses of the stream, by which both choose their GIDs.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use rdma_channel::prelude::*;
use test_support::crowd::{ELSEWHERE, crowd};

use super::{LOCALHOST, PREFACE, WITH_ENDPOINT, domain, hello, listener};

/// The addresses in a message with an endpoint, if it has any: this end's and the peer's.
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
    let server = TcpListener::bind((ELSEWHERE, 0)).unwrap();
    let address = server.local_addr().unwrap();
    thread::scope(|threads| {
        threads.spawn(move || domain("soft0").create_channel().connect(address).unwrap_err());
        let mut message = [0; WITH_ENDPOINT];
        server.accept().unwrap().0.read_exact(&mut message).unwrap();
        assert_eq!(addresses_in(&message).unwrap(), ["127.0.0.1", "127.0.0.2"]);
    });
}

/// Returns the addresses that a listener sends to a client at another address, while `serve` runs the listener.
fn said_to_a_client(address: SocketAddr, mut serve: impl FnMut() -> u64) -> [String; 2] {
    let mut client = crowd(ELSEWHERE, address, 1, &hello(b"")).remove(0);
    client.set_nonblocking(false).unwrap();
    thread::scope(|threads| {
        let addresses = threads.spawn(move || {
            let mut message = [0; WITH_ENDPOINT];
            client.read_exact(&mut message).unwrap();
            // Here the client's end arrives, and the listener stops waiting.
            addresses_in(&message).unwrap()
        });
        while serve() == 0 {}
        addresses.join().unwrap()
    })
}

const A_MOMENT: Duration = Duration::from_millis(10);

#[test]
fn a_listener_names_the_addresses_of_its_stream() {
    let mut listener = listener("soft0");
    let addresses = said_to_a_client(listener.local_addr(), || {
        let _ = listener.incoming(Some(A_MOMENT));
        listener.refused()
    });
    assert_eq!(addresses, ["127.0.0.1", "127.0.0.2"]);
}

#[test]
fn a_server_of_several_clients_names_the_addresses_of_its_streams() {
    let mut server = domain("soft0").create_server().bind(LOCALHOST).unwrap();
    let addresses = said_to_a_client(server.local_addr(), || {
        let _ = server.next(Some(A_MOMENT));
        server.refused()
    });
    assert_eq!(addresses, ["127.0.0.1", "127.0.0.2"]);
}
