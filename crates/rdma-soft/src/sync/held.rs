//! Guards that are counted in builds with debug assertions. A thread that holds an engine lock must not read or write
//! an event file or a capture file, nor register for `membarrier(2)`.
//!
//! Other system calls are allowed and not checked. For example, a turn may copy through the kernel, and a type 1 bind
//! waits for a grace period. A timer may also start or wake the fabric's thread.

pub(crate) type ControlGuard<'a, T> = Held<std::sync::MutexGuard<'a, T>>;

/// A guard for an engine lock. With debug assertions, each thread counts the guards that it holds.
#[derive(Debug)]
pub(crate) struct Held<G> {
    guard: G,
    #[cfg(all(debug_assertions, not(loom)))]
    _counted: counted::Counted,
}

impl<G> Held<G> {
    #[inline]
    pub(crate) fn new(guard: G) -> Self {
        Self {
            guard,
            #[cfg(all(debug_assertions, not(loom)))]
            _counted: counted::Counted::new(),
        }
    }
}

impl<G: std::ops::Deref> std::ops::Deref for Held<G> {
    type Target = G::Target;
    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: std::ops::DerefMut> std::ops::DerefMut for Held<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// Asserts, in builds with debug assertions, that this thread holds no engine lock. Called before reading or writing an
/// event file or a capture file, and before registering for `membarrier(2)`.
#[cfg(not(all(test, loom)))]
#[inline]
pub(crate) fn assert_nothing_held() {
    #[cfg(all(debug_assertions, not(loom)))]
    assert_eq!(counted::held(), 0, "a system call under a lock of the engine");
}

#[cfg(all(debug_assertions, not(loom)))]
mod counted {
    use std::cell::Cell;
    use std::marker::PhantomData;

    thread_local! {
        static HELD: Cell<u32> = const { Cell::new(0) };
    }

    pub(super) fn held() -> u32 {
        HELD.get()
    }

    /// Counts one lock until it is dropped. Like a guard, it cannot move to another thread.
    #[derive(Debug)]
    pub(super) struct Counted(PhantomData<*const ()>);

    impl Counted {
        pub(super) fn new() -> Self {
            HELD.set(HELD.get() + 1);
            Self(PhantomData)
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            HELD.set(HELD.get() - 1);
        }
    }
}
