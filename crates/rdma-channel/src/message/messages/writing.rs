//! WRITEs to memory of the peer.

use std::fmt;
use std::ops::Range;

use rdma_connect::Operation;
use rdma_connect::messaging::{Mailbox, MessageError, Protocol};
use rdma_mem::{Buffer, RemoteMemoryRegion};
use rdma_message::ConnectionError;

use super::Messages;
use crate::message::requests::Requests;
use crate::message::session::{Session, State};

/// A WRITE to memory of the peer, created by [`Messages::write`].
///
/// If it is dropped before it was posted, nothing is written. Afterwards it continues, and its buffer then returns to the
/// pool. If it is forgotten (`mem::forget`) after that, it holds up all later WRITEs.
#[must_use = "nothing is written before `wait`"]
pub struct Writing<'m> {
    session: &'m Session<Mailbox>,
    /// `None` once it is posted.
    buffer: Option<Buffer>,
    part: Range<usize>,
    target: RemoteMemoryRegion,
    is_over: bool,
}

impl Messages {
    /// Returns a WRITE of a part of a buffer to memory of the peer, whose program has described the memory in a message.
    ///
    /// [`wait`](Writing::wait) posts it when the peer's device has received all messages of this end that were posted.
    /// Threads that send all the time can therefore hold it up. The peer is not notified. When it receives a message that
    /// was sent after the WRITE, the bytes have arrived.
    ///
    /// # Panics
    /// Panics if the part is not within the buffer, or its length differs from that of the target.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::message::Options;
    /// use rdma_channel::{AccessFlags, BufferPool, RemoteMemoryRegion, prelude::*};
    ///
    /// # rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let (pool, options) = (BufferPool::new(&pd), Options::new());
    /// let mut listener = pd.create_channel().listen_for_messages("127.0.0.1:0", &pool, options)?;
    /// let address = listener.local_addr();
    /// let client = pd.create_channel();
    /// let client = std::thread::scope(|threads| {
    ///     let client = threads.spawn(|| client.connect_messages(address, &pool, options));
    ///     let server = listener.accept()?;
    ///     client.join().unwrap().map(|client| (client, server))
    /// });
    /// let (client, server) = client?;
    ///
    /// let access = AccessFlags::new().with_local_write().with_remote_write();
    /// let landing = pd.allocate_shared_region(4096, access)?;
    /// server.post(&landing.remote().to_bytes())?;
    ///
    /// let described = client.receive()?.expect("a description");
    /// let target = RemoteMemoryRegion::from_bytes((&*described).try_into()?);
    /// let mut data = pool.allocate(4096)?;
    /// data.fill(7);
    /// let data = client.write(data, 0..4096, target).wait()?;
    /// client.post(b"written")?;
    /// # drop(data);
    ///
    /// assert_eq!(*server.receive()?.expect("a notice"), *b"written");
    /// let mut last = [0];
    /// landing.read(4095, &mut last)?;
    /// assert_eq!(last, [7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(
        &self,
        buffer: Buffer,
        part: Range<usize>,
        target: RemoteMemoryRegion,
    ) -> Writing<'_> {
        let is_within = part.start <= part.end && part.end <= buffer.len();
        assert!(is_within && part.len() == target.length(), "{part:?}, {target:?}");
        Writing { session: &self.session, buffer: Some(buffer), part, target, is_over: false }
    }
}

impl Writing<'_> {
    /// Posts the WRITE, and waits until it has completed. Returns its buffer.
    ///
    /// # Errors
    /// [`MessageError::TimedOut`] after the limit of sends: call this again. [`MessageError::Ended`] if the connection
    /// has ended; the buffer then returns to its pool.
    ///
    /// # Panics
    /// Panics if it has returned the buffer or that error before.
    pub fn wait(&mut self) -> Result<Buffer, MessageError> {
        assert!(!self.is_over, "the WRITE is over");
        let Self { session, buffer, part, target, .. } = self;
        let mut deadline = session.deadline(Operation::Send);
        session
            .wait_until(&mut deadline, |state| state.requests.poll_write(buffer, part, *target))?;
        if buffer.take().is_none() {
            let written = session.wait_until(&mut deadline, |state| {
                let written = state.requests.poll_written();
                // Another thread may wait to post a WRITE.
                state.must_wake |= written.is_ready();
                written
            })?;
            self.is_over = true;
            if let Some(buffer) = written {
                return Ok(buffer);
            }
        }
        self.is_over = true;
        let end = |state: &mut State<Mailbox>| {
            Protocol::<Requests>::end(&mut state.protocol).reason().flatten()
        };
        Err(MessageError::Ended(self.session.with(end).unwrap_or(ConnectionError::Lost)))
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if self.buffer.is_none() && !self.is_over && self.session.is_of_this_process() {
            self.session.with(|state| {
                state.requests.abandon_write();
                state.must_wake = true;
            });
        }
    }
}

impl fmt::Debug for Writing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Writing").field(self.session).finish()
    }
}
