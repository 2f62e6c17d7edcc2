//! Work requests with the index of their peer.

use rdma_mem::{GatherElement, ScatterElement};
use rdma_qp::{
    AtomicWorkRequest, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest,
};

use super::remote_memory_region::PeerRemoteMemoryRegion;
use crate::request::BatchRequest;

/// A work request with the index of its peer, counted from 0.
///
/// Each kind of request has its own alias, like [`PeerSendWorkRequest`]. Sends and receives have the usual
/// constructors, with the peer as the first argument. Writes and reads get the peer from a [`PeerRemoteMemoryRegion`].
/// [`from_wr`](Self::from_wr) accepts any other request: with flags, inline, with registered slices, or atomic.
///
/// # Examples
/// ```
/// use rdma_channel::{PeerSendWorkRequest, ToPeer};
/// use rdma_qp::SendWorkRequest;
///
/// let plain = PeerSendWorkRequest::only_immediate(2, 7);
/// let solicited = ToPeer::from_wr(2, SendWorkRequest::only_immediate(7).solicited());
/// assert_eq!(plain.peer(), solicited.peer());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ToPeer<W> {
    pub(crate) peer: usize,
    pub(crate) wr: W,
}

/// A message to a peer; see [`SendWorkRequest`].
pub type PeerSendWorkRequest<'wr, 'data> = ToPeer<SendWorkRequest<'wr, 'data>>;
/// Memory for one message from a peer; see [`ReceiveWorkRequest`].
pub type PeerReceiveWorkRequest<'wr, 'data> = ToPeer<ReceiveWorkRequest<'wr, 'data>>;
/// A write to a peer's memory; see [`WriteWorkRequest`].
pub type PeerWriteWorkRequest<'wr, 'data> = ToPeer<WriteWorkRequest<'wr, 'data>>;
/// A read of a peer's memory; see [`ReadWorkRequest`].
pub type PeerReadWorkRequest<'wr, 'data> = ToPeer<ReadWorkRequest<'wr, 'data>>;
/// An atomic operation on a peer's memory; see [`AtomicWorkRequest`]. Created with [`from_wr`](ToPeer::from_wr).
pub type PeerAtomicWorkRequest<'wr, 'data> = ToPeer<AtomicWorkRequest<'wr, 'data>>;

impl<W> ToPeer<W> {
    /// Adds the index of a peer to any request, for example one with flags or registered slices.
    #[inline]
    #[must_use]
    pub const fn from_wr(peer: usize, wr: W) -> Self {
        Self { peer, wr }
    }

    /// The index of the peer.
    #[inline]
    #[must_use]
    pub const fn peer(&self) -> usize {
        self.peer
    }
}

macro_rules! without_peer {
    ($($request:ident)+) => {$(
        impl<'wr, 'data> From<ToPeer<$request<'wr, 'data>>> for $request<'wr, 'data> {
            #[inline]
            fn from(request: ToPeer<$request<'wr, 'data>>) -> Self {
                request.wr
            }
        }
    )+};
}

without_peer!(SendWorkRequest ReceiveWorkRequest WriteWorkRequest ReadWorkRequest AtomicWorkRequest);

macro_rules! in_a_batch {
    ($($request:ident)+) => {$(
        impl<'wr, 'data> From<ToPeer<$request<'wr, 'data>>> for ToPeer<BatchRequest<'wr, 'data>> {
            #[inline]
            fn from(request: ToPeer<$request<'wr, 'data>>) -> Self {
                Self { peer: request.peer, wr: request.wr.into() }
            }
        }
    )+};
}

in_a_batch!(SendWorkRequest WriteWorkRequest ReadWorkRequest AtomicWorkRequest);

impl<'wr, 'data> ToPeer<SendWorkRequest<'wr, 'data>> {
    /// Sends the bytes of these elements as one message to the peer.
    #[inline]
    #[must_use]
    pub const fn new(peer: usize, gather_elements: &'wr [GatherElement<'data>]) -> Self {
        Self::from_wr(peer, SendWorkRequest::new(gather_elements))
    }

    /// Adds immediate data.
    #[inline]
    #[must_use]
    pub const fn with_immediate(self, immediate: u32) -> Self {
        Self { wr: self.wr.with_immediate(immediate), ..self }
    }

    /// Sends an empty message with immediate data.
    #[inline]
    #[must_use]
    pub const fn only_immediate(peer: usize, immediate: u32) -> Self {
        Self::from_wr(peer, SendWorkRequest::only_immediate(immediate))
    }
}

impl<'wr, 'data> ToPeer<ReceiveWorkRequest<'wr, 'data>> {
    /// Receives one message from the peer into these elements, in order.
    #[inline]
    #[must_use]
    pub const fn new(peer: usize, scatter_elements: &'wr mut [ScatterElement<'data>]) -> Self {
        Self::from_wr(peer, ReceiveWorkRequest::new(scatter_elements))
    }

    /// Receives an empty message, or the immediate data of a write.
    #[inline]
    #[must_use]
    pub const fn only_immediate(peer: usize) -> Self {
        Self::from_wr(peer, ReceiveWorkRequest::only_immediate())
    }
}

impl<'wr, 'data> ToPeer<WriteWorkRequest<'wr, 'data>> {
    /// Writes the bytes of these elements to the beginning of `remote`.
    #[inline]
    #[must_use]
    pub const fn new(
        gather_elements: &'wr [GatherElement<'data>],
        remote: PeerRemoteMemoryRegion,
    ) -> Self {
        Self::from_wr(remote.peer(), WriteWorkRequest::new(gather_elements, remote.remote()))
    }

    /// Adds immediate data, which is delivered to one of the peer's receives.
    #[inline]
    #[must_use]
    pub const fn with_immediate(self, immediate: u32) -> Self {
        Self { wr: self.wr.with_immediate(immediate), ..self }
    }
}

impl<'wr, 'data> ToPeer<ReadWorkRequest<'wr, 'data>> {
    /// Fills these elements from the beginning of `remote`.
    #[inline]
    #[must_use]
    pub const fn new(
        scatter_elements: &'wr mut [ScatterElement<'data>],
        remote: PeerRemoteMemoryRegion,
    ) -> Self {
        Self::from_wr(remote.peer(), ReadWorkRequest::new(scatter_elements, remote.remote()))
    }
}
