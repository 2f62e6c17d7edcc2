//! Child processes, for tests whose endings end the process.
#![allow(unsafe_code)]

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use std::time::{Duration, Instant};

use test_support::program::this_program;

use super::LATE;

/// Environment variable of a child: its device.
pub(crate) const CHILD: &str = "RDMA_CHANNEL_ENDING_CHILD";

/// In a child, runs `work` on each device, which has to abort; in the parent, expects that and the reason.
pub(crate) fn must_abort(test: &str, work: impl FnOnce(&str)) {
    let ended = in_children(test, |device| {
        work(device);
        println!("it lives");
    });
    for output in ended {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{}: {said}", output.status);
        let reason = "rdma-channel: aborting, since memory is borrowed by requests of a queue pair that \
            could not be destroyed";
        assert!(said.contains(reason) && said.contains("EBUSY"), "{said}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("it lives"));
    }
}

/// In a child, runs `work` on each device; in the parent, expects its success.
pub(crate) fn must_live(test: &str, work: impl FnOnce(&str)) {
    for output in in_children(test, work) {
        assert!(output.status.success(), "{output:?}");
    }
}

/// Runs this test in a child process for each device, and returns how they ended. Returns nothing in the child.
fn in_children(test: &str, work: impl FnOnce(&str)) -> Vec<Output> {
    if let Some(device) = env::var_os(CHILD) {
        work(device.to_str().unwrap());
        return Vec::new();
    }
    let run = |device| {
        let begin = Instant::now();
        let mut child = this_program();
        child.args(["--exact", test, "--nocapture"]).env(CHILD, device);
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("running 1 test"), "no test `{test}`: {output:?}");
        assert!(begin.elapsed() < Duration::from_secs(60));
        output
    };
    LATE.into_iter().map(run).collect()
}

/// Waits for a child of this process, and expects its success.
pub(crate) fn wait_for(pid: i32) {
    assert!(pid >= 0, "no child");
    let mut status = 0;
    // SAFETY: SAFETY.md F15: the child belongs to this process, and `status` has room for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
}
