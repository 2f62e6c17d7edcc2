//! The responder of a queue pair: what its peer asks for. It is driven by whoever brings the request, the
//! thread of the peer or a link, under the responder's lock, and knows of its requester only what an
//! [`Origin`](origin::Origin) says.

pub(crate) mod datagram;
pub(crate) mod inbound;
pub(crate) mod origin;
pub(crate) mod route_header;
pub(crate) mod side;
