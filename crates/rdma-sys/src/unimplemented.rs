//! The functions of [`Verbs::unsupported`](crate::Verbs::unsupported). Each reports its error in
//! the same way as the function that it replaces.

use std::{
    ffi::{c_char, c_int},
    ptr::null_mut,
};

use crate::errno::Errno;

/// The result of an unimplemented function; `R` is its return type.
pub(crate) trait Unimplemented<R> {
    fn refuse() -> R;
}

/// Returns `ENOSYS`, and also stores it in `errno`.
pub(crate) struct Number;
/// Returns -1 and sets `errno` to `ENOSYS`.
pub(crate) struct MinusOne;
/// Returns NULL and sets `errno` to `ENOSYS`.
pub(crate) struct Null;
/// Returns a text that states the failure, because C programs print the result unchecked.
pub(crate) struct Text;
/// Returns 0, where C has no way to report an error.
pub(crate) struct Zero;
/// Does nothing.
pub(crate) struct Nothing;

impl Unimplemented<c_int> for Number {
    fn refuse() -> c_int {
        Errno::ENOSYS.set();
        libc::ENOSYS
    }
}

impl Unimplemented<c_int> for MinusOne {
    fn refuse() -> c_int {
        Errno::ENOSYS.set();
        -1
    }
}

impl<T> Unimplemented<*mut T> for Null {
    fn refuse() -> *mut T {
        Errno::ENOSYS.set();
        null_mut()
    }
}

impl Unimplemented<*const c_char> for Text {
    fn refuse() -> *const c_char {
        c"unsupported".as_ptr()
    }
}

impl Unimplemented<u64> for Zero {
    fn refuse() -> u64 {
        0
    }
}

impl Unimplemented<()> for Nothing {
    fn refuse() {}
}

/// Provides, for each C function type, a function that fails in the way that `K` defines.
pub(crate) trait Refuse<K> {
    const REFUSE: Self;
}

macro_rules! refuse {
    ($($argument:ident)*) => {
        impl<K: Unimplemented<R>, R $(, $argument)*> Refuse<K> for unsafe extern "C" fn($($argument),*) -> R {
            const REFUSE: Self = {
                extern "C" fn refuse<K: Unimplemented<R>, R $(, $argument)*>($(_: $argument),*) -> R {
                    K::refuse()
                }
                refuse::<K, R $(, $argument)*>
            };
        }
    };
}

refuse!();
refuse!(A);
refuse!(A B);
refuse!(A B C);
refuse!(A B C D);
refuse!(A B C D E);
refuse!(A B C D E F);
