//! `rdmatool`: lists and examines RDMA devices, measures them, and starts groups of processes.

mod compare;
mod devices;
mod doctor;
mod output;
mod perf;
mod perftest;
mod plot;
mod reports;
mod run;
mod units;

use std::process::ExitCode;

use clap::Parser;

/// Lists and examines RDMA devices, measures them, and starts groups of processes.
#[derive(Debug, Parser)]
#[command(name = "rdmatool", version, propagate_version = true)]
enum Command {
    Compare(compare::Arguments),
    Devices(devices::Arguments),
    Doctor(doctor::Arguments),
    Perf(Box<perf::Arguments>),
    Perftest(perftest::Arguments),
    Plot(plot::Arguments),
    Run(run::Arguments),
}

/// The exit status when a command fails. If the arguments are wrong, clap exits with 2.
const FAILURE: u8 = 1;

fn main() -> ExitCode {
    let outcome = match Command::parse() {
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Perf(arguments) => perf::run(&arguments),
        Command::Perftest(arguments) => perftest::run(&arguments),
        Command::Plot(arguments) => plot::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
    };
    match outcome {
        Ok(status) => status,
        Err(error) => {
            output::warn(format_args!("error: {error:#}"));
            ExitCode::from(FAILURE)
        }
    }
}
