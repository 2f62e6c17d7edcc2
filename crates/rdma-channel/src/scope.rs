//! Scopes: many operations in flight, which all complete before the caller gets their memory back.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use rdma_connect::{CloseReason, OperationError, TransportError};

use crate::channel::Channel;
use crate::deadline::Bound;
use crate::ledger::Ledger;
use crate::ledger::end::Ended;
use crate::ledger::queues::Kept;

use self::peer::ScopedPeer;

mod batch;
pub(crate) mod in_flight;
pub(crate) mod outcome;
pub(crate) mod peer;
pub(crate) mod pending_word;
pub(crate) mod pending_work;
pub(crate) mod rent;
pub(crate) mod ring;

/// A scope for posting operations, which all complete before the scope ends.
///
/// Created by [`Channel::scope`] and lent to its closure, like the scope of [`std::thread::scope`]. Neither the scope
/// nor its handles can leave the closure or its thread. The scope of a channel has the operations of a [`ScopedPeer`].
/// The scope of a [`MultiChannel`](crate::MultiChannel) has a `ScopedPeer` for [each peer](Scope::to).
///
/// # Examples
/// Two receives and two sends are outstanding at a time:
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
/// let bytes = channel.scope(|s| {
///     let (first, second) = memory.as_slice_mut().split_at(4);
///     let received = [s.receive_into(first)?, s.receive_into(second)?];
///     peer.scope(|s| {
///         s.send_inline(b"one ")?;
///         s.send_inline(b"two ").map(drop) // the scope waits for both sends
///     })
///     .map_err(ScopeError::flatten)?;
///     let mut bytes = Vec::new();
///     for receive in received {
///         bytes.extend_from_slice(&receive.done(Duration::from_secs(10))?.0);
///     }
///     Ok::<_, TransportError>(bytes)
/// });
/// assert_eq!(bytes.map_err(ScopeError::flatten)?, b"one two ");
/// # Ok::<(), TransportError>(())
/// ```
pub struct Scope<'scope, 'env: 'scope, C = Channel> {
    /// The only peer of a channel.
    pub(crate) only: ScopedPeer<'scope>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
    of: PhantomData<fn(C) -> C>,
}

/// Formats, for each peer, the queue pair, the peer, and the reason why the connection is closed.
impl<C> fmt::Debug for Scope<'_, '_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scope")?;
        f.debug_list().entries(self.only.ledger().queues.iter()).finish()
    }
}

impl<'scope, C> Scope<'scope, '_, C> {
    #[inline(always)]
    pub(crate) const fn new(ledger: &'scope Ledger, kept: Kept<'scope>) -> Self {
        let only = ScopedPeer::new(ledger, ledger.only(), kept);
        Self { only, scope: PhantomData, env: PhantomData, of: PhantomData }
    }
}

/// A [`Scope`], under the name that ibverbs-rs gives it.
pub type PollingScope<'scope, 'env, C> = Scope<'scope, 'env, C>;

/// The result of a [scope](Channel::scope), under the name that ibverbs-rs gives it.
pub type ScopeResult<T, E = TransportError> = Result<T, ScopeError<E>>;

/// The result of an operation, under the name that ibverbs-rs gives it.
///
/// # Examples
/// ```
/// use rdma_channel::{Channel, PollingScope, ScopeResult, TransportResult};
/// use rdma_qp::{SendWorkRequest, WorkSuccess};
///
/// fn number(s: &PollingScope<'_, '_, Channel>, number: u32) -> TransportResult<WorkSuccess> {
///     s.post_send(SendWorkRequest::only_immediate(number))?.spin_poll()
/// }
///
/// fn numbers(channel: &mut Channel) -> ScopeResult<()> {
///     channel.scope(|s| (0..3).try_for_each(|n| number(s, n).map(drop)))
/// }
/// ```
pub type TransportResult<T> = Result<T, TransportError>;

/// An error from a scope.
///
/// # Examples
/// The scope waits for a write whose handle was not polled, and reports its failure:
/// ```
/// use rdma_channel::{RemoteMemoryRegion, ScopeError, TransportError, prelude::*};
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// # let (a, b) = (pd.create_channel().max_inline_data(64).build()?, pd.create_channel().max_inline_data(64).build()?);
/// # let end = a.endpoint();
/// # let (mut channel, _peer) = (a.handshake(b.endpoint())?, b.handshake(end)?);
/// let nowhere = RemoteMemoryRegion::new(0, 8, 7);
/// match channel.scope(|s| s.write_inline(b"12345678", nowhere).map(drop)) {
///     Ok(()) => panic!("the write should have failed"),
///     Err(ScopeError::ClosureError(error)) => return Err(error),
///     Err(ScopeError::AutoPollError(failed)) => println!("{}", failed[0].error),
///     Err(other) => return Err(other.flatten()),
/// }
/// # Ok::<(), TransportError>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError<E = TransportError> {
    /// The closure's own error.
    #[error("{0}")]
    ClosureError(E),
    /// The closure succeeded, but some operations that it left in flight failed.
    #[error("{}", left_in_flight(.0))]
    AutoPollError(Vec<OperationError>),
}

