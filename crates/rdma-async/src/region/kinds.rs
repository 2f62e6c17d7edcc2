//! Operations on memory windows.
#![allow(unsafe_code)]

use rdma_connect::messaging::Window;
use std::marker::PhantomData;

use rdma_connect::Operation;
use rdma_mem::{BindableRegion, OwnedRegion};
use rdma_qp::WorkSuccess;

use crate::buffer::held::sealed::Lease;
use crate::operation::kinds::Kind;
use crate::operation::kinds::sealed::Sealed;

/// Binds a window, which gives the peer access.
#[derive(Debug)]
pub(crate) struct Bind<R = OwnedRegion>(PhantomData<fn() -> R>);

/// Invalidates a window that the same queue pair has bound, which ends the peer's access.
#[derive(Debug)]
pub(crate) struct Invalidate<R = OwnedRegion>(PhantomData<fn() -> R>);

impl<R> Sealed for Bind<R> {}
impl<R> Sealed for Invalidate<R> {}

impl<R: BindableRegion> Kind for Bind<R>
where
    Window<R>: Lease,
{
    type Memory = Window<R>;
    type Output = Window<R>;

    const OPERATION: Operation = Operation::Bind;
    const HAS_LIMIT: bool = false;

    fn finish(window: Window<R>, _: &WorkSuccess, _: u64) -> Window<R> {
        window
    }
}

impl<R: BindableRegion> Kind for Invalidate<R>
where
    Window<R>: Lease,
{
    type Memory = Window<R>;
    type Output = Window<R>;

    const OPERATION: Operation = Operation::Invalidation;

    fn finish(mut window: Window<R>, _: &WorkSuccess, _: u64) -> Window<R> {
        // SAFETY: SAFETY.md F28: the caller (`reserve_for` or `Requests`) took the key from this window. It posted the
        // invalidation to the queue pair of the bind, after the window's only bind had completed. The invalidation has
        // completed with success.
        unsafe { window.get_mut().unbound() };
        window
    }
}
