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
fn version_1_is_read_and_a_later_one_is_refused() {
    let json = serde_json::to_string(&endpoint()).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&json).unwrap();
    value["version"] = 3.into();
    let error = serde_json::from_value::<QueuePairEndpoint>(value.clone()).unwrap_err();
    assert!(error.to_string().contains("version 3"), "{error}");
    value["version"] = 1.into();
    value.as_object_mut().unwrap().remove("stream");
    for gid in value["gids"].as_array_mut().unwrap() {
        gid.as_object_mut().unwrap().remove("prefix_length");
    }
    assert_eq!(serde_json::from_value::<QueuePairEndpoint>(value).unwrap(), endpoint());
}
