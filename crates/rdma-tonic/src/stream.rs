//! The streams on which HTTP runs.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use rdma_async::message::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A [`Stream`] with the traits that servers and clients of HTTP need.
///
/// Its waits can be dropped like those of a [`Stream`]. A `shutdown` that is dropped after its first poll still ends this
/// end's stream.
///
/// With the feature `tonic`, each request of a connection has a `TcpConnectInfo` with the peer's address, so that
/// `Request::remote_addr` returns it.
#[derive(Debug)]
pub struct HttpStream(Stream);

impl HttpStream {
    /// Returns the address of the peer's control connection.
    ///
    /// # Errors
    /// Same errors as [`Stream::peer_addr`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// Returns the stream.
    #[must_use]
    pub fn into_inner(self) -> Stream {
        self.0
    }
}

impl From<Stream> for HttpStream {
    fn from(stream: Stream) -> Self {
        Self(stream)
    }
}

impl AsyncRead for HttpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for HttpStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(feature = "client")]
impl hyper_util::client::legacy::connect::Connection for HttpStream {
    fn connected(&self) -> hyper_util::client::legacy::connect::Connected {
        hyper_util::client::legacy::connect::Connected::new()
    }
}

#[cfg(feature = "tonic")]
impl tonic::transport::server::Connected for HttpStream {
    type ConnectInfo = tonic::transport::server::TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        Self::ConnectInfo { local_addr: None, remote_addr: self.peer_addr().ok() }
    }
}
