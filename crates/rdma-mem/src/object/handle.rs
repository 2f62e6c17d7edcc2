//! The handle to a provider's object, with the values that must outlive the object.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{Errno, Process};

use crate::error::Error;
use crate::error::verb::VerbError;
use crate::object::forked::{self, Forked};
use crate::object::ownership::Ownership;

/// A provider's object (`ibv_pd`, `ibv_qp` …) with the values that it needs: `P` holds its parents,
/// or its memory. Dropping the handle destroys the object.
///
/// The owners in this crate and in `rdma-qp` are built from handles; programs do not need this
/// type. `P` is dropped after the object is destroyed (SAFETY.md F6). If destroying the object
/// fails, `Drop` emits one `tracing` event and leaks both, because the device may still use them.
/// To get the error instead, use [`close`](Self::close).
///
/// In a forked child, nothing is destroyed and `P` is not dropped. For a [borrowed](Self::from_raw)
/// object, only `P` is dropped.
pub struct Handle<T, P> {
    raw: NonNull<T>,
    destroy: Destroy<T>,
    verb: &'static str,
    process: Process,
    needs: ManuallyDrop<P>,
}

type Destroy<T> = unsafe extern "C" fn(*mut T) -> c_int;

// SAFETY: SAFETY.md F9: by the contract of `new`, any thread may use and destroy the object.
unsafe impl<T, P: Send> Send for Handle<T, P> {}
// SAFETY: SAFETY.md F9: a `&Handle` gives access only to a pointer, and using the pointer is
// `unsafe`.
unsafe impl<T, P: Sync> Sync for Handle<T, P> {}

impl<T, P> Handle<T, P> {
    /// Takes ownership of the object at `raw`. `destroy` is the function that destroys it, and
    /// `verb` is that function's name in messages.
    ///
    /// # Safety
    /// `raw` points to a live object. `destroy` is the provider's function that destroys the
    /// object, and returns 0 or an error number. No other code calls that function on the object.
    /// Any thread may use and destroy the object. `needs` keeps alive everything that the object
    /// requires. When the handle is dropped or closed, the object is no longer in use.
    #[must_use]
    pub unsafe fn new(raw: NonNull<T>, destroy: Destroy<T>, verb: &'static str, needs: P) -> Self {
        let process = Process::current();
        Self { raw, destroy, verb, process, needs: ManuallyDrop::new(needs) }
    }

    /// Like [`new`](Self::new), but for an object that was created elsewhere. `destroy` is called
    /// only if the object is owned.
    ///
    /// # Safety
    /// The contract of [`new`](Self::new) applies. If the object is borrowed, other code destroys
    /// it, but only after the handle is dropped or closed.
    #[must_use]
    pub unsafe fn from_raw(
        raw: NonNull<T>,
        destroy: Destroy<T>,
        verb: &'static str,
        needs: P,
        ownership: Ownership,
    ) -> Self {
        let destroy = match ownership {
            Ownership::Owned => destroy,
            Ownership::Borrowed => leave,
        };
        // SAFETY: SAFETY.md F1: the caller upholds the same contract.
        unsafe { Self::new(raw, destroy, verb, needs) }
    }

    /// Checks that this process created the object. Operations outside the data path call this
    /// first.
    ///
    /// # Errors
    /// Returns an error in a child that was forked after the object was created.
    #[inline]
    pub fn check_process(&self) -> Result<(), Forked> {
        forked::check(self.process)
    }

    /// Returns the object, which stays alive until the handle is dropped or closed.
    #[inline]
    #[must_use]
    pub const fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// Returns the parents or the memory that the object needs.
    #[inline]
    #[must_use]
    pub fn needs(&self) -> &P {
        &self.needs
    }

    /// Returns mutable access to the values that the object needs. The caller may replace them with
    /// equivalent ones.
    #[inline]
    pub(crate) fn needs_mut(&mut self) -> &mut P {
        &mut self.needs
    }

    /// Destroys the object, and returns the values that it needed.
    ///
    /// # Errors
    /// Returns the handle with the unchanged object, and the error: [`Error::Verb`] if the provider
    /// refuses, or [`Error::Forked`] in a forked child.
    #[allow(clippy::result_large_err)] // it is the handle itself
    pub fn close(self) -> Result<P, (Self, Error)> {
        if let Err(forked) = self.check_process() {
            return Err((self, forked.into()));
        }
        let mut this = ManuallyDrop::new(self);
        match this.destroy() {
            // SAFETY: SAFETY.md F6: the object is destroyed, and `this` is neither used nor dropped
            // afterwards.
            Ok(()) => Ok(unsafe { ManuallyDrop::take(&mut this.needs) }),
            Err(error) => Err((ManuallyDrop::into_inner(this), error.into())),
        }
    }

