//! Scopes: many operations in flight, which all end before their memory is given back.

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

/// A scope, in which operations are posted that all end before the scope does.
///
/// Made by [`Channel::scope`], and lent to its closure, as [`std::thread::scope`] does. Neither the
/// scope nor its handles can leave the closure, or its thread. The scope of a channel posts what a
/// [`ScopedPeer`] does; that of a [`MultiChannel`](crate::MultiChannel) has one for [each
/// peer](Scope::to).
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
///         s.send_inline(b"two ").map(drop) // and what is left is waited for
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
    /// The only peer of a channel, which has one.
    pub(crate) only: ScopedPeer<'scope>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
    of: PhantomData<fn(C) -> C>,
}

/// For each peer the queue pair, the peer, and what has closed the connection.
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

/// Why a scope failed.
///
/// # Examples
/// The scope waits for a write that nobody has asked about, and says that it failed:
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
///     Ok(()) => panic!("nothing can be written there"),
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
    /// The closure succeeded, but not all operations did that it had left in flight.
    #[error("{}", left_in_flight(.0))]
    AutoPollError(Vec<OperationError>),
}

/// As the closure's error prints itself; it may have no message.
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
    format!("{} of the operations that the scope had left failed; first: {first}", errors.len())
}

impl<E: From<TransportError>> ScopeError<E> {
    /// The closure's error, or else that of the first operation which failed.
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

/// What [`Channel::scope`] returns, of the closure and of what it has left in flight. If the closure
/// failed, what becomes of that is not asked for any more.
#[inline(always)]
pub(crate) fn settle<T, E>(scope: Result<(T, Ended), E>) -> Result<T, ScopeError<E>> {
    let (value, ended) = scope.map_err(ScopeError::ClosureError)?;
    match ended.errors() {
        None => Ok(value),
        Some(errors) => Err(ScopeError::AutoPollError(errors)),
    }
}

/// As [`settle`], of [`Channel::manual_scope`].
#[inline(always)]
#[track_caller]
pub(crate) fn settle_manual<T, E>(scope: Result<(T, Ended), E>) -> Result<T, E> {
    let (value, ended) = scope?;
    let unasked = ended.unasked;
    assert!(
        unasked == 0,
        "{unasked} operations of a manual scope were left without being asked how they ended"
    );
    Ok(value)
}

impl Channel {
    /// Runs a closure that posts operations, which are all over when this returns.
    ///
    /// The memory of its requests is borrowed as long as the scope lasts. An element can be posted
    /// again while it is outstanding: nobody sees its memory before all its requests are over, and
    /// whose bytes stay is not said. In the other form the scope [rents](ScopedPeer::send_from)
    /// registered slices, and gives each back when its operation is done: with that a ring of
    /// buffers goes round in one scope.
    ///
    /// However the closure ends, by return, `?` or panic: what it has left in flight is finished.
    /// That takes no longer than the [drain limit](crate::ChannelBuilder::drain_timeout), 5 seconds
    /// by default, after which the channel is closed, and the same time once more, after which its
    /// queue pair is destroyed. If the closure has failed, requests that it had waited for in vain are
    /// waited for no longer than the longest of these waits, of which one of less than 10 ms is a look and
    /// does not count; then their connection is closed.
    ///
    /// # Errors
    /// [`ScopeError::ClosureError`] with what the closure says. Else [`ScopeError::AutoPollError`]
    /// with each operation that failed or was lost and was not reported by its handle.
    ///
    /// # Aborts
    /// If the queue pair still uses memory and cannot be destroyed: the memory is borrowed, and returning
    /// would give it back.
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

    /// As [`scope`](Self::scope), with one deadline for all of it, which is taken now.
    ///
    /// Each wait and each post that waits ends by the deadline, if its own limit is later, and so does
    /// what takes the operations that the closure has left in flight. What is in flight then is flushed,
    /// as after the [drain limit](crate::ChannelBuilder::drain_timeout), which closes the channel. What else
    /// the closure does is its own affair. [`Duration::MAX`] is no deadline.
    ///
    /// # Errors
    /// Those of [`scope`](Self::scope). A wait that the deadline ends says [`TransportError::Timeout`] with
    /// this limit.
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

    /// As [`scope`](Self::scope), of a closure that asks all its handles how their operations ended.
    ///
    /// # Errors
    /// What the closure says, as it is.
    ///
    /// # Panics
    /// If the closure succeeds and has not asked all: after they have ended.
    #[inline(always)]
    #[track_caller]
    pub fn manual_scope<'env, T, E>(
        &'env mut self,
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, E> {
        settle_manual(self.ledger.scope(f))
    }
}

/// A ledger all of whose waits end by then, until this is dropped.
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
    /// Closes the channel, for good: operations in flight are flushed at once, so that the scope need
    /// not wait for them, and operations that were flushed so are no failure of the scope.
    ///
    /// It is how a side ends that has receives posted which nobody will answer. The peer is not
    /// informed, and what it has sent last may be lost: agree on the end first.
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
