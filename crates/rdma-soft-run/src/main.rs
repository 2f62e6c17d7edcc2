//! `rdma-soft-run`: runs a program with the software devices, through the `libibverbs.so.1` of `rdma-dropin`.
//!
//! It prepares the environment (`library`) and the files that middleware reads (`files`, `tree`), and then replaces
//! itself with the program. The program sees the files in a mount namespace (`namespace`). If the system refuses this,
//! the program also loads the library of `rdma-soft-files`, which redirects their paths to a folder. `rdma-soft-run`
//! then runs itself as a child (`child`), and removes the folder after the program has ended.
//!
//! With `--devices` or faults, it first executes itself again, because the devices read their variables from the
//! environment. Its own devices have no faults, so that all faults are left for the program. With `--stats`, it runs
//! itself as a child, outlives the program, and prints the counts.

mod child;
mod files;
mod library;
mod namespace;
mod program;
mod stats;
mod tree;

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, anyhow};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use rdma_soft::{Faults, FaultsError};

use crate::files::Files;
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

    /// Use no mount namespace: a preloaded library redirects the paths of the devices in /sys and /dev. This is
    /// the default if the system refuses a namespace
    #[arg(long, conflicts_with = "no_files")]
    no_namespace: bool,

    /// Load this libibverbs.so.1 instead of ../lib/libibverbs.so.1, relative to the folder of this program
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,

    /// Only find out whether the system allows the namespace (`namespace::refusal`)
    #[arg(long, hide = true)]
    try_namespace: bool,

    /// Write the files into this folder, and redirect their paths (`redirect`)
    #[arg(long, hide = true)]
    files_in: Option<PathBuf>,

    /// The reason for `--files-in`
    #[arg(long, hide = true, default_value_t)]
    why: String,
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
    if arguments.try_namespace {
        return Ok(namespace::attempt());
    }
    let program = Program::find(&arguments.program)?;
    let library = Library::find(arguments.library.as_deref())?;
    let faults = arguments.faults.clone().or_else(|| env::var_os(FAULTS_VARIABLE));
    if let Some(faults) = &faults {
        check(faults)?;
    }
    if arguments.stats {
        return stats::run(again(arguments, faults, &[])?);
    }
    if arguments.devices.is_some() || env::var_os(FAULTS_VARIABLE).is_some() {
        let error = again(arguments, faults, &[])?.exec();
        return Err(error).context("rdma-soft-run cannot start itself again");
    }
    match files(arguments, &library)? {
        Err(why) => redirect(arguments, &why),
        Ok(files) => match replace(arguments, &program, &library, &files)? {},
    }
}

/// Decides how the program sees the files. Returns the reason if their paths must be redirected. This process then needs
/// a child with `--files-in`.
fn files(arguments: &Arguments, library: &Library) -> Result<Result<Files, String>> {
    if arguments.no_files {
        return Ok(Ok(Files::NotShown { why: "--no-files".to_owned() }));
    }
    if let Some(folder) = arguments.files_in.clone() {
        let (library, why) = (library.files_library()?, arguments.why.clone());
        return Ok(Ok(Files::Redirected { folder, library, why }));
    }
    if arguments.no_namespace {
        library.files_library()?;
        return Ok(Err("--no-namespace".to_owned()));
    }
    let Some(why) = namespace::refusal() else { return Ok(Ok(Files::Namespace)) };
    Ok(match library.files_library() {
        Ok(_) => Err(why),
        Err(missing) => Ok(Files::NotShown { why: format!("{why}; {missing}") }),
    })
}

/// Runs `rdma-soft-run` as a child, with a folder for the files that is removed at the end.
fn redirect(arguments: &Arguments, why: &str) -> Result<u8> {
    // Programs that change their user read the files too.
    let public = Permissions::from_mode(0o755);
    let folder = tempfile::Builder::new().prefix("rdma-soft-run-").permissions(public).tempdir();
    let folder = folder.with_context(|| {
        format!(
            "no folder for the files of the devices can be created in {}; set TMPDIR to a folder in which this user \
             may create files, or use --no-files",
            env::temp_dir().display()
        )
    })?;
    // The library compares paths with this one, so it must not contain symbolic links.
    let path = folder.path().canonicalize()?;
    let why = format!("--why={why}");
    let further = ["--files-in".as_ref(), path.as_os_str(), why.as_ref()];
    let mut command = again(arguments, arguments.faults.clone(), &further)?;
    child::run(&mut command, "a run without a namespace", "use --no-files")
}

fn check(faults: &OsStr) -> Result<()> {
    let parsed: Result<Faults, FaultsError> = faults.to_string_lossy().parse();
    parsed.map_err(|error| anyhow!("`{FAULTS_VARIABLE}` has a mistake: {error}"))?;
    Ok(())
}

/// Returns a command that runs `rdma-soft-run` with the same arguments, except `--stats` and `--devices`. The faults
/// become an argument, so that the devices of the process do not have them. `further` are hidden options.
fn again(arguments: &Arguments, faults: Option<OsString>, further: &[&OsStr]) -> Result<Command> {
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
    for (is_set, option) in
        [(arguments.no_files, "--no-files"), (arguments.no_namespace, "--no-namespace")]
    {
        command.args(is_set.then_some(option));
    }
    if let Some(library) = &arguments.library {
        command.arg("--library").arg(library);
    }
    command.args(further).arg("--").args(&arguments.program);
    Ok(command)
}

/// Replaces this process with the program.
fn replace(
    arguments: &Arguments,
    program: &Program,
    library: &Library,
    files: &Files,
) -> Result<Infallible> {
    // Before the devices are created, because a process with threads cannot enter a user namespace.
    files.enter()?;
    let devices = tree::devices()?;
    let shown = files.show(&devices)?;
    let names: Vec<_> = devices.iter().map(tree::Device::to_string).collect();
    eprintln!("rdma-soft-run: {} from {}", names.join(", "), library.path().display());
    eprintln!("rdma-soft-run: {shown}");
    stats::forget_this_process().context("the counts of this process cannot be removed")?;
    let mut command = program.command();
    if let Some(faults) = &arguments.faults {
        command.env(FAULTS_VARIABLE, faults);
    }
    library.load_into(&mut command, files.library());
    files.redirect(&mut command);
    Err(program.not_started(command.exec()).into())
}
