//! RDMA reads.

use rdma_mem::{ProtectionDomain, RemoteMemoryRegion, ScatterElement, ScatterList};
use rdma_sys::ibv_wr_opcode;

use crate::wr::elements::Elements;
use crate::wr::flags::{FENCE, SIGNALED, domains, flags};
use crate::wr::queued::QueuedRequest;

/// Reads memory of the peer, which notices nothing.
#[derive(Debug)]
pub struct ReadWorkRequest<'wr, 'data> {
    pub(crate) elements: &'wr mut [ScatterElement<'data>],
    pub(crate) domains: &'wr [&'data ProtectionDomain],
    pub(crate) remote: RemoteMemoryRegion,
    pub(crate) flags: u32,
}

domains!(ReadWorkRequest);

flags!(ReadWorkRequest);

impl<'wr, 'data> ReadWorkRequest<'wr, 'data> {
    /// Reads as many bytes from the beginning of `remote` as these elements have.
    #[inline]
    #[must_use]
    pub const fn new(
        elements: &'wr mut [ScatterElement<'data>],
        remote: RemoteMemoryRegion,
    ) -> Self {
        Self { elements, domains: &[], remote, flags: SIGNALED }
    }

    /// As [`new`](Self::new), with registered slices, whose domain is checked when it is posted.
    #[inline]
    #[must_use]
    pub const fn from_list<const N: usize>(
        list: &'wr mut ScatterList<'data, N>,
        remote: RemoteMemoryRegion,
    ) -> Self {
        let (elements, domains) = list.parts();
        Self { elements, domains, remote, flags: SIGNALED }
    }

    /// The request, for a batch, with the WR ID that its completion will have.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedRequest<'wr, 'data> {
        let elements = Elements::scattered(self.elements, self.domains);
        let opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
        QueuedRequest::new(wr_id, opcode, self.flags, elements).rdma(self.remote)
    }
}
