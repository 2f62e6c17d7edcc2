//! Work requests, each with the peer that it is for.
#![allow(unsafe_code)]

use rdma_mem::{GatherElement, InlineElement, ScatterElement};
use rdma_qp::{
    AtomicResult, AtomicWorkRequest, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest,
    WriteWorkRequest,
};

use super::PeerRemoteMemoryRegion;
use crate::core::{Core, Room};
use crate::ticket::Ticket;
use crate::{Operation, TransportError};

/// A request with its peer, of any kind, whose memory is borrowed for `'data`.
pub(super) trait PeerRequest<'data>: Sized {
    fn peer(&self) -> usize;
    fn made_signaled(self) -> Self;

    /// # Safety
    /// As of [`Core::post`].
    unsafe fn post(self, core: &Core, room: Room) -> Result<Ticket<'_>, TransportError>;
}

macro_rules! peer_requests {
    ($($(#[$doc:meta])* $peer_request:ident: $request:ident => |$core:ident, $peer:ident, $wr:ident, $room:ident| $post:expr, $signaled:expr;)+) => {$(
        $(#[$doc])*
        pub struct $peer_request<'wr, 'data> {
            pub(super) peer: usize,
            pub(super) wr: $request<'wr, 'data>,
        }

        impl<'wr, 'data> $peer_request<'wr, 'data> {
            /// A request as it is, for that peer: with flags, or of registered slices.
            #[inline]
            #[must_use]
            pub const fn from_wr(peer: usize, wr: $request<'wr, 'data>) -> Self {
                Self { peer, wr }
            }

            /// For which peer it is.
            #[inline]
            #[must_use]
            pub const fn peer(&self) -> usize {
                self.peer
            }
        }

        impl<'wr, 'data> From<$peer_request<'wr, 'data>> for $request<'wr, 'data> {
            #[inline]
            fn from(request: $peer_request<'wr, 'data>) -> Self {
                request.wr
            }
        }

        impl<'data> PeerRequest<'data> for $peer_request<'_, 'data> {
            #[inline(always)]
            fn peer(&self) -> usize {
                self.peer
            }

            #[inline(always)]
            fn made_signaled(self) -> Self {
                let $wr = self.wr;
                Self { wr: $signaled, ..self }
            }

            #[inline(always)]
            unsafe fn post(self, $core: &Core, $room: Room) -> Result<Ticket<'_>, TransportError> {
                let Self { peer: $peer, wr: $wr } = self;
                // SAFETY: SAFETY.md F21: the same contract.
                unsafe { $post }
            }
        }
    )+};
}

peer_requests! {
    /// A message to a peer; see [`SendWorkRequest`].
    #[derive(Clone, Copy, Debug)]
    PeerSendWorkRequest: SendWorkRequest
        => |core, peer, wr, room| core.post_to(peer, Operation::Send, wr, room), wr.signaled(true);
    /// Room for one message of a peer; see [`ReceiveWorkRequest`].
    #[derive(Debug)]
    PeerReceiveWorkRequest: ReceiveWorkRequest
        => |core, peer, wr, room| core.post_receive_from(peer, wr, room), wr;
    /// A write into memory of a peer; see [`WriteWorkRequest`].
    #[derive(Clone, Copy, Debug)]
    PeerWriteWorkRequest: WriteWorkRequest
        => |core, peer, wr, room| core.post_to(peer, Operation::Write, wr, room), wr.signaled(true);
    /// A read of memory of a peer; see [`ReadWorkRequest`].
    #[derive(Debug)]
    PeerReadWorkRequest: ReadWorkRequest
        => |core, peer, wr, room| core.post_to(peer, Operation::Read, wr, room), wr.signaled(true);
    /// An atomic operation on memory of a peer; see [`AtomicWorkRequest`].
    #[derive(Debug)]
    PeerAtomicWorkRequest: AtomicWorkRequest
        => |core, peer, wr, room| core.post_to(peer, Operation::Atomic, wr, room), wr.signaled(true);
}

impl<'wr, 'data> PeerSendWorkRequest<'wr, 'data> {
    /// Sends the bytes of these elements as one message to that peer.
    #[inline]
    #[must_use]
    pub const fn new(peer: usize, gather_elements: &'wr [GatherElement<'data>]) -> Self {
        Self::from_wr(peer, SendWorkRequest::new(gather_elements))
    }

    /// Sends these bytes to that peer, copied when it is posted; see [`SendWorkRequest::inline`].
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    #[must_use]
    pub const fn inline(peer: usize, elements: &'wr [InlineElement<'wr>]) -> Self {
        Self::from_wr(peer, SendWorkRequest::inline(elements))
    }

    /// Sends a number along.
    #[inline]
    #[must_use]
    pub const fn with_immediate(self, immediate: u32) -> Self {
        Self { wr: self.wr.with_immediate(immediate), ..self }
    }

    /// Sends a message of no bytes, with a number.
    #[inline]
    #[must_use]
    pub const fn only_immediate(peer: usize, immediate: u32) -> Self {
        Self::from_wr(peer, SendWorkRequest::only_immediate(immediate))
    }
}

