//! Elements of requests (`struct ibv_sge`).

/// A range of memory and its key. The layout is that of `struct ibv_sge`, so a program's list is read in place.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}
