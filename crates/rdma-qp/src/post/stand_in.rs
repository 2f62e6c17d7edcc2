//! The object that data path functions are called on: the provider's own, or a stand-in.
//!
//! `ibv_post_send` and `ibv_poll_cq` use the function pointers of the object that they are called on. Therefore, an
//! extended queue pair or completion queue gets a stand-in whose pointers point to functions of this crate. Posting to
//! ordinary queue pairs, and polling ordinary queues, costs nothing extra.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use rdma_sys::{ibv_context, ibv_context_ops, ibv_cq, ibv_qp};

/// A C object whose first field points to its context.
pub(crate) trait Object: Default {}

impl Object for ibv_cq {}
impl Object for ibv_qp {}

/// The object that data path functions are called on.
pub(crate) struct Called<T: Object> {
    object: NonNull<T>,
    stands_in: bool,
}

/// The part of an object that data path functions read, followed by the data for the stand-in's functions.
#[repr(C)]
struct StandIn<T> {
    object: T,
    context: ibv_context,
    real: NonNull<T>,
    flags: u64,
}

// SAFETY: SAFETY.md F9: any thread may use the objects, and a stand-in never changes.
unsafe impl<T: Object> Send for Called<T> {}
// SAFETY: SAFETY.md F9: same argument as above.
unsafe impl<T: Object> Sync for Called<T> {}

impl<T: Object> Called<T> {
    /// Creates a `Called` without a stand-in: functions are called on the object itself.
    pub(crate) const fn itself(object: NonNull<T>) -> Self {
        Self { object, stands_in: false }
    }

    /// Creates a stand-in with these functions, which call [`real`] to get the real object.
    pub(crate) fn through(real: NonNull<T>, flags: u64, ops: ibv_context_ops) -> Self {
        let context = ibv_context { ops, ..ibv_context::default() };
        let stand_in = StandIn { object: T::default(), context, real, flags };
        let stand_in = NonNull::from(Box::leak(Box::new(stand_in)));
        // SAFETY: SAFETY.md F20: the stand-in was just created.
        let context = unsafe { &raw mut (*stand_in.as_ptr()).context };
        // SAFETY: SAFETY.md F5, F20: the stand-in begins with its object, and the object begins with the pointer to the
        // context.
        unsafe { stand_in.cast::<*mut ibv_context>().write(context) };
        Self { object: stand_in.cast(), stands_in: true }
    }

    pub(crate) const fn stands_in(&self) -> bool {
        self.stands_in
    }

    pub(crate) const fn address(&self) -> CalledAddress<T> {
        CalledAddress(self.object)
    }

    #[inline]
    pub(crate) const fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }
}

/// The address of a [`Called`]. Code that keeps it also keeps the owner of the `Called` alive.
pub(crate) struct CalledAddress<T: Object>(NonNull<T>);

// SAFETY: SAFETY.md F9: this is an address of an object that any thread may use.
unsafe impl<T: Object> Send for CalledAddress<T> {}
// SAFETY: SAFETY.md F9: same argument as above.
unsafe impl<T: Object> Sync for CalledAddress<T> {}

impl<T: Object> CalledAddress<T> {
    #[inline]
    pub(crate) const fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T: Object> Clone for CalledAddress<T> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

impl<T: Object> fmt::Debug for CalledAddress<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CalledAddress").finish_non_exhaustive()
    }
}

/// Returns the real object that a stand-in represents, and the stand-in's flags.
///
/// # Safety
/// `object` is the address of a live `Called` that was created by [`Called::through`].
pub(crate) unsafe fn real<T: Object>(object: *mut T) -> (*mut T, u64) {
    let stand_in = object.cast::<StandIn<T>>();
    // SAFETY: SAFETY.md F20: by this function's contract.
    let real = unsafe { (*stand_in).real };
    // SAFETY: SAFETY.md F20: same argument as above.
    let flags = unsafe { (*stand_in).flags };
    (real.as_ptr(), flags)
}

impl<T: Object> Drop for Called<T> {
    fn drop(&mut self) {
        if self.stands_in {
            // SAFETY: SAFETY.md F20: the memory was leaked when this was created, and is freed only here. Each clone of
            // a completion queue holds the memory's address (`CalledAddress`), but also keeps alive the `Inner` that
            // owns this `Called`. Therefore, no clone is left now.
            drop(unsafe { Box::from_raw(self.object.as_ptr().cast::<StandIn<T>>()) });
        }
    }
}

impl<T: Object> fmt::Debug for Called<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Called").field("stands_in", &self.stands_in).finish_non_exhaustive()
    }
}
