//! A relay between the two ends of a control connection.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use test_support::crowd::ELSEWHERE;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Relays the stream of one client, and records its bytes.
pub(crate) struct Relay {
    /// The address for the client.
    pub(crate) address: SocketAddr,
    /// The bytes that the client and the server have sent.
    sent: [Arc<Mutex<Vec<u8>>>; 2],
}

impl Relay {
    /// A relay to the server at that address.
    pub(crate) async fn of(server: SocketAddr) -> Self {
        let relay = TcpListener::bind((ELSEWHERE, 0)).await.unwrap();
        let address = relay.local_addr().unwrap();
        let sent = <[Arc<Mutex<Vec<u8>>>; 2]>::default();
        let [by_client, by_server] = sent.clone();
        tokio::spawn(async move {
            let (from_client, to_client) = relay.accept().await.unwrap().0.into_split();
            let server = TcpStream::connect(server).await.unwrap();
            let (from_server, to_server) = server.into_split();
            tokio::select! {
                () = copy(from_client, to_server, &by_client) => {}
                () = copy(from_server, to_client, &by_server) => {}
            }
        });
        Self { address, sent }
    }

    /// Returns the bytes that the client has sent, and those that the server has sent.
    pub(crate) fn bytes(&self) -> [Vec<u8>; 2] {
        self.sent.each_ref().map(|sent| sent.lock().unwrap().clone())
    }
}

/// Copies until either end has closed its stream.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    sent: &Mutex<Vec<u8>>,
) {
    let mut block = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut block).await {
        let block = &block[..count];
        sent.lock().unwrap().extend_from_slice(block);
        if to.write_all(block).await.is_err() {
            return;
        }
    }
}
