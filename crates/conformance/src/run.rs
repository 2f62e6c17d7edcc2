//! The suite as trials of `libtest_mimic`.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use libtest_mimic::{Arguments, Completion, Trial};

use crate::case::Case;
use crate::devices::{self, Wanted};
use crate::outcome::Outcome;
use crate::remote::{self, Remote};
use crate::table::Results;
use crate::{cases, child, iwarp};

/// Runs the suite, with the interface of `cargo test`. If this process was started for a part of
/// the suite, runs that part instead.
#[must_use]
pub fn main() -> ExitCode {
    if child::run_own_case() || remote::serve() {
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // Each case runs in its own process, and mostly waits.
    let processors = thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(2 * processors);
    let results = Arc::new(Results::default());
    let mut trials: Vec<Trial> = devices::wanted()
        .iter()
        .flat_map(|device| cases_for(device).map(|case| here(&device.name, case, &results)))
        .collect();
    match with_rxe(&arguments, &results) {
        Ok(more) => trials.extend(more),
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::FAILURE;
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        print!("{results}");
    }
    conclusion.exit_code()
}

fn cases_for(device: &Wanted) -> impl Iterator<Item = &'static Case> {
    let all = device.all;
    let lossy = devices::is_lossy(&device.name);
    let by_rdma_cm = iwarp::is_iwarp(&device.name);
    cases::all().filter(move |case| {
        (all || !case.destructive)
            && !(lossy && case.is_unreliable())
            && (!by_rdma_cm || iwarp::includes(case))
    })
}

/// Returns the trial for a case that a child of this process runs.
fn here(device: &str, case: &'static Case, results: &Arc<Results>) -> Trial {
    let name = device.to_owned();
    trial(device, case, results, move || child::run(&name, case))
}

/// Returns the trials for SoftRoCE. Starts the process that runs the selected ones.
fn with_rxe(arguments: &Arguments, results: &Arc<Results>) -> Result<Vec<Trial>, String> {
    let Some((device, place)) = remote::wanted()? else { return Ok(Vec::new()) };
    if devices::named().iter().any(|named| named.name == device) {
        // `RDMA_TEST_DEVICES` names SoftRoCE's device, so its cases already run here.
        return Ok(Vec::new());
    }
    let name_only = |case: &Case| Trial::test(format!("{device}::{}", case.name()), || Ok(()));
    let wanted: Vec<_> = cases::all()
        .filter(|case| !arguments.is_filtered_out(&name_only(case)))
        .map(Case::name)
        .collect();
    let idle = wanted.is_empty() || arguments.list;
    let remote = if idle {
        Arc::default()
    } else {
        eprintln!("{device}: {place}");
        Remote::start(device.clone(), wanted)
    };
    let trials = cases::all().map(|case| {
        let remote = Arc::clone(&remote);
        trial(&device, case, results, move || remote.wait(&case.name()))
    });
    Ok(trials.collect())
}

fn trial(
    device: &str,
    case: &'static Case,
    results: &Arc<Results>,
    run: impl FnOnce() -> Outcome + Send + 'static,
) -> Trial {
    let (device, results) = (device.to_owned(), Arc::clone(results));
    Trial::ignorable_test(format!("{device}::{}", case.name()), move || {
        let outcome = run();
        results.add(&device, case.name(), outcome.clone());
        match outcome {
            Outcome::Passed | Outcome::PassedAlone | Outcome::Differs { .. } => {
                Ok(Completion::Completed)
            }
            Outcome::Skipped { reason } => Ok(Completion::ignored_with(reason)),
            Outcome::Failed { message } => Err(message.into()),
        }
    })
}
