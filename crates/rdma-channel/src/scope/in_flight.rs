//! Operations on rented memory.

use std::fmt;
use std::time::Duration;

use rdma_connect::{Operation, TransportError, WorkId};
use rdma_mem::RemoteMemoryRegion;
use rdma_qp::{
    ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkSuccess, WriteWorkRequest,
};

use super::outcome::{Finished, Late, Progress, Refused};
use super::peer::ScopedPeer;
use super::rent::sealed::{Gathered as _, Scattered as _};
use super::rent::{Rent, RentMut};
use crate::ledger::post::NotPosted;
use crate::ledger::queues::Kept;
use crate::ledger::ticket::{Ticket, Unsettled};
use crate::ledger::{Ledger, SlotWait};
use crate::lend::PostRented;

/// An operation in flight, with the memory that it rents.
///
/// If the handle is dropped, the operation continues, and the scope keeps the memory until the scope ends.
///
/// # Examples
/// Receiving repeatedly into the same memory:
/// ```
/// use std::time::Duration;
/// use rdma_channel::{ScopeError, TransportError, prelude::*};
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// # let (a, b) = (pd.create_channel().max_inline_data(64).build()?, pd.create_channel().max_inline_data(64).build()?);
/// # let end = a.endpoint();
/// # let (mut channel, mut peer) = (a.handshake(b.endpoint())?, b.handshake(end)?);
/// let mut memory = pd.allocate_region(8)?;
/// let count = channel.scope(|s| {
///     let (mut slice, mut count) = (memory.as_slice_mut(), 0);
///     for number in 0..3 {
///         let receive = s.receive_into(slice)?;
///         peer.send_inline(&[number; 8])?;
///         slice = receive.done(Duration::from_secs(10))?.0; // returns the memory
///         count += usize::from(slice[0] == number);
///     }
///     Ok::<_, TransportError>(count)
/// });
/// assert_eq!(count.map_err(ScopeError::flatten)?, 3);
/// # Ok::<(), TransportError>(())
/// ```
#[must_use = "it returns the memory"]
#[repr(C)] // same layout as `Refused`
pub struct InFlight<'scope, B> {
    buf: B,
    ticket: Ticket<'scope>,
}

/// Formats the kind of the operation and its ID.
impl<B> fmt::Debug for InFlight<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InFlight({:?})", self.ticket)
    }
}

impl<'scope, B> InFlight<'scope, B> {
    #[inline(always)]
    pub(crate) const fn new(ticket: Ticket<'scope>, buf: B) -> Self {
        Self { ticket, buf }
    }

    /// Returns the memory if the operation has completed. Does not wait.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::{Progress, TransportError, prelude::*};
    /// # use rdma_qp::SendWorkRequest;
    ///
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// let mut memory = pd.allocate_region(8)?;
    /// let bytes = channel.scope(|s| {
    ///     let mut received = s.receive_into(memory.as_slice_mut())?;
    /// #   s.post_send(SendWorkRequest::new(&[]))?;
    ///     loop {
    ///         match received.poll() {
    ///             Progress::Done(message) => break Ok(message.result?.scattered_bytes()),
    ///             Progress::Pending(again) => received = again,
    ///             Progress::Dead(late) => break Err(late.error),
    ///         }
    ///     }
    /// });
    /// assert_eq!(bytes.unwrap(), Some(0));
    /// # Ok::<(), TransportError>(())
    /// ```
    #[doc(alias = "poll_cq")]
    #[inline(always)]
    pub fn poll(self) -> Progress<'scope, B> {
        let result = match self.ticket.request().glance() {
            Ok(success) => {
                self.ticket.release();
                return Progress::Done(Finished { buf: self.buf, result: Ok(success) });
            }
            Err(Unsettled::Nothing) => return Progress::Pending(self),
            Err(so_far) => match self.ticket.request().poll(so_far) {
                Ok(Some(result)) => result.map_err(|error| self.ticket.request().failed(error)),
                Ok(None) => return Progress::Pending(self),
                Err(error) => return Progress::Dead(Late { handle: self, error }),
            },
        };
        Progress::Done(Finished { buf: self.buf, result })
    }

    /// Waits until the operation completes, for at most `timeout`, and returns the memory. [`Duration::MAX`] means no
    /// limit.
    ///
    /// # Errors
    /// [`Late`] with the handle, if the operation has not completed. Its `error` states whether the time limit has
    /// expired or further waiting is useless.
    ///
    /// # Examples
    /// Waiting again after a timeout:
    /// ```
    /// use std::time::Duration;
    /// use rdma_channel::{Finished, InFlight, Late, TransportError};
    ///
    /// fn insist<B>(mut handle: InFlight<'_, B>) -> Result<Finished<B>, TransportError> {
    ///     loop {
    ///         match handle.wait(Duration::from_secs(1)) {
    ///             Ok(done) => return Ok(done),
    ///             Err(Late { handle: again, error: TransportError::Timeout { .. }, .. }) => {
    ///                 println!("still waiting for {}", again.id());
    ///                 handle = again;
    ///             }
    ///             Err(late) => return Err(late.error),
    ///         }
    ///     }
    /// }
    /// ```
    #[inline(always)]
    pub fn wait(self, timeout: Duration) -> Result<Finished<B>, Late<'scope, B>> {
        let result = match self.ticket.request().glance() {
            Ok(success) => {
                self.ticket.release();
                return Ok(Finished { buf: self.buf, result: Ok(success) });
            }
            Err(so_far) => match self.ticket.request().wait(so_far, Some(timeout)) {
                Ok(result) => result.map_err(|error| self.ticket.request().failed(error)),
                Err(error) => return Err(Late { handle: self, error }),
            },
        };
        Ok(Finished { buf: self.buf, result })
    }

    /// Waits until the operation succeeds, for at most `timeout`, and returns the memory. Combines [`wait`](Self::wait)
    /// and [`Finished::ok`].
    ///
    /// # Errors
    /// The reason why the operation has not succeeded. The scope keeps the memory until the scope ends.
    #[inline(always)]
    pub fn done(self, timeout: Duration) -> Result<(B, WorkSuccess), TransportError> {
        self.wait(timeout)?.ok()
    }

    /// The kind of the operation.
    pub fn operation(&self) -> Operation {
        self.ticket.request().operation()
    }

    /// The ID that errors use for this operation.
    #[doc(alias = "wr_id")]
    pub fn id(&self) -> WorkId {
        self.ticket.request().id()
    }
}

