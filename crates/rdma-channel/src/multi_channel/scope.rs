//! Scopes of channels to several peers.

use std::time::Duration;

use rdma_connect::TransportError;
use rdma_mem::ProtectionDomain;
use rdma_qp::SendWorkRequest;

use super::MultiChannel;
use super::to_peer::{
    PeerReadWorkRequest, PeerReceiveWorkRequest, PeerSendWorkRequest, PeerWriteWorkRequest, ToPeer,
};
use crate::request::Post;
use crate::scope::peer::ScopedPeer;
use crate::scope::pending_work::{PendingWork, ScopedPendingWork};
use crate::scope::{Bounded, Scope, ScopeError, settle, settle_manual};

impl MultiChannel {
    /// Runs a closure that posts operations with any of the peers. All operations have completed when this call
    /// returns; see [`Channel::scope`](crate::Channel::scope).
    ///
    /// After the drain limit, connections with operations still in flight are closed. The others stay open.
    ///
    /// # Errors
    /// Same errors as [`Channel::scope`](crate::Channel::scope).
    ///
    /// # Aborts
    /// Like [`Channel::scope`](crate::Channel::scope), aborts the process if memory in use cannot be released.
    #[inline(always)]
    pub fn scope<'env, T, E>(
        &'env mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env, Self>) -> Result<T, E>,
    ) -> Result<T, ScopeError<E>> {
        settle(self.ledger.scope(f))
    }

    /// Like [`scope`](Self::scope), with one deadline for the whole scope; see
    /// [`Channel::scope_deadline`](crate::Channel::scope_deadline).
    ///
    /// # Errors
    /// Same errors as [`Channel::scope_deadline`](crate::Channel::scope_deadline).
    #[doc(alias = "timeout")]
    pub fn scope_deadline<'env, T, E>(
        &'env mut self,
        limit: Duration,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env, Self>) -> Result<T, E>,
    ) -> Result<T, ScopeError<E>> {
        settle(Bounded::new(&mut self.ledger, limit).ledger.scope(f))
    }

    /// Like [`scope`](Self::scope), for a closure that polls all its handles until their operations complete.
    ///
    /// # Errors
    /// The closure's error, unchanged.
    ///
    /// # Panics
    /// Panics if the closure succeeds without polling all handles to completion. The operations have completed by then.
    #[inline(always)]
    #[track_caller]
    pub fn manual_scope<'env, T, E>(
        &'env mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env, Self>) -> Result<T, E>,
    ) -> Result<T, E> {
        settle_manual(self.ledger.scope(f))
    }
}

