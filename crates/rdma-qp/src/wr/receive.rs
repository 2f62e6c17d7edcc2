//! Receives.

use std::marker::PhantomData;
use std::ptr::null_mut;

use rdma_mem::{ProtectionDomain, ScatterElement, ScatterList};
use rdma_sys::ibv_recv_wr;

use crate::wr::elements::Elements;
use crate::wr::flags::domains;
use crate::wr::queued_receive::QueuedReceive;

/// Memory for one message from the peer. A receive for a datagram needs 40 more bytes, which precede the message
/// ([`GlobalRouteHeader`](crate::GlobalRouteHeader)).
///
/// # Examples
/// ```
/// use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
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
/// let mut buffer = pd.allocate_region(64)?;
/// let mut list = ScatterList::from([buffer.as_slice_mut()]);
/// // SAFETY: the buffer is not used elsewhere until the completion below.
/// unsafe { other.post_receive(ReceiveWorkRequest::from_list(&mut list), 7) }?;
/// # let mut data = pd.allocate_region(5)?;
/// # data.copy_from_slice(b"hello");
/// # let list = GatherList::from([data.as_slice()]);
/// # // SAFETY: the data is not changed until its receive has completed.
/// # unsafe { one.post_send(SendWorkRequest::from_list(&list).signaled(false), 1) }?;
/// let length = next()?.result()?.scattered_bytes().unwrap_or(0);
/// assert_eq!(&buffer[..length], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ReceiveWorkRequest<'wr, 'data> {
    pub(crate) elements: &'wr mut [ScatterElement<'data>],
    pub(crate) domains: &'wr [&'data ProtectionDomain],
}

domains!(ReceiveWorkRequest);

impl<'wr, 'data> ReceiveWorkRequest<'wr, 'data> {
    /// Receives one message into these elements, in order. The message may be shorter than the
    /// elements, but not longer.
    #[inline]
    #[must_use]
    pub const fn new(elements: &'wr mut [ScatterElement<'data>]) -> Self {
        Self { elements, domains: &[] }
    }

    /// Like [`new`](Self::new), but from registered slices. The post checks their protection domain.
    #[inline]
    #[must_use]
    pub const fn from_list<const N: usize>(list: &'wr mut ScatterList<'data, N>) -> Self {
        let (elements, domains) = list.parts();
        Self { elements, domains }
    }

    /// Receives an empty message, or the immediate data of an RDMA write.
    #[inline]
    #[must_use]
    pub const fn only_immediate() -> Self {
        Self { elements: &mut [], domains: &[] }
    }

    /// Converts the receive into one for [`post_receive_batch`](crate::QueuePair::post_receive_batch), with this WR ID.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedReceive<'wr, 'data> {
        let Elements { sg_list, num_sge, domains, .. } =
            Elements::scattered(self.elements, self.domains);
        let wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list, num_sge };
        QueuedReceive { wr, domains, borrow: PhantomData }
    }
}
