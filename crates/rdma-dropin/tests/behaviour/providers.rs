//! The software devices together with those of another libibverbs.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::c_programs::{compile, run};
use crate::library::{command, folder, output, text};

/// Compiles a stand-in for the distribution's library and the library of its provider, and runs `providers.c` with them.
fn stand_in(providers: &str, prepare: impl FnOnce(&mut Command, &Path)) -> Option<Vec<String>> {
    let target = tempfile::tempdir().unwrap();
    let [library, driver] = ["libibverbs.so.1", "driver.so"].map(|name| target.path().join(name));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/distribution.map");
    let script = format!("-Wl,--version-script={}", script.display());
    let shared = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", &script, "-Wl,--as-needed"];
    compile("distribution.c", &library, &shared);
    compile("driver.c", &driver, &["-shared", "-fPIC"]);
    let text = run("providers.c", |program| {
        program.env("RDMA_PROVIDERS", providers).env("RDMA_LIBIBVERBS", library);
        program.env("STAND_IN_PROVIDER", &driver);
        prepare(program, &driver);
    })?;
    Some(text.lines().map(str::to_owned).collect())
}

const STAND_IN: [&str; 19] = [
    "-- stand0",
    "allocated: 5 0x18 99",
    "set operations of stand0",
    "logged: text 1 2.5 3 4",
    "a command: 328",
    "a range: 77",
    "domain: allocated, type: 0 11",
    "acknowledged",
    "a domain is freed",
    "freed: 0",
    "closed",
    "closed: 0",
    "opened with attributes",
    "allocated: 5 0x18 99",
    "set operations of stand0",
    "logged: text 1 2.5 3 4",
    "a command: 328",
    "a range: 77",
    "closed",
];
const SOFT: [&str; 4] = ["-- soft0", "domain: allocated, type: 0 1", "freed: 0", "closed: 0"];
const SOFT_IB: [&str; 4] = ["-- softib0", "domain: allocated, type: -1 0", "freed: 0", "closed: 0"];
const BEGIN: [&str; 3] = ["fork_init", "registered", "3 devices, terminated"];

#[test]
fn each_object_is_used_with_its_provider() {
    let Some(text) = stand_in("system,soft", |_, _| {}) else { return };
    let expected = [&BEGIN[..], &STAND_IN, &SOFT, &SOFT_IB, &["the list is freed"]];
    assert_eq!(text, expected.concat());
}

#[test]
fn the_list_has_the_order_of_the_variable() {
    let Some(text) = stand_in("soft,system", |_, _| {}) else { return };
    let expected = [&BEGIN[..], &SOFT, &SOFT_IB, &STAND_IN, &["the list is freed"]];
    assert_eq!(text, expected.concat());
}

#[test]
fn the_other_library_can_be_the_only_provider() {
    let Some(text) = stand_in("system", |_, _| {}) else { return };
    let begin = ["fork_init", "registered", "1 devices, terminated"];
    assert_eq!(text, [&begin[..], &STAND_IN, &["the list is freed"]].concat());
}

#[test]
fn a_provider_that_the_program_links_with_is_registered() {
    let preload = |program: &mut Command, driver: &Path| {
        program.env("LD_PRELOAD", driver).env_remove("STAND_IN_PROVIDER");
    };
    let Some(text) = stand_in("system,soft", preload) else { return };
    let begin = ["registered", "fork_init", "3 devices, terminated"];
    let expected = [&begin[..], &STAND_IN, &SOFT, &SOFT_IB, &["the list is freed"]];
    assert_eq!(text, expected.concat());
}

#[test]
fn the_software_devices_alone_load_no_other_library() {
    let Some(text) = stand_in("", |_, _| {}) else { return };
    assert_eq!(text, [&["2 devices, terminated"][..], &SOFT, &SOFT_IB].concat());
}

#[test]
fn the_distributions_library_is_loaded_by_its_path() {
    let Some(mut ibv_devices) = command("ibv_devices") else { return };
    ibv_devices.env("RDMA_PROVIDERS", "soft,system");
    let list = output(ibv_devices);
    let names: Vec<_> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names[..4], ["device", "------", "soft0", "softib0"], "{list}");
}

#[test]
fn a_library_that_cannot_be_loaded_is_named_and_hides_no_devices() {
    let Some(mut ibv_devices) = command("ibv_devices") else { return };
    ibv_devices.env("RDMA_PROVIDERS", "system,soft").env("RDMA_LIBIBVERBS", "/no/libibverbs.so.1");
    let output = ibv_devices.output().unwrap();
    let text = text(&output);
    assert!(output.status.success() && text.contains("soft0"), "{text}");
    assert!(text.contains("libibverbs: RDMA_LIBIBVERBS is /no/libibverbs.so.1"), "{text}");
}

#[test]
fn a_copy_of_this_library_is_refused() {
    let Some(mut ibv_devices) = command("ibv_devices") else { return };
    let target = tempfile::tempdir().unwrap();
    let own = folder().join("libibverbs.so.1");
    let copy = target.path().join("libibverbs.so.1");
    fs::copy(&own, &copy).unwrap();
    for library in [own, copy] {
        ibv_devices.env("RDMA_PROVIDERS", "system").env("RDMA_LIBIBVERBS", library);
        let output = ibv_devices.output().unwrap();
        let text = text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("is a copy of this library"), "{text}");
    }
}

#[test]
fn an_unknown_provider_is_named() {
    let Some(mut ibv_devices) = command("ibv_devices") else { return };
    let failed = ibv_devices.env("RDMA_PROVIDERS", "soft,sytsem").output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    let stderr = text(&failed);
    assert!(
        stderr.contains("names \"sytsem\", but the providers are \"soft\" and \"system\""),
        "{stderr}"
    );
}
