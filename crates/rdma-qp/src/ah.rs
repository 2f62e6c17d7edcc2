//! Address handles: where datagrams go, and what says so.

pub(crate) mod global_route_header;
pub(crate) mod handle;
pub(crate) mod vector;
