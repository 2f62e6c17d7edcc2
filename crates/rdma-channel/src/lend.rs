//! Who lends memory to requests, and keeps it until they are over. With that of the ledger's
//! [queues](crate::ledger::queues), this is all unsafe code of the crate.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;

use rdma_connect::{CloseReason, TransportError, WorkId};
use rdma_qp::{
    ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WorkSuccess, WriteWorkRequest,
};

use crate::channel::Channel;
use crate::channel::blocking::Left;
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

/// Ends what is in flight, also if a closure panics.
struct Guard<'l>(&'l mut Ledger);

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        drop(self.0.end_failed_scope());
        self.0.say_news();
    }
}

/// What posts, and when memory is kept.
impl Ledger {
    /// Runs a closure whose requests have memory that is borrowed for `'scope`, a lifetime that no closure can name
    /// outside, and ends them. The second value is how.
    #[inline(always)]
    pub(crate) fn scope<'env, C, T, E>(
        &mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env, C>) -> Result<T, E>,
    ) -> Result<(T, Ended), E> {
        self.begin();
        let guard = Guard(self);
        // SAFETY: SAFETY.md F22: 'scope is not over before the guard, or what replaces it below, has ended all requests.
        let value = f(&Scope::new(guard.0, unsafe { Kept::new() }))?;
        Ok((value, ManuallyDrop::new(guard).0.end()))
    }

    /// Posts one request, and returns when the device uses its memory no more.
    #[inline(always)]
    pub(crate) fn block<'data, W: Post<'data>>(
        &mut self,
        to: impl FnOnce(&Self) -> Result<&Connection, TransportError>,
        request: W,
    ) -> Result<WorkSuccess, TransportError> {
        let guard = AbortOnUnwind;
        let left = {
            // SAFETY: SAFETY.md F22: 'data is longer than this call, which ends after the request.
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
                    Err(so_far) => Left::after(ticket, so_far),
                },
                Err(_) => Left::Refused,
            }
        };
        let result = self.end_call(left);
        guard.disarm();
        if result.is_err() {
            self.say_news();
        }
        result
    }

    /// Runs what posts several requests, whose memory is borrowed for `'data`, and waits for them. Returns when the device
    /// uses the memory of none.
    ///
    /// # Errors
    /// Those of the closure: the outer one if nothing was posted.
    pub(crate) fn block_all<'data, T>(
        &mut self,
        run: impl for<'l> FnOnce(Call<'l, 'data>) -> Result<Result<T, TransportError>, TransportError>,
    ) -> Result<T, TransportError> {
        without_unwinding(|| {
            // SAFETY: SAFETY.md F22: 'data is longer than this call, which ends after the requests.
            let outcome = run(Call { ledger: self, kept: unsafe { Kept::new() } });
            self.end_calls(outcome)
        })
    }

    /// Runs what posts several requests, whose memory is borrowed for `'data`, and waits for them; if it fails, `end` ends them.
    /// Returns when the device uses the memory of none.
    pub(crate) fn block_to_end<'data, T, F>(
        &mut self,
        run: impl for<'l> FnOnce(Call<'l, 'data>) -> Result<T, F>,
        end: impl FnOnce(&mut Self, F) -> Result<T, TransportError>,
    ) -> Result<T, TransportError> {
        let result = without_unwinding(|| {
            // SAFETY: SAFETY.md F22: 'data is longer than this call, which ends after the requests.
            let outcome = run(Call { ledger: self, kept: unsafe { Kept::new() } });
            outcome.or_else(|failure| end(self, failure))
        });
        if result.is_err() {
            self.say_news();
        }
        result
    }

    /// Runs what posts several requests, whose memory is borrowed for `'data`, up to the first that is refused, and then what
    /// ends those. Returns when the device uses the memory of none.
    pub(crate) fn block_each<'data, T>(
        &mut self,
        post: impl for<'l> FnOnce(Call<'l, 'data>) -> (Vec<WorkId>, Option<PostFailure>),
        end: impl FnOnce(&mut Self, &[WorkId], Option<PostFailure>) -> T,
    ) -> T {
        without_unwinding(|| {
            // SAFETY: SAFETY.md F22: 'data is longer than this call, which ends after the requests.
            let (ids, refused) = post(Call { ledger: self, kept: unsafe { Kept::new() } });
            let perhaps = refused.as_ref().and_then(|refusal| refusal.perhaps);
            let ended = end(self, &ids, refused);
            let left = ids.iter().chain(&perhaps).find_map(|id| self.in_flight(id.wr_id()));
            if let Some(slot) = left {
                let operation = slot.operation.get();
                self.end_now(CloseReason::Timeout { operation });
            }
            ended
        })
    }

    /// Has a closure post a request of rented memory, which stays with its handle.
    #[inline(always)]
    pub(crate) fn rent<'l, B: Rent + 'l>(
        mut buf: B,
        post: impl for<'b> FnOnce(&'b mut B, Kept<'b>) -> Result<Ticket<'l>, NotPosted<'l>>,
    ) -> Result<InFlight<'l, B>, Refused<B>> {
        // SAFETY: SAFETY.md F22: the memory is lent for the scope of the ticket, or comes back from the handle when the
        // request is over; what else the closure can post is 'static.
        match post(&mut buf, unsafe { Kept::new() }) {
            Ok(ticket) => Ok(InFlight::new(ticket, buf)),
            Err(refused) => {
                let PostFailure { error, perhaps } = refused.why();
                Err(Refused { buf: if perhaps.is_some() { None } else { Some(buf) }, error })
            }
        }
    }
}

