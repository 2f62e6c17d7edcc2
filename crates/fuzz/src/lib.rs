//! The functions that the fuzz targets run. Their code, with its documentation, is in the
//! `tests/fuzz` folders of the crates, and in `sim`.

#[path = "../../rdma-channel/tests/fuzz/harness.rs"]
mod channel;
#[allow(dead_code)] // The tests select the kinds of inputs.
#[path = "../../rdma-message/tests/fuzz/harness/mod.rs"]
mod message;
#[allow(dead_code, unused_imports)] // The tests write the seeds.
#[path = "../../rdma-proto/tests/fuzz/harness/mod.rs"]
mod proto;
#[allow(dead_code, unused_imports)] // Like `proto`.
#[path = "../../rdma-soft/tests/fuzz/harness/mod.rs"]
mod soft;

/// Parses the bytes as an IP datagram and as a packet.
pub fn packet(bytes: &[u8]) {
    proto::packet(bytes);
}

/// Parses the bytes as a MAD, and passes them to a communication manager.
pub fn mad(bytes: &[u8]) {
    proto::mad(bytes);
}

/// Passes a stream of requests to the responder of each service.
pub fn responder(bytes: &[u8]) {
    proto::responder(bytes);
}

/// Passes posts, answers and elapsed time to the requester of a connection (RC or UC).
pub fn requester(bytes: &[u8]) {
    proto::requester(bytes);
}

/// Passes the bytes to every decoder of a peer's data: endpoints, exchanges, descriptions of
/// memory, and addresses as text.
pub fn endpoint(bytes: &[u8]) {
    channel::run(bytes);
}

/// Decodes and encodes a frame of messages or streams.
pub fn message_frame(bytes: &[u8]) {
    message::frame(bytes);
}

/// Runs a connection with messages or streams: programs, completions, and changed frames.
pub fn message_machine(bytes: &[u8]) {
    message::machine(bytes);
}

/// Decodes requests from the bytes, and posts them to the software device.
pub fn work_request(bytes: &[u8]) {
    soft::work_request(bytes);
}

/// Decodes a workload of the simulator from the bytes, and runs it.
pub fn simulator(bytes: &[u8]) {
    sim::fuzz(bytes);
}

/// Sends messages to a device's socket for local peers, as unknown processes could.
pub fn local_link(bytes: &[u8]) {
    soft::local_link(bytes);
}

/// Sends messages to the UDP socket of a listening device, as unknown senders could.
pub fn udp_link(bytes: &[u8]) {
    soft::udp_link(bytes);
}
