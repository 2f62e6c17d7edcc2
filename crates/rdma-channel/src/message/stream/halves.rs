//! The halves of a stream.

use std::io::{self, BufRead, IoSlice, Read, Write};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Poll, ready};

use rdma_connect::Operation;
use rdma_connect::messaging::{Arrived, Requests as _, StreamState, WriteCursor, chunk_bytes};

use super::chunk::{Chunk, release};
use crate::message::session::{Session, State};

/// The half of a [`Stream`](super::Stream) that reads, created by [`Stream::into_split`](super::Stream::into_split).
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
    /// stream. If the time limit expires, no bytes are lost, and the next call returns them.
    ///
    /// # Errors
    /// Same errors as reading.
    pub fn read_chunk(&mut self) -> io::Result<Option<Chunk>> {
        self.fill()?;
        let start = mem::take(&mut self.start);
        let chunk = |arrived| Chunk::new(Arc::clone(&self.session), arrived, start);
        Ok(self.current.take().map(chunk))
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// Same errors as [`Stream::peer_addr`](super::Stream::peer_addr).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.session.peer_addr()
    }

    fn rest(&self) -> &[u8] {
        let bytes = self.current.as_ref().map_or(&[][..], chunk_bytes);
        bytes.get(self.start..).unwrap_or_default()
    }

    /// Waits for the next chunk if all bytes of the current one were read.
    fn fill(&mut self) -> io::Result<()> {
        if self.rest().is_empty() {
            let next = |state: &mut State<StreamState>| state.protocol.poll_next(&mut None);
            self.current = self.session.wait(Operation::Receive, next)??;
            self.start = 0;
        }
        Ok(())
    }
}

impl Read for ReadHalf {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let count = self.fill_buf()?.read(buf)?;
        self.consume(count);
        Ok(count)
    }
}

/// A chunk is released with its last byte, because the program may read again only after the peer has used the memory.
impl BufRead for ReadHalf {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill()?;
        Ok(self.rest())
    }

    fn consume(&mut self, amt: usize) {
        self.start += amt.min(self.rest().len());
        if self.rest().is_empty()
            && let Some(spent) = self.current.take()
        {
            release(&self.session, spent);
        }
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        if let Some(arrived) = self.current.take() {
            release(&self.session, arrived);
        }
        if self.session.is_of_this_process() {
            self.session.with(|State { protocol, requests, .. }| protocol.stop(requests));
            self.session.leave();
        }
    }
}

/// The half of a [`Stream`](super::Stream) that writes, created by [`Stream::into_split`](super::Stream::into_split).
///
/// Dropping it ends this end's stream, like [`shutdown`](Self::shutdown) without waiting.
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

    /// Ends this end's stream, and waits until the peer's device has received all of it. If the time limit expires, the
    /// stream has ended nevertheless, and later calls send the rest.
    ///
    /// # Errors
    /// Same errors as reading, if the connection has ended before.
    pub fn shutdown(&mut self) -> io::Result<()> {
        self.session.wait(Operation::Send, |state| {
            state.protocol.finish();
            state.protocol.poll_flushed(&mut None)
        })?
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// Same errors as [`Stream::peer_addr`](super::Stream::peer_addr).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.session.peer_addr()
    }
}

/// A write accepts bytes only if they are posted at once. So `flush` has nothing to do.
impl Write for WriteHalf {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut write = WriteCursor::new(bufs);
        self.session.wait(Operation::Send, |state| {
            let State { protocol, requests, .. } = state;
            while let Some(frame) = ready!(protocol.poll_frame(&write, &mut None, requests))? {
                let (slot, buffer, length) = frame.fill(&mut write);
                requests.send(slot, buffer, length, None);
                protocol.posted();
            }
            if protocol.must_poll() {
                state.poll();
            }
            Poll::Ready(Ok(write.written()))
        })?
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        if self.session.is_of_this_process() {
            self.session.with(|state| state.protocol.finish());
            self.session.leave();
        }
    }
}
