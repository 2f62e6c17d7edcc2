//! Connections to a second process, which is this program once more.
#![allow(clippy::cast_possible_truncation)] // Small numbers, and the device is 64-bit only.

pub(crate) mod ends;
pub(crate) mod near;
pub(crate) mod peer;

/// Not a test: the second process.
#[test]
fn second_process() {
    if peer::Peer::is_this() {
        peer::obey();
    }
}
