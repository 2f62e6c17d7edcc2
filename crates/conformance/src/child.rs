//! Runs one case in a separate process.

use std::env;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use test_support::program::this_program;
use test_support::rig::fork::leave;
use wait_timeout::ChildExt as _;

use crate::case::{Case, LIMIT};
use crate::cases;
use crate::devices;
use crate::iwarp;
use crate::outcome::Outcome;

/// The environment variable that marks a child process; its value is `DEVICE::CASE`.
const VARIABLE: &str = "RDMA_TEST_CASE";

/// The environment variable that marks a process started by [`once_more`].
const AGAIN: &str = "RDMA_TEST_CASE_AGAIN";

/// The time limit for a killed process to exit.
const LAST: Duration = Duration::from_secs(10);

/// Runs the case that this process was started to run. Returns false if the process was not started
/// to run a case.
pub(crate) fn run_own_case() -> bool {
    let Ok(wanted) = env::var(VARIABLE) else { return false };
    let (device, case) = wanted.split_once("::").expect("DEVICE::CASE");
    let case = cases::all().find(|known| known.name() == case).expect("a case of this name");
    let is_iwarp = iwarp::is_iwarp(device);
    let device = devices::prepare(device);
    if let Some(reason) = iwarp::lacking(case).filter(|_| is_iwarp) {
        device.skip(reason);
    }
    if let Some(qp_type) = case.qp_type() {
        device.needs_type(qp_type);
    }
    (case.run)(&device);
    device.report();
    true
}

/// Runs a case in a child process.
pub(crate) fn run(device: &str, case: &Case) -> Outcome {
    let mut command = this_program();
    command.env(VARIABLE, format!("{device}::{}", case.name()));
    finish(command, LIMIT).unwrap_or_else(|error| Outcome::Failed { message: format!("{error:#}") })
}

/// The exit status and the standard error output of a process.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) errors: String,
}

/// Starts a second process for the same case. It runs `work` and, if it survives that, exits with
/// success. A case uses this if the process must die. Panics if the second process still runs after
/// `limit`.
pub(crate) fn once_more(limit: Duration, work: impl FnOnce()) -> Ended {
    if env::var_os(AGAIN).is_some() {
        work();
        // Skip the leak check, because `work` may have leaked memory.
        leave();
    }
    let mut errors = tempfile::tempfile().unwrap();
    let mut command = this_program();
    command.env(AGAIN, "").stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.stderr(errors.try_clone().unwrap()).spawn().unwrap();
    // The new process is in this process's group, so if it hangs, it is killed together with this
    // one.
    let status = child.wait_timeout(limit).unwrap();
    let errors = contents(&mut errors).unwrap();
    let status =
        status.unwrap_or_else(|| panic!("the process still ran after {limit:?}\n{errors}"));
    Ended { status, errors }
}

/// Runs a process for at most `limit`. The last line of its output is the outcome.
fn finish(mut command: Command, limit: Duration) -> Result<Outcome> {
    let (mut output, mut errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(errors.try_clone()?);
    // The process gets its own group, so that processes it leaves running can be killed too.
    let mut child = command.process_group(0).spawn().context("starting the case")?;
    let status = child.wait_timeout(limit)?;
    kill_group(&child);
    let ended = match status {
        Some(status) => describe(status),
        // If the kernel cannot end a process, not even killing it helps.
        None => match child.wait_timeout(LAST)? {
            Some(_) => format!("killed: it still ran after {limit:?}"),
            None => format!("it still ran after {limit:?}, and cannot be killed"),
        },
    };
    let said = contents(&mut output)?;
    if status.is_some_and(|status| status.success())
        && let Some(Ok(outcome)) = said.lines().last().map(serde_json::from_str)
    {
        return Ok(outcome);
    }
    let errors = contents(&mut errors)?;
    Ok(Outcome::Failed { message: format!("{ended}\n{said}{errors}") })
}

/// Kills all processes of the child's group. It is not an error if the group no longer exists.
fn kill_group(child: &Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("ended by signal {signal}"),
        None => status.to_string(),
    }
}

fn contents(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn shell(script: &str, limit: Duration) -> Outcome {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        finish(command, limit).unwrap()
    }

    fn message(outcome: Outcome) -> String {
        match outcome {
            Outcome::Failed { message } => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_last_line_of_a_process_that_succeeds_is_its_outcome() {
        let passed = shell(r#"echo noise; echo '"Passed"'"#, LIMIT);
        assert_eq!(passed, Outcome::Passed);
        let skipped = shell(r#"echo '{"Skipped":{"reason":"no"}}'"#, LIMIT);
        assert_eq!(skipped, Outcome::Skipped { reason: "no".to_owned() });
    }

    #[test]
    fn a_failing_or_silent_process_fails_the_case_with_its_output() {
        let failed = message(shell(r#"echo '"Passed"'; echo why >&2; exit 3"#, LIMIT));
        assert!(failed.contains("exit status: 3") && failed.contains("why"), "{failed}");
        let silent = message(shell("true", LIMIT));
        assert!(silent.contains("exit status: 0"), "{silent}");
    }

    #[test]
    fn a_crash_is_a_failure_that_names_the_signal() {
        assert!(message(shell("kill -SEGV $$", LIMIT)).contains("signal 11"));
    }

    #[test]
    fn a_hanging_process_is_killed_with_its_children() {
        let start = Instant::now();
        // The shell starts a grandchild of this process, prints its process ID, and waits for it.
        let ended = message(shell("sleep 1000 & echo $!; wait", Duration::from_secs(1)));
        assert!(ended.contains("killed: it still ran after 1s"), "{ended}");
        assert!(start.elapsed() < Duration::from_secs(600));
        let grandchild = ended.lines().nth(1).unwrap();
        let stat = format!("/proc/{grandchild}/stat");
        let lives = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        test_support::rig::until("the grandchild's end", || !lives());
    }
}
