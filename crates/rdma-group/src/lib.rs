//! Ranks, barriers and collectives over RDMA.
#![forbid(unsafe_code)]
#![allow(dead_code)] // until the blocking driver uses the schedules

mod bootstrap;
mod call;
mod collective;
mod environment;
mod error;
mod reduction;
mod run;
mod schedule;

pub use error::Error;
pub use reduction::{Number, Reduction};
pub use schedule::BarrierAlgorithm;
