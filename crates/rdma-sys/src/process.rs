//! Which process this is, so that a forked child knows what is its parent's; without a system call.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// A process, which is another one than those that are forked from it.
///
/// What a provider makes belongs to the process that asked for it: a forked child has a copy that no device knows,
/// and must neither use nor destroy it. Whoever makes such an object keeps [`Process::current`] beside it, and asks
/// [`is_current`](Self::is_current) before the object is used. That makes no system call: the kernel wipes a word
/// of a forked child (`MADV_WIPEONFORK`, see `man madvise`; where it is refused, a handler of `pthread_atfork` does,
/// which a child of a bare `clone` call does not run), and a child that finds it wiped counts itself.
///
/// ```
/// use rdma_sys::Process;
///
/// let made_by = Process::current();
/// assert!(made_by.is_current());
/// assert_eq!(made_by.id(), std::process::id());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    generation: u32,
    id: u32,
}

impl Process {
    /// This process.
    #[must_use]
    pub fn current() -> Self {
        // First of all, since it settles what the number is.
        let generation = THIS.generation();
        let id = THIS.id.load(Ordering::Relaxed);
        Self { generation, id }
    }

    /// Returns true if this process is that one, and not forked from it.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        THIS.mark().load(Ordering::Acquire) == self.generation
            || THIS.is_counted_as(self.generation)
    }

    /// Its number (PID).
    #[must_use]
    pub const fn id(self) -> u32 {
        self.id
    }
}

static THIS: This = This::new();

/// What a mark says that is no generation. 0 where nobody has set it, as in a child.
const UNSET: u32 = 0;
/// A thread of this process counts it.
const COUNTING: u32 = u32::MAX - 1;
/// There is nothing that is wiped: the number of the process is its generation.
const UNKNOWN: u32 = u32::MAX;

struct This {
    /// A word that has the generation of this process, and that a forked child finds wiped.
    mark: AtomicPtr<AtomicU32>,
    /// How many processes have counted themselves, from the first to this one.
    generation: AtomicU32,
    id: AtomicU32,
}

impl This {
    const fn new() -> Self {
        let mark = AtomicPtr::new(ptr::from_ref(&FIRST_MARK).cast_mut());
        Self { mark, generation: AtomicU32::new(0), id: AtomicU32::new(0) }
    }

    fn generation(&self) -> u32 {
        match self.mark().load(Ordering::Acquire) {
            UNSET | COUNTING | UNKNOWN => self.count(),
            generation => generation,
        }
    }

    /// Returns true if this is the generation of a child that may not have counted itself yet.
    #[cold]
    #[inline(never)]
    fn is_counted_as(&self, generation: u32) -> bool {
        self.generation() == generation
    }

    /// The word, or one that nobody has set.
    #[inline]
    fn mark(&self) -> &'static AtomicU32 {
        // SAFETY: SAFETY.md F15: a word that is aligned, is never unmapped, and is used as an atomic alone. It is
        // there before its address: the store of that releases what this acquires.
        unsafe { &*self.mark.load(Ordering::Acquire) }
    }

    /// Counts this process, unless another thread has.
    #[cold]
    fn count(&self) -> u32 {
        let mark = self.own_mark();
        loop {
            match mark.compare_exchange(UNSET, COUNTING, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    self.id.store(std::process::id(), Ordering::Relaxed);
                    let generation = self.generation.load(Ordering::Relaxed).wrapping_add(1);
                    self.generation.store(generation, Ordering::Relaxed);
                    mark.store(generation, Ordering::Release);
                    return generation;
                }
                Err(UNKNOWN) => {
                    let id = std::process::id();
                    self.id.store(id, Ordering::Relaxed);
                    return id;
                }
                // If a fork comes in between, the child finds it unset.
                Err(COUNTING) => std::thread::yield_now(),
                Err(generation) => return generation,
            }
        }
    }

    /// The mark, which the first one to ask makes.
    fn own_mark(&self) -> &'static AtomicU32 {
        let first = ptr::from_ref(&FIRST_MARK).cast_mut();
        let mark = self.mark();
        if !ptr::eq(mark, first) {
            return mark;
        }
        let own = wiped_by_kernel().or_else(wiped_by_handler).unwrap_or(&NO_MARK);
        let new = ptr::from_ref(own).cast_mut();
        // Of several threads that come first, the mark of one is taken; those of the others stay unused.
        match self.mark.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => own,
            Err(_) => self.mark(),
        }
    }
}

/// What stays unset, until there is a mark.
static FIRST_MARK: AtomicU32 = AtomicU32::new(UNSET);
static NO_MARK: AtomicU32 = AtomicU32::new(UNKNOWN);

