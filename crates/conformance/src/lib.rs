//! The contract of the verbs as a suite of cases that runs on every device. Never published.
//!
//! Each case checks one sentence of the contract, taken from the InfiniBand specification or the
//! manual pages of rdma-core. It runs on each device in its own child process of the same binary,
//! which is killed at its time limit. So a hang or a crash fails only that case, and the run
//! continues. `docs/testing.md` describes how to run the suite and how to read the table at its
//! end.
//!
//! - `case`: a case, and the macro that lists the cases of a file.
//! - `device`: the device on which a case runs: its name, its missing features, and its known
//!   differences.
//! - `devices`: the devices of a run.
//! - `iwarp`: the cases that run on an iWARP device.
//! - `child`: runs a case in a separate process, and in a second one if the process must die.
//! - `remote`: runs the cases on SoftRoCE, natively or in its virtual machine.
//! - `run`: makes the cases into trials; `table`: prints the outcomes.
//! - `cases`: the cases themselves, with a file for each part of the contract.
//! - `differential`: a separate test that runs random programs of verbs on two devices.
//! - `interop`: a separate program that lets two devices communicate.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its case.
#![allow(clippy::cast_possible_truncation)] // All numbers are small, and devices are 64-bit only.

mod case;
mod cases;
mod child;
mod device;
mod devices;
pub mod differential;
pub mod interop;
mod iwarp;
mod outcome;
mod remote;
mod run;
mod table;

pub use run::main;
