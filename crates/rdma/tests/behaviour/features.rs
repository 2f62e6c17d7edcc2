//! The packages that the features add, according to cargo.

use std::process::Command;

/// Returns the output of `cargo tree` for this crate with these options, with a line for each
/// package or feature.
fn tree(options: &[&str]) -> Vec<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--package", "rdma", "--offline", "--locked", "--prefix", "none"]);
    let output = cargo.args(options).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Returns true if a package is in the program. Dependencies of tests do not count.
fn has(options: &[&str], package: &str) -> bool {
    let lines = tree(&[options, &["--edges", "normal"]].concat());
    assert!(lines.iter().any(|line| line.starts_with("rdma-channel v")), "{lines:#?}");
    lines.iter().any(|line| line.starts_with(&format!("{package} v")))
}

#[test]
fn the_software_devices_are_there_by_default_and_only_by_their_feature() {
    for package in ["rdma-soft", "rdma-proto"] {
        assert!(has(&[], package));
        assert!(has(&["--no-default-features", "--features", "soft"], package));
        assert!(!has(&["--no-default-features"], package));
        assert!(!has(&["--no-default-features", "--features", "serde"], package));
    }
}

/// Tokio's feature `test-util` slows its clock down.
#[test]
fn tokio_is_built_for_tests_only_by_the_feature_for_simulations() {
    let has_test_util = |features: &str| {
        let options = ["--features", features, "--edges", "normal", "--format", "{p}|{f}"];
        let lines = tree(&options);
        let tokio = lines.iter().find(|line| line.starts_with("tokio v"));
        tokio.is_some_and(|line| line.split(['|', ',']).any(|feature| feature == "test-util"))
    };
    assert_eq!(["async", "group", "simulation"].map(has_test_util), [false, false, true]);
}

#[test]
fn serde_is_that_of_every_layer_and_off_by_default() {
    assert!(!has(&[], "serde"));
    let serde = ["--no-default-features", "--features", "async,group,serde"];
    let lines = tree(&[&serde[..], &["--edges", "normal", "--format", "{p}|{f}"]].concat());
    let layers = ["rdma-async", "rdma-channel", "rdma-group", "rdma-mem", "rdma-qp", "rdma-types"];
    for layer in layers {
        let of_layer = |line: &&String| line.starts_with(&format!("{layer} v"));
        let features = lines.iter().find(of_layer).and_then(|line| line.split('|').nth(1));
        let with = features.is_some_and(|all| all.split([',', ' ']).any(|one| one == "serde"));
        assert!(with, "{layer}: {lines:#?}");
    }
}
