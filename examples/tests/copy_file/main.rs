//! The program `copy_file`, from its command line down to its pipeline.
#![allow(clippy::unwrap_used)] // helpers of tests are no tests to clippy

mod bench;
mod damage;
mod endings;
mod files;
mod pipeline;
mod processes;
mod program;
mod refusals;
mod signals;
