//! The trait that all work requests implement.

use crate::wr::atomic::AtomicWorkRequest;
use crate::wr::queued::QueuedRequest;
use crate::wr::queued_receive::QueuedReceive;
use crate::wr::read::ReadWorkRequest;
use crate::wr::receive::ReceiveWorkRequest;
use crate::wr::send::SendWorkRequest;
use crate::wr::window::{BindWindow, LocalInvalidate, SendWithInvalidate};
use crate::wr::write::WriteWorkRequest;

/// A request of any kind for [`QueuePair::post`](crate::QueuePair::post).
///
/// | request | method for a single post |
/// |---|---|
/// | [`SendWorkRequest`] | [`post_send`](crate::QueuePair::post_send) |
/// | [`WriteWorkRequest`] | [`post_write`](crate::QueuePair::post_write) |
/// | [`ReadWorkRequest`] | [`post_read`](crate::QueuePair::post_read) |
/// | [`AtomicWorkRequest`] | [`post_atomic`](crate::QueuePair::post_atomic) |
/// | [`BindWindow`] | [`bind`](crate::QueuePair::bind) |
/// | [`LocalInvalidate`], [`SendWithInvalidate`] | |
/// | [`ReceiveWorkRequest`] | [`post_receive`](crate::QueuePair::post_receive) |
///
/// The trait is sealed, because verbs define a fixed set of requests.
pub trait WorkRequest: sealed::IntoQueued {}

impl<R: sealed::IntoQueued> WorkRequest for R {}

#[allow(unnameable_types)] // this seals it
pub(crate) mod sealed {
    use crate::post::error::PostError;
    use crate::qp::queue_pair::QueuePair;

    pub trait IntoQueued {
        type Queued: Queued;

        fn queue(self, wr_id: u64) -> Self::Queued;
    }

    /// A request with its WR ID: a request of the send queue or a receive.
    #[allow(unsafe_code)]
    pub trait Queued: Sized {
        /// Checks for mistakes that can be found before the device sees the request.
        fn check(&self, qp: &QueuePair) -> Result<(), PostError>;

        /// # Safety
        /// The contract of [`QueuePair::post`] applies.
        unsafe fn post(self, qp: &QueuePair) -> Result<(), PostError>;

        /// # Safety
        /// The contract of [`QueuePair::post_batch`] applies.
        unsafe fn post_batch(batch: &mut [Self], qp: &QueuePair) -> Result<(), PostError>;
    }

    /// Checks all requests. The error has the index of the first invalid one.
    #[inline]
    pub(crate) fn check_all<Q>(
        batch: &[Q],
        check: impl Fn(&Q) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let mut rest = batch.iter();
        while let Some(request) = rest.next() {
            // The index is computed only here, so that the loop needs no counter.
            check(request).map_err(|error| error.at(batch.len() - rest.len() - 1))?;
        }
        Ok(())
    }
}

/// Implements the trait for requests that have a `with_id` method.
macro_rules! requests {
    ($($request:ident => $queued:ident),+ $(,)?) => {$(
        impl<'wr, 'data> sealed::IntoQueued for $request<'wr, 'data> {
            type Queued = $queued<'wr, 'data>;

            #[inline]
            fn queue(self, wr_id: u64) -> Self::Queued {
                self.with_id(wr_id)
            }
        }
    )+};
}

requests! {
    SendWorkRequest => QueuedRequest,
    WriteWorkRequest => QueuedRequest,
    ReadWorkRequest => QueuedRequest,
    AtomicWorkRequest => QueuedRequest,
    SendWithInvalidate => QueuedRequest,
    ReceiveWorkRequest => QueuedReceive,
}

impl<'w> sealed::IntoQueued for BindWindow<'w> {
    type Queued = QueuedRequest<'w, 'static>;

    fn queue(self, wr_id: u64) -> Self::Queued {
        self.with_id(wr_id)
    }
}

impl sealed::IntoQueued for LocalInvalidate {
    type Queued = QueuedRequest<'static, 'static>;

    fn queue(self, wr_id: u64) -> Self::Queued {
        self.with_id(wr_id)
    }
}
