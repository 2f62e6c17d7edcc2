//! Lends memory to requests and keeps it alive until they complete. All unsafe code of the crate is in this module, in
//! the ledger's [queues](crate::ledger::queues), in `server::lent`, and in `message::owned`.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;

use rdma_connect::{CloseReason, TransportError, WorkId};
use rdma_qp::{
    ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkSuccess, WriteWorkRequest,
};

use crate::channel::Channel;
use crate::channel::blocking::Unfinished;
use crate::deadline::BatchDeadline;
use crate::ledger::end::{AbortOnUnwind, Ended, without_unwinding};
use crate::ledger::post::{BatchNotPosted, NotPosted, PostFailure};
use crate::ledger::queues::{Connection, InBatch, Kept, RequestSlot};
use crate::ledger::ticket::Ticket;
use crate::ledger::{Ledger, SlotWait};
use crate::multi_channel::MultiChannel;
use crate::multi_channel::to_peer::ToPeer;
use crate::request::Post;
use crate::scope::Scope;
use crate::scope::in_flight::InFlight;
use crate::scope::outcome::Refused;
use crate::scope::pending_work::PendingWork;
use crate::scope::rent::Rent;

/// Ends all requests in flight when it is dropped, even if a closure panics.
struct Guard<'l>(&'l mut Ledger);

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        drop(self.0.end_failed_scope());
        self.0.emit_events();
    }
}

/// Posts a request with rented memory.
///
/// This is not a closure, because only a method can be marked as always inlined. If a program posts in several places,
/// the compiler would call a closure.
pub(crate) trait PostRented<'l, B> {
    fn post<'b>(self, buf: &'b mut B, kept: Kept<'b>) -> Result<Ticket<'l>, NotPosted<'l>>;
}

/// Entry points for posting. Each defines how long memory is kept.
impl Ledger {
    /// Runs a closure whose requests use memory borrowed for `'scope`, a lifetime that code outside the closure cannot
    /// name. Then ends the requests, and returns their outcome as the second value.
    #[inline(always)]
    pub(crate) fn scope<'env, C, T, E>(
        &mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env, C>) -> Result<T, E>,
    ) -> Result<(T, Ended), E> {
        self.begin();
        let guard = Guard(self);
        // SAFETY: SAFETY.md F22: 'scope lasts until all requests have ended: the guard ends them, or `end` below does
        // in its place.
        let value = f(&Scope::new(guard.0, unsafe { Kept::new() }))?;
        Ok((value, ManuallyDrop::new(guard).0.end()))
    }

    /// Posts one request, and returns when the device no longer uses its memory.
    #[inline(always)]
    pub(crate) fn block<'data, W: Post<'data>>(
        &mut self,
        to: impl FnOnce(&Self) -> Result<&Connection, TransportError>,
        request: W,
    ) -> Result<WorkSuccess, TransportError> {
        let guard = AbortOnUnwind;
        let unfinished = {
            // SAFETY: SAFETY.md F22: 'data outlives this call, which returns only after the request has ended.
            let kept: Kept<'data> = unsafe { Kept::new() };
            let posted = match to(self) {
                Ok(connection) => {
                    self.post(connection, request.signaled(true), SlotWait::Call, kept)
                }
                Err(error) => Err(self.refuse(error, None)),
            };
            match posted {
                Ok(ticket) => match ticket.request().glance() {
                    Ok(success) => {
                        ticket.release();
                        guard.disarm();
                        return Ok(success);
                    }
                    Err(so_far) => Unfinished::after(ticket, so_far),
                },
                Err(_) => Unfinished::Refused,
            }
        };
        let result = self.end_call(unfinished);
        guard.disarm();
        if result.is_err() {
            self.emit_events();
        }
        result
    }

    /// Runs a closure that posts several requests with memory borrowed for `'data` and waits for them. Returns when the
    /// device no longer uses that memory.
    ///
    /// # Errors
    /// Same errors as the closure. An outer error from the closure means that nothing was posted.
    pub(crate) fn block_all<'data, T>(
        &mut self,
        run: impl for<'l> FnOnce(Call<'l, 'data>) -> Result<Result<T, TransportError>, TransportError>,
    ) -> Result<T, TransportError> {
        without_unwinding(|| {
            // SAFETY: SAFETY.md F22: 'data outlives this call, which returns only after the requests have ended.
            let outcome = run(Call { ledger: self, kept: unsafe { Kept::new() } });
            self.end_calls(outcome)
        })
    }

    /// Runs a closure that posts several requests with memory borrowed for `'data` and waits for them. If the closure
    /// fails, `end` ends the requests. Returns when the device no longer uses that memory.
    pub(crate) fn block_to_end<'data, T, F>(
        &mut self,
        run: impl for<'l> FnOnce(Call<'l, 'data>) -> Result<T, F>,
        end: impl FnOnce(&mut Self, F) -> Result<T, TransportError>,
    ) -> Result<T, TransportError> {
        let result = without_unwinding(|| {
            // SAFETY: SAFETY.md F22: 'data outlives this call, which returns only after the requests have ended.
            let outcome = run(Call { ledger: self, kept: unsafe { Kept::new() } });
            outcome.or_else(|failure| end(self, failure))
        });
        if result.is_err() {
            self.emit_events();
        }
        result
    }

    /// Runs a closure that posts requests until one is refused. The memory of the requests is borrowed for `'data`.
    /// Then runs `end`, which ends the posted requests. Returns when the device no longer uses that memory.
    pub(crate) fn block_each<'data, T>(
        &mut self,
        post: impl for<'l> FnOnce(Call<'l, 'data>) -> (Vec<WorkId>, Option<PostFailure>),
        end: impl FnOnce(&mut Self, &[WorkId], Option<PostFailure>) -> T,
    ) -> T {
        without_unwinding(|| {
            // SAFETY: SAFETY.md F22: 'data outlives this call, which returns only after the requests have ended.
            let (ids, refused) = post(Call { ledger: self, kept: unsafe { Kept::new() } });
            let maybe_posted = refused.as_ref().and_then(|refusal| refusal.maybe_posted);
            let ended = end(self, &ids, refused);
            let left = ids.iter().chain(&maybe_posted).find_map(|id| self.in_flight(id.wr_id()));
            if let Some(slot) = left {
                let operation = slot.operation.get();
                self.end_now(CloseReason::Timeout { operation });
            }
            ended
        })
    }

    /// Posts a request with rented memory. The returned handle holds the memory.
    #[inline(always)]
    pub(crate) fn rent<'l, B: Rent + 'l>(
        mut buf: B,
        request: impl PostRented<'l, B>,
    ) -> Result<InFlight<'l, B>, Refused<B>> {
        // SAFETY: SAFETY.md F22: the memory stays lent until the ticket's scope ends, or until the handle returns it
        // after the request has completed. Anything else that `post` can post is 'static.
        match request.post(&mut buf, unsafe { Kept::new() }) {
            Ok(ticket) => Ok(InFlight::new(ticket, buf)),
            Err(refused) => {
                let PostFailure { error, maybe_posted } = refused.why();
                Err(Refused { buf: if maybe_posted.is_some() { None } else { Some(buf) }, error })
            }
        }
    }
}

