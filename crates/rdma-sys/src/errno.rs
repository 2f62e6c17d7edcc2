//! Error numbers, and conversions from the ways in which verbs report them.
//!
//! libibverbs has three conventions, and each function's manual page states which one it follows:
//!
//! | C returns | used by | checked with |
//! |---|---|---|
//! | the error number, 0 for success | most verbs, and the data path | [`Errno::check`] |
//! | -1, the number in `errno` | `ibv_get_cq_event`, `ibv_query_gid`, `ibv_query_pkey` … | [`Errno::check_minus_one`] |
//! | NULL, the number in `errno` | functions that create an object | [`Errno::check_null`] |
//!
//! Two functions return a count. On failure, `ibv_poll_cq` returns a negative value that is not an
//! error number ([`Errno::check_poll`]); `ibv_query_gid_table` returns a negated error number
//! ([`Errno::check_count`]).

#![allow(unsafe_code)]

use std::{ffi::c_int, fmt, io, ptr::NonNull};

/// An error number of the C library, that is, a value of `errno`.
///
/// Every value is allowed: a number without a name in this crate is kept and printed.
///
/// ```
/// use rdma_sys::Errno;
///
/// let errno = Errno::from_raw(22);
/// assert_eq!(errno, Errno::EINVAL);
/// assert_eq!(errno.to_string(), "Invalid argument (EINVAL)");
/// assert_eq!(std::io::Error::from(errno).kind(), std::io::ErrorKind::InvalidInput);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(c_int);

macro_rules! names {
    ($($name:ident)+) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "`, see errno(3).")]
                pub const $name: Self = Self(libc::$name);
            )+

            /// Returns the number's name in C, or `None` if verbs do not return this number.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $(libc::$name => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }
    };
}

names! {
    EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV ENOTDIR
    EINVAL ENFILE EMFILE ENOTTY EFBIG ENOSPC EROFS EPIPE ERANGE EDEADLK ENOSYS ENODATA ETIME ENOLINK
    EPROTO EOVERFLOW EBADMSG EMSGSIZE EPROTONOSUPPORT EOPNOTSUPP EADDRINUSE EADDRNOTAVAIL ENETDOWN
    ENETUNREACH ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ETIMEDOUT ECONNREFUSED EHOSTUNREACH
    EALREADY EINPROGRESS ESTALE EREMOTEIO ECANCELED EKEYREJECTED
}

impl Errno {
    /// Returns the number itself.
    #[must_use]
    pub const fn raw(self) -> c_int {
        self.0
    }

    /// Creates an `Errno` from any number, including one without a name.
    #[must_use]
    pub const fn from_raw(number: c_int) -> Self {
        Self(number)
    }

    /// Returns the value of `errno` after this thread's last failed call.
    ///
    /// Returns [`Errno::EIO`] if `errno` is 0: the call failed, but gave no reason.
    #[must_use]
    pub fn last() -> Self {
        match io::Error::last_os_error().raw_os_error() {
            None | Some(0) => Self::EIO,
            Some(number) => Self(number),
        }
    }

    /// Stores the number in this thread's `errno`, as a C function does before it returns NULL or
    /// -1.
    #[doc(alias = "errno")]
    pub fn set(self) {
        // SAFETY: the call has no precondition (SAFETY.md F1); the C library has an `errno` for
        // each thread.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: the pointer is to this thread's own `errno`, which lives as long as the thread
        // (SAFETY.md F1).
        unsafe { place.write(self.0) };
    }

    /// Checks the result of a function that returns an error number, or 0 for success.
    ///
    /// A correct provider never returns a negative value. -1 is interpreted as "the number is in
    /// `errno`", any other negative value as a negated number.
    ///
    /// # Errors
    /// Returns an error if `returned` is not 0.
    #[inline]
    pub fn check(returned: c_int) -> Result<(), Self> {
        if returned == 0 { Ok(()) } else { Err(Self::of_nonzero(returned)) }
    }

    #[cold]
    fn of_nonzero(returned: c_int) -> Self {
        match returned {
            -1 => Self::last(),
            number => Self(number.saturating_abs()),
        }
    }

    /// Checks the result of a function that returns -1 and sets `errno`. A non-negative result is a
    /// value.
    ///
    /// # Errors
    /// Returns an error if `returned` is negative.
    #[inline]
    pub fn check_minus_one(returned: c_int) -> Result<c_int, Self> {
        if returned < 0 { Err(Self::last()) } else { Ok(returned) }
    }

    /// Checks the result of a function that returns NULL and sets `errno`.
    ///
    /// # Errors
    /// Returns an error if `returned` is NULL.
    #[inline]
    pub fn check_null<T>(returned: *mut T) -> Result<NonNull<T>, Self> {
        NonNull::new(returned).ok_or_else(Self::last)
    }

    /// Checks the result of `ibv_poll_cq`, the number of completions.
    ///
    /// # Errors
    /// [`Errno::EIO`] for every negative value. Providers return -1, -2 or a negated number and do
    /// not set `errno`; the manual page specifies only the sign.
    #[inline]
    pub fn check_poll(returned: c_int) -> Result<usize, Self> {
        usize::try_from(returned).map_err(|_| Self::EIO)
    }

    /// Checks the result of a function such as `ibv_query_gid_table`, which returns a count or a
    /// negated error number.
    ///
    /// # Errors
    /// Returns an error if `returned` is negative.
    #[inline]
    pub fn check_count(returned: isize) -> Result<usize, Self> {
        usize::try_from(returned)
            .map_err(|_| Self(c_int::try_from(returned.saturating_neg()).unwrap_or(libc::EIO)))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = io::Error::from_raw_os_error(self.0).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        match self.name() {
            Some(name) => write!(f, "{text} ({name})"),
            None => write!(f, "{text} (errno {})", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            _ if !f.alternate() => fmt::Display::fmt(self, f),
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_number_is_the_error() {
        assert_eq!(Errno::check(0), Ok(()));
        assert_eq!(Errno::check(libc::ENOMEM), Err(Errno::ENOMEM));
        assert_eq!(Errno::check(-libc::EBUSY), Err(Errno::EBUSY));
        assert_eq!(Errno::check(c_int::MIN), Err(Errno(c_int::MAX)));
    }

    #[test]
    fn minus_one_is_never_eperm() {
        Errno::ENODEV.set();
        assert_eq!(Errno::check(-1), Err(Errno::ENODEV));
        assert_eq!(Errno::check_minus_one(-1), Err(Errno::ENODEV));
        assert_eq!(Errno::check_minus_one(7), Ok(7));
        assert_eq!(Errno::check_poll(-1), Err(Errno::EIO));
        assert_eq!(Errno::check_poll(3), Ok(3));
    }

    #[test]
    fn a_failure_without_a_number_is_still_a_failure() {
        Errno(0).set();
        assert_eq!(Errno::check_null::<u8>(std::ptr::null_mut()), Err(Errno::EIO));
    }

    #[test]
    fn counts_carry_a_negated_number() {
        assert_eq!(Errno::check_count(4), Ok(4));
        assert_eq!(Errno::check_count(-95), Err(Errno::EOPNOTSUPP));
        assert_eq!(Errno::check_count(isize::MIN), Err(Errno::EIO));
    }

    #[test]
    fn unknown_numbers_are_data() {
        assert_eq!(Errno::from_raw(4095).name(), None);
        assert!(Errno::from_raw(4095).to_string().ends_with("(errno 4095)"));
    }
}
