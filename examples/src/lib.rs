//! Example programs that use the RDMA stack.
//!
//! Code that is longer than a page or shared by several programs is in a module here, so that tests
//! can call it. The program in the folder `examples` is then only a thin command line.

pub mod ends;
pub mod kv;
pub mod rc_pingpong_line;

/// Runs the README's examples as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// Runs the recipes as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/recipes.md")]
struct Recipes;

/// Runs the tutorial's programs as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/tutorial.md")]
struct Tutorial;

/// Runs the code on the page about `async-rdma` as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-async-rdma.md")]
struct FromAsyncRdma;
