//! Programs on the RDMA stack.
//!
//! What is more than a page is a module here, so that its tests can drive it; the program of the same
//! name in the folder `examples` is the thin command line around it.

pub mod copy_file;

/// The examples in the README run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
