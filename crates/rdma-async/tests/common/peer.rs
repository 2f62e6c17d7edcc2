//! A hand-made peer, which can send any bytes after the handshake.

use std::io;
use std::net::SocketAddr;

use rdma_async::{Connection, ConnectionOptions, PreparedConnection};
use rdma_qp::QueuePairEndpoint;
use rdma_qp::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::HANG;
use super::host::Host;

/// A hand-made peer: its stream after the handshake, and its queue pair.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    pub(crate) connection: Connection,
}

pub(crate) const ENDPOINT: usize = QueuePairEndpoint::BYTES;

pub(crate) fn head(kind: u16, number: u32, epoch: u32) -> Vec<u8> {
    let length = if kind <= 2 { ENDPOINT } else { 0 };
    let length = u16::try_from(length).unwrap().to_be_bytes();
    [&kind.to_be_bytes()[..], &length, &number.to_be_bytes(), &epoch.to_be_bytes()].concat()
}

pub(crate) fn offer(number: u32, epoch: u32, endpoint: &QueuePairEndpoint) -> Vec<u8> {
    [head(1, number, epoch), endpoint.to_bytes().to_vec()].concat()
}

impl Peer {
    async fn connect(host: &Host, address: SocketAddr) -> io::Result<Self> {
        let prepared = host.driver.prepare(host.pd.create_qp().access(super::all())).unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        // Small, so that it is soon full if it is not read.
        socket.set_recv_buffer_size(1 << 12).unwrap();
        let mut stream = socket.connect(address).await?;
        // HELLO of an end that watches, and that sends frames.
        let hello = [b"RDRV\0\x02\x03\x01\0\0".as_slice(), &prepared.endpoint().to_bytes()];
        stream.write_all(&hello.concat()).await?;
        let mut answer = [0; 10 + ENDPOINT];
        stream.read_exact(&mut answer).await?;
        let connection = handshake(prepared, &answer[10..]);
        stream.write_all(b"RDRV\0\x02\0\x03\0\0").await?;
        let mut accept = [0; 10];
        stream.read_exact(&mut accept).await?;
        assert_eq!(&accept, b"RDRV\0\x02\x03\x04\0\0");
        Ok(Self { stream, connection })
    }

    pub(crate) async fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Receives a frame and its endpoint.
    pub(crate) async fn hear(&mut self) -> (u16, u32, Vec<u8>) {
        let mut head = [0; 12];
        self.stream.read_exact(&mut head).await.unwrap();
        let mut endpoint = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]]))];
        self.stream.read_exact(&mut endpoint).await.unwrap();
        let epoch = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
        (u16::from_be_bytes([head[0], head[1]]), epoch, endpoint)
    }
}

pub(crate) fn handshake(prepared: PreparedConnection, endpoint: &[u8]) -> Connection {
    prepared.handshake(QueuePairEndpoint::from_bytes(endpoint).unwrap()).unwrap()
}

/// A hand-made peer, and the server's end.
pub(crate) async fn pair(host: &Host) -> (Peer, Connection) {
    pair_with(host, host.options().rendezvous_timeout(HANG)).await
}

/// Like [`pair`], with these options. Connecting must fit into their time limit. On a busy machine, it may need several
/// attempts.
pub(crate) async fn pair_with(host: &Host, options: ConnectionOptions) -> (Peer, Connection) {
    let mut failed = 0;
    loop {
        let listener = host.driver.listen("127.0.0.1:0", options.clone()).await.unwrap();
        let accept = async { listener.accept().await.map_err(io::Error::other) };
        match tokio::try_join!(Peer::connect(host, listener.local_addr()), accept) {
            Ok(pair) => break pair,
            Err(error) => assert!(failed < 30, "{error}"),
        }
        failed += 1;
    }
}
