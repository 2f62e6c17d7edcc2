//! `cargo xtask only`: a runner for cargo that runs only the programs of one crate. With it, a job
//! can build the same crates as other jobs but run only some of their programs. If the job built
//! fewer crates, cargo would unite different features, and would have to compile the dependencies
//! again.

use std::env;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

/// The environment variable that names the crate whose programs are run.
const ONLY: &str = "RDMA_CI_ONLY";

/// The environment variable in which cargo names the crate of the program.
const PACKAGE: &str = "CARGO_PKG_NAME";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command that runs the program, if any, with its options; then the program and its
    /// arguments, which cargo appends
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    line: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let only = env::var(ONLY).with_context(|| format!("{ONLY} does not name a crate"))?;
    let package = env::var(PACKAGE).with_context(|| format!("cargo does not set {PACKAGE}"))?;
    run_if(package == only, &args.line)
}

/// Runs the command line and returns its exit status. If it is not wanted, returns success without
/// running it.
fn run_if(wanted: bool, line: &[String]) -> Result<ExitCode> {
    if !wanted {
        println!("(not run: {})", line.join(" "));
        return Ok(ExitCode::SUCCESS);
    }
    let (program, arguments) = line.split_first().context("an empty line")?;
    let status = Command::new(program).args(arguments).status();
    let status = status.with_context(|| format!("starting `{program}`"))?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_other_crates_are_skipped_and_own_ones_return_their_status() {
        let run = |wanted, line: &str| {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            run_if(wanted, &words)
        };
        assert_eq!(run(false, "false").unwrap(), ExitCode::SUCCESS);
        assert_eq!(run(true, "false").unwrap(), ExitCode::from(1));
        assert_eq!(run(true, "true --quiet").unwrap(), ExitCode::SUCCESS);
        assert!(run(true, "no-such-program").unwrap_err().to_string().contains("no-such-program"));
    }
}