/// Formats a closure's error with its own `Debug`, because the error need not implement `Display`.
impl<E: fmt::Debug> fmt::Debug for ScopeError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClosureError(error) if f.alternate() => {
                f.debug_tuple("ClosureError").field(error).finish()
            }
            Self::ClosureError(error) => error.fmt(f),
            Self::AutoPollError(errors) if f.alternate() => {
                f.debug_tuple("AutoPollError").field(errors).finish()
            }
            Self::AutoPollError(errors) => f.write_str(&left_in_flight(errors)),
        }
    }
}

fn left_in_flight(errors: &[OperationError]) -> String {
    let first = errors.first().map(ToString::to_string).unwrap_or_default();
    format!("{} of the operations left in flight by the scope failed; first: {first}", errors.len())
}

impl<E: From<TransportError>> ScopeError<E> {
    /// Returns the closure's error, or the error of the first operation that failed.
    ///
    /// ```
    /// use rdma_channel::{Channel, ScopeError, TransportError};
    ///
    /// fn send(channel: &mut Channel) -> Result<(), TransportError> {
    ///     channel.scope(|s| s.send_inline(b"done").map(drop)).map_err(ScopeError::flatten)
    /// }
    /// ```
    pub fn flatten(self) -> E {
        match self {
            Self::ClosureError(error) => error,
            Self::AutoPollError(errors) => {
                let first = errors.into_iter().next().map(|first| first.error);
                let asked =
                    TransportError::Closed { reason: CloseReason::Asked, peer: None, event: None };
                first.unwrap_or(asked).into()
            }
        }
    }
}

impl<E> From<E> for ScopeError<E> {
    fn from(error: E) -> Self {
        Self::ClosureError(error)
    }
}

/// The result of [`Channel::scope`], which combines the closure's result with the results of operations left in flight.
/// If the closure failed, its error takes precedence.
#[inline(always)]
pub(crate) fn settle<T, E>(scope: Result<(T, Ended), E>) -> Result<T, ScopeError<E>> {
    let (value, ended) = scope.map_err(ScopeError::ClosureError)?;
    match ended.errors() {
        None => Ok(value),
        Some(errors) => Err(ScopeError::AutoPollError(errors)),
    }
}

/// Like [`settle`], for [`Channel::manual_scope`].
#[inline(always)]
#[track_caller]
pub(crate) fn settle_manual<T, E>(scope: Result<(T, Ended), E>) -> Result<T, E> {
    let (value, ended) = scope?;
    let unclaimed = ended.unclaimed;
    assert!(
        unclaimed == 0,
        "{unclaimed} operations of a manual scope were not polled to completion: poll each handle \
         before the closure returns"
    );
    Ok(value)
}

