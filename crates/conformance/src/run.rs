//! The trials and the table.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::{Arguments, Completion, Trial};

use crate::case::Case;
use crate::outcome::Outcome;
use crate::{cases, child, devices};

/// What came out, by device and case.
type Results = Arc<Mutex<BTreeMap<(String, String), Outcome>>>;

/// Runs the suite as `cargo test` does, or the one case that this process was made for.
#[must_use]
pub fn main() -> ExitCode {
    if child::run_own_case() {
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    let results = Results::default();
    let mut trials = Vec::new();
    for device in devices::wanted() {
        let cases = cases::all().filter(|case| device.all || !case.destructive);
        trials.extend(cases.map(|case| trial(&device.name, case, &results)));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        print_table(&results);
    }
    conclusion.exit_code()
}

fn trial(device: &str, case: &'static Case, results: &Results) -> Trial {
    let (device, results) = (device.to_owned(), Arc::clone(results));
    Trial::ignorable_test(format!("{device}::{}", case.name()), move || {
        let outcome = child::run(&device, case);
        let mut all = results.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert((device, case.name()), outcome.clone());
        match outcome {
            Outcome::Passed | Outcome::Differs { .. } => Ok(Completion::Completed),
            Outcome::Skipped { reason } => Ok(Completion::ignored_with(reason)),
            Outcome::Failed { message } => Err(message.into()),
        }
    })
}

#[derive(Default)]
struct Row {
    passed: usize,
    differs: usize,
    skipped: usize,
    failed: usize,
}

fn print_table(results: &Results) {
    let results = results.lock().unwrap_or_else(PoisonError::into_inner);
    let mut rows = BTreeMap::<&str, Row>::new();
    for ((device, _), outcome) in results.iter() {
        let row = rows.entry(device).or_default();
        match outcome {
            Outcome::Passed => row.passed += 1,
            Outcome::Differs { .. } => row.differs += 1,
            Outcome::Skipped { .. } => row.skipped += 1,
            Outcome::Failed { .. } => row.failed += 1,
        }
    }
    println!("{:<20}{:>8}{:>9}{:>9}{:>8}", "device", "passed", "differs", "skipped", "failed");
    for (device, Row { passed, differs, skipped, failed }) in rows {
        println!("{device:<20}{passed:>8}{differs:>9}{skipped:>9}{failed:>8}");
    }
}
