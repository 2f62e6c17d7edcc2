//! One case in a process of its own.

use std::env;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use wait_timeout::ChildExt as _;

use crate::case::{Case, LIMIT};
use crate::cases;
use crate::devices;
use crate::outcome::Outcome;

/// Tells a process that it is the child, by `DEVICE::CASE`.
const VARIABLE: &str = "RDMA_TEST_CASE";

/// Runs the case that this process was made for, if it was made for one.
pub(crate) fn run_own_case() -> bool {
    let Ok(wanted) = env::var(VARIABLE) else { return false };
    let (device, case) = wanted.split_once("::").expect("DEVICE::CASE");
    let case = cases::all().find(|known| known.name() == case).expect("a case of this name");
    let device = devices::prepare(device);
    (case.run)(&device);
    device.report();
    true
}

/// Runs a case in a child process.
pub(crate) fn run(device: &str, case: &Case) -> Outcome {
    try_run(device, case).unwrap_or_else(|error| Outcome::Failed { message: format!("{error:#}") })
}

fn try_run(device: &str, case: &Case) -> Result<Outcome> {
    let (mut output, mut errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = Command::new(env::current_exe()?)
        .env(VARIABLE, format!("{device}::{}", case.name()))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(errors.try_clone()?)
        // What it leaves running is ended with it.
        .process_group(0)
        .spawn()
        .context("starting the case")?;
    let status = child.wait_timeout(LIMIT)?;
    kill_group(&child);
    let ended = match status {
        Some(status) => describe(status),
        None => {
            child.wait()?;
            format!("killed: it still ran after {LIMIT:?}")
        }
    };
    let said = contents(&mut output)?;
    if status.is_some_and(|status| status.success()) {
        if let Some(Ok(outcome)) = said.lines().last().map(serde_json::from_str) {
            return Ok(outcome);
        }
    }
    let errors = contents(&mut errors)?;
    Ok(Outcome::Failed { message: format!("{ended}\n{said}{errors}") })
}

/// A group that has ended already is no error.
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