impl Channel {
    /// Runs a closure that posts operations. All operations have completed when this call returns.
    ///
    /// The memory of a request is borrowed until the scope ends. The same element can be posted again while it is in
    /// flight. The program can access the memory only after all requests that use it have completed. If several
    /// requests write the same bytes, it is unspecified which data remains. Alternatively, the scope
    /// [rents](ScopedPeer::send_from) registered slices, and returns each one when its operation completes. So a ring
    /// of buffers can be reused within one scope.
    ///
    /// The scope ends all operations in flight, whether the closure ends by return, `?` or panic. It waits for at most
    /// the [drain limit](crate::ChannelBuilder::drain_timeout), by default 5 seconds, and then closes the channel. It
    /// waits at most as long again for the operations to be flushed, and then destroys the queue pair.
    ///
    /// If the closure fails, the scope waits less for requests that the closure has already waited for without success.
    /// It waits at most as long as the longest of the closure's waits, and then closes their connection. Waits of less
    /// than 10 ms do not count, because they are mere polls.
    ///
    /// # Errors
    /// [`ScopeError::ClosureError`] with the closure's error. If the closure succeeds, [`ScopeError::AutoPollError`]
    /// with each operation that failed or was lost, unless its handle has already reported this.
    ///
    /// # Aborts
    /// Aborts the process if the queue pair still uses memory and cannot be destroyed: returning would end the borrow
    /// of the memory.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::{ScopeError, TransportError, prelude::*};
    /// use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let channel = pd.create_channel().build()?;
    /// let endpoint = channel.endpoint();
    /// let mut channel = channel.handshake(endpoint)?; // to itself
    ///
    /// let mut memory = [0; 8];
    /// let region = pd.register_local_mr_slice(&memory)?;
    /// memory[..4].fill(8);
    /// channel
    ///     .scope(|s| {
    ///         let (from, to) = memory.split_at_mut(4);
    ///         let mut buffer = [region.scatter_element(to)];
    ///         s.post_receive(ReceiveWorkRequest::new(&mut buffer))?;
    ///         s.post_send(SendWorkRequest::new(&[region.gather_element(from)]))?;
    ///         Ok::<(), ScopeError<TransportError>>(())
    ///     })
    ///     .unwrap();
    /// assert_eq!(memory, [8; 8]);
    /// # Ok::<(), TransportError>(())
    /// ```
    #[inline(always)]
    pub fn scope<'env, T, E>(
        &'env mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, ScopeError<E>> {
        settle(self.ledger.scope(f))
    }

    /// Like [`scope`](Self::scope), but the whole scope has one deadline: this limit, counted from now.
    ///
    /// Each wait, and each post that waits, ends at the deadline or at its own limit, whichever is earlier. The
    /// deadline also ends the wait for operations that the closure has left in flight. They are then flushed, as after
    /// the [drain limit](crate::ChannelBuilder::drain_timeout), and the channel is closed. Other code in the closure is
    /// not interrupted. [`Duration::MAX`] means no deadline.
    ///
    /// # Errors
    /// Same errors as [`scope`](Self::scope). A wait that the deadline cuts short fails with
    /// [`TransportError::Timeout`], which contains this limit.
    ///
    /// # Examples
    /// ```
    /// use std::time::{Duration, Instant};
    /// use rdma_channel::{ScopeError, TransportError, prelude::*};
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// let (limit, begin) = (Duration::from_millis(20), Instant::now());
    /// let mut memory = pd.allocate_region(8)?;
    /// let outcome = channel.scope_deadline(limit, |s| {
    ///     let (_, message) = s.receive_into(memory.as_slice_mut())?.done(Duration::from_secs(60))?;
    ///     Ok::<_, TransportError>(message)
    /// });
    /// let error = outcome.map_err(ScopeError::flatten).unwrap_err();
    /// assert!(matches!(error, TransportError::Timeout { timeout, .. } if timeout == limit));
    /// assert!(begin.elapsed() < Duration::from_secs(10));
    /// # Ok::<(), TransportError>(())
    /// ```
    #[doc(alias = "timeout")]
    pub fn scope_deadline<'env, T, E>(
        &'env mut self,
        limit: Duration,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, E>,
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
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, E> {
        settle_manual(self.ledger.scope(f))
    }
}

/// Bounds all waits of a ledger until this value is dropped.
pub(crate) struct Bounded<'l> {
    pub(crate) ledger: &'l mut Ledger,
}

impl<'l> Bounded<'l> {
    pub(crate) fn new(ledger: &'l mut Ledger, limit: Duration) -> Self {
        ledger.limits.bound = Bound::from_now(limit);
        Self { ledger }
    }
}

impl Drop for Bounded<'_> {
    fn drop(&mut self) {
        self.ledger.limits.bound = None;
    }
}

impl<C> Scope<'_, '_, C> {
    /// Closes the channel permanently, or all connections of a [`MultiChannel`](crate::MultiChannel). Operations in
    /// flight are flushed at once, so the scope does not wait for them. They do not count as failures of the scope.
    ///
    /// Use this when posted receives will get no further messages. The peer is not notified, and its last messages may
    /// be lost, so let both ends agree before you close.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::{TransportError, prelude::*};
    /// use rdma_qp::ReceiveWorkRequest;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// channel
    ///     .scope(|s| {
    ///         s.post_receive(ReceiveWorkRequest::only_immediate())?;
    ///         s.close();
    ///         Ok::<_, TransportError>(())
    ///     })
    ///     .unwrap();
    /// assert!(channel.closed().is_some());
    /// # Ok::<(), TransportError>(())
    /// ```
    pub fn close(&self) {
        self.only.ledger().close_as_asked();
    }
}

impl<'scope> Deref for Scope<'scope, '_> {
    type Target = ScopedPeer<'scope>;

    #[inline(always)]
    fn deref(&self) -> &ScopedPeer<'scope> {
        &self.only
    }
}
