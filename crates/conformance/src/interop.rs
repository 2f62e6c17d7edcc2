//! Two devices that talk to each other, each in a process of its own: `docs/interop.md` says how it is run.
//!
//! One process serves its device, the other one drives: it runs a table of checks, and tells both devices what to do. So
//! each check runs in both directions, and who serves knows nothing of them.
//!
//! - `arguments`: the command line; `control`: the TCP connection between the two.
//! - `command`: what a device can be told to do, and what it answers; `station`: a device that does it.
//! - `pattern`: the bytes of messages.
//! - `scene`: two stations with a queue pair each, and what checks ask of them.
//! - `checks`: the table; `drive`: runs it; `rows`: what came out.

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

/// Serves a device, or drives two.
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
