//! What must not compile, and beside each case its twin, which differs in one line and does.
//!
//! The messages are those of Rust 1.95; where another compiler words them differently,
//! `TRYBUILD=overwrite` writes them anew.

use std::path::Path;

#[test]
fn each_case_has_a_twin_that_differs_in_one_line() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile");
    test_support::twins::assert_one_line_apart(&folder);
}

#[test]
fn memory_in_flight_and_handles_do_not_escape_and_their_twins_compile() {
    if std::env::var_os("RUSTC_BOOTSTRAP").is_some() {
        return println!("skipped: a sanitizer has nothing to see here");
    }
    let tests = trybuild::TestCases::new();
    tests.pass("tests/compile/pass/*.rs");
    tests.compile_fail("tests/compile/fail/*.rs");
}