/// A blocking call that posts several requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'l, 'data> {
    ledger: &'l Ledger,
    kept: Kept<'data>,
}

impl<'l, 'data> Call<'l, 'data> {
    pub(crate) const fn ledger(self) -> &'l Ledger {
        self.ledger
    }

    /// Posts one request, without waiting for a free slot.
    pub(crate) fn post<W: Post<'data>>(
        self,
        connection: &'l Connection,
        request: W,
    ) -> Result<Ticket<'l>, NotPosted<'l>> {
        self.ledger.post(connection, request.signaled(true), SlotWait::Now, self.kept)
    }

    /// Posts a batch; see [`Ledger::post_batch`].
    #[inline(always)]
    pub(crate) fn post_batch<I: InBatch<'data>>(
        self,
        connection: &'l Connection,
        items: &mut [I],
        slots: &mut [&'l RequestSlot],
        deadline: &mut BatchDeadline,
    ) -> Result<bool, BatchNotPosted> {
        self.ledger.post_batch(connection, items, slots, deadline, self.kept)
    }
}

/// Operations whose callers guarantee that the memory stays valid.
impl Ledger {
    /// # Safety
    /// Same contract as [`QueuePair::post`](rdma_qp::QueuePair::post).
    #[inline(always)]
    unsafe fn unpolled<'l, 'data, W: Post<'data>>(
        &'l self,
        connection: &'l Connection,
        wr: W,
    ) -> Result<PendingWork<'l>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        let kept: Kept<'data> = unsafe { Kept::new() };
        Ok(PendingWork::new(self.post(connection, wr, SlotWait::Now, kept)?))
    }

    /// # Safety
    /// Same contract as [`QueuePair::post`](rdma_qp::QueuePair::post), for each request.
    unsafe fn each_unpolled<'data, W: Post<'data>>(
        &self,
        wrs: impl IntoIterator<Item = ToPeer<W>>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        let post = |ToPeer { peer, wr }: ToPeer<W>| {
            // SAFETY: SAFETY.md F22: the caller upholds the same contract.
            unsafe { self.unpolled(self.connection(peer)?, wr) }
        };
        self.gathered(wrs)?.into_iter().map(post).collect()
    }
}

