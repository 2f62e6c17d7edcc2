//! Connections by address for streams and messages. Each end posts its receives before the other end can send.

use std::io;
use std::net::SocketAddr;

use rdma_connect::ConnectError;
use rdma_connect::messaging::{Options, Slots, check_limits};
use tokio::net::ToSocketAddrs;

use super::requests::allocate;
use super::session::{close, is_of_this_process};
use crate::buffer::pool::Pool;
use crate::connection::Connection;
use crate::control::endpoint::Endpoint;
use crate::control::listener::Listener;
use crate::control::options::ConnectionOptions;

/// A listener whose clients carry streams or messages.
#[derive(Debug)]
pub(super) struct MessageListener {
    listener: Listener,
    pool: Pool,
    options: Options,
    /// The bytes that each client is sent.
    user_bytes: Box<[u8]>,
}

impl MessageListener {
    /// Waits for a client and accepts it. `prepare` posts the receives, and `start` sends the first frame.
    ///
    /// # Errors
    /// If the listener fails, or memory cannot be allocated.
    pub(super) async fn accept<T>(
        &self,
        prepare: impl Fn(Connection, Slots, &Pool, &Options) -> io::Result<T>,
        start: impl Fn(&T),
    ) -> Result<T, ConnectError> {
        let Self { listener, pool, options, user_bytes } = self;
        loop {
            let memory = allocate(pool, options).await.map_err(failed)?;
            let incoming = listener.incoming().await?;
            // From now on nothing waits, so that no client is lost.
            let connection = incoming.connection().clone();
            let end = Unstarted::new(connection, |end| prepare(end, memory, pool, options))?;
            match incoming.accept(user_bytes) {
                Ok(_) => return Ok(end.start(start)),
                Err(ConnectError::Closed { .. } | ConnectError::Garbled { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.listener.has_ended()
    }

    pub(super) const fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }
}

/// Listens for clients.
pub(super) async fn listen(
    endpoint: &Endpoint,
    addr: impl ToSocketAddrs,
    options: Options,
) -> Result<MessageListener, ConnectError> {
    let of_connection = fit(endpoint, &options)?;
    let user_bytes = of_connection.user_bytes.clone();
    let listener = endpoint.driver().listen(addr, of_connection).await?;
    Ok(MessageListener { listener, pool: endpoint.pool().clone(), options, user_bytes })
}

/// Connects to a listener. `prepare` posts the receives, and `start` sends the first frame.
pub(super) async fn connect<T>(
    endpoint: &Endpoint,
    addr: impl ToSocketAddrs,
    options: Options,
    prepare: impl FnOnce(Connection, Slots, &Pool, &Options) -> io::Result<T>,
    start: impl FnOnce(&T),
) -> Result<T, ConnectError> {
    let of_connection = fit(endpoint, &options)?;
    let memory = allocate(endpoint.pool(), &options).await.map_err(failed)?;
    let ready = |connection: &Connection| {
        let prepare = |end| prepare(end, memory, endpoint.pool(), &options);
        Unstarted::new(connection.clone(), prepare)
    };
    let (_, _, end) = endpoint.driver().connect_ready(addr, of_connection, ready).await?;
    Ok(end.start(start))
}

/// An end whose peer may not have accepted the connection. Dropping this closes the connection without lingering.
struct Unstarted<T> {
    /// `None` once it has started.
    end: Option<T>,
    connection: Connection,
}

impl<T> Unstarted<T> {
    fn new(
        connection: Connection,
        prepare: impl FnOnce(Connection) -> io::Result<T>,
    ) -> Result<Self, ConnectError> {
        let end = Some(prepare(connection.clone()).map_err(failed)?);
        Ok(Self { end, connection })
    }

    /// Returns the end after calling `start`.
    fn start(mut self, start: impl FnOnce(&T)) -> T {
        let Some(end) = self.end.take() else { unreachable!("it starts once") };
        start(&end);
        end
    }
}

impl<T> Drop for Unstarted<T> {
    fn drop(&mut self) {
        if self.end.is_some() && is_of_this_process(&self.connection) {
            close(&self.connection);
        }
    }
}

/// Returns the options of the endpoint's connections, with queues that fit.
fn fit(endpoint: &Endpoint, options: &Options) -> Result<ConnectionOptions, ConnectError> {
    check_limits(options).map_err(failed)?;
    let mut all = endpoint.options().clone();
    all.qp = options.fit(all.qp);
    Ok(all)
}

fn failed(source: io::Error) -> ConnectError {
    ConnectError::Io { tried: "preparing a connection for messages".to_owned(), source }
}
