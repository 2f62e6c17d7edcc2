use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;

use crate::{program, rdmatool};

/// Returns a tree in `tests/sysroots`; its file `SOURCE` names its origin.
fn sysroot(name: &str) -> String {
    format!("{}/tests/sysroots/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Returns the exit status, and the findings of a run with `--json`.
pub(crate) fn findings(mut command: Command) -> (i32, Vec<Value>) {
    let output = command.arg("--json").output().unwrap();
    (output.status.code().unwrap(), parsed(&output)["findings"].as_array().unwrap().clone())
}

fn parsed(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

fn doctor(arguments: &[&str]) -> (i32, Vec<Value>) {
    findings(program(&[&["doctor"], arguments].concat()))
}

pub(crate) fn of<'a>(findings: &'a [Value], check: &str) -> &'a Value {
    let found = findings.iter().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("no finding `{check}`: {findings:#?}"))
}

/// Returns the checks and severities of the findings that are neither fine nor unknown.
pub(crate) fn faults(findings: &[Value]) -> Vec<(&str, &str)> {
    let text = |finding: &'_ Value, key: &str| finding[key].as_str().unwrap().to_owned();
    for finding in findings.iter().filter(|it| text(it, "severity") == "unknown") {
        assert!(!text(finding, "text").is_empty(), "a reason: {finding}");
    }
    let pairs = findings
        .iter()
        .map(|finding| (finding["check"].as_str().unwrap(), finding["severity"].as_str().unwrap()));
    pairs.filter(|(_, severity)| !["ok", "unknown"].contains(severity)).collect()
}

#[test]
fn the_software_devices_have_no_warning() {
    for (name, checks) in [
        (
            "soft0",
            ["memlock", "huge-pages", "device", "features", "port", "gids", "mtu"].as_slice(),
        ),
        ("softib0", &["memlock", "huge-pages", "device", "features", "port"]),
    ] {
        let (status, findings) = doctor(&[name]);
        assert_eq!(status, 0, "{findings:#?}");
        assert!(checks.iter().all(|check| !of(&findings, check).is_null()));
    }
}

#[test]
fn every_device_of_this_machine_is_examined() {
    for device in &rdma::device::list_devices() {
        let output = rdmatool(&["doctor", device.name(), "--json"]);
        let report = parsed(&output);
        assert!([0, 3, 4].contains(&output.status.code().unwrap()), "{report:#}");
        let facts = report["facts"]["devices"].as_array().unwrap();
        assert_eq!((facts.len(), &facts[0]["name"]), (1, &device.name().into()));
        assert!(!facts[0]["ports"].as_array().unwrap().is_empty(), "{report:#}");
        assert_eq!(report["version"], 1);
    }
}

#[test]
#[ignore = "needs rxe0: cargo xtask rxe-run"]
fn softroce_has_no_warning() {
    let (status, findings) = doctor(&["rxe0"]);
    assert_eq!(status, 0, "{findings:#?}");
    for check in ["access", "port", "gids", "mtu", "memlock"] {
        assert_eq!(of(&findings, check)["severity"], "ok", "{check}");
    }
    let gids = of(&findings, "gids")["text"].as_str().unwrap();
    assert!(gids.starts_with("2 GIDs, 2 of them for RoCE v2"), "{gids}");
    assert!(of(&findings, "versions")["text"].as_str().unwrap().contains("libibverbs.so."));
}

#[test]
fn planted_faults_are_found_and_nothing_else() {
    let peer = ["--peer", "200.0.210.6"];
    for (name, arguments, status, expected) in [
        ("no-common-network", [].as_slice(), 0, [].as_slice()),
        ("no-common-network", &peer, 3, &[("gid-choice", "warning")]),
        ("mtu-mismatch", &[], 3, &[("mtu", "warning")]),
        ("mtu-mismatch", &["--peer", "10.10.10.7"], 3, &[("mtu", "warning")]),
        ("memlock-64k", &[], 3, &[("memlock", "warning")]),
        ("memlock-64k", &["--peer", "10.152.3.11"], 3, &[("memlock", "warning")]),
        (
            "memlock-64k",
            &["--peer", "2001:db8::7"],
            4,
            &[("memlock", "warning"), ("gid-choice", "error")],
        ),
        ("foreign-numa-node", &[], 3, &[("numa", "warning")]),
        (
            "port-down",
            &[],
            4,
            &[
                ("pci-link", "warning"),
                ("port", "error"),
                ("gids", "warning"),
                ("interface", "warning"),
            ],
        ),
    ] {
        let place = sysroot(name);
        let (found, findings) = doctor(&[&["--sysroot", &place], arguments].concat());
        assert_eq!(faults(&findings), expected, "{name} {arguments:?}");
        assert_eq!(found, status, "{name} {arguments:?}");
        for (check, _) in expected {
            assert!(of(&findings, check)["cure"].is_string(), "{name}: {check}");
        }
    }
}

