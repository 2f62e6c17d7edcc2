//! Guards that are counted where debug assertions are on, so that no descriptor of events or of a capture is read
//! or written under a lock, and the kernel is asked for `membarrier(2)` under none.
//!
//! Of other system calls nothing is asserted: the kernel copies for a turn, a bind of type 1 waits for a grace
//! period, and a timer starts the fabric's thread or wakes it, with locks of the engine held.

pub(crate) type ControlGuard<'a, T> = Held<std::sync::MutexGuard<'a, T>>;

/// A guard of a lock of the engine. Where debug assertions are on, a thread knows how many it has.
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

/// Asserts, where debug assertions are on, that this thread holds no lock of the engine, since it is about to make one
/// of the system calls above.
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

    /// One more lock, as long as it lives. It stays on its thread, as guards do.
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
