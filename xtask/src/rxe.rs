//! `cargo xtask rxe-setup`, `rxe-run` and `rxe-teardown`: set up, use and remove a SoftRoCE device.

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
    /// Only print the device's name and where it is, as `DEVICE PLACE`; fails if SoftRoCE was not
    /// set up
    #[arg(long, conflicts_with_all = ["native", "machine", "install", "kernel", "with"])]
    check: bool,
    /// Load rdma_rxe into the running kernel and add rxe0, without asking
    #[arg(long, conflicts_with = "machine")]
    native: bool,
    /// Add rxe0 to this interface instead of a dummy one; the device then accepts packets from
    /// anyone
    #[arg(long, value_name = "NAME", requires = "native")]
    netdev: Option<String>,
    /// Create the virtual machine even if the running kernel has SoftRoCE
    #[arg(long)]
    machine: bool,
    /// Install missing programs with the package manager if they cannot be unpacked
    #[arg(long)]
    install: bool,
    /// The kernel to use instead of the distribution's; it must have rdma_rxe
    #[arg(long, value_name = "PATH", requires = "modules")]
    kernel: Option<PathBuf>,
    /// The folder with the modules of that kernel, such as /lib/modules/VERSION
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
    /// Also provide this device in the virtual machine
    #[arg(long, value_name = "DEVICE", conflicts_with = "native")]
    with: Option<Extra>,
}

/// A device beside SoftRoCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Extra {
    /// siw0, the kernel's software device for iWARP; its module is compiled if the kernel lacks it
    Siw,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// End the command after this number of seconds, with exit status 124
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Run in the virtual machine even if the running kernel has SoftRoCE
    #[arg(long)]
    machine: bool,
    /// Also have this device in the virtual machine
    #[arg(long, value_name = "DEVICE")]
    with: Option<Extra>,
    /// The command to run, with its arguments
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
        siw: args.with == Some(Extra::Siw),
    };
    let place = softroce.set_up(&what, agreed)?;
    println!("ready after {:.1} s: {place}; try", start.elapsed().as_secs_f64());
    let with = if what.siw { "--with siw " } else { "" };
    println!("    cargo xtask rxe-run {with}-- ibv_devinfo");
    Ok(true)
}

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let limit = args.timeout.map(Duration::from_secs);
    let siw = args.with == Some(Extra::Siw);
    softroce()?.run(&args.command, Run { limit, machine: args.machine, siw })
}

pub(crate) fn teardown() -> Result<bool> {
    softroce()?.tear_down().map(|()| true)
}

/// Returns SoftRoCE, whose files are in the target folder.
pub(crate) fn softroce() -> Result<SoftRoce> {
    SoftRoce::at(target()?.join("rxe"))
}

/// Returns cargo's target folder.
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
