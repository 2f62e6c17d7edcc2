//! Work requests: what each kind does.

pub(super) mod atomics;
pub(super) mod extended_batches;
pub(super) mod extended_posts;
pub(super) mod operations;
pub(super) mod sends;
