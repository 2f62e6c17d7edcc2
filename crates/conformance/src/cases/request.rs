//! Work requests: the effect of each kind.

pub(super) mod atomics;
pub(super) mod extended_batches;
pub(super) mod extended_posts;
pub(super) mod operations;
pub(super) mod sends;
