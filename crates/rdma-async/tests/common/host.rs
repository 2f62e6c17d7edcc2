//! Both ends of a connection that is made by an address.

use std::net::SocketAddr;
use std::time::Duration;

use rdma_async::{Connection, ConnectionOptions, Driver, Listener};
use rdma_mem::{Buffer, BufferPool, ProtectionDomain};
use rdma_qp::prelude::*;

use super::domain;

/// The time limit of a client that is late on purpose.
pub(crate) const SHORT: Duration = Duration::from_millis(100);

/// The objects that both ends use.
pub(crate) struct Host {
    pub(crate) pd: ProtectionDomain,
    pub(crate) driver: Driver,
    pub(crate) pool: BufferPool,
}

impl Host {
    pub(crate) fn new(device: &str) -> Self {
        Self::with(domain(device))
    }

    pub(crate) fn with(pd: ProtectionDomain) -> Self {
        let driver = Driver::spawn(pd.context()).unwrap();
        let pool = BufferPool::new(&pd);
        Self { pd, driver, pool }
    }

    pub(crate) fn options(&self) -> ConnectionOptions {
        ConnectionOptions::new(&self.pd)
    }

    pub(crate) async fn listen(&self) -> (Listener, SocketAddr) {
        let listener = self.driver.listen("127.0.0.1:0", self.options()).await.unwrap();
        let address = listener.local_addr();
        (listener, address)
    }

    /// Both ends of a connection.
    pub(crate) async fn pair(&self) -> (Connection, Connection) {
        let (listener, address) = self.listen().await;
        let connect = self.driver.connect(address, self.options());
        let ((client, _), server) = tokio::try_join!(connect, listener.accept()).unwrap();
        (client, server)
    }

    /// Both ends of a connection without a control connection.
    pub(crate) fn pair_by_hand(&self) -> (Connection, Connection) {
        let prepare = || self.driver.prepare(self.pd.create_qp()).unwrap();
        let (one, other) = (prepare(), prepare());
        let (at_one, at_other) = (one.endpoint(), other.endpoint());
        (one.handshake(at_other).unwrap(), other.handshake(at_one).unwrap())
    }

    pub(crate) fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.allocate(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Sends a message from one to the other.
    pub(crate) async fn talk(&self, from: &Connection, to: &Connection, text: &[u8]) {
        let receive = to.receive(self.pool.allocate(64).unwrap()).post().await.unwrap();
        from.send(self.buffer(text)).await.unwrap();
        let received = receive.await.unwrap();
        assert_eq!(&received.memory[..received.length], text);
    }
}
