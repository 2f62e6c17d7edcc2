//! Address handles, the destinations of datagrams.

pub(crate) mod global_route_header;
pub(crate) mod handle;
pub(crate) mod vector;
