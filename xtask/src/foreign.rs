//! `cargo xtask foreign`: runs programs and test suites of other projects with the drop-in library. The programs are
//! those of the distribution's packages and of the public registries.

mod installation;
mod libtest;
mod output;
mod packages;
mod pair;
mod process;
mod published;
mod report;
mod suites;
mod two_hosts;

use anyhow::Result;
use clap::ValueEnum as _;

use self::installation::Installation;
use self::report::{Report, Row};
use self::suites::Suite;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The suites to run; by default those that need no `--full`
    suites: Vec<Suite>,
    /// Run all option sets, and by default all suites
    #[arg(long)]
    full: bool,
    /// Obtain the packages of the suites that need no `--full`, and run no suite
    #[arg(long, conflicts_with_all = ["suites", "full"])]
    obtain: bool,
}

/// Runs the suites, and prints a line for each case and a table at the end. Returns `false` if a case failed.
///
/// # Errors
/// Returns an error if the library cannot be built, or the packages cannot be obtained.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.obtain {
        let (home, _) = installation::obtain()?;
        for suite in Suite::QUICK {
            installation::obtain_for(&home.join(suite.names().0), &suite.needs())?;
        }
        return Ok(true);
    }
    let suites = match (&args.suites[..], args.full) {
        ([], false) => Suite::QUICK,
        ([], true) => Suite::value_variants(),
        (chosen, _) => chosen,
    };
    let installation = Installation::prepare()?;
    let mut report = Report::default();
    for suite in suites {
        let (name, package) = suite.names();
        if suite.needs_files() && !installation.shows_files()? {
            println!(
                "skipped {name}: this machine refuses the namespaces that show the files of the devices"
            );
            continue;
        }
        let installation = installation.with(name, &suite.needs())?;
        let mut row = Row::new(name, installation.version(package)?);
        suite.run(&installation, args.full, &mut row)?;
        report.add(row);
    }
    print!("\n{report}");
    Ok(report.passed())
}