/// A blocking call, in which several requests are posted.
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

    /// Posts a batch.
    #[inline(always)]
    pub(crate) fn post_batch<I: InBatch<'data>>(
        self,
        connection: &'l Connection,
        items: &mut [I],
        slots: &mut [&'l RequestSlot],
        deadline: &mut BatchDeadline,
    ) -> Result<(), BatchNotPosted> {
        self.ledger.post_batch(connection, items, slots, deadline, self.kept)
    }
}

/// Operations whose memory nobody watches over.
impl Ledger {
    /// # Safety
    /// That of [`QueuePair::post`](rdma_qp::QueuePair::post).
    #[inline(always)]
    unsafe fn unpolled<'l, 'data, W: Post<'data>>(
        &'l self,
        connection: &'l Connection,
        wr: W,
    ) -> Result<PendingWork<'l>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        let kept: Kept<'data> = unsafe { Kept::new() };
        Ok(PendingWork::new(self.post(connection, wr, SlotWait::Now, kept)?))
    }

    /// # Safety
    /// That of [`QueuePair::post`](rdma_qp::QueuePair::post), for each.
    unsafe fn each_unpolled<'data, W: Post<'data>>(
        &self,
        wrs: impl IntoIterator<Item = ToPeer<W>>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        let post = |ToPeer { peer, wr }: ToPeer<W>| {
            // SAFETY: SAFETY.md F22: the same contract.
            unsafe { self.unpolled(self.connection(peer)?, wr) }
        };
        self.gathered(wrs)?.into_iter().map(post).collect()
    }
}

impl Channel {
    /// Posts a message to the peer.
    ///
    /// # Errors
    /// If it was not posted. A full queue is [`TransportError::WouldBlock`] at once. After
    /// [`TransportError::PostError`] with [`posted`](rdma_qp::PostError::posted) it may be with the device.
    ///
    /// # Safety
    /// What [`QueuePair::post`](rdma_qp::QueuePair::post) asks for: the memory is left alone until the request has completed. That is when its handle
    /// says how it ended, or when the channel was closed with success ([`close`](Self::close)). A handle that is dropped,
    /// or runs out of time, says nothing.
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
    /// // SAFETY: requests without memory.
    /// let received = unsafe { channel.receive_unpolled(ReceiveWorkRequest::only_immediate()) }?;
    /// // SAFETY: as above.
    /// let sent = unsafe { channel.send_unpolled(SendWorkRequest::only_immediate(7)) }?;
    /// assert_eq!(received.spin_poll()?.immediate_data(), Some(7));
    /// sent.spin_poll()?;
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    #[inline]
    pub unsafe fn send_unpolled(
        &self,
        wr: SendWorkRequest<'_, '_>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { self.ledger.unpolled(self.ledger.only(), wr) }
    }

    /// Posts a write into memory of the peer.
    ///
    /// # Errors
    /// If it was not posted. A full queue is [`TransportError::WouldBlock`] at once. After
    /// [`TransportError::PostError`] with [`posted`](rdma_qp::PostError::posted) it may be with the device.
    ///
    /// # Safety
    /// That of [`send_unpolled`](Self::send_unpolled).
    #[inline]
    pub unsafe fn write_unpolled(
        &self,
        wr: WriteWorkRequest<'_, '_>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { self.ledger.unpolled(self.ledger.only(), wr) }
    }

    /// Posts a read of memory of the peer.
    ///
    /// # Errors
    /// If it was not posted. A full queue is [`TransportError::WouldBlock`] at once. After
    /// [`TransportError::PostError`] with [`posted`](rdma_qp::PostError::posted) it may be with the device.
    ///
    /// # Safety
    /// That of [`send_unpolled`](Self::send_unpolled).
    #[inline]
    pub unsafe fn read_unpolled(
        &self,
        wr: ReadWorkRequest<'_, '_>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { self.ledger.unpolled(self.ledger.only(), wr) }
    }

    /// Posts a receive for a message of the peer.
    ///
    /// # Errors
    /// If it was not posted. A full queue is [`TransportError::WouldBlock`] at once. After
    /// [`TransportError::PostError`] with [`posted`](rdma_qp::PostError::posted) it may be with the device.
    ///
    /// # Safety
    /// That of [`send_unpolled`](Self::send_unpolled).
    #[inline]
    pub unsafe fn receive_unpolled(
        &self,
        wr: ReceiveWorkRequest<'_, '_>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { self.ledger.unpolled(self.ledger.only(), wr) }
    }
}

