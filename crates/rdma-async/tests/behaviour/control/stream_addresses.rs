//! The endpoints that two ends exchange contain the addresses of the stream. Both ends choose their GIDs by them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use rdma_qp::prelude::*;
use test_support::crowd::ELSEWHERE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::common::peer::ENDPOINT;
use crate::control::{Host, run};

/// The addresses in a message with an endpoint: this end's, the peer's.
async fn addresses_in(stream: &mut TcpStream) -> [String; 2] {
    let mut message = [0; 10 + ENDPOINT];
    stream.read_exact(&mut message).await.unwrap();
    let addresses = message.last_chunk::<32>().unwrap();
    let (addresses, _) = addresses.as_chunks::<16>();
    [0, 1].map(|end| Ipv6Addr::from(addresses[end]).to_canonical().to_string())
}

#[test]
fn a_client_names_the_addresses_of_its_stream() {
    run(|| async {
        let host = Host::new("soft0");
        let server = TcpListener::bind((ELSEWHERE, 0)).await.unwrap();
        let connect = host.driver.connect(server.local_addr().unwrap(), host.options());
        // The stream ends with this.
        let hear = async { addresses_in(&mut server.accept().await.unwrap().0).await };
        let (failed, addresses) = tokio::join!(connect, hear);
        failed.unwrap_err();
        assert_eq!(addresses, ["127.0.0.1", "127.0.0.2"]);
    });
}

#[test]
fn a_listener_names_the_addresses_of_its_streams() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((ELSEWHERE, 0))).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        let own = host.driver.prepare(host.pd.create_qp()).unwrap();
        let hello = [b"RDRV\0\x02\x03\x01\0\0".as_slice(), &own.endpoint().to_bytes()].concat();
        stream.write_all(&hello).await.unwrap();
        let addresses = tokio::select! {
            served = listener.accept() => panic!("{served:?}"),
            addresses = addresses_in(&mut stream) => addresses,
        };
        assert_eq!(addresses, ["127.0.0.1", "127.0.0.2"]);
    });
}

/// Relays the stream of one client, and returns the address for it and the bytes that it sends.
async fn relay(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let relay = TcpListener::bind((ELSEWHERE, 0)).await.unwrap();
    let address = relay.local_addr().unwrap();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let bytes = Arc::clone(&sent);
    tokio::spawn(async move {
        let (mut from_client, mut to_client) = relay.accept().await.unwrap().0.into_split();
        let server = TcpStream::connect(to).await.unwrap();
        let (mut from_server, mut to_server) = server.into_split();
        let up = async {
            let mut block = [0; 4096];
            loop {
                let count = from_client.read(&mut block).await.unwrap();
                let block = &block[..count];
                bytes.lock().unwrap().extend_from_slice(block);
                if count == 0 || to_server.write_all(block).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = up => {}
            _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
        }
    });
    (address, sent)
}

#[test]
fn further_queue_pairs_name_the_addresses_of_the_first_stream() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        let (relayed, sent) = relay(address).await;
        let connect = host.driver.connect(relayed, host.options());
        let (client, server) = tokio::join!(connect, listener.accept());
        let ((client, _), server) = (client.unwrap(), server.unwrap());

        let named = [Ipv4Addr::LOCALHOST, ELSEWHERE].map(|at| at.to_ipv6_mapped().octets());
        let named = named.as_flattened();
        let endpoints = || {
            let sent = sent.lock().unwrap();
            sent.windows(named.len()).filter(|bytes| *bytes == named).count()
        };
        assert_eq!(endpoints(), 1);
        let (further, theirs) = tokio::join!(
            client.connect_additional(7, host.pd.create_qp()),
            server.connect_additional(7, host.pd.create_qp())
        );
        assert_eq!(endpoints(), 2);
        let again = tokio::join!(client.reconnect(), server.reconnect());
        again.0.unwrap();
        again.1.unwrap();
        assert_eq!(endpoints(), 3);
        drop((further.unwrap(), theirs.unwrap()));
    });
}
