//! Ranks, barriers and collectives over RDMA, for programs of many processes.
//!
//! A launcher such as torchrun, Slurm or `mpirun` starts the processes, and states the rank of each. They join a
//! [`Group`], and call its collectives. If a rank dies, the calls of all others fail with an error that names it.
//!
//! ```no_run
//! use rdma_group::{Group, Reduction};
//!
//! let pd = rdma_mem::open_default_device()?.allocate_pd()?;
//! let mut group = Group::from_environment(&pd)?;
//! let mut weights = vec![group.rank() as f32; 1000];
//! group.all_reduce(&mut weights, Reduction::Sum)?;
//! weights.iter_mut().for_each(|weight| *weight /= group.world_size() as f32);
//! if group.rank() == 0 {
//!     println!("the mean is {}", weights[0]);
//! }
//! # Ok::<(), rdma_group::Error>(())
//! ```
//!
//! | goal | use |
//! |---|---|
//! | wait for all ranks | [`Group::barrier`] |
//! | copy from one rank to all | [`Group::broadcast`], [`scatter`](Group::scatter), [`scatter_v`](Group::scatter_v) |
//! | copy from all ranks to one | [`Group::gather`], [`gather_v`](Group::gather_v) |
//! | copy from all ranks to all | [`Group::all_gather`], [`all_gather_v`](Group::all_gather_v), [`all_to_all`](Group::all_to_all), [`all_to_all_v`](Group::all_to_all_v) |
//! | combine the numbers of all ranks | [`Group::all_reduce`], [`reduce`](Group::reduce), [`reduce_scatter`](Group::reduce_scatter), with a [`Reduction`] |
//! | work with some of the ranks | [`Group::split`] |
//! | send long blocks without a copy | [`Group::buffer`] |
//! | send your own requests to a rank | [`Group::connect`] |
//! | set limits, a secret or an epoch | [`GroupBuilder`] |
//! | handle errors | [`Error`], [failures](Group#failures) |
//!
//! # Features
//!
//! - `async` (off by default): adds the module `aio`, with the same collectives as futures.
//! - `serde` (off by default): adds the module `network`, with the names of `ibverbs_rs::network`. It has connections
//!   between the ranks of a configuration file, for requests of the program, and barriers over any ranks.
//!
//! Types of `rdma-mem` and `rdma-channel` that appear in signatures are re-exported here.
#![forbid(unsafe_code)]

#[cfg(feature = "async")]
pub mod aio;
mod bootstrap;
mod builder;
mod call;
mod collective;
mod environment;
mod error;
mod group;
#[cfg(feature = "serde")]
pub mod network;
mod reduction;
mod run;
mod schedule;
mod world;

pub use builder::GroupBuilder;
pub use error::Error;
pub use group::Group;
pub use group::buffer::{Buffer, Memory};
pub use reduction::{Number, Reduction};
pub use schedule::BarrierAlgorithm;

pub use bytemuck::Pod;
pub use rdma_channel::{Channel, ConnectError};
pub use rdma_mem::{Error as MemoryError, ProtectionDomain};

/// The parts of this crate that need no device, for the simulator of the workspace. They may change in any release.
#[doc(hidden)]
pub mod simulation {
    pub use crate::collective::{Algorithm, Collective};
    pub use crate::schedule::{Action, Blocks, Member, Schedule, Transfer};

    use crate::bootstrap::star::{self, Notice};

    /// Returns the rank that rank 0 considers the cause of a failure. A report is the rank that sent it, and the rank that
    /// it names.
    #[must_use]
    pub fn cause(reports: &[(usize, usize)]) -> usize {
        let notices = reports.iter().map(|(sender, lost)| (*sender, Notice::lost(*lost)));
        star::cause(&notices.collect::<Vec<_>>()).rank
    }
}

/// Runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
