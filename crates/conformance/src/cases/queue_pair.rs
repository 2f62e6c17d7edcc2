//! Queue pairs: their attributes, states and destruction.

pub(super) mod attributes;
pub(super) mod drained;
pub(super) mod endings;
pub(super) mod extended_queue_pairs;
pub(super) mod flush;
pub(super) mod queues;
pub(super) mod states;
pub(super) mod values;
