//! The chores of this workspace: `cargo xtask ci`, `cargo xtask tidy`, `cargo xtask bindgen`.

mod bindgen;
mod ci;
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
    /// Run the jobs of CI by name, the same here as on GitHub
    Ci(ci::Args),
    /// Check what rustc and clippy do not: layers, lengths, unsafe files, links, repeated facts
    Tidy,
    /// Regenerate the bindings of rdma-sys from the pinned headers
    Bindgen {
        /// Write nothing; fail if the checked-in bindings differ
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Ci(args) => ci::run(&args),
        Chore::Tidy => tidy::run(),
        Chore::Bindgen { check } => bindgen::run(check).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
