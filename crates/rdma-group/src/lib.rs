//! Ranks, barriers and collectives over RDMA.
#![forbid(unsafe_code)]
#![allow(dead_code)] // until the blocking driver uses the schedules

mod call;
mod collective;
mod reduction;
mod run;
mod schedule;

pub use reduction::{Number, Reduction};
pub use schedule::BarrierAlgorithm;
