//! Atomic work requests.

use std::slice;

use rdma_mem::{ProtectionDomain, RemoteMemoryRegion, ScatterElement, ScatterList};
use rdma_sys::{ibv_send_wr__bindgen_ty_2__bindgen_ty_2, ibv_wr_opcode};

use crate::post::bounds::Bounds;
use crate::wr::elements::Elements;
use crate::wr::flags::{FENCE, SIGNALED, flags};
use crate::wr::queued::QueuedRequest;

/// The length of an atomic operation in bytes.
const WORD: u64 = 8;

/// Changes eight bytes of the peer's memory, atomically with respect to all other atomic requests that the peer's
/// device executes. Returns the old value.
///
/// Each word, the peer's and the result here, is in the byte order of its own machine. The address of the peer's word
/// must be a multiple of 8, in a region with remote atomic access. The peer's queue pair must allow that access too.
/// Whether the operation is atomic with respect to loads and stores of the peer's own processor depends on the device
/// ([`AtomicCapability`](rdma_mem::AtomicCapability)).
///
/// IBTA vol 1, section 9.4.5.
///
/// # Examples
/// Takes the next value of a counter that many machines share.
/// ```
/// use rdma_mem::{AccessFlags, ScatterList};
/// use rdma_qp::AtomicWorkRequest;
/// # use rdma_qp::{CompletionQueue, PollSlot, prelude::*};
/// # rdma_soft::install();
/// # let context = rdma_mem::open_device("soft0")?;
/// # let cq = CompletionQueue::create(&context, 64)?;
/// # let pd = context.allocate_pd()?;
/// # let access = AccessFlags::new().with_local_write().with_remote_atomic();
/// # let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).access(access).build();
/// # let (one, other) = (prepare()?, prepare()?);
/// # let (one_end, other_end) = (one.endpoint(), other.endpoint());
/// # let (qp, _other) = (one.handshake(other_end)?, other.handshake(one_end)?);
///
/// let board = pd.allocate_shared_region(4096, access)?; // of the peer
/// let counter = board.remote().typed::<u64>(64).unwrap();
/// let mut region = pd.allocate_region(8)?;
/// let mut result = ScatterList::from([region.as_slice_mut()]);
/// let next = AtomicWorkRequest::fetch_and_add(&mut result, counter, 1);
/// // SAFETY: the region is not used until the request has completed.
/// unsafe { qp.post_atomic(next, 1) }.unwrap();
/// # let mut slots = [PollSlot::default()];
/// # while cq.poll(&mut slots)?.next().map(|done| done.result().unwrap()).is_none() {}
/// // … once its completion has been polled:
/// assert_eq!(*region, 0_u64.to_ne_bytes());
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[derive(Debug)]
pub struct AtomicWorkRequest<'wr, 'data> {
    result: AtomicResult<'wr, 'data>,
    remote: RemoteMemoryRegion,
    opcode: ibv_wr_opcode,
    /// The value to compare with or to add.
    compare_add: u64,
    swap: u64,
    flags: u32,
}

/// Memory of exactly eight bytes for the old value of an [`AtomicWorkRequest`].
#[derive(Debug)]
pub struct AtomicResult<'wr, 'data> {
    element: &'wr mut [ScatterElement<'data>],
    domains: &'wr [&'data ProtectionDomain],
}

impl<'wr, 'data> From<&'wr mut ScatterElement<'data>> for AtomicResult<'wr, 'data> {
    #[inline]
    fn from(element: &'wr mut ScatterElement<'data>) -> Self {
        Self { element: slice::from_mut(element), domains: &[] }
    }
}

impl<'wr, 'data> From<&'wr mut ScatterList<'data, 1>> for AtomicResult<'wr, 'data> {
    #[inline]
    fn from(list: &'wr mut ScatterList<'data, 1>) -> Self {
        let (element, domains) = list.parts();
        Self { element, domains }
    }
}

flags!(AtomicWorkRequest);

impl<'wr, 'data> AtomicWorkRequest<'wr, 'data> {
    /// Sets the peer's word to `swap` if it equals `compare`. The old value is returned in either case.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline]
    #[must_use]
    pub fn compare_and_swap(
        result: impl Into<AtomicResult<'wr, 'data>>,
        remote: impl Into<RemoteMemoryRegion>,
        compare: u64,
        swap: u64,
    ) -> Self {
        let opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
        let (result, remote) = (result.into(), remote.into());
        Self { result, remote, opcode, compare_add: compare, swap, flags: SIGNALED }
    }

    /// Adds `add` to the peer's word. The addition wraps, so adding the [`wrapping_neg`](u64::wrapping_neg) of a number
    /// subtracts it.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline]
    #[must_use]
    pub fn fetch_and_add(
        result: impl Into<AtomicResult<'wr, 'data>>,
        remote: impl Into<RemoteMemoryRegion>,
        add: u64,
    ) -> Self {
        let opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        let (result, remote) = (result.into(), remote.into());
        Self { result, remote, opcode, compare_add: add, swap: 0, flags: SIGNALED }
    }

    /// Converts the request into one for [`post_batch`](crate::QueuePair::post_batch), with this WR ID.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedRequest<'wr, 'data> {
        let AtomicResult { element, domains } = self.result;
        let elements = Elements::scattered(element, domains);
        let fits = elements.bytes == WORD && self.remote.address().is_multiple_of(WORD);
        let word = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: self.remote.address(),
            compare_add: self.compare_add,
            swap: self.swap,
            rkey: self.remote.rkey().get(),
        };
        let mut request = QueuedRequest::new(wr_id, self.opcode, self.flags, elements);
        request.wr.wr.atomic = word;
        request.bounds = match fits {
            true => request.bounds.within(self.remote),
            false => Bounds::DOUBTFUL,
        };
        request
    }
}
