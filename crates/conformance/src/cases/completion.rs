//! Completion queues, completion channels, and completions.

pub(super) mod channels;
pub(super) mod completions;
pub(super) mod extended_fields;
pub(super) mod extended_polls;
pub(super) mod overflow;
pub(super) mod resizing;
pub(super) mod sharing;
