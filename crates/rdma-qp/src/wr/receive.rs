//! Receives.

use std::marker::PhantomData;
use std::ptr::null_mut;

use rdma_mem::{ProtectionDomain, ScatterElement, ScatterList};
use rdma_sys::ibv_recv_wr;

use crate::wr::elements::Elements;
use crate::wr::flags::domains;
use crate::wr::queued_receive::QueuedReceive;

/// Memory for one message of the peer; of a queue pair for datagrams, with 40 bytes more in front
/// of it ([`GlobalRouteHeader`](crate::GlobalRouteHeader)).
#[derive(Debug)]
pub struct ReceiveWorkRequest<'wr, 'data> {
    pub(crate) elements: &'wr mut [ScatterElement<'data>],
    pub(crate) domains: &'wr [&'data ProtectionDomain],
}

domains!(ReceiveWorkRequest);

impl<'wr, 'data> ReceiveWorkRequest<'wr, 'data> {
    /// Takes one message into these elements, in order. The message may be shorter than they are, not
    /// longer.
    #[inline]
    #[must_use]
    pub const fn new(elements: &'wr mut [ScatterElement<'data>]) -> Self {
        Self { elements, domains: &[] }
    }

    /// As [`new`](Self::new), with registered slices, whose domain is checked when it is posted.
    #[inline]
    #[must_use]
    pub const fn from_list<const N: usize>(list: &'wr mut ScatterList<'data, N>) -> Self {
        let (elements, domains) = list.parts();
        Self { elements, domains }
    }

    /// Takes a message of no bytes, or the immediate data of an RDMA write.
    #[inline]
    #[must_use]
    pub const fn only_immediate() -> Self {
        Self { elements: &mut [], domains: &[] }
    }

    /// The receive, for a batch, with the WR ID that its completion will have.
    #[inline]
    #[must_use]
    pub fn with_id(self, wr_id: u64) -> QueuedReceive<'wr, 'data> {
        let Elements { sg_list, num_sge, domains, .. } =
            Elements::scattered(self.elements, self.domains);
        let wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list, num_sge };
        QueuedReceive { wr, domains, borrow: PhantomData }
    }
}
