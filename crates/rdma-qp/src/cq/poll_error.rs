//! Errors from polling.

/// A completion queue failed.
///
/// The error owns no memory, so the code that polls completions need not free it.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "ibv_poll_cq failed: the completion queue has failed, most often because it overflowed: \
     create it as large as the queues of all its queue pairs together (their builder checks this \
     with `strict_cq`)"
)]
#[non_exhaustive]
pub struct PollError;

rdma_types::debug_messages!(struct PollError);
