//! Ranks, barriers and collectives, for programs of many processes under any launcher.
//!
//! With the feature `serde`, the module `network` has nodes: connections to all ranks of a configuration file. With the
//! feature `async`, the module `aio` has the same collectives as futures.
//!
//! A program begins with [`Group::from_environment`], or with [`Group::builder`] if no launcher states its rank.
//! ```
//! # if cfg!(feature = "soft") {
//! use rdma::group::{Group, Reduction};
//! use rdma::prelude::*;
//!
//! let pd = open_device("soft0")?.allocate_pd()?;
//! let mut group = Group::builder(&pd, 0, 1, "localhost:7471").join()?;
//! let mut numbers = [1, 2];
//! group.all_reduce(&mut numbers, Reduction::Sum)?;
//! assert_eq!(numbers, [1, 2]); // of a single rank
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "serde")]
pub use rdma_group::network;
pub use rdma_group::{
    BarrierAlgorithm, Buffer, Error, Group, GroupBuilder, Memory, Number, Pod, Reduction,
};

/// Groups whose collectives are futures.
#[cfg(feature = "async")]
pub use rdma_group::aio;
