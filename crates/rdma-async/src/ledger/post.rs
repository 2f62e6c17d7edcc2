//! Posts requests.
#![allow(unsafe_code)]

use rdma_connect::messaging::Window;
use std::ops::Range;
use std::sync::atomic::Ordering;

use rdma_connect::{FailedWork, Operation, PeerAddress, RefusedWork, TransportError};
use rdma_mem::{
    AccessFlags, BindableRegion, GatherList, ProtectionDomain, RemoteMemoryRegion, Rkey,
    ScatterList, SharedRegion, SliceMut, SliceRef,
};
use rdma_qp::{
    AtomicWorkRequest, LocalInvalidate, PostError, QueuePair, ReadWorkRequest, ReceiveWorkRequest,
    SendWorkRequest, WorkError, WriteWorkRequest,
};

use super::slots::Id;
use crate::buffer::held::sealed::Lease;
use crate::buffer::held::{Held, Rarer};
use crate::operation::kinds::Kind;

/// The size of an atomic operation, in bytes.
pub(crate) const WORD: usize = size_of::<u64>();

/// The reason why a request was not posted.
#[derive(Debug)]
pub(crate) enum PostFailure {
    /// No slot is free.
    NoSlot,
    Failed(Box<TransportError>),
}

impl From<PostFailure> for TransportError {
    #[cold]
    fn from(refusal: PostFailure) -> Self {
        match refusal {
            PostFailure::NoSlot => Self::WouldBlock,
            PostFailure::Failed(error) => *error,
        }
    }
}

/// A request without its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestSpec {
    Send(Option<u32>),
    /// A SEND whose completion at the peer is solicited.
    SolicitedSend,
    Receive,
    Write(RemoteMemoryRegion, Option<u32>),
    Read(RemoteMemoryRegion),
    CompareAndSwap(RemoteMemoryRegion, u64, u64),
    FetchAdd(RemoteMemoryRegion, u64),
    /// Binds the window to this range of bytes in its region.
    Bind(usize, usize, AccessFlags),
    Invalidate(Rkey),
}

/// Adds immediate data to a request, if there is any.
macro_rules! with {
    ($request:ident, $immediate:ident) => {
        match $immediate {
            Some(number) => $request.with_immediate(number),
            None => $request,
        }
    };
}

/// Posts a request with the memory in `memory`.
///
/// # Safety
/// The contract of [`QueuePair::post`] applies to this memory and to the word of the slot. It applies until the request
/// has completed or the queue pair has been destroyed.
#[inline(always)]
pub(crate) unsafe fn post<K: Kind>(
    qp: &QueuePair,
    request: &RequestSpec,
    memory: &mut Option<K::Memory>,
    words: Option<&SharedRegion>,
    id: Id,
) -> Result<(), PostError> {
    // The kind is known at compile time, so only its arms remain.
    match (K::OPERATION, *request) {
        (Operation::Write, RequestSpec::Write(remote, immediate)) => match source(memory) {
            Some(slice) => {
                let list = GatherList::from([slice]);
                let write = WriteWorkRequest::from_list(&list, remote);
                // SAFETY: the caller upholds the contract of this function.
                unsafe { qp.post(with!(write, immediate), id.0) }
            }
            // SAFETY: the caller upholds the contract of this function.
            None => unsafe { write_nothing(qp, remote, immediate, id) },
        },
        (Operation::Send, RequestSpec::Send(immediate)) => match source(memory) {
            Some(slice) => {
                let list = GatherList::from([slice]);
                let send = SendWorkRequest::from_list(&list);
                // SAFETY: the caller upholds the contract of this function.
                unsafe { qp.post(with!(send, immediate), id.0) }
            }
            // SAFETY: the caller upholds the contract of this function.
            None => unsafe { send_nothing(qp, immediate, id) },
        },
        (Operation::Send, RequestSpec::SolicitedSend) => {
            let list = source(memory).map(|slice| GatherList::from([slice]));
            let send = match &list {
                Some(list) => SendWorkRequest::from_list(list),
                None => SendWorkRequest::new(&[]),
            };
            // SAFETY: the caller upholds the contract of this function.
            unsafe { qp.post(send.solicited(), id.0) }
        }
        (Operation::Receive, RequestSpec::Receive) => match target(memory) {
            Some(slice) => {
                let mut list = ScatterList::from([slice]);
                // SAFETY: the caller upholds the contract of this function.
                unsafe { qp.post(ReceiveWorkRequest::from_list(&mut list), id.0) }
            }
            // SAFETY: the caller upholds the contract of this function.
            None => unsafe { qp.post(ReceiveWorkRequest::only_immediate(), id.0) },
        },
        (Operation::Read, RequestSpec::Read(remote)) => match target(memory) {
            Some(slice) => {
                let mut list = ScatterList::from([slice]);
                // SAFETY: the caller upholds the contract of this function.
                unsafe { qp.post(ReadWorkRequest::from_list(&mut list, remote), id.0) }
            }
            // SAFETY: the caller upholds the contract of this function.
            None => unsafe { qp.post(ReadWorkRequest::new(&mut [], remote), id.0) },
        },
        (Operation::Atomic, RequestSpec::CompareAndSwap(remote, compare, swap)) => {
            let Some(words) = words else { unreachable!("words are registered before the post") };
            let mut list = ScatterList::from([element(words, id)]);
            let request = AtomicWorkRequest::compare_and_swap(&mut list, remote, compare, swap);
            // SAFETY: the caller upholds the contract of this function.
            unsafe { qp.post(request, id.0) }
        }
        (Operation::Atomic, RequestSpec::FetchAdd(remote, add)) => {
            let Some(words) = words else { unreachable!("words are registered before the post") };
            let mut list = ScatterList::from([element(words, id)]);
            // SAFETY: the caller upholds the contract of this function.
            unsafe { qp.post(AtomicWorkRequest::fetch_and_add(&mut list, remote, add), id.0) }
        }
        (Operation::Bind, RequestSpec::Bind(start, end, access)) => {
            let mut held = memory.take().map_or(Held::Nothing, Lease::into_held);
            let posted = match &mut held {
                // SAFETY: the caller upholds the contract of this function.
                Held::Rarer(Rarer::Window(window)) => unsafe {
                    bind(qp, window, start..end, access, id)
                },
                // SAFETY: the caller upholds the contract of this function.
                Held::Rarer(Rarer::Lent(window)) => unsafe {
                    bind(qp, window, start..end, access, id)
                },
                _ => unreachable!("a bind has its window"),
            };
            *memory = Lease::take_from(&mut held);
            posted
        }
        // SAFETY: the caller upholds the contract of this function.
        (Operation::Invalidation, RequestSpec::Invalidate(key)) => unsafe {
            invalidate(qp, key, id)
        },
        _ => unreachable!("each kind of operation has its requests"),
    }
}