/// A word of a page that is zeros in a child.
fn wiped_by_kernel() -> Option<&'static AtomicU32> {
    const LENGTH: usize = size_of::<AtomicU32>();
    if cfg!(miri) {
        return None; // it knows no such advice
    }
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: SAFETY.md F15: new memory, at no address that is in use.
    let page = unsafe { libc::mmap(ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: SAFETY.md F15: the mapping above, whose whole page it means; the advice changes no byte here.
    let advise = |advice| unsafe { libc::madvise(page, LENGTH, advice) };
    // An emulator may take any advice and follow none: one that no kernel knows.
    if advise(-1) == 0 || advise(libc::MADV_WIPEONFORK) != 0 {
        // SAFETY: SAFETY.md F15: the mapping above, which nothing refers to.
        unsafe { libc::munmap(page, LENGTH) };
        return None;
    }
    // SAFETY: SAFETY.md F15: mapped for reading and writing, aligned to a page, zeroed, never unmapped, and from
    // now on used as an atomic alone.
    Some(unsafe { &*page.cast::<AtomicU32>() })
}

/// A word that is set to zero in a child before `fork` returns.
fn wiped_by_handler() -> Option<&'static AtomicU32> {
    static MARK: AtomicU32 = AtomicU32::new(UNSET);
    extern "C" fn wipe() {
        MARK.store(UNSET, Ordering::Relaxed);
    }
    if cfg!(miri) {
        return None; // nothing forks there
    }
    // SAFETY: SAFETY.md F15: the handler runs in a child, where it stores to an atomic. It is never unloaded: what
    // is linked into a library that can be has its handlers removed with it (pthread_atfork(3)).
    let errno = unsafe { libc::pthread_atfork(None, None, Some(wipe)) };
    (errno == 0).then_some(&MARK)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    /// Runs a check in a forked child, and in a child of that.
    fn in_descendants(check: &dyn Fn() -> bool) {
        // SAFETY: SAFETY.md F15: the child calls what waits for no other thread, and ends below.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "no child");
        if pid == 0 {
            // SAFETY: SAFETY.md F15: it ends a child that hangs, and this one.
            unsafe { libc::alarm(20) };
            let status = i32::from(!check());
            // SAFETY: SAFETY.md F15: nothing else runs in this child.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: SAFETY.md F15: the child of this process, and room for its status.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0, "what the child saw");
    }

    /// Parent, child and grandchild differ, and each stays what it is, also if it asks for the first time.
    fn descendants_differ(this: &'static This) {
        let parent = this.generation();
        in_descendants(&|| {
            let child = this.generation();
            let own = this.id.load(Ordering::Relaxed) == std::process::id();
            in_descendants(&|| ![parent, child].contains(&this.generation()));
            own && child != parent && child == this.generation()
        });
        in_descendants(&|| {
            in_descendants(&|| this.generation() != parent);
            this.generation() != parent
        });
        assert_eq!(this.generation(), parent);
    }

    #[test]
    fn forked_processes_differ_by_the_wiped_page() {
        static OF_KERNEL: This = This::new();
        // Refused before Linux 4.14, and by some emulators: then the next test tells them apart.
        let Some(mark) = wiped_by_kernel() else { return };
        OF_KERNEL.mark.store(ptr::from_ref(mark).cast_mut(), Ordering::Release);
        descendants_differ(&OF_KERNEL);
    }

    #[test]
    fn forked_processes_differ_by_the_handler() {
        static BY_HANDLER: This = This::new();
        let mark = wiped_by_handler().expect("there is memory for a handler");
        BY_HANDLER.mark.store(ptr::from_ref(mark).cast_mut(), Ordering::Release);
        descendants_differ(&BY_HANDLER);
    }

    #[test]
    fn forked_processes_differ_by_their_numbers() {
        static BY_NUMBER: This = This::new();
        BY_NUMBER.mark.store(ptr::from_ref(&NO_MARK).cast_mut(), Ordering::Release);
        descendants_differ(&BY_NUMBER);
    }

    /// Also those that come first.
    #[test]
    fn all_threads_are_of_one_process() {
        for _ in 0..100 {
            let (this, begin) = (Arc::new(This::new()), Arc::new(Barrier::new(4)));
            // The word of the handler is one for all: another one, in place of it.
            let mark = wiped_by_kernel().unwrap_or_else(|| Box::leak(Box::default()));
            this.mark.store(ptr::from_ref(mark).cast_mut(), Ordering::Release);
            let ask = || {
                let (this, begin) = (Arc::clone(&this), Arc::clone(&begin));
                std::thread::spawn(move || {
                    begin.wait();
                    this.generation()
                })
            };
            let threads: [_; 4] = std::array::from_fn(|_| ask());
            let generations = threads.map(|thread| thread.join().unwrap_or(0));
            assert!(generations.iter().all(|&seen| seen == this.generation() && seen != 0));
        }
    }
}
