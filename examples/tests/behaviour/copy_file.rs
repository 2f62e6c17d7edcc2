//! The program `copy_file`, from its command line down to its pipeline.

mod bench;
mod damage;
mod endings;
mod files;
mod pipeline;
mod processes;
mod program;
mod refusals;
mod signals;
