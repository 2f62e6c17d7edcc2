//! Endpoints by serde.

#![cfg(feature = "serde")]

use rdma_mem::{GidType, Lid};
use rdma_qp::{Qpn, QueuePairEndpoint};
use rdma_types::Psn;

fn endpoint() -> QueuePairEndpoint {
    QueuePairEndpoint::new(Qpn::masked(0x11), Psn::masked(0x22))
        .with_lid(Lid::new(3))
        .with_gid("fe80::1".parse().unwrap(), GidType::IB)
}

#[test]
fn an_endpoint_comes_back_as_it_was() {
    let bytes = postcard::to_allocvec(&endpoint()).unwrap();
    assert_eq!(postcard::from_bytes::<QueuePairEndpoint>(&bytes).unwrap(), endpoint());
    assert!(bytes.len() < 40, "unused places are not sent: {}", bytes.len());
}

#[test]
fn another_version_is_refused() {
    let mut bytes = postcard::to_allocvec(&endpoint()).unwrap();
    bytes[0] = 2;
    assert!(postcard::from_bytes::<QueuePairEndpoint>(&bytes).is_err());
}
