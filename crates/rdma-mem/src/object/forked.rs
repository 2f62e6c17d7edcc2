//! Objects of the process that forked this one.

use rdma_sys::Process;

/// An object of another process: this one was forked from it.
///
/// What a device and its provider know is the parent's. The child can neither use it nor release it.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this belongs to process {owner}, which forked this one: a forked child cannot use RDMA objects \
     of its parent; open the device in a program of its own, started with std::process::Command"
)]
#[non_exhaustive]
pub struct Forked {
    /// The process that made the object.
    pub owner: u32,
}

rdma_types::debug_messages!(struct Forked { owner });

/// Whether this process made an object, which that one made.
#[inline]
pub(crate) fn check(made_by: Process) -> Result<(), Forked> {
    if made_by.is_current() { Ok(()) } else { Err(Forked { owner: made_by.id() }) }
}
