//! RDMA writes.

use rdma_mem::{GatherElement, GatherList, InlineElement, ProtectionDomain, RemoteMemoryRegion};
use rdma_sys::ibv_wr_opcode;

use crate::wr::elements::{Data, Elements};
use crate::wr::flags::{FENCE, SIGNALED, SOLICITED, data, domains, flags};
use crate::wr::queued::QueuedRequest;

/// Writes into the peer's memory. The peer's processor is not involved, unless the request has immediate data.
///
/// # Examples
/// ```
/// use rdma_qp::WriteWorkRequest;
/// # use rdma_qp::{CompletionQueue, PollSlot, prelude::*};
/// # use rdma_mem::{AccessFlags, GatherList, ScatterList};
/// # rdma_soft::install();
/// # let context = rdma_mem::open_device("soft0")?;
/// # let cq = CompletionQueue::create(&context, 64)?;
/// # let pd = context.allocate_pd()?;
/// # let access = AccessFlags::new().with_local_write().with_remote_write().with_remote_read();
/// # let prepare = || pd.create_qp().access(access).send_cq(&cq).recv_cq(&cq).build();
/// # let (one, other) = (prepare()?, prepare()?);
/// # let (one_end, other_end) = (one.endpoint(), other.endpoint());
/// # let (mut one, mut other) = (one.handshake(other_end)?, other.handshake(one_end)?);
/// # let mut slots = [PollSlot::default()];
/// # let mut next = || loop {
/// #     let mut done = cq.poll(&mut slots)?;
/// #     if let Some(one) = done.next() { break Ok::<_, rdma_qp::Error>(one) }
/// # };
///
/// let board = pd.allocate_shared_region(8, access)?; // the peer's
/// let mut data = pd.allocate_region(8)?;
/// data.copy_from_slice(b"the word");
/// let list = GatherList::from([data.as_slice()]);
/// // SAFETY: the data is not changed until the completion below.
/// unsafe { one.post_write(WriteWorkRequest::from_list(&list, board.remote()), 1) }?;
/// next()?.result()?;
/// let mut word = [0; 8];
/// board.read(0, &mut word)?;
/// assert_eq!(&word, b"the word");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

    /// Writes these bytes to the beginning of `remote`. The processor copies them during the post, like the bytes of
    /// [`SendWorkRequest::inline`](crate::SendWorkRequest::inline).
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

    /// Like [`new`](Self::new), but from registered slices. The post checks their protection domain.
    #[inline]
    #[must_use]
    pub const fn from_list<const N: usize>(
        list: &'wr GatherList<'data, N>,
        remote: RemoteMemoryRegion,
    ) -> Self {
        Self { domains: list.domains(), ..Self::new(list.elements(), remote) }
    }

    /// Writes no bytes, and sends immediate data, which consumes one of the peer's receives.
    #[inline]
    #[must_use]
    pub fn only_immediate(immediate: u32) -> Self {
        let nothing = Self::of(Data::Keyed(&[]), RemoteMemoryRegion::new(0, 0, 0));
        Self { immediate: Some(immediate), ..nothing }
    }

    /// Converts the request into one for [`post_batch`](crate::QueuePair::post_batch), with this WR ID.
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