impl<'scope> ScopedPeer<'scope> {
    /// Sends the bytes of rented memory as one message. Waits for a free slot, like [`post_send`](Self::post_send).
    ///
    /// # Errors
    /// [`Refused`] with the memory, if the request was not posted.
    ///
    /// # Examples
    /// One buffer, filled repeatedly within the scope:
    /// ```
    /// use std::time::Duration;
    /// use rdma_channel::{TransportError, prelude::*};
    ///
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// let (mut source, mut target) = (pd.allocate_region(8)?, pd.allocate_region(8)?);
    /// let second = Duration::from_secs(1);
    /// let sum = channel.scope(|s| {
    ///     let (mut from, mut to, mut sum) = (source.as_slice_mut(), target.as_slice_mut(), 0);
    ///     for i in 0..10 {
    ///         from.fill(i);
    ///         let received = s.receive_into(to)?;
    ///         let sent = s.send_from(from)?;
    ///         (to, _) = received.done(second)?;
    ///         sum += u32::from(to[0]);
    ///         (from, _) = sent.done(second)?;
    ///     }
    ///     Ok::<_, TransportError>(sum)
    /// });
    /// assert_eq!(sum.unwrap(), 45);
    /// # Ok::<(), TransportError>(())
    /// ```
    #[inline(always)]
    pub fn send_from<B: Rent + 'scope>(&self, buf: B) -> Result<InFlight<'scope, B>, Refused<B>> {
        self.send_from_with(buf, |request| request)
    }

    /// Like [`send_from`](Self::send_from), but the closure can change the request: add immediate data or a fence, or
    /// make it solicited or unsignaled.
    ///
    /// # Errors
    /// Same errors as [`send_from`](Self::send_from).
    #[inline(always)]
    pub fn send_from_with<B: Rent + 'scope>(
        &self,
        buf: B,
        adapt: impl for<'w, 'd> FnOnce(SendWorkRequest<'w, 'd>) -> SendWorkRequest<'w, 'd>,
    ) -> Result<InFlight<'scope, B>, Refused<B>> {
        Ledger::rent(buf, SendFrom { peer: self, adapt })
    }

    /// Receives one message from the peer into rented memory. If the queue is full, behaves like
    /// [`post_receive`](Self::post_receive).
    ///
    /// # Errors
    /// [`Refused`] with the memory, if the request was not posted.
    #[inline(always)]
    pub fn receive_into<B: RentMut + 'scope>(
        &self,
        buf: B,
    ) -> Result<InFlight<'scope, B>, Refused<B>> {
        Ledger::rent(buf, ReceiveInto { peer: self, wait: SlotWait::Usual })
    }

    /// Writes the bytes of rented memory to the beginning of `remote`. Waits for a free slot, like
    /// [`post_write`](Self::post_write).
    ///
    /// # Errors
    /// [`Refused`] with the memory, if the request was not posted.
    #[inline(always)]
    pub fn write_from<B: Rent + 'scope>(
        &self,
        buf: B,
        remote: RemoteMemoryRegion,
    ) -> Result<InFlight<'scope, B>, Refused<B>> {
        self.write_from_with(buf, remote, |request| request)
    }

    /// Like [`write_from`](Self::write_from), but the closure can change the request: add immediate data or a fence, or
    /// make it solicited or unsignaled.
    ///
    /// # Errors
    /// Same errors as [`write_from`](Self::write_from).
    ///
    /// # Examples
    /// The immediate data notifies the peer of the write:
    /// ```
    /// use std::time::Duration;
    /// use rdma_channel::{TransportError, prelude::*};
    /// # use rdma_mem::AccessFlags;
    /// # use rdma_qp::ReceiveWorkRequest;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// # let access = AccessFlags::new().with_local_write().with_remote_write();
    /// # let board = pd.allocate_shared_region(64, access)?;
    /// let mut record = pd.allocate_region(64)?;
    /// channel
    ///     .scope(|s| {
    ///         let notice = s.post_receive(ReceiveWorkRequest::only_immediate())?;
    ///         let record = record.as_slice_mut();
    ///         let written = s.write_from_with(record, board.remote(), |w| w.with_immediate(7))?;
    ///         assert_eq!(notice.spin_poll()?.immediate_data(), Some(7));
    ///         let (record, _) = written.done(Duration::from_secs(1))?;
    ///         assert_eq!(record.len(), 64);
    ///         Ok::<_, TransportError>(())
    ///     })
    ///     .unwrap();
    /// # Ok::<(), TransportError>(())
    /// ```
    #[inline(always)]
    pub fn write_from_with<B: Rent + 'scope>(
        &self,
        buf: B,
        remote: RemoteMemoryRegion,
        adapt: impl for<'w, 'd> FnOnce(WriteWorkRequest<'w, 'd>) -> WriteWorkRequest<'w, 'd>,
    ) -> Result<InFlight<'scope, B>, Refused<B>> {
        Ledger::rent(buf, WriteFrom { peer: self, remote, adapt })
    }

    /// Fills rented memory from the beginning of `remote`. Waits for a free slot, like [`post_read`](Self::post_read).
    ///
    /// # Errors
    /// [`Refused`] with the memory, if the request was not posted.
    #[inline(always)]
    pub fn read_into<B: RentMut + 'scope>(
        &self,
        buf: B,
        remote: RemoteMemoryRegion,
    ) -> Result<InFlight<'scope, B>, Refused<B>> {
        Ledger::rent(buf, ReadInto { peer: self, remote })
    }
}

