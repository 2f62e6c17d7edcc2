//! Programs on the RDMA stack.
//!
//! Code of more than a page, and code that several programs share, is a module here, so that tests can call it. The
//! program in the folder `examples` is a thin command line around it.

pub mod ends;
pub mod kv;
pub mod rc_pingpong_line;

/// Runs the examples in the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// Runs the recipes.
#[cfg(doctest)]
#[doc = include_str!("../../docs/recipes.md")]
struct Recipes;

/// Runs the programs of the tutorial.
#[cfg(doctest)]
#[doc = include_str!("../../docs/tutorial.md")]
struct Tutorial;

/// Runs the tour of the page on `async-rdma`.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-async-rdma.md")]
struct FromAsyncRdma;
