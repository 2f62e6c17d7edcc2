//! `rdma-soft-run`: runs a program with the software devices, through the `libibverbs.so.1` of `rdma-dropin`.
//!
//! It prepares the environment (`library`) and the files that middleware reads (`tree`, `namespace`), and then replaces
//! itself with the program.
//!
//! With `--devices` or faults, it first executes itself again, because the devices read their variables from the
//! environment. Its own devices have no faults, so that all faults are left for the program. With `--stats`, it runs
//! itself as a child, outlives the program, and prints the counts.

mod child;
mod library;
mod namespace;
mod program;
mod stats;
mod tree;

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, anyhow};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use rdma_soft::{Faults, FaultsError};

use crate::library::Library;
use crate::program::Program;

/// The exit status if the program was not started, like that of `env` and `timeout`.
const NOT_STARTED: u8 = 125;
const DEVICES_VARIABLE: &str = "RDMA_SOFT_DEVICES";
const FAULTS_VARIABLE: &str = "RDMA_SOFT_FAULTS";

/// Runs a program, and the programs that it starts, on RDMA devices in software
///
/// The exit status is that of the program. It is 127 if the program is not found, 126 if it cannot be run with the
/// library, and 125 if another step fails.
#[derive(Debug, Parser)]
#[command(name = "rdma-soft-run", version)]
struct Arguments {
    /// Use these devices instead of soft0 and softib0 (sets RDMA_SOFT_DEVICES)
    #[arg(long)]
    devices: Option<OsString>,

    /// Inject these faults (sets RDMA_SOFT_FAULTS)
    #[arg(long)]
    faults: Option<OsString>,

    /// Print at the end how many requests and bytes went over RDMA, and how many faults were injected
    #[arg(long)]
    stats: bool,

    /// Do not show the devices in /sys and /dev, and use no mount namespace
    #[arg(long)]
    no_files: bool,

    /// Load this libibverbs.so.1 instead of ../lib/libibverbs.so.1, relative to the folder of this program
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    let parsed = Arguments::try_parse();
    let error = match parsed.map(|arguments| run(&arguments)) {
        Err(error) => return not_run(&error),
        Ok(Ok(status)) => return ExitCode::from(status),
        Ok(Err(error)) => error,
    };
    eprintln!("rdma-soft-run: {error:#}");
    let status = error.downcast_ref().map_or(NOT_STARTED, program::Refusal::status);
    ExitCode::from(status)
}

/// Prints the help, the version, or a mistake in the arguments. Lists the options if one is unknown.
fn not_run(error: &clap::Error) -> ExitCode {
    // A write error is ignored.
    let _ = error.print();
    if error.kind() == ErrorKind::UnknownArgument {
        eprintln!("\n{}", Arguments::command().render_help());
    }
    if error.use_stderr() { ExitCode::from(NOT_STARTED) } else { ExitCode::SUCCESS }
}

/// Returns the program's exit status, or replaces this process.
fn run(arguments: &Arguments) -> Result<u8> {
    let program = Program::find(&arguments.program)?;
    let library = Library::find(arguments.library.as_deref())?;
    let faults = arguments.faults.clone().or_else(|| env::var_os(FAULTS_VARIABLE));
    if let Some(faults) = &faults {
        check(faults)?;
    }
    if arguments.stats {
        stats::run(again(arguments, faults)?)
    } else if arguments.devices.is_some() || env::var_os(FAULTS_VARIABLE).is_some() {
        Err(again(arguments, faults)?.exec()).context("rdma-soft-run cannot start itself again")
    } else {
        match replace(arguments, &program, &library)? {}
    }
}

fn check(faults: &OsStr) -> Result<()> {
    let parsed: Result<Faults, FaultsError> = faults.to_string_lossy().parse();
    parsed.map_err(|error| anyhow!("`{FAULTS_VARIABLE}` has a mistake: {error}"))?;
    Ok(())
}

/// Returns a command that runs `rdma-soft-run` with the same arguments, except `--stats` and `--devices`. The faults
/// become an argument, so that the devices of the process do not have them.
fn again(arguments: &Arguments, faults: Option<OsString>) -> Result<Command> {
    let own = env::current_exe().context("/proc/self/exe is unreadable; mount /proc")?;
    let mut command = Command::new(own);
    if let Some(devices) = &arguments.devices {
        command.env(DEVICES_VARIABLE, devices);
    }
    command.env_remove(FAULTS_VARIABLE);
    if let Some(faults) = faults {
        let mut option = OsString::from("--faults=");
        option.push(faults);
        command.arg(option);
    }
    if arguments.no_files {
        command.arg("--no-files");
    }
    if let Some(library) = &arguments.library {
        command.arg("--library").arg(library);
    }
    command.arg("--").args(&arguments.program);
    Ok(command)
}

/// Replaces this process with the program.
fn replace(arguments: &Arguments, program: &Program, library: &Library) -> Result<Infallible> {
    // Before the devices are created, because a process with threads cannot enter a user namespace.
    let entered = match arguments.no_files {
        true => Err("--no-files".to_owned()),
        false => namespace::enter()?,
    };
    let devices = tree::devices()?;
    let shown = entered.and_then(|()| namespace::show(&devices));
    let names: Vec<_> = devices.iter().map(tree::Device::to_string).collect();
    eprintln!("rdma-soft-run: {} from {}", names.join(", "), library.path().display());
    match shown {
        Ok(()) => eprintln!(
            "rdma-soft-run: {} and {} describe these devices, in the program's own mount namespace",
            tree::FOLDER,
            tree::NODES
        ),
        Err(why) => eprintln!(
            "rdma-soft-run: {} does not describe them ({why}); middleware such as UCX and Mooncake may not find them",
            tree::FOLDER
        ),
    }
    stats::forget_this_process().context("the counts of this process cannot be removed")?;
    let mut command = program.command();
    if let Some(faults) = &arguments.faults {
        command.env(FAULTS_VARIABLE, faults);
    }
    library.load_into(&mut command);
    Err(program.not_started(command.exec()).into())
}
