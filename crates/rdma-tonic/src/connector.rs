//! Clients' connections.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use http::uri::Scheme;
use hyper_util::rt::TokioIo;
use rdma_async::message::Options;
use rdma_async::{ConnectError, Endpoint};
use tower_service::Service;

use crate::stream::HttpStream;

/// Connects to the host and port of a URI. The server there has an [`Incoming`](crate::Incoming).
///
/// The connector does not use the scheme and the path of the URI. If the URI has no port, it uses port 80, or 443 for
/// `https`.
///
/// # Examples
/// See the [crate](crate) for clients of tonic and of hyper-util. A client of hyper calls the connector itself:
///
/// ```
/// use http_body_util::Empty;
/// use rdma_async::{Endpoint, message::Options};
/// use rdma_tonic::{Connector, Incoming, TokioIo};
/// use tower_service::Service as _;
///
/// # rdma_soft::install();
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let endpoint = Endpoint::new(&rdma_mem::open_device("soft0")?)?;
/// let mut incoming = Incoming::bind(&endpoint, "127.0.0.1:0", Options::new()).await?;
/// let uri: http::Uri = format!("http://{}", incoming.local_addr()).parse()?;
/// let mut connector = Connector::new(&endpoint, Options::new());
/// let (io, accepted) = tokio::join!(connector.call(uri), incoming.accept());
/// let (sender, connection) = hyper::client::conn::http1::handshake::<_, Empty<&[u8]>>(io?).await?;
/// # drop((sender, connection, accepted?, TokioIo::new(())));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(()) }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Connector {
    endpoint: Endpoint,
    options: Options,
}

impl Connector {
    /// Creates a connector. All its connections get these options.
    #[must_use]
    pub fn new(endpoint: &Endpoint, options: Options) -> Self {
        Self { endpoint: endpoint.clone(), options }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<HttpStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    /// Connects. If the future is dropped early, nothing remains at this end, but the server may have accepted the
    /// connection, which then ends.
    ///
    /// # Errors
    /// [`ConnectError::NoAddress`] if the URI has no host. Otherwise the same errors as
    /// [`Endpoint::connect_stream`](rdma_async::Endpoint::connect_stream).
    ///
    /// # Panics
    /// If the future is not polled within a tokio runtime with I/O and time.
    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { endpoint, options } = self.clone();
        Box::pin(async move {
            let stream = endpoint.connect_stream(address(&uri)?, options).await?;
            Ok(TokioIo::new(HttpStream::from(stream)))
        })
    }
}

/// Returns the host and the port.
fn address(uri: &Uri) -> Result<(&str, u16), ConnectError> {
    let host = uri.host().ok_or(ConnectError::NoAddress)?;
    // An IPv6 address has brackets in a URI.
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let default = if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
    Ok((bare.unwrap_or(host), uri.port_u16().unwrap_or(default)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_of_all_kinds_have_an_address() {
        for (uri, host, port) in [
            ("http://192.0.2.1:7471", "192.0.2.1", 7471),
            ("http://[2001:db8::1]:7471/path", "2001:db8::1", 7471),
            ("http://server.example", "server.example", 80),
            ("https://server.example/", "server.example", 443),
            ("server.example:7471", "server.example", 7471),
        ] {
            assert_eq!(address(&Uri::from_static(uri)).unwrap(), (host, port), "{uri}");
        }
        let error = address(&Uri::from_static("/path")).unwrap_err();
        assert!(matches!(error, ConnectError::NoAddress), "{error}");
    }
}