impl Channel {
    /// Posts a message to the peer.
    ///
    /// # Errors
    /// The reason why the request was not posted. If the queue is full, the call fails at once with
    /// [`TransportError::WouldBlock`]. After a [`TransportError::PostError`] whose
    /// [`posted`](rdma_qp::PostError::posted) is 1, the device may have accepted the request all the same.
    ///
    /// # Safety
    /// The contract of [`QueuePair::post`](rdma_qp::QueuePair::post): the program does not touch the memory until the
    /// request has completed. A request has completed when its handle reports the result, or when the channel has been
    /// closed successfully ([`close`](Self::close)). A dropped handle, or one that has timed out, proves nothing.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::prelude::*;
    /// use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
    ///
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().build()?;
    /// # let endpoint = channel.endpoint();
    /// # let channel = channel.handshake(endpoint)?; // to itself
    /// // SAFETY: the request has no memory.
    /// let received = unsafe { channel.receive_unpolled(ReceiveWorkRequest::only_immediate()) }?;
    /// // SAFETY: the request has no memory.
    /// let sent = unsafe { channel.send_unpolled(SendWorkRequest::only_immediate(7)) }?;
    /// assert_eq!(received.spin_poll()?.immediate_data(), Some(7));
    /// sent.spin_poll()?;
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    #[inline(always)]
    pub unsafe fn send_unpolled(
        &self,
        wr: SendWorkRequest<'_, '_>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        unsafe { self.ledger.unpolled(self.ledger.only(), wr) }
    }

    /// Posts a write to the peer's memory.
    ///
    /// # Errors
    /// The reason why the request was not posted. If the queue is full, the call fails at once with
    /// [`TransportError::WouldBlock`]. After a [`TransportError::PostError`] whose
    /// [`posted`](rdma_qp::PostError::posted) is 1, the device may have accepted the request all the same.
    ///
    /// # Safety
    /// Same contract as [`send_unpolled`](Self::send_unpolled).
    #[inline(always)]
    pub unsafe fn write_unpolled(
        &self,
        wr: WriteWorkRequest<'_, '_>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        unsafe { self.ledger.unpolled(self.ledger.only(), wr) }
    }

    /// Posts a read of the peer's memory.
    ///
    /// # Errors
    /// The reason why the request was not posted. If the queue is full, the call fails at once with
    /// [`TransportError::WouldBlock`]. After a [`TransportError::PostError`] whose
    /// [`posted`](rdma_qp::PostError::posted) is 1, the device may have accepted the request all the same.
    ///
    /// # Safety
    /// Same contract as [`send_unpolled`](Self::send_unpolled).
    #[inline(always)]
    pub unsafe fn read_unpolled(
        &self,
        wr: ReadWorkRequest<'_, '_>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        unsafe { self.ledger.unpolled(self.ledger.only(), wr) }
    }

    /// Posts a receive for a message from the peer.
    ///
    /// # Errors
    /// The reason why the request was not posted. If the queue is full, the call fails at once with
    /// [`TransportError::WouldBlock`]. After a [`TransportError::PostError`] whose
    /// [`posted`](rdma_qp::PostError::posted) is 1, the device may have accepted the request all the same.
    ///
    /// # Safety
    /// Same contract as [`send_unpolled`](Self::send_unpolled).
    #[inline(always)]
    pub unsafe fn receive_unpolled(
        &self,
        wr: ReceiveWorkRequest<'_, '_>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        unsafe { self.ledger.unpolled(self.ledger.only(), wr) }
    }
}

impl MultiChannel {
    /// Posts a message to a peer.
    ///
    /// # Errors
    /// Same errors as [`Channel::send_unpolled`], and [`TransportError::NoSuchPeer`] if the peer does not exist.
    ///
    /// # Safety
    /// Same contract as [`Channel::send_unpolled`]. The request has also completed if its peer was
    /// [removed](Self::remove) successfully.
    #[inline]
    pub unsafe fn send_unpolled(
        &self,
        wr: ToPeer<SendWorkRequest<'_, '_>>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        unsafe { self.ledger.unpolled(self.ledger.connection(wr.peer)?, wr.wr) }
    }

