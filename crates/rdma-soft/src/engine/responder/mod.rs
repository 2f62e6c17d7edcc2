//! The responder of a queue pair: what its peer asks for. It is driven by the thread that brings the request,
//! under the responder's lock, and knows its requester as an [`Origin`](origin::Origin).

pub(crate) mod datagram;
pub(crate) mod inbound;
pub(crate) mod origin;
pub(crate) mod side;
pub(crate) mod wire;
