//! Operations that failed.

use std::fmt;

use rdma_connect::TransportError;

use crate::buffer::held::sealed::Lease;

/// An operation that failed, with its memory unless the device still holds it. It implements
/// [`Error`](std::error::Error), and `?` converts it to a [`TransportError`].
#[non_exhaustive]
pub struct Failed<B> {
    /// The memory of the operation. After a failed receive or read, its contents are undefined.
    ///
    /// `None` only after a [`Timeout`](TransportError::Timeout) of a posted request. The device may still use the
    /// memory, which is released when the request completes.
    pub memory: Option<B>,
    /// The error.
    pub error: TransportError,
}

impl<B: Lease> Failed<B> {
    #[cold]
    pub(crate) const fn new(memory: B, error: TransportError) -> Self {
        Self { memory: Some(memory), error }
    }

    /// Creates the error of an operation whose request the device still holds.
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
