//! The code of the fuzz targets `work_request`, `local_link` and `udp_link`, run by the ordinary compiler as a regular
//! test. The inputs are the seeds, mutated seeds and random bytes. `docs/testing.md` describes how to fuzz.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::cast_possible_truncation)]

mod harness;
mod link_seeds;
mod seeds;

use proptest::prelude::*;
use test_support::fuzz::write_seed;
use test_support::program::is_emulated;

use link_seeds::Link;
use seeds::Seed;

type Target = (&'static str, fn(&[u8]), Vec<Seed>);

fn targets() -> [Target; 3] {
    [
        ("work_request", harness::work_request, seeds::all()),
        ("local_link", harness::local_link, link_seeds::all(Link::Local)),
        ("udp_link", harness::udp_link, link_seeds::all(Link::Udp)),
    ]
}

/// The fuzzer reads the seeds from the folder to which this test writes them.
#[test]
fn the_seeds_behave_as_expected() {
    for (target, run, seeds) in targets() {
        for (name, bytes) in seeds {
            println!("{target} {name}: {} bytes", bytes.len());
            run(&bytes);
            write_seed(env!("CARGO_TARGET_TMPDIR"), target, &name, &bytes);
        }
    }
}

/// Strangers' packets leave no memory or files allocated.
#[test]
fn packets_of_strangers_leave_no_memory_or_files() {
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let memory = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let resident: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
        resident * rustix::param::page_size()
    };
    let all = || {
        for (_, run, seeds) in targets().into_iter().skip(1) {
            seeds.iter().for_each(|(_, bytes)| run(bytes));
        }
    };
    let rounds = if is_emulated() { 2 } else { 6 };
    (0..rounds).for_each(|_| all());
    let before = (files(), memory());
    (0..rounds).for_each(|_| all());
    let after = (files(), memory());
    // Other tests of this process run meanwhile.
    assert!(after.0 <= before.0 + 16, "files: {before:?}, {after:?}");
    // AddressSanitizer keeps freed memory for a while.
    let kept = if cfg!(rdma_visible_copies) { usize::MAX } else { 8 << 20 };
    assert!(after.1.saturating_sub(before.1) <= kept, "bytes: {before:?}, {after:?}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        // memcheck and the emulator run these tests, too.
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn changed_seeds(
        target in 0..3_usize,
        seed in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
        end in any::<prop::sample::Index>(),
    ) {
        let (_, run, seeds) = &targets()[target];
        let (_, mut bytes) = seed.get(seeds).clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        run(&bytes);
        run(&bytes[..end.index(bytes.len())]);
    }

    #[test]
    fn anything(
        target in 0..3_usize,
        bytes in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        targets()[target].1(&bytes);
    }
}
