//! The files that describe the devices, and the namespace in which they exist.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::library::{command, text};
use crate::run::{Installed, soft_run, soft_run_in, stderr, stdout, with_files, without_rights};
use crate::two_processes::exchange;

#[test]
fn middleware_finds_the_files_of_the_devices() {
    let Some(mut command) = soft_run() else { return };
    let script = "cd /sys/class/infiniband/soft0 &&
        cat node_type ports/1/state ports/1/link_layer ports/1/gid_attrs/types/1 &&
        cat ports/1/gid_attrs/ndevs/4 device/numa_node /sys/class/infiniband_verbs/uverbs8192/ibdev &&
        test -c /dev/infiniband/uverbs8192 && test -w /dev/infiniband/uverbs8193 && echo nodes";
    let Some(output) = with_files(command.args(["sh", "-c", script])) else { return };
    let expected = "1: CA\n4: ACTIVE\nEthernet\nRoCE v2\nlo\n-1\nsoft0\nnodes\n";
    assert_eq!(stdout(&output), expected, "{}", text(&output));
    assert!(stderr(&output).contains("/dev/infiniband describe these devices"));
}

#[test]
fn identities_in_the_files_are_those_of_the_library() {
    let Some(ibv_devinfo) = command("ibv_devinfo") else { return };
    let Some(mut command) = soft_run() else { return };
    let name = ibv_devinfo.get_program().to_str().unwrap();
    let script =
        format!("cat /sys/class/infiniband/soft0/node_guid && {name} -d soft0 | grep node_guid");
    let Some(output) = with_files(command.args(["sh", "-c", &script])) else { return };
    let lines = stdout(&output);
    let guids: Vec<_> = lines.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(matches!(*guids, [file, verb] if file == verb && file.len() == 19), "{lines}");
}

#[test]
fn other_files_of_the_system_are_still_there() {
    let Some(mut command) = soft_run() else { return };
    let script = "ls /sys/class /dev && echo text >/dev/null && cat /sys/class/net/lo/ifindex";
    let Some(output) = with_files(command.args(["sh", "-c", script])) else { return };
    let inside = stdout(&output);
    let inside: BTreeSet<_> = inside.lines().collect();
    for folder in ["/sys/class", "/dev"] {
        for entry in fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            // Only the folder itself is checked.
            assert!(inside.contains(&*name), "{folder}/{name}: {}", text(&output));
        }
    }
    assert!(inside.contains("1"), "the interface lo has no index");
    // Nothing appears outside.
    let outside = fs::metadata("/dev/infiniband/uverbs8192");
    assert!(outside.is_err(), "{outside:?}");
}

/// Without rights, the files need a user namespace, in which the program still has its user and no capability.
#[test]
fn the_program_keeps_its_user_and_gets_no_rights() {
    let installed = Installed::new();
    let Some(mut inside) = soft_run_in(installed.path()) else { return };
    let script = "id -u; id -g; grep CapEff /proc/self/status; echo >/tmp/rdma-soft-run-$$ &&
        stat -c %u /tmp/rdma-soft-run-$$; rm /tmp/rdma-soft-run-$$; ls /sys/class/infiniband";
    let words = ["sh", "-c", script];
    let Some(output) = with_files(without_rights(inside.args(words))) else { return };
    let mut outside = Command::new(words[0]);
    let outside = without_rights(outside.args(&words[1..])).output().unwrap();
    let expected = format!("{}soft0\nsoftib0\n", stdout(&outside));
    assert_eq!(stdout(&output), expected, "{}", text(&output));
    assert!(expected.contains("CapEff:\t0000000000000000"), "{expected}");
}

/// A process in a user and mount namespace reaches one that uses the library alone, since both have the same user.
#[test]
fn processes_inside_and_outside_exchange_messages() {
    let installed = Installed::new();
    let Some(outside) = command("ibv_rc_pingpong") else { return };
    let program = outside.get_program().to_owned();
    let ends = || {
        let mut outside = Command::new(&program);
        outside.env("LD_LIBRARY_PATH", installed.library()).env_remove("RDMA_PROVIDERS");
        without_rights(&mut outside);
        let mut inside = soft_run_in(installed.path())?;
        without_rights(inside.arg(&program));
        Some([outside, inside])
    };
    for reversed in [false, true] {
        let Some(mut ends) = ends() else { return };
        if reversed {
            ends.reverse();
        }
        let outputs = exchange(ends, &["-d", "soft0", "-g", "1", "-n", "200", "-c"]);
        assert!(outputs.iter().all(|output| output.contains("200 iters in ")), "{outputs:?}");
    }
}

#[test]
fn files_and_namespaces_can_be_declined() {
    let Some(mut command) = soft_run() else { return };
    let output = command.args(["--no-files", "readlink", "/proc/self/ns/mnt"]).output().unwrap();
    let own = fs::read_link("/proc/self/ns/mnt").unwrap();
    assert_eq!(stdout(&output).trim_end(), own.to_str().unwrap(), "{}", text(&output));
}
