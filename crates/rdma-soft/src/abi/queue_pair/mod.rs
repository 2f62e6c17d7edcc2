//! Queue pairs, shared receive queues and address handles.

pub(super) mod ah;
mod attributes;
pub(super) mod qp;
pub(super) mod qp_ex;
pub(super) mod srq;