/// # Safety
/// The contract of [`post`] applies, for a request without memory.
#[cold]
#[inline(never)]
unsafe fn write_nothing(
    qp: &QueuePair,
    remote: RemoteMemoryRegion,
    immediate: Option<u32>,
    id: Id,
) -> Result<(), PostError> {
    let write = WriteWorkRequest::new(&[], remote);
    // SAFETY: the caller upholds the contract of this function.
    unsafe { qp.post(with!(write, immediate), id.0) }
}

/// # Safety
/// The contract of [`post`] applies, for a request without memory.
#[cold]
#[inline(never)]
unsafe fn send_nothing(qp: &QueuePair, immediate: Option<u32>, id: Id) -> Result<(), PostError> {
    let send = SendWorkRequest::new(&[]);
    // SAFETY: the caller upholds the contract of this function.
    unsafe { qp.post(with!(send, immediate), id.0) }
}

/// # Safety
/// The contract of [`post`] applies: the window and its region stay in their slot.
#[cold]
#[inline(never)]
unsafe fn bind<R: BindableRegion>(
    qp: &QueuePair,
    window: &mut Window<R>,
    range: Range<usize>,
    access: AccessFlags,
    id: Id,
) -> Result<(), PostError> {
    // SAFETY: the caller upholds the contract of this function. SAFETY.md F28: no one else uses the window's region.
    // The peer may use all of an owned region, so it does not matter whether the device confines the peer to the range.
    // A buffer is lent only if the device was found to do so. A window has at most one binding at a time.
    unsafe { qp.bind(window.get_mut(), range, access, id.0) }
}

/// # Safety
/// The contract of [`post`] applies: the window with this key stays in its slot.
#[cold]
#[inline(never)]
unsafe fn invalidate(qp: &QueuePair, key: Rkey, id: Id) -> Result<(), PostError> {
    // SAFETY: the caller upholds the contract of this function, and the request has no memory.
    unsafe { qp.post(LocalInvalidate::new(key), id.0) }
}

#[inline]
fn source<M: Lease>(memory: &Option<M>) -> Option<SliceRef<'_>> {
    memory.as_ref().and_then(Lease::source)
}

#[inline]
fn target<M: Lease>(memory: &mut Option<M>) -> Option<SliceMut<'_>> {
    memory.as_mut().and_then(Lease::target)
}

#[allow(clippy::expect_used)] // there are as many words as slots
fn element(words: &SharedRegion, id: Id) -> rdma_mem::SharedElement<'_> {
    let at = id.slot() * WORD;
    words.element(at..at + WORD).expect("a word for each slot")
}

/// Returns the result that an atomic operation wrote to the word of its slot.
#[allow(clippy::expect_used)] // there are as many words as slots
pub(crate) fn word(words: &SharedRegion, id: Id) -> u64 {
    words.atomic_u64(id.slot() * WORD).expect("a word for each slot").load(Ordering::Acquire)
}

/// Registers words for this many slots.
///
/// # Errors
/// If the words cannot be registered.
pub(crate) fn words(pd: &ProtectionDomain, slots: u32) -> Result<SharedRegion, TransportError> {
    let access = AccessFlags::new().with_local_write();
    Ok(pd.allocate_shared_region(slots as usize * WORD, access)?)
}

#[cold]
pub(crate) fn refused(
    operation: Operation,
    peer: Option<PeerAddress>,
    error: PostError,
) -> TransportError {
    TransportError::PostError(Box::new(RefusedWork::new(operation, peer, error)))
}

#[cold]
pub(crate) fn failed(
    operation: Operation,
    peer: Option<PeerAddress>,
    error: WorkError,
    qp: Option<&QueuePair>,
) -> TransportError {
    TransportError::WorkError(FailedWork::of_qp(operation, peer, error, qp))
}
