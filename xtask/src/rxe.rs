//! SoftRoCE by one command: `cargo xtask rxe-setup`, `rxe-run`, `rxe-teardown`.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use cargo_metadata::MetadataCommand;
use softroce::{GivenKernel, Run, SetUp, SoftRoce};

use crate::tree;

#[derive(Debug, clap::Args)]
pub(crate) struct SetupArgs {
    /// Only print where SoftRoCE is, as `DEVICE PLACE`; fails if it was not set up
    #[arg(long, conflicts_with_all = ["native", "machine", "install", "kernel"])]
    check: bool,
    /// Load rdma_rxe into the running kernel and add rxe0, without asking
    #[arg(long, conflicts_with = "machine")]
    native: bool,
    /// Add rxe0 to this interface instead of a dummy one; it then accepts packets from anyone
    #[arg(long, value_name = "NAME", requires = "native")]
    netdev: Option<String>,
    /// Create the virtual machine even if the running kernel has SoftRoCE
    #[arg(long)]
    machine: bool,
    /// Install missing programs with the package manager, if they cannot be unpacked
    #[arg(long)]
    install: bool,
    /// A kernel that has rdma_rxe, instead of that of the distribution's package
    #[arg(long, value_name = "PATH", requires = "modules")]
    kernel: Option<PathBuf>,
    /// The modules of that kernel, as in /lib/modules/VERSION
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// End the command after this many seconds, with exit status 124
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Run in the virtual machine even if the running kernel has SoftRoCE
    #[arg(long)]
    machine: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn setup(args: SetupArgs) -> Result<bool> {
    let start = Instant::now();
    let softroce = softroce()?;
    if args.check {
        println!("{}", softroce.place()?);
        return Ok(true);
    }
    let kernel = args.kernel.zip(args.modules);
    let what = SetUp {
        native: args.native,
        netdev: args.netdev,
        machine: args.machine,
        install: args.install,
        kernel: kernel.map(|(kernel, modules)| GivenKernel { kernel, modules }),
    };
    let place = softroce.set_up(&what, agreed)?;
    println!("ready after {:.1} s: {place}; try", start.elapsed().as_secs_f64());
    println!("    cargo xtask rxe-run -- ibv_devinfo");
    Ok(true)
}

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let limit = args.timeout.map(Duration::from_secs);
    softroce()?.run(&args.command, Run { limit, machine: args.machine })
}

pub(crate) fn teardown() -> Result<bool> {
    softroce()?.tear_down().map(|()| true)
}

/// Returns SoftRoCE with its files in the target folder.
pub(crate) fn softroce() -> Result<SoftRoce> {
    SoftRoce::at(target()?.join("rxe"))
}

/// Returns the target folder.
pub(crate) fn target() -> Result<PathBuf> {
    let metadata = MetadataCommand::new().current_dir(tree::root()).no_deps().exec()?;
    Ok(metadata.target_directory.into_std_path_buf())
}

fn agreed() -> Result<bool> {
    print!("Load it and add rxe0 on a dummy interface? Else a virtual machine is made. [y/N] ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