#[test]
fn findings_name_the_values() {
    let texts = |name: &str, peer: &[&str], check: &str| {
        let place = sysroot(name);
        let (_, findings) = doctor(&[&["--sysroot", &place], peer].concat());
        of(&findings, check)["text"].as_str().unwrap().to_owned()
    };
    let expect = |text: String, parts: &[&str]| {
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    expect(texts("memlock-64k", &[], "memlock"), &["64 KiB"]);
    expect(texts("mtu-mismatch", &[], "mtu"), &["eth2 9000", "eth2.10 1500"]);
    expect(texts("foreign-numa-node", &[], "numa"), &["node 1", "64-127,192-255", "0-63,128-191"]);
    let chosen = texts("mtu-mismatch", &["--peer", "10.10.10.7"], "gid-choice");
    expect(chosen, &["GID 5", "10.10.10.5", "eth2.10", "10.10.10.0/24", "the same network"]);
    let chosen = texts("foreign-numa-node", &["--peer", "fd00:1::9"], "gid-choice");
    expect(chosen, &["GID 1", "fd00:1::/64", "the same network"]);
    expect(texts("no-common-network", &[], "device"), &["mlx5_core 5.8-3.0.7", "22.31.1014"]);
    expect(texts("no-common-network", &[], "iommu"), &["identity", "iommu=pt"]);
    expect(texts("no-common-network", &[], "traffic-class"), &["106"]);
}

#[test]
fn a_machine_without_rdma_gets_a_warning_with_the_module_to_load() {
    let bare = tempfile::tempdir().unwrap();
    fs::create_dir(bare.path().join("sys")).unwrap();
    let (status, findings) = doctor(&["--sysroot", bare.path().to_str().unwrap()]);
    assert_eq!((status, faults(&findings)), (3, vec![("devices", "warning")]));
    assert!(of(&findings, "devices")["cure"].as_str().unwrap().contains("modprobe"));
}

#[test]
fn a_folder_without_sys_is_refused() {
    let empty = tempfile::tempdir().unwrap();
    let output = rdmatool(&["doctor", "--sysroot", empty.path().to_str().unwrap()]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("contains no folder `sys`"), "{error}");
}

#[test]
fn a_variable_that_no_program_reads_is_a_warning() {
    let mut command = program(&["doctor", "soft0"]);
    command.env("RDMA_SOFT_PEER", "none").env("RDMA_SOFT_PEERS", "none");
    let (status, findings) = findings(command);
    let texts: Vec<_> = findings.iter().filter(|it| it["check"] == "environment").collect();
    let [read, unknown] = &texts[..] else { panic!("{texts:?}") };
    assert!(read["text"].as_str().unwrap().contains("RDMA_SOFT_PEERS=none"), "{read}");
    assert_eq!(unknown["severity"], "warning");
    assert!(unknown["text"].as_str().unwrap().contains("RDMA_SOFT_PEER=none"), "{unknown}");
    assert!(unknown["cure"].as_str().unwrap().contains("RDMA_SOFT_PEERS"), "{unknown}");
    assert_eq!(status, 3);
}

/// Copies a tree, each file by `write`.
fn copy(from: &Path, to: &Path, write: &dyn Fn(&Path)) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let place = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &place, write);
        } else {
            write(&place);
        }
    }
}

