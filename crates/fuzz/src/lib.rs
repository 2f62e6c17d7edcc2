//! What the targets run: the code of `tests/fuzz`, which says more.

#[path = "../../tests/fuzz/harness/mod.rs"]
mod harness;

/// Any bytes, as an IP datagram and as a packet.
pub fn packet(bytes: &[u8]) {
    harness::packet(bytes);
}

/// A stream of requests, into the responder of each service.
pub fn responder(bytes: &[u8]) {
    harness::responder(bytes);
}

/// A stream of answers, into the requester of each service.
pub fn requester(bytes: &[u8]) {
    harness::requester(bytes);
}
