//! The maintenance commands of this workspace: `cargo xtask ci`, `dropin`, `features`, `package`,
//! `tidy`, `bindgen`, `book`, `foreign`, `rxe-setup` and related commands, `interop`, `sim`.

mod bindgen;
mod book;
mod ci;
mod dropin;
mod features;
mod foreign;
mod interop;
mod package;
mod rxe;
mod sim;
mod tidy;
mod tree;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "The chores of this workspace")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Run jobs of CI by name, in the same way locally and on GitHub
    Ci(ci::Args),
    /// Check that each published crate compiles by itself, without features and with each one of
    /// its features
    Features,
    /// Package the published crates, then build and document each from its package; publishes
    /// nothing
    Package,
    /// Run a program that cargo has built, but only if it belongs to the selected crate; meant as a
    /// runner for cargo
    Only(ci::only::Args),
    /// Check what rustc and clippy do not: layers, lengths, folders, unsafe files, links, repeated
    /// facts
    Tidy(tidy::Args),
    /// Regenerate the bindings of rdma-sys from the pinned headers
    Bindgen {
        /// Write nothing, and fail if the checked-in bindings differ
        #[arg(long)]
        check: bool,
    },
    /// Build a searchable site of the pages that the README lists in target/book/html; needs mdBook
    Book,
    /// Build target/dropin/lib/libibverbs.so.1 over the software device, and target/dropin/bin/rdma-soft-run
    Dropin(dropin::Args),
    /// Run programs and test suites of other projects, from the distribution's packages, with
    /// the software device
    Foreign(foreign::Args),
    /// Set up an RXE (SoftRoCE) device: the kernel's, or one in a virtual machine
    RxeSetup(rxe::SetupArgs),
    /// Run a command where the RXE device is
    RxeRun(rxe::RunArgs),
    /// Remove everything that rxe-setup created
    RxeTeardown,
    /// Connect two devices over a wire, in the virtual machine of SoftRoCE
    Interop(interop::Args),
    /// Run the simulator: random workloads on a network with faults in virtual time, checked
    /// against a model
    Sim(sim::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Ci(args) => ci::run(&args),
        Chore::Features => features::run(),
        Chore::Package => package::run(),
        Chore::Only(args) => {
            return ci::only::run(&args).unwrap_or_else(|error| failed(&error, 125));
        }
        Chore::Tidy(args) => tidy::run(&args),
        Chore::Bindgen { check } => bindgen::run(check).map(|()| true),
        Chore::Dropin(args) => dropin::run(&args),
        Chore::Foreign(args) => foreign::run(&args),
        Chore::Book => book::run().map(|()| true),
        Chore::RxeSetup(args) => rxe::setup(args),
        Chore::RxeRun(args) => return rxe::run(&args).unwrap_or_else(|error| failed(&error, 125)),
        Chore::RxeTeardown => rxe::teardown(),
        Chore::Interop(args) => {
            return interop::run(&args).unwrap_or_else(|error| failed(&error, 125));
        }
        Chore::Sim(args) => sim::run(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(&error, 1),
    }
}

fn failed(error: &anyhow::Error, status: u8) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(status)
}
