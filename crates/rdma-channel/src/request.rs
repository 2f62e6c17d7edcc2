//! Work requests of each kind, posted one at a time or in a batch.

use rdma_connect::Operation;
use rdma_qp::{
    AtomicWorkRequest, BindWindow, LocalInvalidate, QueuedRequest, ReadWorkRequest,
    ReceiveWorkRequest, SendWorkRequest, WorkRequest, WriteWorkRequest,
};

/// A work request with memory borrowed for `'data`.
pub(crate) trait Post<'data>: WorkRequest {
    const OPERATION: Operation;

    /// Returns true if the request creates a completion when it succeeds. Receives always do.
    fn is_signaled(&self) -> bool;
    fn signaled(self, signaled: bool) -> Self;
}

macro_rules! posts {
    ($($request:ident => $operation:ident;)+) => {$(
        impl<'data> Post<'data> for $request<'_, 'data> {
            const OPERATION: Operation = Operation::$operation;

            #[inline(always)]
            fn is_signaled(&self) -> bool {
                Self::is_signaled(self)
            }

            #[inline(always)]
            fn signaled(self, signaled: bool) -> Self {
                Self::signaled(self, signaled)
            }
        }
    )+};
}

posts! {
    SendWorkRequest => Send;
    WriteWorkRequest => Write;
    ReadWorkRequest => Read;
    AtomicWorkRequest => Atomic;
}

impl<'data> Post<'data> for ReceiveWorkRequest<'_, 'data> {
    const OPERATION: Operation = Operation::Receive;

    #[inline(always)]
    fn is_signaled(&self) -> bool {
        true
    }

    #[inline(always)]
    fn signaled(self, _: bool) -> Self {
        self
    }
}

/// Only `message` posts these requests, and all of them are signaled.
macro_rules! window_posts {
    ($($request:ty => $operation:ident;)+) => {$(
        impl<'data> Post<'data> for $request {
            const OPERATION: Operation = Operation::$operation;

            fn is_signaled(&self) -> bool {
                true
            }

            fn signaled(self, _: bool) -> Self {
                self
            }
        }
    )+};
}

window_posts! {
    BindWindow<'_> => Bind;
    LocalInvalidate => Invalidation;
}

/// A send queue request of any kind, for a batch. Created from a request with `into()`.
#[derive(Debug)]
#[repr(transparent)]
pub struct BatchRequest<'wr, 'data>(pub(crate) QueuedRequest<'wr, 'data>);

macro_rules! requests {
    ($($request:ident)+) => {$(
        impl<'wr, 'data> From<$request<'wr, 'data>> for BatchRequest<'wr, 'data> {
            #[inline]
            fn from(request: $request<'wr, 'data>) -> Self {
                Self(request.with_id(0))
            }
        }
    )+};
}

requests!(SendWorkRequest WriteWorkRequest ReadWorkRequest AtomicWorkRequest);
