//! The sizes of a queue pair's queues.

use rdma_sys::ibv_qp_cap;

pub(crate) mod inline;

/// The sizes of a queue pair's queues.
#[doc(alias = "ibv_qp_cap")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePairCapabilities {
    /// The maximum number of outstanding requests in the send queue.
    pub max_send_wr: u32,
    /// The maximum number of outstanding receives in the receive queue.
    pub max_recv_wr: u32,
    /// The maximum number of elements in a request of the send queue.
    pub max_send_sge: u32,
    /// The maximum number of elements in a receive.
    pub max_recv_sge: u32,
    /// The maximum number of bytes in an inline request.
    pub max_inline_data: u32,
}

impl QueuePairCapabilities {
    /// The sizes requested by default. Inline data has its [own option](crate::Inline).
    pub(crate) const ASKED_BY_DEFAULT: Self =
        Self { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, ..Self::NONE };

    pub(crate) const NONE: Self = Self {
        max_send_wr: 0,
        max_recv_wr: 0,
        max_send_sge: 0,
        max_recv_sge: 0,
        max_inline_data: 0,
    };

    pub(crate) const fn from_raw(raw: &ibv_qp_cap) -> Self {
        Self {
            max_send_wr: raw.max_send_wr,
            max_recv_wr: raw.max_recv_wr,
            max_send_sge: raw.max_send_sge,
            max_recv_sge: raw.max_recv_sge,
            max_inline_data: raw.max_inline_data,
        }
    }

    pub(crate) const fn to_raw(self) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline_data: self.max_inline_data,
        }
    }
}
