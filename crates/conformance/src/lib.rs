//! The verbs' contract as one suite of cases, for every device. Never published.
//!
//! One case is one sentence of the contract, from the InfiniBand specification and the manual pages of rdma-core. Each
//! runs on each device, in a child process of the same binary that is killed at its limit. A hang or a crash fails only
//! that case, and the run continues. `docs/testing.md` describes how to run the suite and how to read the table at its
//! end.
//!
//! - `case`: a case, and the list of cases of a file.
//! - `device`: the device that a case runs on: its name, its missing features, and its known differences.
//! - `devices`: the devices of a run.
//! - `child`: one case in a separate process, and in another one if that process is to end.
//! - `remote`: the cases of SoftRoCE, natively or in its virtual machine.
//! - `run`: the trials; `table`: the outcomes.
//! - `cases`: the cases, a file for each part of the contract.
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
