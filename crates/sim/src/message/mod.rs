//! Streams and messages of `rdma-async` on a simulated network.
//!
//! - `script`: a workload; `generate` creates one from a seed.
//! - `run`: executes a script.
//! - `end`: the ends of a run, and the tasks that receive, read and write.
//! - `hostile`: the frames of ends that break the protocol.
//! - `operations`: starts the operations of ends, and checks their results.
//! - `model`: what must arrive, and which results are allowed.

mod end;
pub(crate) mod generate;
mod hostile;
mod model;
mod operations;
pub(crate) mod run;
pub(crate) mod script;
