//! Groups of `rdma-group` in virtual time: their schedules run on up to 1,024 ranks. A rank may die.
//!
//! - `network`: the time that messages take.
//! - `rank`: a rank that executes schedules.
//! - `run`: executes the schedules of all ranks, in the order of their events.
//! - `check`: the results that each rank must have.
//! - `growth`: the time of collectives by the number of ranks.

mod check;
mod growth;
mod network;
mod rank;
mod run;

pub use check::{check, check_many};
pub use growth::{Growth, growth};
