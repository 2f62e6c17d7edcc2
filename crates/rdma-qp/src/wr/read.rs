//! RDMA reads.

use rdma_mem::{ProtectionDomain, RemoteMemoryRegion, ScatterElement, ScatterList};
use rdma_sys::ibv_wr_opcode;

use crate::wr::elements::Elements;
use crate::wr::flags::{FENCE, SIGNALED, domains, flags};
use crate::wr::queued::QueuedRequest;

/// Reads the peer's memory without involving the peer's processor.
///
/// On iWARP, the data goes into one element. NICs also require remote write access to its memory
/// ([`AccessFlags::with_remote_write`](rdma_mem::AccessFlags::with_remote_write)), which owned regions do not have.
///
/// # Examples
/// ```
/// use rdma_qp::ReadWorkRequest;
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
/// board.write(0, b"the word")?;
/// let mut buffer = pd.allocate_region(8)?;
/// let mut list = ScatterList::from([buffer.as_slice_mut()]);
/// let request = ReadWorkRequest::from_list(&mut list, board.remote());
/// // SAFETY: the buffer is not used elsewhere until the completion below.
/// unsafe { one.post_read(request, 1) }?;
/// next()?.result()?;
/// assert_eq!(&buffer[..], b"the word");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// Fills these elements from the beginning of `remote`.
    #[inline]
    #[must_use]
    pub const fn new(
        elements: &'wr mut [ScatterElement<'data>],
        remote: RemoteMemoryRegion,
    ) -> Self {
        Self { elements, domains: &[], remote, flags: SIGNALED }
    }

    /// Like [`new`](Self::new), but from registered slices. The post checks their protection domain.
    #[inline]
    #[must_use]
    pub const fn from_list<const N: usize>(
        list: &'wr mut ScatterList<'data, N>,
        remote: RemoteMemoryRegion,
    ) -> Self {
        let (elements, domains) = list.parts();
        Self { elements, domains, remote, flags: SIGNALED }
    }

    /// Converts the request into one for [`post_batch`](crate::QueuePair::post_batch), with this WR ID.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedRequest<'wr, 'data> {
        let elements = Elements::scattered(self.elements, self.domains);
        let opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
        QueuedRequest::new(wr_id, opcode, self.flags, elements).rdma(self.remote)
    }
}
