//! Identity of this process, so that a forked child recognises the objects of its parent, without a
//! system call.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// A process, distinct from those that are forked from it.
///
/// Objects that a provider creates belong to the process that requested them. A forked child has copies, which no
/// device knows, and must neither use nor destroy them. The code that creates such an object keeps [`Process::current`]
/// with it, and checks [`is_current`](Self::is_current) before it uses the object.
///
/// The check makes no system call. The kernel clears a word of memory in a forked child (`MADV_WIPEONFORK`, see
/// `man madvise`), and a child that finds it cleared counts itself. Where the kernel refuses that advice, a handler of
/// `pthread_atfork` clears the word. A child of a bare `clone` call does not run this handler.
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
    /// Returns this process.
    #[must_use]
    pub fn current() -> Self {
        // This has to be first, since it determines the number.
        let generation = THIS.generation();
        let id = THIS.id.load(Ordering::Relaxed);
        Self { generation, id }
    }

    /// Returns true if this value is the current process and not an ancestor that forked it.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        THIS.mark().load(Ordering::Acquire) == self.generation
            || THIS.is_counted_as(self.generation)
    }

    /// Returns the process ID (PID).
    #[must_use]
    pub const fn id(self) -> u32 {
        self.id
    }
}

static THIS: This = This::new();

/// Value of a mark without a generation: 0, the content before any store, as in a child.
const UNSET: u32 = 0;
/// A thread of this process is counting it.
const COUNTING: u32 = u32::MAX - 1;
/// Value if no word can be cleared: the number of the process is its generation.
const UNKNOWN: u32 = u32::MAX;

struct This {
    /// A word with the generation of this process. A forked child finds it cleared.
    mark: AtomicPtr<AtomicU32>,
    /// The number of processes that have counted themselves, from the first to this one.
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

    /// Returns true if this process has `generation`. A child that has not counted itself yet is
    /// counted first.
    #[cold]
    #[inline(never)]
    fn is_counted_as(&self, generation: u32) -> bool {
        self.generation() == generation
    }

    /// Returns the word, or one that is still unset.
    #[inline]
    fn mark(&self) -> &'static AtomicU32 {
        // SAFETY: SAFETY.md F15: a word that is aligned, is never unmapped, and is used as an atomic alone. It is
        // initialised before its address is stored: that store releases what this load acquires.
        unsafe { &*self.mark.load(Ordering::Acquire) }
    }

    /// Counts this process, unless another thread has already done so.
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
                // If the process forks at this point, the child finds the mark unset.
                Err(COUNTING) => std::thread::yield_now(),
                Err(generation) => return generation,
            }
        }
    }

    /// Returns the mark, which the first caller creates.
    fn own_mark(&self) -> &'static AtomicU32 {
        let first = ptr::from_ref(&FIRST_MARK).cast_mut();
        let mark = self.mark();
        if !ptr::eq(mark, first) {
            return mark;
        }
        let own = wiped_by_kernel().or_else(wiped_by_handler).unwrap_or(&NO_MARK);
        let new = ptr::from_ref(own).cast_mut();
        // If several threads are the first, the mark of one is used; those of the others stay unused.
        match self.mark.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => own,
            Err(_) => self.mark(),
        }
    }
}

/// The mark before one is created; it stays unset.
static FIRST_MARK: AtomicU32 = AtomicU32::new(UNSET);
static NO_MARK: AtomicU32 = AtomicU32::new(UNKNOWN);

/// Returns a word of a page that the kernel clears in a child.
fn wiped_by_kernel() -> Option<&'static AtomicU32> {
    const LENGTH: usize = size_of::<AtomicU32>();
    if cfg!(miri) {
        return None; // Miri does not know this advice
    }
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: SAFETY.md F15: new memory, at no address that is in use.
    let page = unsafe { libc::mmap(ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: SAFETY.md F15: the whole page of the mapping above; the advice changes no byte here.
    let advise = |advice| unsafe { libc::madvise(page, LENGTH, advice) };
    // An emulator may accept any advice and follow none. Such an emulator also accepts one that no
    // kernel knows.
    if advise(-1) == 0 || advise(libc::MADV_WIPEONFORK) != 0 {
        // SAFETY: SAFETY.md F15: the mapping above, which nothing refers to.
        unsafe { libc::munmap(page, LENGTH) };
        return None;
    }
    // SAFETY: SAFETY.md F15: mapped for reading and writing, aligned to a page, zeroed, never unmapped, and from
    // now on used as an atomic alone.
    Some(unsafe { &*page.cast::<AtomicU32>() })
}

/// Returns a word that is set to zero in a child before `fork` returns.
fn wiped_by_handler() -> Option<&'static AtomicU32> {
    static MARK: AtomicU32 = AtomicU32::new(UNSET);
    extern "C" fn wipe() {
        MARK.store(UNSET, Ordering::Relaxed);
    }
    if cfg!(miri) {
        return None; // Miri cannot fork
    }
    // SAFETY: SAFETY.md F15: the handler runs in a child, where it stores to an atomic. It is never unloaded: if it is
    // linked into a library that can be unloaded, the C library removes its handlers then (pthread_atfork(3)).
    let errno = unsafe { libc::pthread_atfork(None, None, Some(wipe)) };
    (errno == 0).then_some(&MARK)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    /// Runs a check in a forked child, and in a child of that child.
    fn in_descendants(check: &dyn Fn() -> bool) {
        // SAFETY: SAFETY.md F15: the child only makes calls that wait for no other thread, and ends
        // below.
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

    /// Checks that parent, child and grandchild differ, and that each stays the same, even if its first call comes
    /// late.
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
        // Refused before Linux 4.14, and by some emulators: then the next test covers the
        // distinction.
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

    /// This includes threads that are the first to ask.
    #[test]
    fn all_threads_are_of_one_process() {
        for _ in 0..100 {
            let (this, begin) = (Arc::new(This::new()), Arc::new(Barrier::new(4)));
            // The handler's word is shared by all, so this test uses another one in its place.
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
