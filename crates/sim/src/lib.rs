//! The simulator: runs random workloads of verbs on a bad network in virtual time, and checks each
//! completion and each byte against a model. Never published.
//!
//! A seed determines a script, and a script determines the run, in every process. A failing script
//! is shrunk and printed. `docs/testing.md` describes how to run the simulator and what it checks.
//!
//! - `script`: a workload, which consists of settings and a list of operations.
//! - `text`: a script in readable form.
//! - `generate`: creates a script from a seed or from bytes, which determine its `choices`.
//! - `run`: executes a script on the devices.
//! - `host`: the devices, queue pairs and memory of a run.
//! - `post`: a queue pair's requests, and the memory that they occupy.
//! - `windows`: memory windows, and whether their keys are valid.
//! - `groups`: multicast groups.
//! - `faults`: deliberate faults.
//! - `completions`: which completions are allowed, their order, and their contents.
//! - `memory`: the expected bytes.
//! - `ending`: the checks after the last event.
//! - `shrink`: makes a failing script smaller.
//! - `campaign`: runs workload after workload.
//! - `fuzz`: runs a workload from arbitrary bytes.
//! - `watch`: aborts a workload that hangs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper is a finding.
#![allow(clippy::cast_possible_truncation)] // Small numbers, and devices are 64-bit only.

mod campaign;
mod choices;
mod completions;
mod ending;
mod faults;
mod fuzz;
mod generate;
mod groups;
mod host;
mod memory;
mod post;
mod run;
mod script;
mod shrink;
mod text;
mod watch;
mod windows;

pub use campaign::{Finding, Total, campaign, workload};
pub use fuzz::{Wrong, bytes, fuzz, script_of};
pub use watch::watch;
