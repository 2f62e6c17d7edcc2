//! The code that the targets run: the modules in the folders `tests/fuzz` of the crates, which document it.

#[path = "../../rdma-channel/tests/fuzz/harness.rs"]
mod channel;
#[allow(dead_code, unused_imports)] // Seeds are written by tests.
#[path = "../../rdma-proto/tests/fuzz/harness/mod.rs"]
mod proto;
#[allow(dead_code, unused_imports)] // Like `proto`.
#[path = "../../rdma-soft/tests/fuzz/harness/mod.rs"]
mod soft;

/// Parses any bytes as an IP datagram and as a packet.
pub fn packet(bytes: &[u8]) {
    proto::packet(bytes);
}

/// Runs a stream of requests into the responder of each service.
pub fn responder(bytes: &[u8]) {
    proto::responder(bytes);
}

/// Runs a stream of answers into the requester of each service.
pub fn requester(bytes: &[u8]) {
    proto::requester(bytes);
}

/// Runs any bytes through everything that decodes a peer's description of its end.
pub fn endpoint(bytes: &[u8]) {
    channel::run(bytes);
}

/// Runs requests that a program posts to the software device.
pub fn work_request(bytes: &[u8]) {
    soft::work_request(bytes);
}

/// Runs a workload of the simulator.
pub fn simulator(bytes: &[u8]) {
    sim::fuzz(bytes);
}

/// Runs messages of unknown senders into the socket of a slot, as other processes could send them.
pub fn local_link(bytes: &[u8]) {
    soft::local_link(bytes);
}

/// Runs messages of unknown senders into the UDP socket of a device that listens.
pub fn udp_link(bytes: &[u8]) {
    soft::udp_link(bytes);
}
