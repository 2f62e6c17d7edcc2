//! Errors from polling.

/// A completion queue failed.
///
/// The error owns no memory, so the code that polls completions need not free it.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "ibv_poll_cq failed: the completion queue has failed, most often because it overflowed: make it \
     as large as the queues of all its queue pairs together, which `strict_cq` of their builder checks"
)]
#[non_exhaustive]
pub struct PollError;

rdma_types::debug_messages!(struct PollError);
