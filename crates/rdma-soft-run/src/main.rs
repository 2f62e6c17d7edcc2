//! `rdma-soft-run`: runs a program with the software devices, through the `libibverbs.so.1` of `rdma-dropin`.
//!
//! It prepares the environment (`library`) and the files that middleware reads (`tree`, `namespace`), and then replaces
//! itself with the program.
//!
//! With `--devices`, it first executes itself again, because the devices read their variable from the environment. With
//! `--stats`, it runs itself as a child, outlives the program, and prints the counts.

mod library;
mod namespace;
mod program;
mod stats;
mod tree;

use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::library::Library;
use crate::program::Program;

/// The exit status if the program was not started, like that of `env` and `timeout`. clap exits with 2.
const NOT_STARTED: u8 = 125;
const DEVICES_VARIABLE: &str = "RDMA_SOFT_DEVICES";

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

    /// Print at the end how many requests and bytes went over RDMA
    #[arg(long)]
    stats: bool,

    /// Do not show the devices in /sys and /dev, and use no mount namespace
    #[arg(long)]
    no_files: bool,

    /// Load this libibverbs.so.1 instead of ../lib/libibverbs.so.1, relative to the folder of this program
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    let error = match run(&Arguments::parse()) {
        Ok(status) => return ExitCode::from(status),
        Err(error) => error,
    };
    eprintln!("rdma-soft-run: {error:#}");
    let status = error.downcast_ref().map_or(NOT_STARTED, program::Refusal::status);
    ExitCode::from(status)
}

/// Returns the program's exit status, or replaces this process.
fn run(arguments: &Arguments) -> Result<u8> {
    let program = Program::find(&arguments.program)?;
    let library = Library::find(arguments.library.as_deref())?;
    if arguments.stats {
        stats::run(again(arguments)?)
    } else if arguments.devices.is_some() {
        Err(again(arguments)?.exec()).context("rdma-soft-run cannot start itself again")
    } else {
        match replace(arguments, &program, &library)? {}
    }
}

/// Returns a command that runs `rdma-soft-run` with the same arguments, except `--stats` and `--devices`.
fn again(arguments: &Arguments) -> Result<Command> {
    let own = env::current_exe().context("/proc/self/exe is unreadable; mount /proc")?;
    let mut command = Command::new(own);
    if let Some(devices) = &arguments.devices {
        command.env(DEVICES_VARIABLE, devices);
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
    library.load_into(&mut command);
    Err(program.not_started(command.exec()).into())
}
