//! Connections by an address: how they begin, and how one end notices that the other is gone.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod again;
mod bad_clients;
mod bad_peers;
#[path = "../common/mod.rs"]
mod common;
mod ends;
mod graceful;
mod meeting;

use std::net::SocketAddr;
use std::time::Duration;

use rdma_async::{Connection, ConnectionOptions, Driver, Listener};
use rdma_mem::{Buffer, BufferPool, ProtectionDomain};
use rdma_qp::prelude::*;

use common::{HANG, WIRE, domain, run};

const DEVICES: [&str; 3] = ["soft0", "softib0", WIRE];
/// What a client has that is late on purpose.
const SHORT: Duration = Duration::from_millis(100);

/// What both ends have.
struct Host {
    pd: ProtectionDomain,
    driver: Driver,
    pool: BufferPool,
}

impl Host {
    fn new(device: &str) -> Self {
        let pd = domain(device);
        let driver = Driver::spawn(pd.context()).unwrap();
        let pool = BufferPool::new(&pd);
        Self { pd, driver, pool }
    }

    fn options(&self) -> ConnectionOptions {
        ConnectionOptions::new(&self.pd)
    }

    async fn listen(&self) -> (Listener, SocketAddr) {
        let listener = self.driver.listen("127.0.0.1:0", self.options()).await.unwrap();
        let address = listener.local_addr();
        (listener, address)
    }

    /// Both ends of a connection.
    async fn pair(&self) -> (Connection, Connection) {
        let (listener, address) = self.listen().await;
        let (client, server) =
            tokio::join!(self.driver.connect(address, self.options()), listener.accept());
        (client.unwrap().0, server.unwrap())
    }

    /// The same without a control connection.
    fn pair_by_hand(&self) -> (Connection, Connection) {
        let prepare = || self.driver.prepare(self.pd.create_qp()).unwrap();
        let (one, other) = (prepare(), prepare());
        let (at_one, at_other) = (one.endpoint(), other.endpoint());
        (one.handshake(at_other).unwrap(), other.handshake(at_one).unwrap())
    }

    fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.allocate(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Sends a message from one to the other.
    async fn talk(&self, from: &Connection, to: &Connection, text: &[u8]) {
        let receive = to.receive(self.pool.allocate(64).unwrap()).post().await.unwrap();
        from.send(self.buffer(text)).await.unwrap();
        let received = receive.await.unwrap();
        assert_eq!(&received.memory[..received.length], text);
    }
}
