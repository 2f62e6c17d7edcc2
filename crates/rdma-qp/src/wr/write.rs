//! RDMA writes.

use rdma_mem::{GatherElement, GatherList, InlineElement, ProtectionDomain, RemoteMemoryRegion};
use rdma_sys::ibv_wr_opcode;

use crate::wr::elements::{Data, Elements};
use crate::wr::flags::{FENCE, SIGNALED, SOLICITED, data, domains, flags};
use crate::wr::queued::QueuedRequest;

/// Writes into memory of the peer, which notices nothing, unless immediate data goes along.
#[derive(Clone, Copy, Debug)]
pub struct WriteWorkRequest<'wr, 'data> {
    pub(crate) data: Data<'wr, 'data>,
    pub(crate) domains: &'wr [&'data ProtectionDomain],
    pub(crate) remote: RemoteMemoryRegion,
    pub(crate) immediate: Option<u32>,
    pub(crate) flags: u32,
}

domains!(WriteWorkRequest);

flags!(WriteWorkRequest);

data!(WriteWorkRequest);

impl<'wr, 'data> WriteWorkRequest<'wr, 'data> {
    /// Writes the bytes of these elements to the beginning of `remote`.
    #[inline]
    #[must_use]
    pub const fn new(elements: &'wr [GatherElement<'data>], remote: RemoteMemoryRegion) -> Self {
        Self::of(Data::Keyed(elements), remote)
    }

    /// Writes these bytes to the beginning of `remote`. The processor copies them when the request is posted, as
    /// those of [`SendWorkRequest::inline`](crate::SendWorkRequest::inline).
    #[doc(alias = "IBV_SEND_INLINE")]
    #[doc(alias = "ibv_wr_set_inline_data")]
    #[inline]
    #[must_use]
    pub const fn inline(elements: &'wr [InlineElement<'wr>], remote: RemoteMemoryRegion) -> Self {
        Self::of(Data::Inline(elements), remote)
    }

    #[inline]
    const fn of(data: Data<'wr, 'data>, remote: RemoteMemoryRegion) -> Self {
        Self { data, domains: &[], remote, immediate: None, flags: SIGNALED }
    }

    /// As [`new`](Self::new), with registered slices, whose domain is checked when it is posted.
    #[inline]
    #[must_use]
    pub const fn from_list<const N: usize>(
        list: &'wr GatherList<'data, N>,
        remote: RemoteMemoryRegion,
    ) -> Self {
        Self { domains: list.domains(), ..Self::new(list.elements(), remote) }
    }

    /// Writes no bytes, and sends immediate data, which a receive of the peer takes.
    #[inline]
    #[must_use]
    pub fn only_immediate(immediate: u32) -> Self {
        let nothing = Self::of(Data::Keyed(&[]), RemoteMemoryRegion::new(0, 0, 0));
        Self { immediate: Some(immediate), ..nothing }
    }

    /// The request, for a batch, with the WR ID that its completion will have.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedRequest<'wr, 'data> {
        let opcode = match self.immediate {
            None => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Some(_) => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
        };
        let elements = Elements::of(self.data, self.domains);
        let request = QueuedRequest::new(wr_id, opcode, self.flags, elements);
        request.immediate(self.immediate).rdma(self.remote)
    }
}
