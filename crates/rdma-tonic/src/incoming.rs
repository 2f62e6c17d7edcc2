//! Clients that a server accepts.

use std::fmt;
#[cfg(feature = "axum")]
use std::future::pending;
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
/// it, and the next attempt follows after a second. If the listener's task has ended, for example with its runtime, no
/// further client connects. As a [`Stream`](futures_core::Stream), this ends after that error. `axum::serve` cannot
/// return such an error. It then waits without end, and an event of `tracing` reports the error.
///
/// Dropping it turns away the clients that have not been accepted; accepted connections continue.
///
/// # Examples
/// See the [crate](crate).
pub struct Incoming {
    listener: Arc<StreamListener>,
    accepting: Option<Accepting>,
    /// Whether the error of the listener was returned, after which the stream ends.
    has_ended: bool,
}

/// A client with its address, or the error of a listener that has ended.
type Accepted = Result<(HttpStream, SocketAddr), ConnectError>;

/// The future that accepts the next client. It is kept when a program no longer waits.
type Accepting = Pin<Box<dyn Future<Output = Accepted> + Send>>;

impl Incoming {
    /// Listens for clients at this address. For port 0, the kernel chooses a port. All connections get these options.
    ///
    /// If the future is dropped early, no client has been able to connect.
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
    ///
    /// # Errors
    /// [`ConnectError::Io`] if the listener's task has ended, for example with its runtime.
    pub async fn accept(&mut self) -> Result<(HttpStream, SocketAddr), ConnectError> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Same as [`accept`](Self::accept), for `poll` functions.
    ///
    /// # Errors
    /// Same errors as [`accept`](Self::accept).
    pub fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(HttpStream, SocketAddr), ConnectError>> {
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
async fn accept(listener: Arc<StreamListener>) -> Accepted {
    loop {
        let error = match listener.accept().await.map(HttpStream::from) {
            Ok(stream) => match stream.peer_addr() {
                Ok(address) => return Ok((stream, address)),
                Err(source) => {
                    ConnectError::Io { tried: "finding the client's address".to_owned(), source }
                }
            },
            Err(error) => error,
        };
        if listener.has_ended() {
            return Err(error);
        }
        tracing::warn!(%error, address = %listener.local_addr(), "a client could not be accepted");
        // Other errors have consumed a client, so the next attempt waits for the next one.
        if matches!(error, ConnectError::Io { .. }) {
            sleep(PAUSE).await;
        }
    }
}

impl From<StreamListener> for Incoming {
    fn from(listener: StreamListener) -> Self {
        Self { listener: Arc::new(listener), accepting: None, has_ended: false }
    }
}

impl Stream for Incoming {
    type Item = io::Result<HttpStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        self.poll_accept(cx).map(|accepted| {
            self.has_ended = accepted.is_err();
            Some(accepted.map(|(stream, _)| stream).map_err(io::Error::other))
        })
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
        match self.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::error!(%error, "a server accepts no further clients");
                pending().await
            }
        }
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