impl<'scope> Scope<'scope, '_, MultiChannel> {
    /// Selects a peer. The result has all the operations of a channel's scope.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`] if the peer does not exist.
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
    ///     for peer in s.peers() {
    ///         let peer = s.to(peer)?;
    ///         let received = peer.receive_into(to)?;
    ///         let sent = peer.send_from(from)?;
    ///         (from, _) = received.done(second)?;
    ///         (to, _) = sent.done(second)?;
    ///     }
    ///     Ok::<_, TransportError>(from.to_vec())
    /// });
    /// assert_eq!(through_both.unwrap(), [7; 8]);
    /// # Ok::<(), TransportError>(())
    /// ```
    #[inline]
    pub fn to(&self, peer: usize) -> Result<ScopedPeer<'scope>, TransportError> {
        self.only.to(peer)
    }

    #[inline(always)]
    fn post<'data: 'scope, W: Post<'data>>(
        &self,
        wr: ToPeer<W>,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.to(wr.peer)?.post(wr.wr)
    }

    fn post_each<'data: 'scope, W: Post<'data>>(
        &self,
        wrs: impl IntoIterator<Item = ToPeer<W>>,
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        let wrs = self.only.ledger().gathered(wrs)?;
        let mut handles = Vec::with_capacity(wrs.len());
        for wr in wrs {
            match self.post(wr) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    handles.into_iter().for_each(PendingWork::disown);
                    return Err(error);
                }
            }
        }
        Ok(handles)
    }

    /// Posts a message to a peer. Waits for a free slot, for at most the time limit of a send.
    ///
    /// # Errors
    /// Same errors as [`ScopedPeer::post_send`], and [`TransportError::NoSuchPeer`] if the peer does not exist.
    #[inline]
    pub fn post_send<'data: 'scope>(
        &self,
        wr: PeerSendWorkRequest<'_, 'data>,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.post(wr)
    }

    /// Posts one message per request, each to the peer of its request.
    ///
    /// The iterator is drained before the first post.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`] or [`TransportError::Closed`] is returned before anything is posted. If a post
    /// fails, the requests before it are in flight, and the scope waits for them.
    pub fn post_scatter_send<'wr, 'data: 'scope + 'wr>(
        &self,
        wrs: impl IntoIterator<Item = PeerSendWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        self.post_each(wrs)
    }

    /// Posts a write to a peer's memory. Waits for a free slot, for at most the time limit of a write.
    ///
    /// # Errors
    /// Same errors as [`ScopedPeer::post_write`], and [`TransportError::NoSuchPeer`] if the peer does not exist.
    #[inline]
    pub fn post_write<'data: 'scope>(
        &self,
        wr: PeerWriteWorkRequest<'_, 'data>,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.post(wr)
    }

    /// Posts one write per request, each to the memory of that request's peer.
    ///
    /// The iterator is drained before the first post.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`] or [`TransportError::Closed`] is returned before anything is posted. If a post
    /// fails, the requests before it are in flight, and the scope waits for them.
    pub fn post_scatter_write<'wr, 'data: 'scope + 'wr>(
        &self,
        wrs: impl IntoIterator<Item = PeerWriteWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        self.post_each(wrs)
    }

    /// Posts a read of a peer's memory. Waits for a free slot, for at most the time limit of a read.
    ///
    /// # Errors
    /// Same errors as [`ScopedPeer::post_read`], and [`TransportError::NoSuchPeer`] if the peer does not exist.
    #[inline]
    pub fn post_read<'data: 'scope>(
        &self,
        wr: PeerReadWorkRequest<'_, 'data>,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.post(wr)
    }

    /// Posts one read per request, each of the memory of that request's peer.
    ///
    /// The iterator is drained before the first post.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`] or [`TransportError::Closed`] is returned before anything is posted. If a post
    /// fails, the requests before it are in flight, and the scope waits for them.
    pub fn post_gather_read<'wr, 'data: 'scope + 'wr>(
        &self,
        wrs: impl IntoIterator<Item = PeerReadWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        self.post_each(wrs)
    }

    /// Posts a receive for a message from a peer. If the queue is full, behaves like [`ScopedPeer::post_receive`].
    ///
    /// # Errors
    /// Same errors as [`ScopedPeer::post_receive`], and [`TransportError::NoSuchPeer`] if the peer does not exist.
    #[inline]
    pub fn post_receive<'data: 'scope>(
        &self,
        wr: PeerReceiveWorkRequest<'_, 'data>,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.post(wr)
    }

    /// Posts one receive per request, each for a message from that request's peer.
    ///
    /// The iterator is drained before the first post.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`] or [`TransportError::Closed`] is returned before anything is posted. If a post
    /// fails, the requests before it are in flight, and the scope waits for them.
    pub fn post_gather_receive<'wr, 'data: 'scope + 'wr>(
        &self,
        wrs: impl IntoIterator<Item = PeerReceiveWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        self.post_each(wrs)
    }

    /// Posts one message to each of these peers; see [`post_scatter_send`](Self::post_scatter_send).
    ///
    /// # Errors
    /// Same errors as [`post_scatter_send`](Self::post_scatter_send).
    pub fn post_multicast_send<'data: 'scope>(
        &self,
        peers: impl IntoIterator<Item = usize>,
        wr: SendWorkRequest<'_, 'data>,
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        self.post_each(peers.into_iter().map(|peer| PeerSendWorkRequest::from_wr(peer, wr)))
    }

    /// The protection domain of the memory that the channels use.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.only.pd()
    }
}
