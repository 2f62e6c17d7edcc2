//! Operations that failed.

use std::fmt;

use rdma_connect::TransportError;

use super::kinds::{Kind, memory};
use crate::buffer::held::Held;
use crate::buffer::held::sealed::Lease;

/// An operation that failed, with its memory unless the device still holds it. It is an [`Error`](std::error::Error),
/// and `?` converts it to a [`TransportError`].
#[non_exhaustive]
pub struct Failed<B> {
    /// The memory of the operation. After a failed receive or read its content is undefined.
    ///
    /// `None` only after a [`Timeout`](TransportError::Timeout) of a posted request: the device may still use the
    /// memory, which is released when the request has completed.
    pub memory: Option<B>,
    /// The error.
    pub error: TransportError,
}

impl<B: Lease> Failed<B> {
    #[cold]
    pub(crate) fn new<K: Kind<Memory = B>>(held: Held, error: TransportError) -> Self {
        Self { memory: Some(memory::<K>(held)), error }
    }

    /// The device still holds its request.
    #[cold]
    pub(crate) const fn late(error: TransportError) -> Self {
        Self { memory: None, error }
    }
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match f.alternate() {
            true => f.debug_struct("Failed").field("error", &self.error).finish_non_exhaustive(),
            false => fmt::Debug::fmt(&self.error, f),
        }
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for Failed<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<B> From<Failed<B>> for TransportError {
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}
