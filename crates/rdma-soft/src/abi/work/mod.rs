//! Work requests, both in lists and built with function calls.

pub(super) mod batch;
pub(super) mod opcode;
pub(super) mod post;
mod request;
pub(super) mod wr;
