//! The action for GitHub, run as GitHub's runner does.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::library::{command, folder, output, text};

const SCRIPT: &str = "../../.github/actions/soft-device/install.sh";

fn install() -> Command {
    let mut script = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(SCRIPT));
    script.env_remove("LD_LIBRARY_PATH").env_remove("GITHUB_ENV").env_remove("GITHUB_PATH");
    script
}

#[test]
fn later_steps_of_a_job_find_the_devices_and_the_program() {
    let Some(mut ibv_devices) = command("ibv_devices") else { return };
    let files = tempfile::tempdir().unwrap();
    let [variables, paths] = ["env", "path"].map(|name| files.path().join(name));
    let mut script = install();
    let installed = script.env("GITHUB_ENV", &variables).env("GITHUB_PATH", &paths).output();
    let installed = installed.unwrap();
    assert!(installed.status.success(), "{}", text(&installed));

    let variables = fs::read_to_string(variables).unwrap();
    let (name, value) = variables.trim_end().split_once('=').unwrap();
    assert_eq!((name, Path::new(value)), ("LD_LIBRARY_PATH", folder()));
    let list = output({
        ibv_devices.env(name, value);
        ibv_devices
    });
    assert!(list.contains("soft0") && list.contains("softib0"), "{list}");
    let path = fs::read_to_string(paths).unwrap();
    assert!(Path::new(path.trim_end()).join("rdma-soft-run").is_file(), "{path}");
}

#[test]
fn outside_a_job_the_script_names_what_is_missing() {
    let refused = install().output().unwrap();
    assert!(!refused.status.success());
    assert!(text(&refused).contains("GITHUB_ENV"), "{}", text(&refused));
}
