//! The handle of one object of a provider.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use rdma_sys::Errno;

use crate::VerbError;

/// One object of a provider (`ibv_pd`, `ibv_qp` …), destroyed when dropped.
///
/// What the owners in this crate and in those above are made of; programs have no need for it. A
/// `Drop` that fails is one `tracing` event, and the object stays. To see the error, use
/// [`close`](Self::close).
///
/// An owner puts its handle first among its fields, so that it is destroyed before the parents, which
/// the other fields keep alive (SAFETY.md F6).
pub struct Handle<T> {
    raw: NonNull<T>,
    destroy: Destroy<T>,
    verb: &'static str,
}

type Destroy<T> = unsafe extern "C" fn(*mut T) -> c_int;

// SAFETY: SAFETY.md F9: the contract of `new` has an object that any thread may use and destroy.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: SAFETY.md F9: through `&Handle` one gets a pointer, and to use that is `unsafe`.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// Takes over the object at `raw`, which `destroy`, called `verb` in messages, destroys.
    ///
    /// # Safety
    /// `raw` is live; `destroy` is its provider's function for it, which returns an error number;
    /// nobody else calls that. Any thread may use and destroy the object. Until the handle is gone,
    /// the parents of the object stay alive, and when it is dropped or closed nobody uses the object
    /// any more.
    #[must_use]
    pub const unsafe fn new(raw: NonNull<T>, destroy: Destroy<T>, verb: &'static str) -> Self {
        Self { raw, destroy, verb }
    }

    /// The object. It is live as long as the handle.
    #[inline]
    #[must_use]
    pub const fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// Destroys the object.
    ///
    /// # Errors
    /// If the provider refuses, with the handle, whose object is as it was.
    pub fn close(self) -> Result<(), (Self, VerbError)> {
        let this = ManuallyDrop::new(self);
        this.destroy().map_err(|error| (ManuallyDrop::into_inner(this), error))
    }

    fn destroy(&self) -> Result<(), VerbError> {
        // SAFETY: SAFETY.md F1, F2: live and of this provider by the contract of `new`; the two
        // callers have the handle by value or in `Drop`, so it happens once.
        let returned = unsafe { (self.destroy)(self.raw.as_ptr()) };
        Errno::check(returned).map_err(|errno| VerbError::new(self.verb, errno))
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            tracing::error!(%error, object = ?self.raw, "an RDMA object could not be destroyed");
        }
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::*;

    /// An object whose destruction fails as often as its number says, then succeeds.
    unsafe extern "C" fn destroy(object: *mut AtomicI32) -> c_int {
        // SAFETY: SAFETY.md F1: the tests pass a live object.
        let object = unsafe { &*object };
        if object.fetch_sub(1, Ordering::Relaxed) > 0 { Errno::EBUSY.raw() } else { 0 }
    }

    fn handle(object: &AtomicI32) -> Handle<AtomicI32> {
        // SAFETY: SAFETY.md F1: the object outlives the handle, and is used through atomics only.
        unsafe { Handle::new(NonNull::from(object), destroy, "destroy") }
    }

    #[test]
    fn a_refused_close_gives_the_handle_back() {
        let object = AtomicI32::new(1);
        let (back, error) = handle(&object).close().unwrap_err();
        assert_eq!(error, VerbError::new("destroy", Errno::EBUSY));
        back.close().unwrap();
        assert_eq!(object.into_inner(), -1, "two calls, and none by Drop");
    }

    #[test]
    fn drop_destroys_once_and_never_panics() {
        for failures in [0, 1] {
            let object = AtomicI32::new(failures);
            drop(handle(&object));
            assert_eq!(object.into_inner(), failures - 1);
        }
    }
}
