//! A flag for a thread that runs until other threads have ended.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag when dropped, even by a panic. So a thread that waits for the flag ends in any case,
/// and the test fails instead of hanging.
///
/// # Examples
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use test_support::flag::SetWhenDropped;
///
/// let done = AtomicBool::new(false);
/// std::thread::scope(|scope| {
///     let watch = scope.spawn(|| while !done.load(Ordering::Acquire) {});
///     let works = SetWhenDropped(&done);
///     // ... what is watched, which may panic
///     drop(works);
///     watch.join().unwrap();
/// });
/// ```
#[derive(Debug)]
pub struct SetWhenDropped<'a>(pub &'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
