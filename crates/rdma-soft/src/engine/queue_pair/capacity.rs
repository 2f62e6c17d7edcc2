//! The parameters with which a queue pair is created.

use crate::engine::queue_pair::service::Service;

/// The sizes of a queue pair, as requested by its creator. With a shared receive queue, the receive sizes are 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    pub(crate) send_wr: u32,
    pub(crate) receive_wr: u32,
    pub(crate) send_sge: u32,
    pub(crate) receive_sge: u32,
    pub(crate) inline: u32,
}

/// The creation parameters of a queue pair, besides the objects that it uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Init {
    pub(crate) service: Service,
    pub(crate) capacity: Capacity,
    /// Whether every send request is signaled.
    pub(crate) signal_all: bool,
}
