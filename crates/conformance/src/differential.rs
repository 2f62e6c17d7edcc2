//! The differential test: runs random programs of verbs on two devices, which must produce the same
//! results.
//!
//! A program is a list of steps, and the devices are idle after each step. A step contains only
//! requests whose order does not affect the result. So the comparison does not depend on choices
//! that a device may make.
//!
//! - `program`: a program as data; `generate` creates one from a seed.
//! - `model`: decides whether a program is fair, that is, whether it leaves no choice to the
//!   devices. Its parts `footprint` and `windows` cover the memory that requests touch, and memory
//!   windows.
//! - `run`: executes a program on a device, using `end`, `settle` and `refusal`; it records a
//!   `trace`.
//! - `child`: runs a device in a separate process.
//! - `compare`: compares two traces.
//! - `shrink`: makes a failing program smaller.
//! - `arguments`: selects the programs and the devices.

mod arguments;
mod child;
mod compare;
mod end;
mod footprint;
mod generate;
mod model;
mod program;
mod refusal;
mod run;
mod settle;
mod shrink;
mod trace;
mod windows;

use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};

use arguments::Arguments;
use child::Device;
use compare::Met;
use program::Program;

use crate::{devices, remote};

/// The maximum number of programs that the shrinker tries.
const TRIES: usize = 600;
/// The time limit for shrinking a program.
const PATIENCE: Duration = Duration::from_secs(120);

/// The note about a program whose results differed in the first run only.
const AGAIN: &str = "agreed only when it was run again";

/// Compares devices, with the interface of `cargo test`. If this process was started for one
/// device, runs that device's programs instead.
#[must_use]
pub fn main() -> ExitCode {
    if child::serve() {
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::of_process();
    println!("{arguments}");
    let mut trials: Vec<Trial> = arguments.devices().map(|pair| here(pair, &arguments)).collect();
    match elsewhere(&arguments) {
        Ok(more) => trials.extend(more),
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::FAILURE;
        }
    }
    libtest_mimic::run(&arguments.harness, trials).exit_code()
}

fn name(left: &str, right: &str) -> String {
    format!("differential::{left}::{right}")
}

fn here((left, right): (String, String), arguments: &Arguments) -> Trial {
    let (programs, all) = (arguments.programs(), arguments.all);
    Trial::test(name(&left, &right), move || compare(&left, &right, programs, all))
}

/// Returns a test that runs the programs in the place where SoftRoCE was set up. Returns `None` if
/// this process already runs there, or if SoftRoCE is not tested.
fn elsewhere(arguments: &Arguments) -> Result<Option<Trial>, String> {
    if env::var_os(devices::VARIABLE).is_some() {
        return Ok(None);
    }
    let Some((device, _)) = remote::wanted()? else { return Ok(None) };
    let own = arguments.own();
    Ok(Some(Trial::test(name(&arguments.against, &device), move || {
        let output = remote::command(devices::VARIABLE, &device, own)?.output()?;
        let text = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .concat();
        if output.status.success() {
            text.lines().filter(|line| line.contains(AGAIN)).for_each(|line| println!("{line}"));
            return Ok(());
        }
        Err(text.into())
    })))
}

/// Two devices to compare. Only the right one can be SoftRoCE.
struct Comparison {
    left: Device,
    right: Device,
    /// The known differences of SoftRoCE that occurred, or `None` if neither device is SoftRoCE.
    met: Option<Met>,
}

impl Comparison {
    fn new(left: &str, right: &str) -> Self {
        let met = devices::is_rxe(right).then(Met::new);
        Self { left: Device::new(left), right: Device::new(right), met }
    }

    /// Runs the program on both devices. Returns the difference between their traces, if any.
    fn difference(&mut self, program: &Program) -> Option<String> {
        match (self.left.run(program), self.right.run(program)) {
            (Ok(left), Ok(right)) => compare::difference(&left, &right, self.met.as_mut()),
            (left, right) => {
                let errors = [left.err(), right.err()].into_iter().flatten();
                Some(errors.map(|error| format!("{error:#}")).collect::<Vec<_>>().join("\n"))
            }
        }
    }
}

/// Runs the programs until one fails, or all of them if `all` is set. Returns the failures.
fn compare(
    left: &str,
    right: &str,
    programs: arguments::Programs,
    all: bool,
) -> Result<(), Failed> {
    let mut devices = Comparison::new(left, right);
    let mut failures = Vec::new();
    for (name, program) in programs {
        let Some(found) = devices.difference(&program) else { continue };
        // SoftRoCE may run in an emulated machine, which may pause for longer than the time limit
        // for a completion. So with SoftRoCE, only a difference that occurs twice is a failure.
        if devices.met.is_some() && devices.difference(&program).is_none() {
            println!("{name}: {AGAIN}\n{found}");
            continue;
        }
        let until = Instant::now() + PATIENCE;
        let small = shrink::shrink(program, TRIES, |smaller| {
            Instant::now() < until && devices.difference(smaller).is_some()
        });
        let found = devices.difference(&small).unwrap_or(found);
        let json = small.to_json();
        let failure = format!(
            "{name}: {left} | {right}\n{found}\nthe smallest failing program:\n{small}\
             to repeat it, pass --program '{json}'",
        );
        if !all {
            return Err(failure.into());
        }
        println!("{failure}");
        failures.push(name);
    }
    if let Some(met) = devices.met {
        println!("known differences that occurred: {met:?}");
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join(", ").into()) }
}
