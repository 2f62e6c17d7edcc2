//! Connections by address for streams and messages.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use rdma_connect::ConnectError;
use rdma_connect::messaging::{Options, check_limits, depths_of};
use rdma_mem::BufferPool;

use crate::channel::Channel;
use crate::channel::builder::ChannelBuilder;
use crate::rendezvous::builder::ByAddress;
use crate::rendezvous::listener::ChannelListener;

/// A listener whose clients carry streams or messages.
#[derive(Debug)]
pub(super) struct MessageListener {
    listener: ChannelListener,
    pool: BufferPool,
    options: Options,
}

impl MessageListener {
    /// Waits for a client and accepts it. `start` posts the receives, and sends the first frame.
    ///
    /// # Errors
    /// If the listener fails, or memory cannot be allocated.
    pub(super) fn accept<T>(
        &mut self,
        start: impl FnOnce(Channel, &BufferPool, Options) -> io::Result<T>,
    ) -> Result<T, ConnectError> {
        start(self.listener.accept()?, &self.pool, self.options).map_err(failed)
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }
}

/// Connects to a listener. `start` posts the receives, and sends the first frame.
pub(super) fn connect<T>(
    builder: ChannelBuilder<'_, impl ByAddress>,
    addr: impl ToSocketAddrs,
    pool: &BufferPool,
    options: Options,
    start: impl FnOnce(Channel, &BufferPool, Options) -> io::Result<T>,
) -> Result<T, ConnectError> {
    check_limits(&options).map_err(failed)?;
    let (channel, _) = builder.fit(&options).connect(addr)?;
    start(channel, pool, options).map_err(failed)
}

/// Listens for clients.
pub(super) fn listen(
    builder: ChannelBuilder<'_, impl ByAddress>,
    addr: impl ToSocketAddrs,
    pool: &BufferPool,
    options: Options,
) -> Result<MessageListener, ConnectError> {
    check_limits(&options).map_err(failed)?;
    let listener = builder.fit(&options).listen(addr)?;
    Ok(MessageListener { listener, pool: pool.clone(), options })
}

fn failed(source: io::Error) -> ConnectError {
    ConnectError::Io { tried: "preparing a connection for messages".to_owned(), source }
}

impl<C> ChannelBuilder<'_, C> {
    /// Prepares the channel for a [`Stream`](super::Stream) or [`Messages`](super::Messages) with these options. Sets the
    /// lengths of the queues, and lets the peer read memory that is lent to it.
    ///
    /// # Examples
    /// See [`Stream::new`](super::Stream::new).
    pub fn fit(self, options: &Options) -> Self {
        let [sends, receives] = depths_of(options);
        let access = self.options.qp.granted().with_remote_read();
        self.max_send_wr(sends).max_recv_wr(receives).access(access)
    }
}
