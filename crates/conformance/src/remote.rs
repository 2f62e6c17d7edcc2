//! The cases on SoftRoCE. One process, either native or in the virtual machine, runs each of them
//! in a child process. The parent prints a line as soon as a case has ended.

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::{cases, child};

/// The environment variable that makes a process run the cases in its arguments; its value is the
/// device's name.
const VARIABLE: &str = "RDMA_TEST_REMOTE";

/// The time limit for all cases, enough for an emulated guest on a slow machine. On most machines,
/// the cases take a few minutes.
const LIMIT_SECONDS: &str = "1500";

/// A line that reports the outcome of one case.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    case: String,
    outcome: Outcome,
}

/// The environment variable that decides whether SoftRoCE is tested: `auto` (if it was set up),
/// `off` or `required`.
const WISH: &str = "RDMA_TEST_RXE";

/// Returns the name and location of SoftRoCE's device, if SoftRoCE should be tested.
pub(crate) fn wanted() -> Result<Option<(String, String)>, String> {
    let wish = env::var(WISH).unwrap_or_else(|_| "auto".to_owned());
    let found = match wish.as_str() {
        "off" => return Ok(None),
        "auto" | "required" => find(),
        other => return Err(format!("{WISH} is {other:?}; it can be auto, off or required")),
    };
    if found.is_none() {
        let why = "SoftRoCE is not set up: cargo xtask rxe-setup";
        if wish == "required" {
            return Err(why.to_owned());
        }
        eprintln!("{why}, to test it too");
    }
    Ok(found)
}

/// Returns the name of SoftRoCE's device, and a description of where it is. `None` if SoftRoCE was
/// not set up.
fn find() -> Option<(String, String)> {
    let output = xtask("rxe-setup").arg("--check").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (device, place) = text.trim().split_once(' ')?;
    output.status.success().then(|| (device.to_owned(), place.to_owned()))
}

fn xtask(chore: &str) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.args(["--quiet", "xtask", chore]).current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// If this process was started for SoftRoCE's cases, runs those in its arguments and returns true.
pub(crate) fn serve() -> bool {
    let Ok(device) = env::var(VARIABLE) else { return false };
    let wanted: Vec<String> = env::args().skip(1).collect();
    let queue: VecDeque<_> = cases::all().filter(|case| wanted.contains(&case.name())).collect();
    let (queue, failed) = (Mutex::new(queue), Mutex::new(Vec::new()));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    // A case mostly waits.
    let threads = 2 * thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(case) = next() {
                    match child::run(&device, case) {
                        Outcome::Failed { .. } => failed.lock().unwrap().push(case),
                        outcome => print(case.name(), outcome),
                    }
                }
            });
        }
    });
    // When several cases run at once, an emulated kernel can be too slow, so each failed case is
    // repeated alone.
    for case in failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let outcome = match child::run(&device, case) {
            Outcome::Passed => Outcome::PassedAlone,
            outcome => outcome,
        };
        print(case.name(), outcome);
    }
    true
}

fn print(case: String, outcome: Outcome) {
    println!("{}", serde_json::to_string(&Line { case, outcome }).unwrap());
}

/// Returns a command that runs this program in the place where SoftRoCE was set up. The program
/// finds the device's name in `variable`.
pub(crate) fn command(variable: &str, device: &str, arguments: Vec<String>) -> io::Result<Command> {
    let mut command = xtask("rxe-run");
    command.args(["--timeout", LIMIT_SECONDS, "--"]).arg(env::current_exe()?).args(arguments);
    command.env(variable, device);
    Ok(command)
}

/// The cases that another process runs, and their outcomes so far.
#[derive(Debug, Default)]
pub(crate) struct Remote {
    state: Mutex<RemoteOutcomes>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct RemoteOutcomes {
    outcomes: BTreeMap<String, Outcome>,
    /// The reason why the remaining outcomes will not arrive, or `None` while the process runs.
    ended: Option<String>,
}

impl Remote {
    /// Starts the process that runs the cases.
    pub(crate) fn start(device: String, cases: Vec<String>) -> Arc<Self> {
        let remote = Arc::new(Self::default());
        let own = Arc::clone(&remote);
        thread::spawn(move || own.follow_to_the_end(command(VARIABLE, &device, cases)));
        remote
    }

    fn follow_to_the_end(&self, command: io::Result<Command>) {
        let ended = match command.map_err(Into::into).and_then(|command| self.follow(command)) {
            Ok(()) => "the process ended without an outcome of this case".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        self.state().ended = Some(ended);
        self.changed.notify_all();
    }

    /// Reads the outcomes that the process prints.
    fn follow(&self, mut command: Command) -> anyhow::Result<()> {
        let mut errors = tempfile::tempfile()?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors.try_clone()?);
        let mut child = command.spawn().context("starting cargo xtask rxe-run")?;
        for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
            let line = line?;
            let Ok(Line { case, outcome }) = serde_json::from_str(&line) else { continue };
            self.state().outcomes.insert(case, outcome);
            self.changed.notify_all();
        }
        let status = child.wait()?;
        if status.success() {
            return Ok(());
        }
        let mut said = String::new();
        errors.rewind()?;
        errors.read_to_string(&mut said)?;
        bail!("cargo xtask rxe-run: {status}\n{said}");
    }

    /// Waits until the case has ended. Returns its outcome.
    pub(crate) fn wait(&self, case: &str) -> Outcome {
        let going_on = |state: &mut RemoteOutcomes| {
            !state.outcomes.contains_key(case) && state.ended.is_none()
        };
        let waited = self.changed.wait_while(self.state(), going_on);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        let lost = || Outcome::Failed { message: state.ended.clone().unwrap_or_default() };
        state.outcomes.get(case).cloned().unwrap_or_else(lost)
    }

    fn state(&self) -> MutexGuard<'_, RemoteOutcomes> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(script: &str) -> Remote {
        let (remote, mut command) = (Remote::default(), Command::new("sh"));
        command.args(["-c", script]);
        remote.follow_to_the_end(Ok(command));
        remote
    }

    const ONE: &str = r#"echo boot; echo '{"case":"a::b","outcome":"Passed"}'"#;

    #[test]
    fn a_case_has_the_outcome_of_its_line() {
        assert_eq!(followed(ONE).wait("a::b"), Outcome::Passed);
    }

    #[test]
    fn cases_without_a_line_fail_when_the_machine_ends() {
        let cut = followed(&format!("{ONE}; echo panic >&2; exit 125"));
        assert_eq!(cut.wait("a::b"), Outcome::Passed);
        let Outcome::Failed { message } = cut.wait("c::d") else { panic!("not failed") };
        assert!(message.contains("125") && message.contains("panic"), "{message}");
        assert!(matches!(followed(ONE).wait("c::d"), Outcome::Failed { .. }));
    }
}
