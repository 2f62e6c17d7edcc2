//! Scopes of channels to several peers.
#![allow(unsafe_code)]

use rdma_mem::{InlineElement, ProtectionDomain, SliceMut};
use rdma_qp::{AtomicWorkRequest, SendWorkRequest, WriteWorkRequest};

use super::work_request::PeerRequest;
use super::{
    MultiChannel, PeerAtomicWorkRequest, PeerReadWorkRequest, PeerReceiveWorkRequest,
    PeerRemoteMemoryRegion, PeerSendWorkRequest, PeerWriteWorkRequest,
};
use crate::core::Room;
use crate::scope::{run, settle, settle_manual};
use crate::{
    InFlight, PendingWork, Refused, Rent, RentMut, Scope, ScopeError, ScopedPendingWork,
    TransportError,
};

impl MultiChannel {
    /// Runs a closure that posts operations, with any of the peers, which are all over when this returns; as
    /// [`Channel::scope`](crate::Channel::scope).
    ///
    /// A connection whose operations are not done within the drain limit is closed; the others stay as they are.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Aborts
    /// As there.
    #[inline(always)]
    pub fn scope<'env, T, E>(
        &'env mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env, Self>) -> Result<T, E>,
    ) -> Result<T, ScopeError<E>> {
        run(&mut self.core, f, settle, ScopeError::ClosureError)
    }

    /// As [`scope`](Self::scope), of a closure that asks all its handles how their operations ended.
    ///
    /// # Errors
    /// What the closure says, as it is.
    ///
    /// # Panics
    /// If the closure succeeds and has not asked all: after they have ended.
    #[inline(always)]
    pub fn manual_scope<'env, T, E>(
        &'env mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env, Self>) -> Result<T, E>,
    ) -> Result<T, E> {
        run(&mut self.core, f, settle_manual, |error| error)
    }
}

