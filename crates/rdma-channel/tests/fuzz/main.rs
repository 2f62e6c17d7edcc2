//! Runs the code of the fuzz target `endpoint` for each change, with the usual compiler and in little time. The inputs
//! are the seeds, parts of them, and random bytes. `docs/testing.md` explains how to fuzz.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::cast_possible_truncation)]

mod harness;

use proptest::prelude::*;
#[cfg(feature = "serde")]
use rdma_channel::PeerRemoteMemoryRegion;
use rdma_channel::QueuePairEndpoint;
#[cfg(feature = "serde")]
use rdma_mem::RemoteMemoryRegion;
use rdma_mem::{GidType, Lid};
use rdma_types::{Psn, Qpn};
use test_support::fuzz::write_seed;

/// The name and the input of a seed.
type Seed = (&'static str, Vec<u8>);

fn endpoint(qpn: u32) -> QueuePairEndpoint {
    QueuePairEndpoint::new(Qpn::masked(qpn), Psn::masked(0x0012_3456))
}

/// The endpoint in version 1, whose GIDs have no prefix and which has no stream.
fn earlier(endpoint: &QueuePairEndpoint) -> Vec<u8> {
    let (header, gids) = (24, 18 * QueuePairEndpoint::MAX_GIDS);
    let mut bytes = endpoint.to_bytes()[..header + gids].to_vec();
    bytes[4] = 1;
    let gids = bytes.split_off(header);
    bytes.extend(gids.chunks(18).flat_map(|gid| [&gid[..1], &gid[2..]].concat()));
    bytes
}

fn seeds() -> Vec<Seed> {
    let roce = endpoint(0x11)
        .with_gid("fe80::1".parse().unwrap(), GidType::ROCE_V1)
        .with_gid("::ffff:192.0.2.1".parse().unwrap(), GidType::ROCE_V2);
    let ib = endpoint(0x12).with_lid(Lid::new(3)).with_unreliable_connection();
    let datagrams = endpoint(0x13).with_lid(Lid::new(4)).with_qkey(0x8765_4321);
    let full = (0..16).fold(roce, |all, n| {
        all.with_gid(format!("2001:db8::{n:x}").parse().unwrap(), GidType::ROCE_V2)
    });
    let mut seeds: Vec<Seed> = [("roce", roce), ("ib", ib), ("ud", datagrams), ("full", full)]
        .map(|(name, endpoint)| (name, endpoint.to_bytes().to_vec()))
        .into();
    let message = |all: &[QueuePairEndpoint]| {
        let mut bytes = b"RDEX\0\x02\0".to_vec();
        bytes.push(all.len() as u8);
        bytes.extend(all.iter().flat_map(QueuePairEndpoint::to_bytes));
        bytes
    };
    seeds.push(("earlier", earlier(&full)));
    seeds.push(("one", message(&[roce])));
    seeds.push(("two", message(&[roce, ib])));
    seeds.push(("same", message(&[ib, ib])));
    for (name, text) in [("gid", "::ffff:192.0.2.1"), ("guid", "0200:00ff:fe00:0001")] {
        seeds.push((name, text.into()));
    }
    #[cfg(feature = "serde")]
    seeds.extend(serialized(&full));
    seeds
}

#[cfg(feature = "serde")]
fn serialized(endpoint: &QueuePairEndpoint) -> Vec<Seed> {
    let memory = PeerRemoteMemoryRegion::new(7, RemoteMemoryRegion::new(0x1000, 300, 0x42));
    vec![
        ("endpoint-postcard", postcard::to_allocvec(endpoint).unwrap()),
        ("endpoint-json", serde_json::to_vec(endpoint).unwrap()),
        ("memory-postcard", postcard::to_allocvec(&memory).unwrap()),
        ("memory-json", serde_json::to_vec(&memory).unwrap()),
        ("own-memory-json", serde_json::to_vec(&memory.remote()).unwrap()),
    ]
}

/// This writes the seeds to the folder where the fuzzer looks for them.
#[test]
fn the_seeds_pass() {
    for (name, bytes) in seeds() {
        harness::run(&bytes);
        write_seed(env!("CARGO_TARGET_TMPDIR"), "endpoint", name, &bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_seeds(
        seed in prop::sample::select(seeds()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
        end in any::<prop::sample::Index>(),
    ) {
        let (_, mut bytes) = seed;
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        harness::run(&bytes);
        harness::run(&bytes[..end.index(bytes.len())]);
    }

    #[test]
    fn anything(bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        harness::run(&bytes);
    }
}
