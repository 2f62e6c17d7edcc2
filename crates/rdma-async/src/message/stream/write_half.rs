//! The half of a stream that writes.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rdma_connect::messaging::StreamState;
use tokio::io::AsyncWrite;
use tokio::task::coop::poll_proceed;

use crate::message::session::Session;

/// The half of a [`Stream`](crate::message::Stream) that writes, created by [`Stream::into_split`](crate::message::Stream::into_split).
///
/// Dropping it ends this end's stream, like `shutdown` without waiting.
#[derive(Debug)]
pub struct WriteHalf {
    session: Arc<Session<StreamState>>,
}

impl WriteHalf {
    pub(super) const fn new(session: Arc<Session<StreamState>>) -> Self {
        Self { session }
    }

    pub(super) const fn session(&self) -> &Arc<Session<StreamState>> {
        &self.session
    }

    /// Returns the address of the peer's control connection.
    ///
    /// # Errors
    /// Same errors as [`Stream::peer_addr`](crate::message::Stream::peer_addr).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.session.peer_addr()
    }
}

/// A write accepts bytes only if they are posted at once. So `flush` has nothing to do.
impl AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(poll_proceed(cx));
        let written = ready!(self.session.poll_write(cx, bufs));
        budget.made_progress();
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.poll_with(cx, |state, waker| {
            state.protocol.finish();
            state.protocol.poll_flushed(waker)
        })
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        if self.session.is_of_this_process() {
            self.session.with(|state| state.protocol.finish());
            self.session.linger().leave(&self.session);
        }
    }
}
