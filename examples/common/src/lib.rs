//! Code that the example programs share: the command line, the exchange of endpoints over TCP, an end that sends and
//! receives messages, and charts.

mod command_line;

pub mod chart;
pub mod end;
pub mod out_of_band;
pub mod reach;

pub use command_line::{Failure, Role, Side, bytes, explain, print, program, warn};

use rdma::device::Mtu;

/// Parses an option whose value is a path MTU.
///
/// # Errors
/// Returns an error if the text is not one of the five sizes.
pub fn mtu(text: &str) -> Result<Mtu, &'static str> {
    text.parse().ok().and_then(Mtu::from_bytes).ok_or("one of 256, 512, 1024, 2048 and 4096")
}
