//! Guards that are counted in builds with debug assertions. Under a lock of the engine, no file of events or of a
//! capture may be read or written, and `membarrier(2)` may not be called.
//!
//! Other system calls are allowed and not checked. Examples are copies by the kernel in a turn, and the grace period
//! of a bind of type 1. A timer may also start or wake the fabric's thread.

pub(crate) type ControlGuard<'a, T> = Held<std::sync::MutexGuard<'a, T>>;

/// A guard of a lock of the engine. With debug assertions, each thread counts the guards that it holds.
#[derive(Debug)]
pub(crate) struct Held<G> {
    guard: G,
    #[cfg(all(debug_assertions, not(loom)))]
    _counted: counted::Counted,
}

impl<G> Held<G> {
    #[inline]
    pub(super) fn new(guard: G) -> Self {
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

/// Asserts, in builds with debug assertions, that this thread holds no lock of the engine. Callers are about to read
/// or write such a file, or to call `membarrier(2)`.
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

    /// Counts one lock while it lives. It stays on its thread, like guards.
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
