//! The tests of pyverbs, rdma-core's Python bindings.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::foreign::installation::Installation;
use crate::foreign::output::{self, Tests};
use crate::foreign::process::Process;
use crate::foreign::report::{Outcome, Row};
use crate::foreign::two_hosts;

/// The folder with the tests. Some files are compressed.
const TESTS: &str = "usr/share/doc/rdma-core/tests";

/// Each device, its GID index, and the minimum number of tests of rdma-core 44 that must pass.
const DEVICES: &[(&str, &str, usize)] = &[("soft0", "1", 86), ("softib0", "0", 85)];

/// The words that select the tests of librdmacm, and how many must pass on each device. They fork, so they run in a process
/// of their own, which has used no queue pairs.
const MANAGER: (&[&str], usize) = (&["-k", "test_rdmacm"], 7);

/// The file of the tests that finds a device's network interface, and what is added to it for the tests of librdmacm. They
/// need the interface's address. The devices belong to none, and localhost leads to them.
const ADDRESS: (&str, &str) = (
    "base.py",
    "\n\ndef _get_ip_mac(self, dev, port, idx):\n    \
        self.args.append([dev, port, idx, '127.0.0.1', None])\n\n\n\
    RDMATestCase._get_ip_mac = _get_ip_mac\n",
);

/// The addition to the same file for the tests of librdmacm between two network namespaces, and how many must pass.
const HOSTS: (&str, usize) = (include_str!("../programs/pyverbs_hosts.py"), 9);

/// The variable with the FIFO through which the other namespace arrives.
const OTHER_HOST: &str = "RDMA_TEST_OTHER_HOST";

/// The program in the other namespace. It writes the file of its namespace into the FIFO, and ends once that was read.
const OTHER: &str = "import os; fifo = os.environ[\"RDMA_TEST_OTHER_HOST\"]; f = open(fifo, \"w\"); \
                     f.write(f\"/proc/{os.getpid()}/ns/net\"); f.close(); open(fifo).read()";

/// The tests of librdmacm that fail on the software devices, each with the reason. They count as skipped.
const EXPECTED_FAILURES: &[(&str, &str)] = &[
    ("test_rdmacm_async_multicast_traffic", MULTICAST),
    ("test_rdmacm_async_ex_multicast_traffic", MULTICAST),
    ("test_rdmacm_async_ex_leave_multicast_traffic", MULTICAST),
];
const MULTICAST: &str = "A multicast group has members in one process only";

/// The known reasons for skipped tests: a part of the text, and the feature that the device or the machine lacks.
const SKIPS: &[(&str, &str)] = &[
    ("Can not run the test over non MLX5 device", "mlx5 only"),
    ("Could not open mlx5 context", "mlx5 only"),
    ("Can not run the test over non EFA device", "EFA only"),
    ("PCI device must be passed by the user", "a NIC only"),
    ("ODP is not supported", "on-demand paging"),
    ("Device memory is not supported", "memory of the device"),
    ("doesn't have net interface", "librdmacm, tested apart"),
    (MULTICAST, "multicast groups of two processes at one address"),
    ("The test kills its processes", "two processes for all tests"),
    ("Allocating dmabuf is not supported by /dev/dri", "a GPU of the machine"),
    ("There are no DRM devices", "a GPU of the machine"),
    ("cuda-python", "a GPU of the machine"),
    ("There are no huge pages", "huge pages of the machine"),
    ("Create QP type 8 is not supported", "raw packets"),
    ("Create Raw Packet QP", "raw packets"),
    ("Must be run by root on Ethernet link layer", "raw packets"),
    ("To Create RAW QP must be done by root", "raw packets"),
    ("Create XRCD is not supported", "XRC"),
    ("Parent Domain is not supported", "parent domains"),
    ("Rereg MR is not supported", "reregistration"),
    ("Extended CQ is not supported", "tag matching"),
    ("Extended QP is not supported", "atomic write"),
    ("Converting timestamp to nanoseconds", "mlx5 only"),
    ("Importing a device is not supported", "import of objects"),
    ("All gid indices populated", "an empty place in the GID table"),
    ("Link layer of port=1 is InfiniBand", "RoCE only"),
    (AT_ONCE, "requests that are executed at once"),
];

/// The reason of a test that does not wait for the completions that it expects.
pub(super) const AT_ONCE: &str = "The test expects completions as soon as requests are posted";

/// Runs the tests on each device. The `unreliable` tests, each with the reason, count as skipped if they fail.
///
/// # Errors
/// Returns an error if the tests cannot be copied.
pub(super) fn run(
    installation: &Installation,
    unreliable: &[(&str, &str)],
    row: &mut Row,
) -> Result<()> {
    let runner = copied(&installation.file(TESTS), &installation.home.join("tests"))?;
    let mut run_on =
        |(device, gid): (&str, &str), name: &str, selected: &[&str], least, known: &[_]| {
            let words = ["/usr/bin/python3", &*runner.to_string_lossy(), "--dev", device];
            let words =
                [&words[..], &["--gid", gid, "--port", "1", "--verbose"], selected].concat();
            let words: Vec<_> = words.into_iter().map(str::to_owned).collect();
            let ran = || {
                let ended = Process::start(&words, &installation.environment())?.end()?;
                let tests = output::unittest(&ended.output).map(|tests| without(tests, known));
                let tests = tests.and_then(|tests| accepted(tests, least));
                tests.with_context(|| ended.to_string())
            };
            row.case(name, || ran().map(Outcome::Tests));
        };
    for &(device, gid, least) in DEVICES {
        run_on((device, gid), device, &[], least - unreliable.len(), unreliable);
    }
    let (file, addition) = ADDRESS;
    let mut file = OpenOptions::new().append(true).open(runner.with_file_name(file))?;
    file.write_all(addition.as_bytes())?;
    let (selected, least) = MANAGER;
    for &(device, gid, _) in DEVICES {
        run_on((device, gid), &format!("{device}, librdmacm"), selected, least, EXPECTED_FAILURES);
    }
    if two_hosts::can_run()? {
        file.write_all(HOSTS.0.as_bytes())?;
        row.case("soft0, librdmacm, two hosts", || on_two_hosts(installation, &runner));
    }
    Ok(())
}

