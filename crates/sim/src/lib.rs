//! The simulator: runs random workloads of verbs in virtual time, on a network with faults, and
//! checks each completion and each byte against a model. Never published.
//!
//! A seed determines a script, and a script determines the run, whichever process runs it. A script
//! that fails is made smaller and printed. `docs/testing.md` describes how to run the simulator and
//! what it checks.
//!
//! - `script`: a workload, which consists of settings and a list of operations.
//! - `text`: a script in readable form.
//! - `generate`: creates a script from a seed or from bytes; both are sources of `choices`.
//! - `run`: executes a script on the devices.
//! - `host`: the devices, queue pairs and memory of a run.
//! - `post`: posts a queue pair's requests, and allocates the memory that they use.
//! - `windows`: memory windows, and which of their keys are valid.
//! - `groups`: multicast groups.
//! - `faults`: deliberate faults, and the errors that they excuse.
//! - `completions`: which completions are allowed, in which order, and what they contain.
//! - `memory`: the expected contents of memory.
//! - `ending`: the checks after the last operation.
//! - `shrink`: makes a failing script smaller.
//! - `campaign`: runs one workload after another.
//! - `fuzz`: runs a workload that is decoded from arbitrary bytes.
//! - `message`: streams and messages of `rdma-async`.
//! - `ranks`: groups of `rdma-group`.
//! - `connections`: connections by address of `rdma-cm`.
//! - `watch`: aborts a workload that hangs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper is a finding.
#![allow(clippy::cast_possible_truncation)] // All numbers are small, and devices are 64-bit only.

mod campaign;
mod choices;
mod completions;
mod connections;
mod ending;
mod faults;
mod fuzz;
mod generate;
mod groups;
mod host;
mod memory;
mod message;
mod post;
mod ranks;
mod run;
mod script;
mod shrink;
mod text;
mod watch;
mod windows;

pub use campaign::{Finding, Kind, Total, campaign, workload};
pub use connections::{Connections, connections};
pub use fuzz::{Wrong, bytes, fuzz, script_of};
pub use ranks::{Growth, check, check_many, growth};
pub use watch::watch;
