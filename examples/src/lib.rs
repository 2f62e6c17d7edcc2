//! Programs on the RDMA stack.
//!
//! Code of more than a page, and code that several programs share, is a module here, so that its tests can drive
//! it. The program in the folder `examples` is the thin command line around it.

pub mod ends;
pub mod kv;
pub mod rc_pingpong_line;

/// The examples in the README run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The recipes run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/recipes.md")]
struct Recipes;
