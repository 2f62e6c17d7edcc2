//! Clients that a server accepts.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use rdma_async::message::{Options, StreamListener};
use rdma_async::{ConnectError, Endpoint};
use tokio::net::ToSocketAddrs;
use tokio::time::sleep;

use crate::stream::HttpStream;

/// The time between an error of this end and the next attempt to accept a client.
const PAUSE: Duration = Duration::from_secs(1);

/// Accepts clients, for tonic's `serve_with_incoming`, for `axum::serve`, and for programs that use hyper itself.
///
/// An error of one client does not end the server, and a client that connects and stays silent does not delay others:
/// see [`Listener`](rdma_async::Listener). If this end has no memory or no descriptor left, an event of `tracing` reports
/// it, and the next attempt follows after a second. Therefore accepting never fails, and as a
/// [`Stream`](futures_core::Stream), this has no end.
///
/// Dropping it turns away the clients that have not been accepted; accepted connections continue.
///
/// # Examples
/// See the [crate](crate).
pub struct Incoming {
    listener: Arc<StreamListener>,
    accepting: Option<Accepting>,
}

/// The future that accepts the next client. It is kept when a program no longer waits.
type Accepting = Pin<Box<dyn Future<Output = (HttpStream, SocketAddr)> + Send>>;

impl Incoming {
    /// Listens for clients at this address. For port 0, the kernel chooses a port. All connections get these options.
    ///
    /// # Errors
    /// Same errors as [`Endpoint::listen_for_streams`].
    ///
    /// # Panics
    /// If this is not called within a tokio runtime with I/O and time.
    pub async fn bind(
        endpoint: &Endpoint,
        addr: impl ToSocketAddrs,
        options: Options,
    ) -> Result<Self, ConnectError> {
        Ok(endpoint.listen_for_streams(addr, options).await?.into())
    }

    /// Waits for the next client, and returns its stream and the address of its control connection.
    ///
    /// Cancel safe: dropping the future early loses no client.
    pub async fn accept(&mut self) -> (HttpStream, SocketAddr) {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Same as [`accept`](Self::accept), for `poll` functions.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<(HttpStream, SocketAddr)> {
        let listener = &self.listener;
        let accepting =
            self.accepting.get_or_insert_with(|| Box::pin(accept(Arc::clone(listener))));
        let accepted = accepting.as_mut().poll(cx);
        if accepted.is_ready() {
            self.accepting = None;
        }
        accepted
    }

    /// Returns the address at which the server listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }
}

/// Accepts a client.
async fn accept(listener: Arc<StreamListener>) -> (HttpStream, SocketAddr) {
    loop {
        let error = match listener.accept().await.map(HttpStream::from) {
            Ok(stream) => match stream.peer_addr() {
                Ok(address) => return (stream, address),
                Err(source) => {
                    ConnectError::Io { tried: "finding the client's address".to_owned(), source }
                }
            },
            Err(error) => error,
        };
        tracing::warn!(%error, address = %listener.local_addr(), "a client could not be accepted");
        // Other errors have consumed a client, so the next attempt waits for the next one.
        if matches!(error, ConnectError::Io { .. }) {
            sleep(PAUSE).await;
        }
    }
}

impl From<StreamListener> for Incoming {
    fn from(listener: StreamListener) -> Self {
        Self { listener: Arc::new(listener), accepting: None }
    }
}

impl Stream for Incoming {
    type Item = io::Result<HttpStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_accept(cx).map(|(stream, _)| Some(Ok(stream)))
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Incoming").field(&self.listener).finish()
    }
}

#[cfg(feature = "axum")]
impl axum::serve::Listener for Incoming {
    type Io = HttpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (HttpStream, SocketAddr) {
        self.accept().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local_addr())
    }
}

/// The address of a client's control connection, for `into_make_service_with_connect_info` of axum.
///
/// # Examples
/// ```
/// use axum::{Router, extract::ConnectInfo, routing::get};
/// use rdma_tonic::PeerAddress;
///
/// async fn whoami(ConnectInfo(PeerAddress(address)): ConnectInfo<PeerAddress>) -> String {
///     address.to_string()
/// }
///
/// let routes: Router = Router::new().route("/", get(whoami));
/// let service = routes.into_make_service_with_connect_info::<PeerAddress>();
/// # drop(service);
/// ```
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

#[cfg(feature = "axum")]
impl axum::extract::connect_info::Connected<axum::serve::IncomingStream<'_, Incoming>>
    for PeerAddress
{
    fn connect_info(stream: axum::serve::IncomingStream<'_, Incoming>) -> Self {
        Self(*stream.remote_addr())
    }
}
