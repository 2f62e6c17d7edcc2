//! The verbs' contract as one suite of cases, for every device. Never published.
//!
//! One case is one sentence of the contract, from the InfiniBand specification and the manual pages
//! of rdma-core. Each case runs on each device, in a child process of the same binary that is
//! killed at its time limit. A hang or a crash fails only that case, and the run continues.
//! `docs/testing.md` describes how to run the suite and how to read the table at its end.
//!
//! - `case`: a case, and the list of cases in a file.
//! - `device`: the device on which a case runs: its name, its missing features, and its known
//!   differences.
//! - `devices`: the devices of a run.
//! - `child`: one case in a separate process, and in yet another one if that process must die.
//! - `remote`: SoftRoCE's cases, natively or in its virtual machine.
//! - `run`: the trials; `table`: the outcomes.
//! - `cases`: the cases, with a file for each part of the contract.
//! - `differential`: random programs of verbs on two devices, a separate test.
//! - `interop`: two devices that communicate, a separate program.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its case.
#![allow(clippy::cast_possible_truncation)] // Small numbers, and devices are 64-bit only.

mod case;
mod cases;
mod child;
mod device;
mod devices;
pub mod differential;
pub mod interop;
mod outcome;
mod remote;
mod run;
mod table;

pub use run::main;
