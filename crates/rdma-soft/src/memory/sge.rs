//! Elements of requests (`struct ibv_sge`).

/// A range of memory and its key, with the layout of the program's (`struct ibv_sge`), so that a program's list is read
/// in place.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}
