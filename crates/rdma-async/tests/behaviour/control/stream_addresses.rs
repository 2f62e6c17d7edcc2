//! The endpoints that two ends exchange contain the addresses of the stream. Both ends choose their GIDs by them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use rdma_qp::prelude::*;
use test_support::crowd::ELSEWHERE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::common::peer::ENDPOINT;
use crate::common::relay::Relay;
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

#[test]
fn further_queue_pairs_name_the_addresses_of_the_first_stream() {
    run(|| async {
        let host = Host::new("soft0");
        let (listener, address) = host.listen().await;
        let relay = Relay::of(address).await;
        let connect = host.driver.connect(relay.address, host.options());
        let (client, server) = tokio::join!(connect, listener.accept());
        let ((client, _), server) = (client.unwrap(), server.unwrap());

        let named = [Ipv4Addr::LOCALHOST, ELSEWHERE].map(|at| at.to_ipv6_mapped().octets());
        let named = named.as_flattened();
        let endpoints = || {
            let [sent, _] = relay.bytes();
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