/// The posts of one kind of request: to one peer, and to several.
macro_rules! posts {
    ($($(#[$doc:meta])* $name:ident: $request:ident $(=> $(#[$all_doc:meta])* $all:ident)?;)+) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// If it was not posted: nothing has changed then. [`TransportError::NoSuchPeer`] if there is none.
        #[inline]
        pub fn $name<'data: 'scope>(
            &'scope self,
            wr: $request<'_, 'data>,
        ) -> Result<ScopedPendingWork<'scope>, TransportError> {
            self.post(wr)
        }

        $($(#[$all_doc])*
        ///
        /// All requests are taken from the iterator before the first is posted.
        ///
        /// # Errors
        /// [`TransportError::NoSuchPeer`], or [`TransportError::Closed`], before anything is posted. That of a post:
        /// the requests before it are under way then, and the scope ends them.
        pub fn $all<'wr, 'data: 'scope + 'wr>(
            &'scope self,
            wrs: impl IntoIterator<Item = $request<'wr, 'data>>,
        ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
            self.post_each(wrs)
        })?
    )+};
}

impl<'scope> Scope<'scope, '_, MultiChannel> {
    #[inline(always)]
    fn post<'data: 'scope>(
        &'scope self,
        wr: impl PeerRequest<'data>,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        // SAFETY: SAFETY.md F22: its memory is borrowed for the scope, which ends after the request.
        let ticket = unsafe { wr.post(self.core, Room::Usual) }?;
        Ok(PendingWork::new(ticket))
    }

    fn post_each<'data: 'scope, R: PeerRequest<'data>>(
        &'scope self,
        wrs: impl IntoIterator<Item = R>,
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        self.core.gathered(wrs)?.into_iter().map(|wr| self.post(wr)).collect()
    }

    posts! {
        /// Posts a message to a peer. Waits for room, as long as a send may take.
        post_send: PeerSendWorkRequest
            => /// Posts a message for each request, to its peer.
            post_scatter_send;
        /// Posts a write into memory of a peer. Waits for room, as long as a write may take.
        post_write: PeerWriteWorkRequest
            => /// Posts a write for each request, into memory of its peer.
            post_scatter_write;
        /// Posts a read of memory of a peer. Waits for room, as long as a read may take.
        post_read: PeerReadWorkRequest
            => /// Posts a read for each request, of memory of its peer.
            post_gather_read;
        /// Posts room for a message of a peer. A full queue is as for
        /// [`Scope::post_receive`](Scope::post_receive) of a channel.
        post_receive: PeerReceiveWorkRequest
            => /// Posts room for a message for each request, of its peer.
            post_gather_receive;
        /// Posts an atomic operation on memory of a peer. Waits for room, as long as one may take.
        post_atomic: PeerAtomicWorkRequest;
    }

    /// Posts these bytes as a message to a peer; as [`Scope::send_inline`] of a channel.
    ///
    /// # Errors
    /// Those of [`Scope::send_inline`] of a channel, and [`TransportError::NoSuchPeer`].
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn send_inline(
        &'scope self,
        peer: usize,
        data: &[u8],
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.post_send(PeerSendWorkRequest::inline(peer, &[InlineElement::new_checked(data)?]))
    }

    /// Posts a write of these bytes to the beginning of `remote`; as [`Scope::write_inline`] of a channel.
    ///
    /// # Errors
    /// As of [`send_inline`](Self::send_inline).
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn write_inline(
        &'scope self,
        data: &[u8],
        remote: PeerRemoteMemoryRegion,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.post_write(PeerWriteWorkRequest::inline(&[InlineElement::new_checked(data)?], remote))
    }

    /// Posts one message to each of these peers, as [`post_scatter_send`](Self::post_scatter_send).
    ///
    /// # Errors
    /// As there.
    pub fn post_multicast_send<'data: 'scope>(
        &'scope self,
        peers: impl IntoIterator<Item = usize>,
        wr: SendWorkRequest<'_, 'data>,
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        self.post_each(peers.into_iter().map(|peer| PeerSendWorkRequest::from_wr(peer, wr)))
    }

    /// Sends the bytes of rented memory to a peer as one message; as [`Scope::send_from`] of a channel.
    ///
    /// # Errors
    /// [`Refused`] with the memory, if it was not posted.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_channel::{TransportError, prelude::*};
    ///
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let prepared = pd.create_multi_channel().num_channels(2).build()?;
    /// # let endpoints = prepared.endpoints();
    /// # let mut channels = prepared.handshake(endpoints)?; // each to itself
    /// let mut memory = pd.allocate_region(16)?;
    /// let second = Duration::from_secs(1);
    /// let through_both = channels.scope(|s| {
    ///     let (mut from, mut to) = memory.as_slice_mut().split_at(8);
    ///     from.fill(7);
    ///     for peer in 0..s.num_channels() {
    ///         let room = s.receive_into(peer, to)?;
    ///         let sent = s.send_from(peer, from)?;
    ///         (from, _) = room.done(second)?;
    ///         (to, _) = sent.done(second)?;
    ///     }
    ///     Ok::<_, TransportError>(from.to_vec())
    /// });
    /// assert_eq!(through_both.unwrap(), [7; 8]);
    /// # Ok::<(), TransportError>(())
    /// ```
    #[inline]
    pub fn send_from<B: Rent + 'scope>(
        &'scope self,
        peer: usize,
        buf: B,
    ) -> Result<InFlight<'scope, B>, Refused<B>> {
        self.send_from_with(peer, buf, |request| request)
    }

    /// As [`send_from`](Self::send_from), of a request to which the closure has added; as
    /// [`Scope::send_from_with`] of a channel.
    ///
    /// # Errors
    /// [`Refused`] with the memory, if it was not posted.
    #[inline]
    pub fn send_from_with<B: Rent + 'scope>(
        &'scope self,
        peer: usize,
        buf: B,
        adapt: impl for<'w, 'd> FnOnce(SendWorkRequest<'w, 'd>) -> SendWorkRequest<'w, 'd>,
    ) -> Result<InFlight<'scope, B>, Refused<B>> {
        self.rent_send(peer, buf, adapt)
    }

    /// Takes one message of a peer into rented memory; as [`Scope::receive_into`] of a channel.
    ///
    /// # Errors
    /// [`Refused`] with the memory, if it was not posted.
    #[inline]
    pub fn receive_into<B: RentMut + 'scope>(
        &'scope self,
        peer: usize,
        buf: B,
    ) -> Result<InFlight<'scope, B>, Refused<B>> {
        self.rent_receive(peer, buf)
    }

    /// Writes the bytes of rented memory to the beginning of `remote`; as [`Scope::write_from`] of a channel.
    ///
    /// # Errors
    /// [`Refused`] with the memory, if it was not posted.
    #[inline]
    pub fn write_from<B: Rent + 'scope>(
        &'scope self,
        buf: B,
        remote: PeerRemoteMemoryRegion,
    ) -> Result<InFlight<'scope, B>, Refused<B>> {
        self.write_from_with(buf, remote, |request| request)
    }

    /// As [`write_from`](Self::write_from), of a request to which the closure has added; as
    /// [`Scope::write_from_with`] of a channel.
    ///
    /// # Errors
    /// [`Refused`] with the memory, if it was not posted.
    #[inline]
    pub fn write_from_with<B: Rent + 'scope>(
        &'scope self,
        buf: B,
        remote: PeerRemoteMemoryRegion,
        adapt: impl for<'w, 'd> FnOnce(WriteWorkRequest<'w, 'd>) -> WriteWorkRequest<'w, 'd>,
    ) -> Result<InFlight<'scope, B>, Refused<B>> {
        self.rent_write(remote.peer(), buf, remote.remote(), adapt)
    }

    /// Fills rented memory from the beginning of `remote`; as [`Scope::read_into`] of a channel.
    ///
    /// # Errors
    /// [`Refused`] with the memory, if it was not posted.
    #[inline]
    pub fn read_into<B: RentMut + 'scope>(
        &'scope self,
        buf: B,
        remote: PeerRemoteMemoryRegion,
    ) -> Result<InFlight<'scope, B>, Refused<B>> {
        self.rent_read(remote.peer(), buf, remote.remote())
    }

    /// Puts `swap` into a peer's word if that is `compare`, and what it was into rented memory of 8 bytes.
    ///
    /// # Errors
    /// [`Refused`] with the memory, if it was not posted.
    #[inline]
    pub fn compare_and_swap_into(
        &'scope self,
        buf: SliceMut<'scope>,
        remote: PeerRemoteMemoryRegion,
        compare: u64,
        swap: u64,
    ) -> Result<InFlight<'scope, SliceMut<'scope>>, Refused<SliceMut<'scope>>> {
        let word = remote.remote();
        self.rent_atomic(remote.peer(), buf, |list| {
            AtomicWorkRequest::compare_and_swap(list, word, compare, swap)
        })
    }

    /// Adds `add` to a peer's word, and puts what it was into rented memory of 8 bytes.
    ///
    /// # Errors
    /// [`Refused`] with the memory, if it was not posted.
    #[inline]
    pub fn fetch_add_into(
        &'scope self,
        buf: SliceMut<'scope>,
        remote: PeerRemoteMemoryRegion,
        add: u64,
    ) -> Result<InFlight<'scope, SliceMut<'scope>>, Refused<SliceMut<'scope>>> {
        let word = remote.remote();
        self.rent_atomic(remote.peer(), buf, |list| {
            AtomicWorkRequest::fetch_and_add(list, word, add)
        })
    }

    /// The domain whose memory the channels use.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.core.pd
    }

    /// How many peers there are.
    #[must_use]
    pub fn num_channels(&self) -> usize {
        self.core.lanes.len()
    }
}
