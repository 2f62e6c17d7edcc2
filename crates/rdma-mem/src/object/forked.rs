//! Errors for objects that belong to the process that forked this one.

use rdma_sys::Process;

/// The object belongs to the parent process, which forked this one.
///
/// The device and its provider know only the parent's objects, so the child can neither use nor
/// release them.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this belongs to process {owner}, which forked this one: a forked child cannot use its \
     parent's RDMA objects; open the device in a separate program, started with \
     std::process::Command"
)]
#[non_exhaustive]
pub struct Forked {
    /// The process that created the object.
    pub owner: u32,
}

rdma_types::debug_messages!(struct Forked { owner });

/// Checks that this process created the object.
#[inline]
pub(crate) fn check(made_by: Process) -> Result<(), Forked> {
    if made_by.is_current() { Ok(()) } else { Err(Forked { owner: made_by.id() }) }
}
