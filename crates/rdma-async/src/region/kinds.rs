//! Operations on memory windows.
#![allow(unsafe_code)]

use rdma_qp::WorkSuccess;

use crate::buffer::window::Window;
use crate::operation::kinds::Kind;
use crate::operation::kinds::sealed::Sealed;

/// Binds a window, which gives the peer access.
#[derive(Debug)]
pub(crate) struct Bind;

/// Invalidates a window that the same queue pair has bound, which ends the peer's access.
#[derive(Debug)]
pub(crate) struct Invalidate;

impl Sealed for Bind {}
impl Sealed for Invalidate {}

impl Kind for Bind {
    type Memory = Window;
    type Output = Window;

    const HAS_LIMIT: bool = false;

    fn finish(window: Window, _: &WorkSuccess, _: u64) -> Window {
        window
    }
}

impl Kind for Invalidate {
    type Memory = Window;
    type Output = Window;

    fn finish(mut window: Window, _: &WorkSuccess, _: u64) -> Window {
        // SAFETY: SAFETY.md F28: `reserve_for` took the key from this window, and posted the invalidation after the
        // window's only bind had completed. The invalidation has completed with success.
        unsafe { window.get_mut().unbound() };
        window
    }
}
