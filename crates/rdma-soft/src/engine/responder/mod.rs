//! The responder of a queue pair, which executes its peer's requests. The thread that delivers a request drives the
//! responder, under the responder's lock. The responder knows its requester as an [`Origin`](origin::Origin).

pub(crate) mod datagram;
pub(crate) mod inbound;
pub(crate) mod origin;
pub(crate) mod side;
pub(crate) mod wire;