impl<'wr, 'data> PeerReceiveWorkRequest<'wr, 'data> {
    /// Takes one message of that peer into these elements, in order.
    #[inline]
    #[must_use]
    pub const fn new(peer: usize, scatter_elements: &'wr mut [ScatterElement<'data>]) -> Self {
        Self::from_wr(peer, ReceiveWorkRequest::new(scatter_elements))
    }

    /// Takes a message of no bytes, or the number that goes with a write.
    #[inline]
    #[must_use]
    pub const fn only_immediate(peer: usize) -> Self {
        Self::from_wr(peer, ReceiveWorkRequest::only_immediate())
    }
}

impl<'wr, 'data> PeerWriteWorkRequest<'wr, 'data> {
    /// Writes the bytes of these elements to the beginning of `remote`.
    #[inline]
    #[must_use]
    pub const fn new(
        gather_elements: &'wr [GatherElement<'data>],
        remote: PeerRemoteMemoryRegion,
    ) -> Self {
        Self::from_wr(remote.peer(), WriteWorkRequest::new(gather_elements, remote.remote()))
    }

    /// Writes these bytes to the beginning of `remote`, copied when it is posted; see
    /// [`WriteWorkRequest::inline`].
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    #[must_use]
    pub const fn inline(
        elements: &'wr [InlineElement<'wr>],
        remote: PeerRemoteMemoryRegion,
    ) -> Self {
        Self::from_wr(remote.peer(), WriteWorkRequest::inline(elements, remote.remote()))
    }

    /// Sends a number along, which a receive of the peer takes.
    #[inline]
    #[must_use]
    pub const fn with_immediate(self, immediate: u32) -> Self {
        Self { wr: self.wr.with_immediate(immediate), ..self }
    }

    /// Writes no bytes, and sends a number, which a receive of the peer takes.
    #[inline]
    #[must_use]
    pub fn only_immediate(peer: usize, immediate: u32) -> Self {
        Self::from_wr(peer, WriteWorkRequest::only_immediate(immediate))
    }
}

impl<'wr, 'data> PeerReadWorkRequest<'wr, 'data> {
    /// Reads as many bytes from the beginning of `remote` as these elements have.
    #[inline]
    #[must_use]
    pub const fn new(
        scatter_elements: &'wr mut [ScatterElement<'data>],
        remote: PeerRemoteMemoryRegion,
    ) -> Self {
        Self::from_wr(remote.peer(), ReadWorkRequest::new(scatter_elements, remote.remote()))
    }
}

impl<'wr, 'data: 'wr> PeerAtomicWorkRequest<'wr, 'data> {
    /// Puts `swap` into the peer's word if that is `compare`; the result tells whether it was.
    #[inline]
    #[must_use]
    pub fn compare_and_swap(
        result: impl Into<AtomicResult<'wr, 'data>>,
        remote: PeerRemoteMemoryRegion,
        compare: u64,
        swap: u64,
    ) -> Self {
        let word = remote.remote();
        let wr = AtomicWorkRequest::compare_and_swap(result, word, compare, swap);
        Self::from_wr(remote.peer(), wr)
    }

    /// Adds `add` to the peer's word, wrapping.
    #[inline]
    #[must_use]
    pub fn fetch_and_add(
        result: impl Into<AtomicResult<'wr, 'data>>,
        remote: PeerRemoteMemoryRegion,
        add: u64,
    ) -> Self {
        let wr = AtomicWorkRequest::fetch_and_add(result, remote.remote(), add);
        Self::from_wr(remote.peer(), wr)
    }
}
