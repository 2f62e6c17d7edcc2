//! The responder of a queue pair: what its peer asks for. It is driven by whoever brings the request, the
//! thread of the peer or a link, under the responder's lock.

pub(crate) mod route_header;
pub(crate) mod side;
