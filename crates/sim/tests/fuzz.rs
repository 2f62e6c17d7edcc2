//! Any bytes encode a workload, the same one each time.
#![allow(clippy::unwrap_used)] // A failing helper fails its test.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use test_support::fuzz::write_seed;

/// Inputs of all lengths for a fuzzer to begin with.
fn inputs(count: u64) -> Vec<Vec<u8>> {
    let input = |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let most = 1 << rng.u32(3..11);
        let length = rng.usize(..most);
        std::iter::repeat_with(|| rng.u8(..)).take(length).collect()
    };
    (1..=count).map(input).collect()
}

/// Writes the inputs to the folder where `cargo fuzz` reads its corpus.
#[test]
fn inputs_are_written_for_the_fuzzer() {
    for (n, input) in inputs(60).iter().enumerate() {
        write_seed(env!("CARGO_TARGET_TMPDIR"), "simulator", &format!("seed-{n}"), input);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz/simulator");
    assert!(fs::read_dir(&folder).unwrap().count() >= 60);
}

const INPUTS: u64 = if cfg!(debug_assertions) { 60 } else { 1000 };

#[test]
fn any_bytes_run_as_the_model_predicts() {
    for input in inputs(INPUTS) {
        let total = sim::bytes(&input).unwrap_or_else(|wrong| panic!("{input:?}: {wrong}"));
        assert!(total.packets < 20_000, "{total:?}");
    }
    for byte in [0, 1, 0x7f, 0xff] {
        sim::fuzz(&[byte; 700]);
    }
    sim::fuzz(&[]);
}

#[test]
fn the_same_bytes_do_the_same() {
    for input in inputs(20) {
        assert_eq!(sim::bytes(&input), sim::bytes(&input));
    }
}

#[test]
fn different_bytes_encode_different_scripts() {
    let inputs = inputs(500);
    let scripts: HashSet<_> = inputs.iter().map(|input| sim::script_of(input)).collect();
    let different: HashSet<_> = inputs.iter().collect();
    assert!(scripts.len() * 100 >= different.len() * 95, "{} scripts", scripts.len());
    // Early bytes determine the rest; late ones have little effect.
    let mut long = inputs.into_iter().max_by_key(Vec::len).unwrap();
    let before = sim::script_of(&long);
    let middle = long.len() / 2;
    long[middle] ^= 0x55;
    assert_ne!(before, sim::script_of(&long));
}
