//! Operations on memory windows.
#![allow(unsafe_code)]

use rdma_qp::WorkSuccess;

use crate::buffer::window::Window;
use crate::operation::kinds::Kind;
use crate::operation::kinds::sealed::Sealed;

/// Binds a window, which gives the peer access.
#[derive(Debug)]
pub(crate) struct Bind;

/// Ends the access through a window bound by the same queue pair.
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
        // SAFETY: SAFETY.md F28: the invalidation of the key, which `reserve_for` took from this window, completed with
        // success, and was posted after the window's only bind had completed.
        unsafe { window.get_mut().unbound() };
        window
    }
}
