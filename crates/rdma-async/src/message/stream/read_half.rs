//! The half of a stream that reads.

use std::future::poll_fn;
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rdma_connect::messaging::{Arrived, StreamState, chunk_bytes};
use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};
use tokio::task::coop::poll_proceed;

use super::chunk::Chunk;
use crate::message::session::Session;

/// The half of a [`Stream`](crate::message::Stream) that reads, created by [`Stream::into_split`](crate::message::Stream::into_split).
///
/// Dropping it discards what the peer has sent and will send. The peer's writes then fail with `BrokenPipe`.
#[derive(Debug)]
pub struct ReadHalf {
    session: Arc<Session<StreamState>>,
    /// The chunk that is being read.
    current: Option<Arrived>,
    /// The number of its bytes that were read.
    start: usize,
}

impl ReadHalf {
    pub(super) const fn new(session: Arc<Session<StreamState>>) -> Self {
        Self { session, current: None, start: 0 }
    }

    /// Waits for the next bytes, and returns them in the memory where they arrived. `None` is the end of the peer's
    /// stream.
    ///
    /// Cancel safe: dropping the future early loses no bytes.
    ///
    /// # Errors
    /// Same errors as reading.
    pub async fn read_chunk(&mut self) -> io::Result<Option<Chunk>> {
        poll_fn(|cx| self.poll_read_chunk(cx)).await
    }

    /// Same as [`read_chunk`](Self::read_chunk), for `poll` functions.
    ///
    /// # Errors
    /// Same errors as reading.
    pub fn poll_read_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Chunk>>> {
        if !ready!(self.poll_current(cx))? {
            return Poll::Ready(Ok(None));
        }
        let session = Arc::clone(&self.session);
        let start = std::mem::take(&mut self.start);
        Poll::Ready(Ok(self.current.take().map(|arrived| Chunk::new(session, arrived, start))))
    }

    /// Returns the address of the peer's control connection.
    ///
    /// # Errors
    /// Same errors as [`Stream::peer_addr`](crate::message::Stream::peer_addr).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.session.peer_addr()
    }

    fn rest(&self) -> &[u8] {
        let bytes = self.current.as_ref().map_or(&[][..], chunk_bytes);
        bytes.get(self.start..).unwrap_or_default()
    }

    /// Removes bytes that were read. Releases a chunk with its last byte, because the program may read again only after
    /// the peer has used the memory.
    fn spend(&mut self, count: usize) {
        self.start += count;
        if self.rest().is_empty()
            && let Some(spent) = self.current.take()
        {
            self.session.with(|state| state.release(spent));
        }
    }

    /// Ready with true when there are bytes to read, and with false at the end of the stream.
    fn poll_current(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if !self.rest().is_empty() {
            return Poll::Ready(Ok(true));
        }
        // Without a budget, a task whose bytes have always arrived would starve other tasks.
        let budget = ready!(poll_proceed(cx));
        let Self { session, current, start, .. } = self;
        let next = session.poll_with(cx, |state, waker| state.protocol.poll_next(waker));
        *current = ready!(next)?;
        *start = 0;
        budget.made_progress();
        Poll::Ready(Ok(current.is_some()))
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() > 0 && ready!(self.poll_current(cx))? {
            let bytes = self.rest();
            let count = bytes.len().min(buf.remaining());
            buf.put_slice(bytes.get(..count).unwrap_or_default());
            self.spend(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for ReadHalf {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        ready!(this.poll_current(cx))?;
        Poll::Ready(Ok(this.rest()))
    }

    fn consume(mut self: Pin<&mut Self>, amt: usize) {
        let count = amt.min(self.rest().len());
        self.spend(count);
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        if !self.session.is_of_this_process() {
            // A forked child owns none of this.
            let _ = ManuallyDrop::new(self.current.take());
            return;
        }
        let current = self.current.take();
        self.session.with(|state| {
            if let Some(arrived) = current {
                state.release(arrived);
            }
            state.stop();
        });
        self.session.linger().leave(&self.session);
    }
}