/// Posts a send.
struct SendFrom<'p, 'scope, A> {
    peer: &'p ScopedPeer<'scope>,
    adapt: A,
}

impl<'scope, B, A> PostRented<'scope, B> for SendFrom<'_, 'scope, A>
where
    B: Rent,
    A: for<'w, 'd> FnOnce(SendWorkRequest<'w, 'd>) -> SendWorkRequest<'w, 'd>,
{
    #[inline(always)]
    fn post<'b>(self, buf: &'b mut B, kept: Kept<'b>) -> Result<Ticket<'scope>, NotPosted<'scope>> {
        let list = buf.gather();
        let (elements, domains) = list.parts();
        let request = (self.adapt)(SendWorkRequest::new(elements).with_domains(domains));
        self.peer.post_rented(request, SlotWait::Usual, kept)
    }
}

/// Posts a write.
struct WriteFrom<'p, 'scope, A> {
    peer: &'p ScopedPeer<'scope>,
    remote: RemoteMemoryRegion,
    adapt: A,
}

impl<'scope, B, A> PostRented<'scope, B> for WriteFrom<'_, 'scope, A>
where
    B: Rent,
    A: for<'w, 'd> FnOnce(WriteWorkRequest<'w, 'd>) -> WriteWorkRequest<'w, 'd>,
{
    #[inline(always)]
    fn post<'b>(self, buf: &'b mut B, kept: Kept<'b>) -> Result<Ticket<'scope>, NotPosted<'scope>> {
        let list = buf.gather();
        let (elements, domains) = list.parts();
        let request = WriteWorkRequest::new(elements, self.remote).with_domains(domains);
        self.peer.post_rented((self.adapt)(request), SlotWait::Usual, kept)
    }
}

/// Posts a read.
struct ReadInto<'p, 'scope> {
    peer: &'p ScopedPeer<'scope>,
    remote: RemoteMemoryRegion,
}

impl<'scope, B: RentMut> PostRented<'scope, B> for ReadInto<'_, 'scope> {
    #[inline(always)]
    fn post<'b>(self, buf: &'b mut B, kept: Kept<'b>) -> Result<Ticket<'scope>, NotPosted<'scope>> {
        let mut list = buf.scatter();
        let (elements, domains) = list.parts();
        let request = ReadWorkRequest::new(elements, self.remote).with_domains(domains);
        self.peer.post_rented(request, SlotWait::Usual, kept)
    }
}

/// Posts a receive. If the queue is full, `wait` states whether to wait for a slot.
pub(super) struct ReceiveInto<'p, 'scope> {
    pub(super) peer: &'p ScopedPeer<'scope>,
    pub(super) wait: SlotWait,
}

impl<'scope, B: RentMut> PostRented<'scope, B> for ReceiveInto<'_, 'scope> {
    #[inline(always)]
    fn post<'b>(self, buf: &'b mut B, kept: Kept<'b>) -> Result<Ticket<'scope>, NotPosted<'scope>> {
        let mut list = buf.scatter();
        let (elements, domains) = list.parts();
        let request = ReceiveWorkRequest::new(elements).with_domains(domains);
        self.peer.post_rented(request, self.wait, kept)
    }
}
