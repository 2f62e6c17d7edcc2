//! Semaphores of the C library.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::c_int;

/// A semaphore whose waits are cancellation points. The kernel restarts a wait after a signal whose handler has
/// `SA_RESTART`, like a call of its rdma_cm. It never restarts poll(2).
pub(crate) struct Semaphore(Box<UnsafeCell<libc::sem_t>>);

// SAFETY: any thread may call the functions below with a semaphore at the same time (sem_post(3), sem_wait(3),
// SAFETY.md F15).
unsafe impl Send for Semaphore {}
// SAFETY: as above.
unsafe impl Sync for Semaphore {}

impl Semaphore {
    pub(crate) fn new() -> Self {
        // SAFETY: a semaphore consists of integers, so all-zero bytes are valid (SAFETY.md F4).
        let semaphore = Box::new(UnsafeCell::new(unsafe { std::mem::zeroed() }));
        // SAFETY: the call writes the semaphore, which does not move again (sem_init(3), SAFETY.md F15).
        let result = unsafe { libc::sem_init(semaphore.get(), 0, 0) };
        debug_assert_eq!(result, 0, "the value is 0, and no other process uses the semaphore");
        Self(semaphore)
    }

    /// Adds one to the value if it is less than `most`. One thread at a time calls this.
    pub(crate) fn post_up_to(&self, most: u32) {
        let mut value: c_int = 0;
        // SAFETY: the call writes one integer (sem_getvalue(3), SAFETY.md F15).
        let result = unsafe { libc::sem_getvalue(self.0.get(), &raw mut value) };
        debug_assert_eq!(result, 0, "the semaphore is valid");
        if i64::from(value) < i64::from(most) {
            // SAFETY: the semaphore is initialised (sem_post(3), SAFETY.md F15).
            let result = unsafe { libc::sem_post(self.0.get()) };
            debug_assert_eq!(result, 0, "the value is far below its maximum");
        }
    }

    /// Waits until the value is positive, and subtracts one. Returns the error number after a signal whose handler does
    /// not have `SA_RESTART`.
    pub(crate) fn wait(&self) -> Result<(), c_int> {
        // SAFETY: the semaphore is initialised (sem_wait(3), SAFETY.md F15).
        match unsafe { libc::sem_wait(self.0.get()) } {
            0 => Ok(()),
            _ => Err(rdma_sys::Errno::last().raw()),
        }
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        // SAFETY: no thread uses the semaphore any more (sem_destroy(3), SAFETY.md F15).
        let result = unsafe { libc::sem_destroy(self.0.get()) };
        debug_assert_eq!(result, 0, "the semaphore is valid");
    }
}
