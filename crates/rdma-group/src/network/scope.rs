//! Scopes of nodes.

use std::ops::Deref;
use std::time::Duration;

use rdma_channel::{MultiChannel, Scope, ScopeError};

use super::barrier::{Barrier, BarrierError, check_order};
use super::node::Node;

/// A scope of a [`Node`]. Dereferences to a [`Scope`] of its channels, and also has barriers.
///
/// # Examples
/// A message that this rank sends to itself, and a barrier while it is in flight:
/// ```
/// use std::time::Duration;
/// use rdma_channel::{PeerReceiveWorkRequest, PeerSendWorkRequest};
/// use rdma_group::network::Node;
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let node = Node::builder().pd(&pd).rank(0).world_size(1).build()?;
/// let endpoints = node.gather_endpoints([node.endpoint()])?;
/// let mut node = node.handshake(endpoints)?;
///
/// let mut memory = [1, 0];
/// let region = pd.register_local_mr_slice(&memory)?;
/// let (from, to) = memory.split_at_mut(1);
/// node.scope(|s| {
///     s.post_receive(PeerReceiveWorkRequest::new(0, &mut [region.scatter_element(to)]))?;
///     s.post_send(PeerSendWorkRequest::new(s.rank(), &[region.gather_element(from)]))?;
///     s.barrier(&[0], Duration::from_secs(60))?;
///     Ok::<(), Box<dyn std::error::Error>>(())
/// })?;
/// assert_eq!(memory, [1, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NodeScope<'scope, 'env: 'scope> {
    scope: &'scope Scope<'scope, 'env, MultiChannel>,
    barrier: &'scope mut Barrier,
    rank: usize,
}

impl Node {
    /// Runs a closure that posts operations with any of the ranks. See [`MultiChannel::scope`].
    ///
    /// # Errors
    /// Same errors as [`MultiChannel::scope`].
    ///
    /// # Aborts
    /// Like [`MultiChannel::scope`], aborts the process if memory in use cannot be released.
    pub fn scope<'env, T, E>(
        &'env mut self,
        f: impl for<'scope> FnOnce(&mut NodeScope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, ScopeError<E>> {
        let (channels, barrier, rank) = self.parts();
        channels.scope(move |scope| f(&mut NodeScope { scope, barrier, rank }))
    }

    /// Like [`scope`](Self::scope), with one deadline for the whole scope. See [`MultiChannel::scope_deadline`].
    ///
    /// # Errors
    /// Same errors as [`MultiChannel::scope_deadline`].
    pub fn scope_deadline<'env, T, E>(
        &'env mut self,
        limit: Duration,
        f: impl for<'scope> FnOnce(&mut NodeScope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, ScopeError<E>> {
        let (channels, barrier, rank) = self.parts();
        channels.scope_deadline(limit, move |scope| f(&mut NodeScope { scope, barrier, rank }))
    }

    /// Like [`scope`](Self::scope), for a closure that polls all its handles until their operations complete. See
    /// [`MultiChannel::manual_scope`].
    ///
    /// # Errors
    /// The closure's error, unchanged.
    ///
    /// # Panics
    /// Panics if the closure succeeds without polling all handles to completion.
    #[track_caller]
    pub fn manual_scope<'env, T, E>(
        &'env mut self,
        f: impl for<'scope> FnOnce(&mut NodeScope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, E> {
        let (channels, barrier, rank) = self.parts();
        channels.manual_scope(move |scope| f(&mut NodeScope { scope, barrier, rank }))
    }
}

impl NodeScope<'_, '_> {
    /// The rank of this process.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub const fn world_size(&self) -> usize {
        self.barrier.world_size()
    }

    /// Waits until all these ranks have called this function or [`Node::barrier`] with the same ranks. Operations of the
    /// scope continue meanwhile. If other ranks read memory that this rank writes, wait for the writes first. On a network
    /// that reorders packets, the barrier may complete before them.
    ///
    /// # Errors
    /// Same errors as [`Barrier::barrier`].
    pub fn barrier(&mut self, peers: &[usize], timeout: Duration) -> Result<(), BarrierError> {
        check_order(peers)?;
        self.barrier_unchecked(peers, timeout)
    }

    /// Like [`barrier`](Self::barrier), but does not check the order of the ranks. See [`Barrier::barrier_unchecked`].
    ///
    /// # Errors
    /// Same errors as [`Barrier::barrier_unchecked`].
    pub fn barrier_unchecked(
        &mut self,
        peers: &[usize],
        timeout: Duration,
    ) -> Result<(), BarrierError> {
        self.barrier.within(self.scope, peers, timeout)
    }
}

impl<'scope, 'env> Deref for NodeScope<'scope, 'env> {
    type Target = Scope<'scope, 'env, MultiChannel>;

    fn deref(&self) -> &Self::Target {
        self.scope
    }
}
