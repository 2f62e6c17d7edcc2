//! What a queue pair is created with.

use crate::engine::queue_pair::service::Service;

/// The sizes of a queue pair, as its creator asked for them; with a shared receive queue, no receives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    pub(crate) send_wr: u32,
    pub(crate) receive_wr: u32,
    pub(crate) send_sge: u32,
    pub(crate) receive_sge: u32,
    pub(crate) inline: u32,
}

/// What a queue pair is created with, besides what it uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Init {
    pub(crate) service: Service,
    pub(crate) capacity: Capacity,
    /// Every send request completes aloud.
    pub(crate) signal_all: bool,
}
