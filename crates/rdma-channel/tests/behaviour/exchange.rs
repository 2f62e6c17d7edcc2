//! The exchange of endpoints with a peer, whatever the peer does.

mod channels;
mod formats;
mod peers;
mod properties;
mod streams;

use std::time::Duration;

use rdma_channel::QueuePairEndpoint;
use rdma_types::{GidType, Psn, Qpn};

/// The length of a message with one endpoint.
const MESSAGE: usize = 8 + QueuePairEndpoint::BYTES;
/// The time that a test waits for something that should not happen.
const SOON: Duration = Duration::from_millis(200);
/// The time limit for something that should happen.
const LATER: Duration = Duration::from_secs(60);

fn endpoint(qpn: u32) -> QueuePairEndpoint {
    let gid = "::ffff:192.0.2.1".parse().unwrap();
    QueuePairEndpoint::new(Qpn::masked(qpn), Psn::masked(7)).with_gid(gid, GidType::ROCE_V2)
}

fn endpoints(first: u32, count: u32) -> Vec<QueuePairEndpoint> {
    (first..first + count).map(endpoint).collect()
}

/// A message of version 2, the same in every release.
fn message(endpoints: &[QueuePairEndpoint]) -> Vec<u8> {
    let count = u16::try_from(endpoints.len()).unwrap().to_be_bytes();
    let mut bytes = [b"RDEX\0\x02".as_slice(), &count].concat();
    bytes.extend(endpoints.iter().flat_map(QueuePairEndpoint::to_bytes));
    bytes
}