/// Runs the tests of librdmacm with their ends in two network namespaces.
fn on_two_hosts(installation: &Installation, runner: &Path) -> Result<Outcome> {
    const SOCKET: &str = "@pyverbs-hosts$";
    let (device, gid, _) = DEVICES[0];
    let (selected, _) = MANAGER;
    let fifo = runner.with_file_name("other_host");
    // One of a run that was killed.
    let _ = fs::remove_file(&fifo);
    let runner = &*runner.to_string_lossy();
    let tests = ["/usr/bin/python3", runner, "--dev", device, "--gid", gid, "--port", "1"];
    let tests = [&tests[..], &["--verbose"], selected].concat();
    let lines = [&tests[..], &["/usr/bin/python3", "-c", OTHER]];
    let lines = lines.map(|words| words.iter().map(|&word| word.to_owned()).collect());
    let mut environment = installation.environment();
    environment.push((OTHER_HOST, fifo.to_string_lossy().into_owned()));
    let ended = Process::start(&two_hosts::words(SOCKET, &lines, true), &environment)?.end()?;
    ensure!(ended.succeeded(), "{ended}");
    let tests = output::unittest(&ended.output).and_then(|tests| accepted(tests, HOSTS.1));
    tests.map(Outcome::Tests).with_context(|| ended.to_string())
}

/// Moves the unreliable tests from the failed to the skipped ones.
fn without(mut tests: Tests, unreliable: &[(&str, &str)]) -> Tests {
    let reason = |name: &String| unreliable.iter().find(|(test, _)| test == name);
    let reasons = tests.failed.iter().filter_map(reason).map(|(_, why)| (*why).to_owned());
    tests.skipped.extend(reasons);
    tests.failed.retain(|name| reason(name).is_none());
    tests
}

/// Returns the tests if none failed, enough passed, and the others were skipped for known reasons.
fn accepted(tests: Tests, least: usize) -> Result<Tests> {
    tests.none_failed()?;
    let Tests { passed, skipped, .. } = &tests;
    let known = |reason: &str| SKIPS.iter().any(|(part, _)| reason.contains(part));
    let unknown: BTreeSet<_> = skipped.iter().filter(|reason| !known(reason)).collect();
    ensure!(unknown.is_empty(), "tests were skipped for reasons that are not listed: {unknown:?}");
    ensure!(*passed >= least, "only {passed} tests passed, instead of {least}");
    Ok(tests)
}

/// Copies the tests into `to`, decompresses them, and returns the program that runs them.
fn copied(from: &Path, to: &Path) -> Result<PathBuf> {
    fs::create_dir_all(to)?;
    let entries = fs::read_dir(from);
    for entry in entries.with_context(|| format!("{} has no tests", from.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        match name.to_string_lossy().strip_suffix(".gz") {
            None => fs::write(to.join(&name), fs::read(&path)?)?,
            Some(plain) => {
                let output =
                    Command::new("gzip").args(["--decompress", "--stdout"]).arg(&path).output();
                let output = output.context("starting gzip")?;
                ensure!(output.status.success(), "gzip cannot decompress {}", path.display());
                fs::write(to.join(plain), output.stdout)?;
            }
        }
    }
    Ok(to.join("run_tests.py"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tests(passed: usize, failed: &[&str], skipped: &[&str]) -> Tests {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Tests { passed, failed: owned(failed), skipped: owned(skipped) }
    }

    #[test]
    fn failures_unknown_skips_and_fewer_tests_are_refused() {
        let known = "ODP is not supported - No ODP caps";
        assert!(accepted(tests(86, &[], &[known]), 86).is_ok());
        let refused = |tests, least| accepted(tests, least).unwrap_err().to_string();
        assert!(refused(tests(86, &["test_a"], &[]), 86).ends_with("86 passed: [\"test_a\"]"));
        assert!(refused(tests(85, &[], &[known]), 86).starts_with("only 85 tests"));
        let unknown = tests(86, &[], &[known, "Bad weather"]);
        assert!(refused(unknown, 86).ends_with("{\"Bad weather\"}"));
    }

    #[test]
    fn only_failures_of_unreliable_tests_count_as_skipped() {
        let found = without(tests(3, &["test_a", "test_b"], &["cold"]), &[("test_b", "late")]);
        assert_eq!(found, tests(3, &["test_a"], &["cold", "late"]));
    }

    #[test]
    fn compressed_tests_are_decompressed() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("run_tests.py"), "import base\n").unwrap();
        fs::write(from.path().join("base.py"), "pass\n").unwrap();
        let gzip = Command::new("gzip").arg(from.path().join("base.py")).status();
        assert!(gzip.unwrap().success());
        let runner = copied(from.path(), to.path()).unwrap();
        assert_eq!(fs::read_to_string(runner).unwrap(), "import base\n");
        assert_eq!(fs::read_to_string(to.path().join("base.py")).unwrap(), "pass\n");
    }
}
