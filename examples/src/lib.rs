//! Programs on the RDMA stack.
//!
//! What is more than a page, or what several programs need, is a module here, so that its tests can drive
//! it; the program in the folder `examples` is the thin command line around it.

mod command_line;

pub mod copy_file;
pub mod end;
pub mod ends;
pub mod kv;
pub mod out_of_band;
pub mod rc_pingpong_line;
pub mod reach;

pub use command_line::{Failure, bytes, explain, print, program, warn};

use rdma::device::Mtu;

/// A path MTU that is given as an option.
///
/// # Errors
/// It says which there are.
pub fn mtu(text: &str) -> Result<Mtu, &'static str> {
    text.parse().ok().and_then(Mtu::from_bytes).ok_or("one of 256, 512, 1024, 2048 and 4096")
}

/// The examples in the README run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