#[test]
fn files_with_any_content_neither_stop_nor_hang_it() {
    let from = PathBuf::from(sysroot("no-common-network"));
    let writes: [&dyn Fn(&Path); 6] = [
        &|place| fs::write(place, b"").unwrap(),
        &|place| fs::write(place, vec![0xff; 1 << 20]).unwrap(),
        &|place| fs::write(place, "-99999999999999999999").unwrap(),
        &|place| fs::write(place, "18446744073709551615 kB\n".repeat(999)).unwrap(),
        &|place| mknodat(CWD, place, FileType::Fifo, Mode::RUSR, 0).unwrap(),
        &|place| std::os::unix::fs::symlink(".", place).unwrap(),
    ];
    for write in writes {
        let place = tempfile::tempdir().unwrap();
        copy(&from, place.path(), write);
        let path = place.path().to_str().unwrap();
        let (status, findings) = doctor(&["--sysroot", path, "--peer", "10.0.0.1"]);
        assert!([0, 3, 4].contains(&status), "{findings:#?}");
        assert!(!of(&findings, "port").is_null());
    }
}

#[test]
fn the_limit_of_locked_memory_is_that_of_the_process() {
    let tool = program(&["doctor", "soft0", "--json"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -l 64 && exec \"$@\"", "sh"]).arg(tool.get_program());
    let output = limited.args(tool.get_args()).output().unwrap();
    let report = parsed(&output);
    let finding = of(report["findings"].as_array().unwrap(), "memlock");
    assert!(finding["text"].as_str().unwrap().contains("64 KiB"), "{finding}");
    assert_eq!(report["facts"]["machine"]["memlock"]["value"]["limit"], 64 << 10);
}

#[test]
fn features_that_a_device_lacks_are_named() {
    for (profile, lacking, present) in [
        ("intel-e810", ["shared receive queues", "atomic operations", "UC"].as_slice(), "inline"),
        ("mana", &["shared receive queues", "64 bytes of inline data", "multicast"], "dma-buf"),
        ("hip08", &["memory windows", "dma-bufs", "UC", "inline data"], "atomic"),
    ] {
        let mut command = program(&["doctor", "soft0"]);
        command.env("RDMA_SOFT_LIKE", profile);
        let (status, findings) = findings(command);
        let text = of(&findings, "features")["text"].as_str().unwrap();
        assert!(lacking.iter().all(|name| text.contains(name)), "{profile}: {text}");
        assert!(!text.contains(present), "{profile}: {text}");
        let environment = of(&findings, "environment")["text"].as_str().unwrap();
        assert!(environment.contains(&format!("RDMA_SOFT_LIKE={profile}")), "{environment}");
        assert_eq!(status, 0);
    }
}

#[test]
fn a_queue_pair_that_cannot_be_created_is_an_error() {
    let mut command = program(&["doctor", "soft0"]);
    command.env("RDMA_GID_INDEX", "77");
    let (status, findings) = findings(command);
    assert_eq!((status, faults(&findings).contains(&("queue-pair", "error"))), (4, true));
    let text = of(&findings, "queue-pair")["text"].as_str().unwrap();
    assert!(text.contains("77"), "{text}");
}

#[test]
fn a_report_has_findings_facts_and_attributes_and_replaces_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let arguments = ["doctor", "soft0", "--report", path.to_str().unwrap()];
    assert_eq!(rdmatool(&arguments).status.code(), Some(0));
    let written = fs::read(&path).unwrap();
    let report: Value = serde_json::from_slice(&written).unwrap();
    assert!(!of(report["findings"].as_array().unwrap(), "port").is_null());
    assert_eq!(report["facts"]["devices"][0]["name"], "soft0");
    let devices = report["devices"].as_array().unwrap();
    assert!(devices.iter().any(|device| device["max_qp_wr"].is_number()), "{devices:?}");

    let again = rdmatool(&arguments);
    let error = String::from_utf8(again.stderr).unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(error.contains("report.json") && error.contains("exists: delete it"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), written);
}

#[test]
fn wrong_arguments_are_refused() {
    let status = |arguments: &[&str]| rdmatool(arguments).status.code();
    assert_eq!(status(&["doctor", "--no-such-option"]), Some(2));
    assert_eq!(status(&["doctor", "--sysroot", "/no/such/folder"]), Some(1));
    assert_eq!(status(&["doctor", "mlx5_9", "--sysroot", &sysroot("port-down")]), Some(1));
    for peer in ["no such host", "127.0.0.1:99999", "[::1]:x"] {
        let output = rdmatool(&["doctor", "soft0", "--peer", peer]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{peer}: {error}");
        assert!(error.contains(peer) && error.contains("HOST:PORT"), "{error}");
    }
}
