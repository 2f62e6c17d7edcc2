//! Streams and messages of `rdma-async` on a simulated network.
//!
//! - `script`: a workload; `generate` creates one from a seed.
//! - `run`: executes a script.
//! - `end`: the ends of a run, and the tasks that receive, read and write.
//! - `model`: what must arrive, and which results are allowed.

mod end;
pub(crate) mod generate;
mod model;
pub(crate) mod run;
pub(crate) mod script;
