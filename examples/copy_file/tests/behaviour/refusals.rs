//! Input that the program refuses: by name, with a helpful message, and without a trace.

use std::fs;

use crate::bench::{Bench, said};

/// Returns the error of the program for these arguments, in a folder with a `source`.
fn refusal(arguments: &[&str]) -> String {
    let bench = Bench::with_source(b"old");
    let output = bench.command().args(arguments).output().unwrap();
    assert_eq!(bench.names(), ["source"]);
    assert_eq!(fs::read(bench.at("source")).unwrap(), b"old");
    assert!(output.stdout.is_empty());
    let said = said(&output, 1);
    assert!(said.starts_with("error: "), "{said}");
    said
}

#[test]
fn an_unknown_device_is_refused_with_the_existing_names() {
    let said = refusal(&["source", "copy", "--device", "mlx5_9"]);
    for name in ["`mlx5_9`", "soft0", "softib0"] {
        assert!(said.contains(name), "{said}");
    }
}

#[test]
fn a_missing_source_is_refused() {
    let said = refusal(&["nothing", "copy"]);
    assert!(said.contains("cannot read `nothing`: No such file or directory"), "{said}");
}

#[test]
fn a_source_that_is_not_a_regular_file_is_refused() {
    assert!(refusal(&[".", "copy"]).contains("cannot read `.`: it is a directory"));
    let said = refusal(&["/dev/zero", "copy"]);
    assert!(said.contains("cannot read `/dev/zero`: it is not a regular file"), "{said}");
}

#[test]
fn a_destination_equal_to_the_source_is_refused() {
    for same in ["source", "./source"] {
        let said = refusal(&["source", same]);
        assert!(said.contains(&format!("are the same file, `{same}`")), "{said}");
    }
}

#[test]
fn a_destination_that_is_a_directory_is_refused() {
    let said = refusal(&["source", "."]);
    assert!(said.contains("cannot write `.`: it is a directory; name the file in it"), "{said}");
}

#[test]
fn a_destination_in_a_missing_directory_is_refused() {
    let said = refusal(&["source", "no/copy"]);
    assert!(said.contains("cannot write `no/copy`: No such file or directory"), "{said}");
}

#[test]
fn a_destination_that_is_a_device_is_refused() {
    let said = refusal(&["source", "/dev/null"]);
    assert!(
        said.contains("cannot write `/dev/null`: it exists and is not a regular file"),
        "{said}"
    );
}

#[test]
fn invalid_sizes_are_refused_with_the_allowed_range() {
    for (arguments, says) in [
        (["--chunk", "63"], "--chunk 63 is not allowed: it must be 64 to 1073741824 bytes"),
        (["--chunk", "1073741825"], "it must be 64 to 1073741824 bytes"),
        (["--depth", "0"], "--depth 0 is not allowed: it must be 1 to 4096 chunks"),
        (["--depth", "5000"], "it must be 1 to 4096 chunks"),
        (["--chunk", "1073741824"], "at most 1073741824 are allowed"),
        (["--chunk", "many"], "invalid value 'many' for '--chunk <BYTES>'"),
    ] {
        let said = refusal(&["source", "copy", arguments[0], arguments[1]]);
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn too_few_arguments_are_refused() {
    assert!(refusal(&["source"]).contains("<DST>"));
}
