//! Scopes: many operations under way, which all end before their memory is given back.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use rdma_mem::{InlineElement, RemoteMemoryRegion};
use rdma_qp::{
    AtomicWorkRequest, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest,
};

use crate::core::{Core, Only, Room};
use crate::ending::Ended;
use crate::transport_error::first;
use crate::{
    Channel, CloseReason, Operation, OperationError, PendingWork, ScopedPendingWork, TransportError,
};

/// Where operations are posted that end before it does.
///
/// Made by [`Channel::scope`], and lent to its closure, as [`std::thread::scope`] does. Neither it nor its
/// handles can leave the closure, or its thread.
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope, C = Channel> {
    pub(crate) core: &'scope Core,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
    of: PhantomData<fn(C) -> C>,
}

/// Why a scope failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError<E = TransportError> {
    /// What the closure said.
    #[error("{0}")]
    ClosureError(E),
    /// The closure succeeded, but not all operations did that it had left.
    #[error("{} of the operations that the scope had left failed; first: {}", .0.len(), first(.0))]
    AutoPollError(Vec<OperationError>),
}

impl<E> From<E> for ScopeError<E> {
    fn from(error: E) -> Self {
        Self::ClosureError(error)
    }
}

/// Ends what is under way, also if the closure panics.
struct Guard<'env>(&'env mut Core);

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        drop(self.0.end());
    }
}

/// Runs the closure, then ends what it has left under way. `settle` says what comes of its value.
#[inline(always)]
pub(crate) fn run<'env, C, T, E, F>(
    core: &'env mut Core,
    f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env, C>) -> Result<T, E>,
    settle: impl FnOnce(T, Ended) -> Result<T, F>,
    failed: impl FnOnce(E) -> F,
) -> Result<T, F> {
    core.begin();
    let guard = Guard(core);
    let scope = Scope { core: &*guard.0, scope: PhantomData, env: PhantomData, of: PhantomData };
    let value = match f(&scope) {
        Ok(value) => value,
        // What is under way ends, and what becomes of it is not asked for any more.
        Err(error) => return Err(failed(error)),
    };
    match ManuallyDrop::new(guard).0.end() {
        None => Ok(value),
        Some(ended) => settle(value, ended),
    }
}

/// What [`Channel::scope`] returns.
pub(crate) fn settle<T, E>(value: T, ended: Ended) -> Result<T, ScopeError<E>> {
    let errors = ended.errors;
    if errors.is_empty() { Ok(value) } else { Err(ScopeError::AutoPollError(errors)) }
}

/// What [`Channel::manual_scope`] returns.
#[allow(clippy::panic)] // what it is documented to do
pub(crate) fn settle_manual<T, E>(value: T, ended: Ended) -> Result<T, E> {
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
    /// whose bytes stay is not said. In the other form the scope [rents](Scope::send_from)
    /// registered slices, and gives each back when its operation is done: with that a ring of
    /// buffers goes round in one scope.
    ///
    /// However the closure ends, by return, `?` or panic: what it has left under way is finished. That takes
    /// no longer than the [drain limit](crate::ChannelBuilder::drain_timeout), 5 seconds by default, after
    /// which the channel is closed, and the same time once more, after which its queue pair is destroyed.
    ///
    /// # Errors
    /// [`ScopeError::ClosureError`] with what the closure says. Else [`ScopeError::AutoPollError`] with each
    /// operation that failed or was lost and had not told its handle.
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
    ///         let mut room = [region.scatter_element(to)];
    ///         s.post_receive(ReceiveWorkRequest::new(&mut room))?;
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
        f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, E> {
        run(&mut self.core, f, settle_manual, |error| error)
    }
}

impl<C> Scope<'_, '_, C> {
    /// Closes the channel, for good: what is under way is flushed at once, so that the scope has not to wait for
    /// it, and operations that were flushed so are no failure of the scope.
    ///
    /// It is how a side ends that has receives posted which nobody will answer. The peer is not told, and what
    /// it has sent last may be lost: agree on the end first.
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
        self.core.close_as_asked();
    }
}

