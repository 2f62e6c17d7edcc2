//! A value that was not accepted.

use crate::error::transport_error::TransportError;

/// A value that was not accepted, returned unchanged with the reason. It implements [`Error`](std::error::Error) if the
/// value implements `Debug`.
#[non_exhaustive]
pub struct Rejected<T> {
    /// The unchanged value.
    pub value: T,
    /// The reason.
    pub error: TransportError,
}

rdma_types::debug_messages!(struct Rejected<T: std::fmt::Debug> { value, error });

impl<T> Rejected<T> {
    /// Creates an error with the value and the reason.
    pub const fn new(value: T, error: TransportError) -> Self {
        Self { value, error }
    }
}

impl<T> std::fmt::Display for Rejected<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: std::fmt::Debug> std::error::Error for Rejected<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T> From<Rejected<T>> for TransportError {
    fn from(rejected: Rejected<T>) -> Self {
        rejected.error
    }
}
