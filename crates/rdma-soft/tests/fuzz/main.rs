//! What the fuzz target `work_request` runs, with the compiler and the time that each change has: on the seeds, on
//! parts of them and on random bytes. `docs/testing.md` says how to fuzz.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::cast_possible_truncation)]

mod harness;
mod seeds;

use proptest::prelude::*;
use test_support::fuzz::write_seed;

/// The fuzzer looks for them in the folder where this writes them.
#[test]
fn the_seeds_do_as_they_should() {
    for (name, bytes) in seeds::all() {
        println!("{name}: {} bytes", bytes.len());
        harness::work_request(&bytes);
        write_seed(env!("CARGO_TARGET_TMPDIR"), "work_request", &name, &bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        // memcheck and the emulator run them, too.
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn changed_seeds(
        seed in prop::sample::select(seeds::all()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
        end in any::<prop::sample::Index>(),
    ) {
        let (_, mut bytes) = seed;
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        harness::work_request(&bytes);
        harness::work_request(&bytes[..end.index(bytes.len())]);
    }

    #[test]
    fn anything(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        harness::work_request(&bytes);
    }
}