/// The posts of requests of the send queue.
macro_rules! posts {
    ($($(#[$doc:meta])* $name:ident: $request:ident => $operation:ident;)+) => {$(
        $(#[$doc])*
        ///
        /// Waits for room in the queue, as long as operations of its kind may take.
        ///
        /// # Errors
        /// If it was not posted: nothing has changed then.
        #[inline(always)]
        pub fn $name<'data: 'scope>(
            &'scope self,
            wr: $request<'_, 'data>,
        ) -> Result<ScopedPendingWork<'scope>, TransportError> {
            // SAFETY: SAFETY.md F22: its memory is borrowed for the scope, which ends after the request.
            let ticket = unsafe { self.core.post_to(Only, Operation::$operation, wr, Room::Usual) }?;
            Ok(PendingWork::new(ticket))
        }
    )+};
}

impl<'scope> Scope<'scope, '_> {
    posts! {
        /// Posts a message to the peer.
        post_send: SendWorkRequest => Send;
        /// Posts a write into memory of the peer.
        post_write: WriteWorkRequest => Write;
        /// Posts a read of memory of the peer.
        post_read: ReadWorkRequest => Read;
        /// Posts an atomic operation on memory of the peer.
        post_atomic: AtomicWorkRequest => Atomic;
    }

    /// Posts these bytes as a message to the peer; as [`Channel::send_inline`]. The post copies them, so that they
    /// are borrowed no longer than it.
    ///
    /// Waits for room in the queue, as long as a send may take.
    ///
    /// # Errors
    /// As of [`Channel::send_inline`], if it was not posted: nothing has changed then.
    ///
    /// # Examples
    /// One line of text after the other, in the same string.
    /// ```
    /// use rdma_channel::{TransportError, prelude::*};
    /// use rdma_qp::ReceiveWorkRequest;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().max_inline_data(16).build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// let mut room = pd.allocate_region(16)?;
    /// channel
    ///     .scope(|s| {
    ///         let (first, second) = room.as_slice_mut().split_at(8);
    ///         s.receive_batch_into([first, second])?;
    ///         let mut line = String::new();
    ///         for name in ["first", "second"] {
    ///             line.clear();
    ///             line.push_str(name);
    ///             s.send_inline(line.as_bytes())?;
    ///         }
    ///         Ok::<_, TransportError>(())
    ///     })
    ///     .unwrap();
    /// assert_eq!(&room[..], b"first\0\0\0second\0\0");
    /// # Ok::<(), TransportError>(())
    /// ```
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn send_inline(
        &'scope self,
        data: &[u8],
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.post_send(SendWorkRequest::inline(&[InlineElement::new_checked(data)?]))
    }

    /// Posts a write of these bytes to the beginning of `remote`; as [`send_inline`](Self::send_inline).
    ///
    /// # Errors
    /// As of [`send_inline`](Self::send_inline).
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn write_inline(
        &'scope self,
        data: &[u8],
        remote: RemoteMemoryRegion,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        self.post_write(WriteWorkRequest::inline(&[InlineElement::new_checked(data)?], remote))
    }

    /// Whether the channel has been closed, and by what: why operations that had not failed were flushed.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        self.core.only().closed.get()
    }

    /// Posts room for a message of the peer.
    ///
    /// # Errors
    /// If it was not posted: nothing has changed then. A full queue is [`TransportError::WouldBlock`] at
    /// once, unless the builder has set a [limit for receives](crate::ChannelBuilder::receive_timeout):
    /// then it waits as long for room.
    #[inline(always)]
    pub fn post_receive<'data: 'scope>(
        &'scope self,
        wr: ReceiveWorkRequest<'_, 'data>,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        // SAFETY: SAFETY.md F22: its memory is borrowed for the scope, which ends after the request.
        let ticket = unsafe { self.core.post_receive_from(Only, wr, Room::Usual) }?;
        Ok(PendingWork::new(ticket))
    }
}
