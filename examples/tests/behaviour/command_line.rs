//! The help of every program, and its errors for an invalid command line.

use std::fs::File;
use std::process::{Output, Stdio};

use crate::common::process::{self, Process, command};

/// The programs that install their own devices, so that no device can be chosen.
const OWN_DEVICES: [&str; 5] =
    ["error_completion", "failover", "gid_move", "port_flap", "replication"];

/// All programs except `async_hello`, which is minimal and has no options.
fn programs() -> Vec<String> {
    process::programs().into_iter().filter(|name| name != "async_hello").collect()
}

/// Returns the required arguments besides a device.
fn needed(program: &str) -> &'static [&'static str] {
    match program {
        "async_copy_file" => &["Cargo.toml", concat!(env!("CARGO_TARGET_TMPDIR"), "/copy")],
        "network" | "network_barrier_test" | "network_barrier_test_random" => {
            &["network.json", "0"]
        }
        "cm_channel" | "rc_pingpong" | "rping" => &["--connect", "127.0.0.1:9"],
        _ => &[],
    }
}

#[test]
fn help_shows_the_usage_and_the_devices() {
    for program in programs() {
        let Output { status, stdout, stderr } = Process::example(&program, &["--help"]).end();
        let said = String::from_utf8(stdout).unwrap();
        assert!(status.success() && stderr.is_empty(), "{program}: {said}");
        assert!(said.contains(&program) && said.contains("Usage: "), "{program}: {said}");
        let option = said.contains("--device NAME") || said.contains("--device <NAME>");
        assert_eq!(option, !OWN_DEVICES.contains(&&*program), "{program}: {said}");
        let devices = said.lines().find_map(|line| line.strip_prefix("Devices: "));
        let has = |name| devices.is_some_and(|all| all.split(", ").any(|one| one == name));
        assert_eq!([has("soft0"), has("softib0")], [option; 2], "{program}: {said}");
    }
}

#[test]
fn an_unknown_option_is_an_error_with_exit_status_1() {
    for program in programs() {
        let said = Process::example(&program, &["--unheard-of"]).fail();
        assert!(said.contains("--unheard-of") && said.contains("--help"), "{program}: {said}");
    }
}

#[test]
fn an_unknown_device_is_an_error_that_names_the_existing_ones() {
    for program in programs().iter().filter(|name| !OWN_DEVICES.contains(&&***name)) {
        let options = [needed(program), &["--device", "mlx5_77"]].concat();
        let said = Process::example(program, &options).fail();
        for name in ["`mlx5_77`", "soft0", "softib0"] {
            assert!(said.contains(name), "{program}: {said}");
        }
        assert_eq!(said.lines().count(), 1, "{program}: {said}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_no_panic() {
    for program in ["channel", "replication", "pingpong", "kv"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = command(program, &[]);
        let child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let said = Process(child).fail();
        let why = ["the output cannot be written", "No space left on device"];
        assert!(why.iter().any(|why| said.contains(why)), "{program}: {said}");
    }
}
