//! The differential test: random programs of verbs on two devices, which must do the same.
//!
//! A program is a list of steps, after each of which the devices are quiet. Within a step there are only
//! requests whose order cannot matter, so that what the devices may decide is not in the comparison.
//!
//! - `program`: what a program is; `generate` makes one of a seed.
//! - `model`: whether a program is fair, that is, leaves nothing to the devices; `footprint` and `windows` are
//!   the parts of it about what requests touch, and about memory windows.
//! - `run`: executing it on a device, with `end`, `settle` and `refusal`; what it saw is a `trace`.
//! - `child`: a device in a process of its own.
//! - `compare`: whether two traces say the same.
//! - `shrink`: making a program that fails smaller.
//! - `arguments`: which programs, on which devices.

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

/// How many programs the shrinker may try, and how long that may take.
const TRIES: usize = 600;
const PATIENCE: Duration = Duration::from_secs(120);

/// What is said of a program that differed once.
const AGAIN: &str = "agreed only when it was run again";

/// Compares devices as `cargo test` does, or is the process of one.
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

/// SoftRoCE, where it was set up, unless this process is there already.
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

/// Two devices, of which the right one may be SoftRoCE.
struct Comparison {
    left: Device,
    right: Device,
    /// What is known of SoftRoCE, and was met.
    met: Option<Met>,
}

impl Comparison {
    fn new(left: &str, right: &str) -> Self {
        let met = devices::is_rxe(right).then(Met::new);
        Self { left: Device::new(left), right: Device::new(right), met }
    }

    /// How the devices differ, if they do.
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

/// The first failure, or all of them.
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
        // A machine that is emulated can stand still for longer than a completion is waited for.
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
            "{name}: {left} | {right}\n{found}\nthe program, as small as it was found:\n{small}\
             run it again with --program '{json}'",
        );
        if !all {
            return Err(failure.into());
        }
        println!("{failure}");
        failures.push(name);
    }
    if let Some(met) = devices.met {
        println!("known differences that were met: {met:?}");
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join(", ").into()) }
}