    /// Posts one message per request, each to the peer of its request.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`] or [`TransportError::Closed`] is returned before anything is posted. If a post
    /// fails, its error is returned, and the requests before it are in flight without handles. They are certain to have
    /// completed only after a successful [`close`](Self::close), or a [`remove`](Self::remove) of their peers. To get a
    /// handle for each request, post the requests one by one.
    ///
    /// # Safety
    /// Same contract as [`Channel::send_unpolled`], for each request.
    pub unsafe fn scatter_send_unpolled<'wr, 'data: 'wr>(
        &self,
        wrs: impl IntoIterator<Item = ToPeer<SendWorkRequest<'wr, 'data>>>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        unsafe { self.ledger.each_unpolled(wrs) }
    }

    /// Posts a write to a peer's memory.
    ///
    /// # Errors
    /// Same errors as [`Channel::write_unpolled`], and [`TransportError::NoSuchPeer`] if the peer does not exist.
    ///
    /// # Safety
    /// Same contract as [`Channel::send_unpolled`].
    #[inline]
    pub unsafe fn write_unpolled(
        &self,
        wr: ToPeer<WriteWorkRequest<'_, '_>>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        unsafe { self.ledger.unpolled(self.ledger.connection(wr.peer)?, wr.wr) }
    }

    /// Posts one write per request, each to the memory of that request's peer.
    ///
    /// # Errors
    /// Same errors as [`scatter_send_unpolled`](Self::scatter_send_unpolled).
    ///
    /// # Safety
    /// Same contract as [`Channel::send_unpolled`], for each request.
    pub unsafe fn scatter_write_unpolled<'wr, 'data: 'wr>(
        &self,
        wrs: impl IntoIterator<Item = ToPeer<WriteWorkRequest<'wr, 'data>>>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        unsafe { self.ledger.each_unpolled(wrs) }
    }

    /// Posts a read of a peer's memory.
    ///
    /// # Errors
    /// Same errors as [`Channel::read_unpolled`], and [`TransportError::NoSuchPeer`] if the peer does not exist.
    ///
    /// # Safety
    /// Same contract as [`Channel::send_unpolled`].
    #[inline]
    pub unsafe fn read_unpolled(
        &self,
        wr: ToPeer<ReadWorkRequest<'_, '_>>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        unsafe { self.ledger.unpolled(self.ledger.connection(wr.peer)?, wr.wr) }
    }

    /// Posts one read per request, each of the memory of that request's peer.
    ///
    /// # Errors
    /// Same errors as [`scatter_send_unpolled`](Self::scatter_send_unpolled).
    ///
    /// # Safety
    /// Same contract as [`Channel::send_unpolled`], for each request.
    pub unsafe fn gather_read_unpolled<'wr, 'data: 'wr>(
        &self,
        wrs: impl IntoIterator<Item = ToPeer<ReadWorkRequest<'wr, 'data>>>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        unsafe { self.ledger.each_unpolled(wrs) }
    }

    /// Posts a receive for a message from a peer.
    ///
    /// # Errors
    /// Same errors as [`Channel::receive_unpolled`], and [`TransportError::NoSuchPeer`] if the peer does not exist.
    ///
    /// # Safety
    /// Same contract as [`Channel::send_unpolled`].
    #[inline]
    pub unsafe fn receive_unpolled(
        &self,
        wr: ToPeer<ReceiveWorkRequest<'_, '_>>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        unsafe { self.ledger.unpolled(self.ledger.connection(wr.peer)?, wr.wr) }
    }

    /// Posts one receive per request, each for a message from that request's peer.
    ///
    /// # Errors
    /// Same errors as [`scatter_send_unpolled`](Self::scatter_send_unpolled).
    ///
    /// # Safety
    /// Same contract as [`Channel::send_unpolled`], for each request.
    pub unsafe fn gather_receive_unpolled<'wr, 'data: 'wr>(
        &self,
        wrs: impl IntoIterator<Item = ToPeer<ReceiveWorkRequest<'wr, 'data>>>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        unsafe { self.ledger.each_unpolled(wrs) }
    }

    /// Posts one message to each of these peers.
    ///
    /// # Errors
    /// Same errors as [`scatter_send_unpolled`](Self::scatter_send_unpolled).
    ///
    /// # Safety
    /// Same contract as [`Channel::send_unpolled`], for each request.
    pub unsafe fn multicast_send_unpolled(
        &self,
        peers: impl IntoIterator<Item = usize>,
        wr: SendWorkRequest<'_, '_>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        // SAFETY: SAFETY.md F22: the caller upholds the same contract.
        unsafe {
            self.ledger.each_unpolled(peers.into_iter().map(|peer| ToPeer::from_wr(peer, wr)))
        }
    }
}
