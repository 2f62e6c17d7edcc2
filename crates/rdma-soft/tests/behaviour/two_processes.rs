//! Connections to a second process, which is another instance of this program.
#![allow(clippy::cast_possible_truncation)] // Small numbers, and the device is 64-bit only.

mod calls;
pub(crate) mod ends;
mod halted;
pub(crate) mod near;
pub(crate) mod peer;
pub(crate) mod process;

/// Entry point of the second process; not a test.
#[test]
fn second_process() {
    if peer::Peer::is_this() {
        peer::obey();
    }
}
