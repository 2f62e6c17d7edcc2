//! Work requests: lists of them, and requests that are built by function calls.

pub(super) mod batch;
pub(super) mod opcode;
pub(super) mod post;
mod request;
pub(super) mod wr;
