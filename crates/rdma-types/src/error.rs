//! Errors from parsing and from range checks.

use core::error::Error;
use core::fmt;

/// A number that is too large or too small for its type.
///
/// # Examples
///
/// ```
/// use rdma_types::Psn;
///
/// let error = Psn::try_from(1 << 24).unwrap_err();
/// assert_eq!(error.to_string(), "PSN 16777216 is out of range: 0 to 16777215 are allowed");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OutOfRangeError {
    what: &'static str,
    value: u32,
    min: u32,
    max: u32,
}

crate::debug_messages!(struct OutOfRangeError { what, value, min, max });

impl OutOfRangeError {
    pub(crate) const fn new(what: &'static str, value: u32, min: u32, max: u32) -> Self {
        Self { what, value, min, max }
    }

    /// Returns the refused number.
    #[inline]
    pub const fn value(&self) -> u32 {
        self.value
    }
}

impl fmt::Display for OutOfRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, value, min, max } = self;
        write!(f, "{what} {value} is out of range: {min} to {max} are allowed")
    }
}

impl Error for OutOfRangeError {}

/// The text is not a valid [`Gid`](crate::Gid).
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseGidError;

crate::debug_messages!(struct ParseGidError);

impl fmt::Display for ParseGidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not a GID: write it as an IPv6 address, such as fe80::1, or ::ffff:192.0.2.1 for the \
             GID of an IPv4 address",
        )
    }
}

impl Error for ParseGidError {}

/// The text is not a valid [`Guid`](crate::Guid).
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseGuidError;

crate::debug_messages!(struct ParseGuidError);

impl fmt::Display for ParseGuidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a GUID: write four groups of four hex digits, such as 0011:2233:4455:6677")
    }
}

impl Error for ParseGuidError {}
