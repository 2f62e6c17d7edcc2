//! The code of the fuzz targets, with the compiler and in the time that each change has. It runs on the seeds, on parts
//! of them and on random bytes. See `docs/testing.md` for how to fuzz.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::cast_possible_truncation)]

#[path = "../pcap/flow.rs"]
mod flow;
mod harness;
#[path = "../pcap/mod.rs"]
mod pcap;
mod seeds;

use proptest::prelude::*;
use test_support::fuzz::write_seed;

fn run(target: &str, bytes: &[u8]) {
    match target {
        "packet" => harness::packet(bytes),
        "mad" => harness::mad(bytes),
        "responder" => harness::responder(bytes),
        _ => harness::requester(bytes),
    }
}

/// The fuzzers look for seeds in the folder where this writes them.
#[test]
fn the_captured_conversations_are_written_as_seeds() {
    for (target, name, bytes) in seeds::all() {
        println!("{target} {name}: {} bytes", bytes.len());
        run(target, &bytes);
        write_seed(env!("CARGO_TARGET_TMPDIR"), target, &name, &bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_seeds_break_no_rule(
        seed in prop::sample::select(seeds::all()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
        end in any::<prop::sample::Index>(),
    ) {
        let (target, _, mut bytes) = seed;
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        run(target, &bytes);
        run(target, &bytes[..end.index(bytes.len())]);
    }

    #[test]
    fn any_bytes_as_a_packet_break_no_rule(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        harness::packet(&bytes);
    }

    #[test]
    fn any_bytes_as_a_mad_break_no_rule(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        harness::mad(&bytes);
    }

    #[test]
    fn any_bytes_for_a_responder_break_no_rule(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        harness::responder(&bytes);
    }

    #[test]
    fn any_bytes_for_a_requester_break_no_rule(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        harness::requester(&bytes);
    }
}
