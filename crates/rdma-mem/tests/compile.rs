//! What must not compile, and beside each case its twin, which differs in one line and does.
//!
//! The cases are named after the holes that other crates have, as `docs/memory-and-ownership.md` lists
//! them. The messages are those of Rust 1.95; where another compiler words them differently,
//! `TRYBUILD=overwrite` writes them anew.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn cases(kind: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile").join(kind);
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| Some(name.to_str()?.strip_suffix(".rs")?.to_owned())).collect()
}

#[test]
fn each_case_has_a_twin_that_differs_in_one_line() {
    assert_eq!(cases("fail"), cases("pass"));
    for case in cases("fail") {
        let read = |kind| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile").join(kind);
            fs::read_to_string(folder.join(format!("{case}.rs"))).unwrap()
        };
        let (fail, pass) = (read("fail"), read("pass"));
        assert_eq!(fail.lines().count(), pass.lines().count(), "{case}");
        let different = fail.lines().zip(pass.lines()).filter(|(fail, pass)| fail != pass);
        assert_eq!(different.count(), 1, "{case}");
    }
}

#[test]
fn holes_do_not_compile_and_their_twins_do() {
    if std::env::var_os("RUSTC_BOOTSTRAP").is_some() {
        return println!("skipped: a sanitizer has nothing to see here");
    }
    let tests = trybuild::TestCases::new();
    tests.pass("tests/compile/pass/*.rs");
    tests.compile_fail("tests/compile/fail/*.rs");
}