    /// Like [`close`](Self::close), but for an object that can be cloned. Fails unless `this` is
    /// the last clone and no object created from it is alive.
    pub(crate) fn close_last(
        this: Arc<Self>,
        what: &'static str,
    ) -> Result<(), (Arc<Self>, Error)> {
        match Arc::try_unwrap(this) {
            Ok(handle) => {
                handle.close().map(drop).map_err(|(handle, error)| (handle.into(), error))
            }
            Err(shared) => Err((shared, Error::StillUsed { what })),
        }
    }

    fn destroy(&self) -> Result<(), VerbError> {
        // SAFETY: SAFETY.md F1, F2: by the contract of `new`, the object is live and belongs to
        // this provider. Both callers own the handle (by value, or in `Drop`), so the object is
        // destroyed at most once.
        let returned = unsafe { (self.destroy)(self.raw.as_ptr()) };
        Errno::check(returned).map_err(|errno| VerbError::new(self.verb, errno))
    }
}

/// The destroy function of a borrowed object, which leaves the object alone.
unsafe extern "C" fn leave<T>(_: *mut T) -> c_int {
    0
}

impl<T, P> Drop for Handle<T, P> {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            return;
        }
        match self.destroy() {
            // SAFETY: SAFETY.md F6, F8: the object is destroyed, and the field is not used again.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.needs) },
            Err(error) => tracing::error!(
                %error,
                object = ?self.raw,
                "an RDMA object could not be destroyed: it is leaked, with its parents and memory"
            ),
        }
    }
}

impl<T, P: fmt::Debug> fmt::Debug for Handle<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("raw", &self.raw).field("needs", &*self.needs).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::*;

    /// Destroys an object. The object's number is the number of calls that fail before one
    /// succeeds.
    unsafe extern "C" fn destroy(object: *mut AtomicI32) -> c_int {
        // SAFETY: SAFETY.md F1: the tests pass a live object.
        let object = unsafe { &*object };
        if object.fetch_sub(1, Ordering::Relaxed) > 0 { Errno::EBUSY.raw() } else { 0 }
    }

    fn handle(object: &AtomicI32, needs: &Rc<()>) -> Handle<AtomicI32, Rc<()>> {
        // SAFETY: SAFETY.md F1: the object outlives the handle, and is accessed only atomically.
        unsafe { Handle::new(NonNull::from(object), destroy, "destroy", Rc::clone(needs)) }
    }

    #[test]
    fn a_refused_close_gives_the_handle_back() {
        let (object, needs) = (AtomicI32::new(1), Rc::new(()));
        let (back, error) = handle(&object, &needs).close().unwrap_err();
        let Error::Verb(error) = error else { panic!("{error}") };
        assert_eq!(error, VerbError::new("destroy", Errno::EBUSY));
        assert_eq!(Rc::strong_count(back.needs()), 2);
        drop(back.close().unwrap());
        assert_eq!(Rc::strong_count(&needs), 1);
        assert_eq!(object.into_inner(), -1, "two calls, and none by Drop");
    }

    #[test]
    fn a_borrowed_object_is_not_destroyed_and_releases_its_needs() {
        for (ownership, calls) in [(Ownership::Owned, 1), (Ownership::Borrowed, 0)] {
            let (object, needs) = (AtomicI32::new(0), Rc::new(()));
            let handle = || {
                let (raw, needs) = (NonNull::from(&object), Rc::clone(&needs));
                // SAFETY: SAFETY.md F1: the object outlives the handle, and is accessed only
                // atomically.
                unsafe { Handle::from_raw(raw, destroy, "destroy", needs, ownership) }
            };
            drop(handle());
            assert_eq!((object.load(Ordering::Relaxed), Rc::strong_count(&needs)), (-calls, 1));
            drop(handle().close().unwrap());
            assert_eq!((object.load(Ordering::Relaxed), Rc::strong_count(&needs)), (-2 * calls, 1));
        }
    }

    #[test]
    fn drop_destroys_once_and_keeps_what_a_living_object_needs() {
        for failures in [0, 1] {
            let (object, needs) = (AtomicI32::new(failures), Rc::new(()));
            drop(handle(&object, &needs));
            assert_eq!(object.into_inner(), failures - 1);
            assert_eq!(Rc::strong_count(&needs), if failures == 0 { 1 } else { 2 });
            // SAFETY: SAFETY.md F1: this releases the `Rc` count that the handle leaked.
            (failures == 1).then(|| unsafe { Rc::decrement_strong_count(Rc::as_ptr(&needs)) });
        }
    }
}
