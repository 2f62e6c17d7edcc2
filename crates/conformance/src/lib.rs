//! The verbs' contract as one suite of cases, for every device. Never published.
//!
//! One case is one sentence of the contract, from the InfiniBand specification and the manual pages of
//! rdma-core. Each runs on each device, in a child process of the same binary that is killed at its
//! limit: a hang or a crash is that case's failure, and the run goes on. `docs/testing.md` says how to
//! run it and how to read the table at its end.
//!
//! - `case`: what a case is, and how a file of cases lists them.
//! - `device`: the device as a case sees it: its name, what it lacks, where it is known to differ.
//! - `devices`: which devices a run has.
//! - `child`: one case in a process of its own, and in one more if that is to end.
//! - `remote`: the cases of SoftRoCE, where that is.
//! - `run`: the trials; `table`: what came out.
//! - `cases`: the cases, a file for each part of the contract.
//! - `differential`: random programs of verbs on two devices, a test of its own.
//! - `interop`: two devices that talk to each other, a program of its own.
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