impl MultiChannel {
    /// Posts a message to a peer.
    ///
    /// # Errors
    /// Those of [`Channel::send_unpolled`]; [`TransportError::NoSuchPeer`] if there is none.
    ///
    /// # Safety
    /// That of [`Channel::send_unpolled`]. The request has completed, too, when its peer was [removed](Self::remove) with
    /// success.
    #[inline]
    pub unsafe fn send_unpolled(
        &self,
        wr: ToPeer<SendWorkRequest<'_, '_>>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { self.ledger.unpolled(self.ledger.connection(wr.peer)?, wr.wr) }
    }

    /// Posts a message for each request, to its peer.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`], or [`TransportError::Closed`], before anything is posted. That of a post: the
    /// requests before it are in flight then, without handles, and only [`close`](Self::close), or
    /// [`remove`](Self::remove) of their peers, tells that they are over. One by one they have handles.
    ///
    /// # Safety
    /// That of [`Channel::send_unpolled`], for each.
    pub unsafe fn scatter_send_unpolled<'wr, 'data: 'wr>(
        &self,
        wrs: impl IntoIterator<Item = ToPeer<SendWorkRequest<'wr, 'data>>>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { self.ledger.each_unpolled(wrs) }
    }

    /// Posts a write into memory of a peer.
    ///
    /// # Errors
    /// Those of [`Channel::write_unpolled`]; [`TransportError::NoSuchPeer`] if there is none.
    ///
    /// # Safety
    /// That of [`Channel::send_unpolled`].
    #[inline]
    pub unsafe fn write_unpolled(
        &self,
        wr: ToPeer<WriteWorkRequest<'_, '_>>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { self.ledger.unpolled(self.ledger.connection(wr.peer)?, wr.wr) }
    }

    /// Posts a write for each request, into memory of its peer.
    ///
    /// # Errors
    /// Those of [`scatter_send_unpolled`](Self::scatter_send_unpolled).
    ///
    /// # Safety
    /// That of [`Channel::send_unpolled`], for each.
    pub unsafe fn scatter_write_unpolled<'wr, 'data: 'wr>(
        &self,
        wrs: impl IntoIterator<Item = ToPeer<WriteWorkRequest<'wr, 'data>>>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { self.ledger.each_unpolled(wrs) }
    }

    /// Posts a read of memory of a peer.
    ///
    /// # Errors
    /// Those of [`Channel::read_unpolled`]; [`TransportError::NoSuchPeer`] if there is none.
    ///
    /// # Safety
    /// That of [`Channel::send_unpolled`].
    #[inline]
    pub unsafe fn read_unpolled(
        &self,
        wr: ToPeer<ReadWorkRequest<'_, '_>>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { self.ledger.unpolled(self.ledger.connection(wr.peer)?, wr.wr) }
    }

    /// Posts a read for each request, of memory of its peer.
    ///
    /// # Errors
    /// Those of [`scatter_send_unpolled`](Self::scatter_send_unpolled).
    ///
    /// # Safety
    /// That of [`Channel::send_unpolled`], for each.
    pub unsafe fn gather_read_unpolled<'wr, 'data: 'wr>(
        &self,
        wrs: impl IntoIterator<Item = ToPeer<ReadWorkRequest<'wr, 'data>>>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { self.ledger.each_unpolled(wrs) }
    }

    /// Posts a receive for a message of a peer.
    ///
    /// # Errors
    /// Those of [`Channel::receive_unpolled`]; [`TransportError::NoSuchPeer`] if there is none.
    ///
    /// # Safety
    /// That of [`Channel::send_unpolled`].
    #[inline]
    pub unsafe fn receive_unpolled(
        &self,
        wr: ToPeer<ReceiveWorkRequest<'_, '_>>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { self.ledger.unpolled(self.ledger.connection(wr.peer)?, wr.wr) }
    }

    /// Posts a receive for each request, for a message of its peer.
    ///
    /// # Errors
    /// Those of [`scatter_send_unpolled`](Self::scatter_send_unpolled).
    ///
    /// # Safety
    /// That of [`Channel::send_unpolled`], for each.
    pub unsafe fn gather_receive_unpolled<'wr, 'data: 'wr>(
        &self,
        wrs: impl IntoIterator<Item = ToPeer<ReceiveWorkRequest<'wr, 'data>>>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { self.ledger.each_unpolled(wrs) }
    }

    /// Posts one message to each of these peers.
    ///
    /// # Errors
    /// Those of [`scatter_send_unpolled`](Self::scatter_send_unpolled).
    ///
    /// # Safety
    /// That of [`Channel::send_unpolled`], for each.
    pub unsafe fn multicast_send_unpolled(
        &self,
        peers: impl IntoIterator<Item = usize>,
        wr: SendWorkRequest<'_, '_>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe {
            self.ledger.each_unpolled(peers.into_iter().map(|peer| ToPeer::from_wr(peer, wr)))
        }
    }
}
