//! Errors of verbs.

use std::borrow::Cow;

use rdma_sys::Errno;

/// The error of a verb: the verb's name, the error number, and the usual cause.
///
/// ```
/// use rdma_mem::{Errno, VerbError};
///
/// let error = VerbError::new("ibv_alloc_pd", Errno::ENOMEM);
/// assert_eq!(error.to_string(), "ibv_alloc_pd: Cannot allocate memory (ENOMEM)");
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{verb}: {errno}{}{}", if .hint.is_some() { ": " } else { "" }, .hint.as_deref().unwrap_or(""))]
#[non_exhaustive]
pub struct VerbError {
    /// The function's name in C.
    pub verb: &'static str,
    /// The error number that the verb returned, or stored in `errno`.
    pub errno: Errno,
    /// The usual cause when this verb fails with this number, and the remedy, if known.
    pub hint: Option<Cow<'static, str>>,
}

rdma_types::debug_messages!(struct VerbError { verb, errno, hint });

impl VerbError {
    /// Creates an error without a hint.
    #[must_use]
    pub const fn new(verb: &'static str, errno: Errno) -> Self {
        Self { verb, errno, hint: None }
    }

    /// Returns the error with this hint, or without a hint if it is `None`.
    #[must_use]
    pub fn with_hint(mut self, hint: Option<Cow<'static, str>>) -> Self {
        self.hint = hint;
        self
    }
}
