//! The program `copy_file`, from its command line down to its pipeline.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod bench;
mod damage;
mod endings;
mod files;
mod pipeline;
mod processes;
mod program;
mod refusals;
mod signals;
