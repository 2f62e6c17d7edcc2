//! Runs checks between two devices, each in a separate process. `docs/interop.md` describes how.
//!
//! One process serves its device. The other process drives: it goes through a table of checks, and
//! sends commands to both devices. So each check runs in both directions, and the serving process
//! knows nothing about the checks.
//!
//! - `arguments`: the command line; `control`: the TCP connection between the two processes.
//! - `command`: the commands to a device and its answers; `station`: a device that executes them.
//! - `pattern`: the bytes in messages.
//! - `scene`: two stations with a queue pair each, and the operations that checks use.
//! - `checks`: the table of checks; `drive`: runs them; `rows`: the results.

mod arguments;
mod checks;
mod command;
mod control;
mod drive;
mod pattern;
mod rows;
mod scene;
mod station;

use std::process::ExitCode;

use clap::Parser as _;

use arguments::{Arguments, Role};

/// Serves a device, or drives two devices.
#[must_use]
pub fn main() -> ExitCode {
    let done = match Arguments::parse().role {
        Role::Serve(serve) => control::serve(&serve).map(|()| true),
        Role::Drive(drive) => drive::drive(&drive),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
