//! `cargo xtask interop`: connects two devices over a wire in SoftRoCE's virtual machine, and runs
//! checks between them.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use softroce::Run;

use crate::{dropin, rxe, tree};

/// The script that the guest runs. The guest can read the host's files.
const GUEST: &str = "xtask/src/interop/guest.sh";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The devices at the two ends of the wire
    #[arg(long, value_enum, default_value_t = Ends::RxeRxe)]
    ends: Ends,
    /// Run all MTUs, address families and losses, instead of a selection
    #[arg(long, conflicts_with = "run")]
    all: bool,
    /// Run only these, each as `FAMILY,MTU,LOSS,LONGEST,CHECKS`: for example `6,256,10,65536,rc/`,
    /// with `-` for all checks; or `4,rc,0`, `4,uc,0`, `4,cm,0` and `4,cm-tools,0` for the programs
    /// of rdma-core, and `4,perftest,0` for those of perftest
    #[arg(long, value_name = "RUN")]
    run: Vec<String>,
    /// End the run after this number of seconds, with exit status 124
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    timeout: u64,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Ends {
    /// Two devices of the guest's kernel
    RxeRxe,
    /// A device of the guest's kernel, and `soft0`, which listens in another network namespace
    RxeSoft,
}

impl Ends {
    fn name(self) -> &'static str {
        match self {
            Self::RxeRxe => "rxe-rxe",
            Self::RxeSoft => "rxe-soft",
        }
    }
}

/// Runs the script in the guest. Returns the script's exit status.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = tree::root();
    let runs = match (&args.run[..], args.all) {
        ([], true) => all(),
        ([], false) => some(),
        (own, _) => own.join("\n").replace(',', " "),
    };
    let softroce = rxe::softroce()?;
    for what in [
        ["-p", "conformance", "--bin", "interop"],
        ["-p", "rdma-examples", "--example", "rc_pingpong"],
        ["-p", "rdma-examples", "--example", "rping"],
        ["-p", "rdma-examples", "--example", "cm_channel"],
        ["-p", "rdma-tools", "--bin", "rdmatool"],
    ] {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let status =
            Command::new(cargo).args(["build", "--quiet"]).args(what).current_dir(&root).status();
        ensure!(
            status.context("starting cargo")?.success(),
            "cargo could not build the programs for the virtual machine"
        );
    }
    let built = rxe::target()?.join("debug");
    let dropin = dropin::build(&root)?.library;
    let dropin = dropin.parent().context("the drop-in has no folder")?;
    let (script, ends) = (root.join(GUEST), args.ends.name());
    let words: [OsString; 6] =
        ["sh".into(), script.into(), ends.into(), built.into(), dropin.into(), runs.into()];
    let limit = Some(Duration::from_secs(args.timeout));
    softroce.run(&words, Run { limit, machine: true, siw: false })
}

/// Returns a selection of runs that contains each MTU, each address family and each loss at least
/// once.
fn some() -> String {
    "4 1024 0 1048576 -\n6 1024 0 65536 -\n4 256 0 65536 -\n4 512 0 65536 send\n4 2048 0 65536 write\n\
     6 4096 0 65536 -\n4 1024 1 65536 -\n6 2048 1 65536 -\n4 4096 10 65536 -\n6 256 10 16384 -\n\
     4 rc 0\n6 rc 0\n4 uc 0\n4 cm 0\n4 cm-tools 0\n4 perftest 0"
        .to_owned()
}

/// Returns all runs. Messages are longest in those without losses.
fn all() -> String {
    let mut runs = String::from(
        "4 rc 0\n6 rc 0\n4 uc 0\n6 uc 0\n4 cm 0\n6 cm 0\n4 cm 5\n6 cm 5\n4 cm-tools 0\n4 cm-tools 5\n6 cm-tools 0\n6 cm-tools 5\n4 perftest 0\n6 perftest 0\n",
    );
    for (loss, longest) in [(0, 1 << 20), (1, 1 << 16), (10, 1 << 16)] {
        for mtu in [256, 512, 1024, 2048, 4096] {
            for family in [4, 6] {
                let _ = writeln!(runs, "{family} {mtu} {loss} {longest} -"); // writing to a string cannot fail
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mtu_each_family_and_each_loss_is_in_both_lists() {
        for (runs, count) in [(some(), 16), (all(), 44)] {
            assert_eq!(runs.lines().count(), count);
            let has = |at: usize, text: &str| {
                runs.lines().any(|line| line.split(' ').nth(at) == Some(text))
            };
            for mtu in
                ["256", "512", "1024", "2048", "4096", "rc", "uc", "cm", "cm-tools", "perftest"]
            {
                assert!(has(1, mtu), "{mtu}");
            }
            assert!(has(0, "4") && has(0, "6") && has(2, "0") && has(2, "1") && has(2, "10"));
        }
    }
}
