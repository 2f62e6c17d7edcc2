//! `cargo xtask foreign`: runs programs and test suites of other projects with the drop-in library. The programs are
//! those of the distribution's packages.

mod exits;
mod installation;
mod output;
mod pair;
mod perftest;
mod pingpong;
mod process;
mod pyverbs;
mod report;
mod ucx;
mod udp;

use anyhow::Result;

use self::installation::Installation;
use self::report::{Report, Row};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The suites to run; by default all except `udp`
    suites: Vec<Suite>,
    /// Run all option sets, and by default also `udp`
    #[arg(long)]
    full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// The tests of rdma-core's Python bindings, on both devices
    Pyverbs,
    /// The pingpong programs of rdma-core, in two processes
    Pingpong,
    /// The programs of perftest, in two processes
    Perftest,
    /// `ucx_perftest` over RC and UD, in two processes
    Ucx,
    /// Programs whose peer is killed, exits, or is stopped
    Exits,
    /// perftest between two addresses of this host, without losses and with a loss of 1 %
    Udp,
}

impl Suite {
    const QUICK: &[Self] = &[Self::Pyverbs, Self::Pingpong, Self::Perftest, Self::Ucx, Self::Exits];
    const ALL: &[Self] =
        &[Self::Pyverbs, Self::Pingpong, Self::Perftest, Self::Ucx, Self::Exits, Self::Udp];

    /// Returns the name in the report, and the package whose version is reported.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Pyverbs => ("pyverbs", "python3-pyverbs"),
            Self::Pingpong => ("pingpong", "ibverbs-utils"),
            Self::Perftest => ("perftest", "perftest"),
            Self::Ucx => ("ucx", "ucx-utils"),
            Self::Exits => ("exits", "perftest"),
            Self::Udp => ("udp", "perftest"),
        }
    }

    fn run(self, installation: &Installation, full: bool, row: &mut Row) -> Result<()> {
        match self {
            Self::Pyverbs => pyverbs::run(installation, row),
            Self::Pingpong => pair::run(installation, pingpong::DEVICE, pingpong::SETS, full, row),
            Self::Perftest => pair::run(installation, perftest::DEVICE, perftest::SETS, full, row),
            Self::Ucx => ucx::run(installation, full, row),
            Self::Exits => exits::run(installation, row),
            Self::Udp => udp::run(installation, row),
        }
    }
}

/// Runs the suites, and prints a line for each case and a table at the end. Returns `false` if a case failed.
///
/// # Errors
/// Returns an error if the library cannot be built, or the packages cannot be obtained.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let suites = match (&args.suites[..], args.full) {
        ([], false) => Suite::QUICK,
        ([], true) => Suite::ALL,
        (chosen, _) => chosen,
    };
    let installation = Installation::prepare()?;
    let mut report = Report::default();
    for suite in suites {
        let (name, package) = suite.names();
        let mut row = Row::new(name, installation.version(package)?);
        suite.run(&installation, args.full, &mut row)?;
        report.add(row);
    }
    print!("\n{report}");
    Ok(report.passed())
}
