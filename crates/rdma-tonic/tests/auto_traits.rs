//! Types that can be sent to, and used from, other threads.

use rdma_tonic::{Connector, HttpStream, Incoming, PeerAddress};

fn shared<T: Send + Sync + 'static>() {}
fn moved<T: Send + Unpin + 'static>() {}

#[test]
fn all_types_can_be_sent_and_most_can_be_shared() {
    shared::<Connector>();
    shared::<HttpStream>();
    shared::<PeerAddress>();
    moved::<Connector>();
    moved::<HttpStream>();
    moved::<Incoming>();
}
