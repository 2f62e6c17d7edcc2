//! Endpoints from arbitrary bytes.

use proptest::prelude::*;
use rdma_mem::{Gid, GidType, Lid, Mtu};
use rdma_qp::{EndpointError, Qpn, QueuePairEndpoint};
use rdma_types::Psn;

const BYTES: usize = QueuePairEndpoint::BYTES;

fn endpoint() -> impl Strategy<Value = QueuePairEndpoint> {
    let numbers = (any::<u32>(), any::<u32>(), any::<Option<u16>>(), any::<[u8; 2]>());
    // Each type that can be encoded.
    let gids = prop::collection::vec((any::<[u8; 16]>(), any::<u8>()), 0..=17);
    (numbers, gids, 1..=5_u8, any::<bool>()).prop_map(|(numbers, gids, mtu, required)| {
        let (qpn, psn, lid, [reads, answers]) = numbers;
        let mut endpoint = QueuePairEndpoint::new(Qpn::masked(qpn), Psn::masked(psn))
            .with_mtu(Mtu::from_code(mtu).unwrap())
            .with_rd_atomic(reads, answers)
            .with_grh_required(required);
        for (gid, gid_type) in gids {
            endpoint = endpoint.with_gid(Gid::from_bytes(gid), GidType::from_raw(gid_type.into()));
        }
        lid.map_or(endpoint, |lid| endpoint.with_lid(Lid::new(lid)))
    })
}

/// Returns random bytes whose first `right` bytes match the format: the decoder reads further into
/// them.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let noise = prop::collection::vec(any::<u8>(), BYTES);
    let exact = (endpoint(), noise, 0..=BYTES).prop_map(|(endpoint, noise, right)| {
        [&endpoint.to_bytes()[..right], &noise[right..]].concat()
    });
    prop_oneof![4 => exact, 1 => prop::collection::vec(any::<u8>(), 0..2 * BYTES)]
}

/// Flips one bit more often than any bits.
fn flip() -> impl Strategy<Value = u8> {
    prop_oneof![(0..8_u32).prop_map(|bit| 1 << bit), 1..=u8::MAX]
}

proptest! {
    #[test]
    fn an_endpoint_comes_back_as_it_was(endpoint in endpoint()) {
        prop_assert_eq!(QueuePairEndpoint::from_bytes(&endpoint.to_bytes()), Ok(endpoint));
    }

    /// Each endpoint has exactly one encoding, so bytes can be compared instead of endpoints.
    #[test]
    fn bytes_from_anywhere_are_an_error_or_just_this_endpoint(bytes in bytes()) {
        match QueuePairEndpoint::from_bytes(&bytes) {
            Ok(endpoint) => prop_assert_eq!(endpoint.to_bytes().to_vec(), bytes),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn a_flipped_byte_is_an_error_or_another_endpoint(endpoint in endpoint(), flip in flip()) {
        for at in 0..BYTES {
            let mut bytes = endpoint.to_bytes();
            bytes[at] ^= flip;
            match QueuePairEndpoint::from_bytes(&bytes) {
                Ok(other) => {
                    prop_assert!(at > 4, "magic and version are looked at");
                    prop_assert_ne!(other, endpoint);
                    prop_assert_eq!(other.to_bytes(), bytes);
                }
                Err(EndpointError::Magic) => prop_assert!(at < 4),
                Err(EndpointError::Version { found }) => {
                    prop_assert_eq!((at, found), (4, QueuePairEndpoint::VERSION ^ flip));
                }
                // Version 1, which has another length.
                Err(EndpointError::Length { found }) => {
                    prop_assert_eq!((at, bytes[at], found), (4, 1, BYTES));
                }
                Err(error) => {
                    prop_assert!(matches!(error, EndpointError::Field { .. }), "{}", error);
                    prop_assert!(at > 4);
                }
            }
        }
    }

    #[test]
    fn a_wrong_length_is_named(endpoint in endpoint(), length in 0..2 * BYTES) {
        prop_assume!(length != BYTES);
        let mut bytes = endpoint.to_bytes().to_vec();
        bytes.resize(length, 0);
        let error = QueuePairEndpoint::from_bytes(&bytes);
        prop_assert_eq!(error, Err(EndpointError::Length { found: length }));
    }
}

#[cfg(feature = "serde")]
proptest! {
    #[test]
    fn an_endpoint_comes_back_through_serde(endpoint in endpoint()) {
        let bytes = postcard::to_allocvec(&endpoint).unwrap();
        prop_assert_eq!(postcard::from_bytes::<QueuePairEndpoint>(&bytes).unwrap(), endpoint);
        let text = serde_json::to_string(&endpoint).unwrap();
        prop_assert_eq!(serde_json::from_str::<QueuePairEndpoint>(&text).unwrap(), endpoint);
    }

    #[test]
    fn serialised_bytes_from_anywhere_are_an_error_or_an_endpoint(
        endpoint in endpoint(), at: prop::sample::Index, flip in flip(),
    ) {
        let mut bytes = postcard::to_allocvec(&endpoint).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(other) = postcard::from_bytes::<QueuePairEndpoint>(&bytes) {
            prop_assert!(other.gids().len() <= QueuePairEndpoint::MAX_GIDS);
            prop_assert_eq!(QueuePairEndpoint::from_bytes(&other.to_bytes()), Ok(other));
        }
    }
}
