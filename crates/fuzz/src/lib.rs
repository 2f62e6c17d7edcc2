//! What the targets run: the code of the folders `tests/fuzz` of the crates, which say more.

#[path = "../../rdma-channel/tests/fuzz/harness.rs"]
mod channel;
#[allow(dead_code, unused_imports)] // Seeds are written by tests.
#[path = "../../rdma-proto/tests/fuzz/harness/mod.rs"]
mod proto;
#[allow(dead_code, unused_imports)] // As above.
#[path = "../../rdma-soft/tests/fuzz/harness/mod.rs"]
mod soft;

/// Any bytes, as an IP datagram and as a packet.
pub fn packet(bytes: &[u8]) {
    proto::packet(bytes);
}

/// A stream of requests, into the responder of each service.
pub fn responder(bytes: &[u8]) {
    proto::responder(bytes);
}

/// A stream of answers, into the requester of each service.
pub fn requester(bytes: &[u8]) {
    proto::requester(bytes);
}

/// Any bytes, to all that decodes what a peer says of its end.
pub fn endpoint(bytes: &[u8]) {
    channel::run(bytes);
}

/// What a program posts to the software device.
pub fn work_request(bytes: &[u8]) {
    soft::work_request(bytes);
}

/// A workload of the simulator.
pub fn simulator(bytes: &[u8]) {
    sim::fuzz(bytes);
}

/// What strangers send to the socket of a slot, as other processes do.
pub fn local_link(bytes: &[u8]) {
    soft::local_link(bytes);
}

/// What strangers send to the UDP socket of a device that listens.
pub fn udp_link(bytes: &[u8]) {
    soft::udp_link(bytes);
}
