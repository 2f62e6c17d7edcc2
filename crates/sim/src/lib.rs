//! The simulator: random workloads of verbs on a bad network in virtual time, each completion and each byte checked
//! against a model. Never published.
//!
//! A seed gives a script, and a script gives the same run each time, in every process. What fails is made smaller and
//! printed. `docs/testing.md` says how to run it and what it checks.
//!
//! - `script`: what a workload is: settings, and a list of operations.
//! - `text`: a script as people read it.
//! - `generate`: the script of a seed, or of bytes, by the `choices` that these make.
//! - `run`: has the devices do what a script says.
//! - `host`: the devices, queue pairs and memory of a run.
//! - `post`: what is asked of a queue pair, and the memory that it takes.
//! - `windows`: memory windows, and which of their keys work.
//! - `groups`: multicast groups.
//! - `faults`: what goes wrong on purpose.
//! - `completions`: what may complete, when, and as what.
//! - `memory`: which bytes may be where.
//! - `ending`: what has to be true when nothing happens any more.
//! - `shrink`: makes a failing script smaller.
//! - `campaign`: workload after workload.
//! - `fuzz`: a workload of any bytes.
//! - `watch`: ends what does not end.
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
