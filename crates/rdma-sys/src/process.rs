//! The identity of this process, by which a forked child recognises its parent's objects without a
//! system call.
#![allow(unsafe_code)]

mod signals;

pub use self::signals::SignalsBlocked;

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// A process, as distinct from its forked children.
///
/// Objects that a provider creates belong to the process that requested them. A forked child has
/// copies that no device knows, and must neither use nor destroy them. The code that creates such
/// an object stores [`Process::current`] with it, and checks [`is_current`](Self::is_current)
/// before using the object.
///
/// The check usually makes no system call. The kernel clears a word of memory in a forked child
/// (`MADV_WIPEONFORK`, see `man madvise`). A child that finds the word cleared assigns itself a new
/// generation. If the kernel refuses that advice, a `pthread_atfork` handler clears the word
/// instead. A child of a bare `clone` call does not run this handler. If there is no memory for a
/// handler either, each check compares process IDs, with a system call.
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
        // This call comes first because, in a new process, it stores the ID that is read next.
        let generation = THIS.generation();
        let id = THIS.id.load(Ordering::Relaxed);
        Self { generation, id }
    }

    /// Returns true if this value is the current process, not an ancestor of it.
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

/// A value of one process. A child that is forked later begins with a value of its own.
///
/// ```
/// use rdma_sys::PerProcess;
///
/// let mut neighbors = PerProcess::new(vec!["parent's"]);
/// assert_eq!(*neighbors.get(Vec::clear), ["parent's"]); // empty in a forked child
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PerProcess<T> {
    owner: Process,
    value: T,
}

impl<T> PerProcess<T> {
    /// Creates the value of the current process.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { owner: Process::current(), value }
    }

    /// Returns the value. In a forked child, the first call passes the parent's value to `begin`, which makes it the
    /// child's.
    pub fn get(&mut self, begin: impl FnOnce(&mut T)) -> &mut T {
        if !self.owner.is_current() {
            begin(&mut self.value);
            self.owner = Process::current();
        }
        &mut self.value
    }

    /// Returns the value if it is that of the current process.
    #[must_use]
    pub fn current(&self) -> Option<&T> {
        self.owner.is_current().then_some(&self.value)
    }
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

static THIS: This = This::new();

/// The mark of a process without a generation. The value is 0, which a mark has initially and again
/// in a new child.
const UNSET: u32 = 0;
/// The mark while a thread of this process is assigning the generation.
const COUNTING: u32 = u32::MAX - 1;
/// The mark if no clearable word is available.
const UNKNOWN: u32 = u32::MAX;

struct This {
    /// A word that holds this process's generation. A forked child finds it cleared.
    mark: AtomicPtr<AtomicU32>,
    /// The number of processes that have assigned themselves a generation, from the first ancestor
    /// to this one.
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

    /// Returns true if this process has `generation`. A child without a generation first gets one.
    #[cold]
    #[inline(never)]
    fn is_counted_as(&self, generation: u32) -> bool {
        self.generation() == generation
    }

    /// Returns the mark, or [`FIRST_MARK`], which is unset, if no mark has been created yet.
    #[inline]
    fn mark(&self) -> &'static AtomicU32 {
        // SAFETY: SAFETY.md F15: the word is aligned, never unmapped, and accessed only as an
        // atomic. It is initialised before its address is stored: that store releases what this
        // load acquires.
        unsafe { &*self.mark.load(Ordering::Acquire) }
    }

    /// Assigns a generation to this process, unless another thread has already done so.
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

    /// Returns the mark; the first caller creates it.
    fn own_mark(&self) -> &'static AtomicU32 {
        let first = ptr::from_ref(&FIRST_MARK).cast_mut();
        let mark = self.mark();
        if !ptr::eq(mark, first) {
            return mark;
        }
        let own = wiped_by_kernel().or_else(wiped_by_handler).unwrap_or(&NO_MARK);
        let new = ptr::from_ref(own).cast_mut();
        // If several threads race to create the mark, one of their marks wins, and the others stay
        // unused.
        match self.mark.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => own,
            Err(_) => self.mark(),
        }
    }
}

/// The mark until a clearable one is created. This one stays unset.
static FIRST_MARK: AtomicU32 = AtomicU32::new(UNSET);
/// The mark if no clearable one can be created.
static NO_MARK: AtomicU32 = AtomicU32::new(UNKNOWN);

/// Returns a word on a page that the kernel clears in a forked child.
fn wiped_by_kernel() -> Option<&'static AtomicU32> {
    const LENGTH: usize = size_of::<AtomicU32>();
    if cfg!(miri) {
        return None; // Miri does not know this advice
    }
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: SAFETY.md F15: this maps new memory, at no address that is in use.
    let page = unsafe { libc::mmap(ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: SAFETY.md F15: the range is the whole page mapped above, and the advice changes no
    // byte here.
    let advise = |advice| unsafe { libc::madvise(page, LENGTH, advice) };
    // An emulator may accept any advice and follow none. Such an emulator also accepts advice that
    // no kernel knows.
    if advise(-1) == 0 || advise(libc::MADV_WIPEONFORK) != 0 {
        // SAFETY: SAFETY.md F15: this is the mapping from above, and nothing refers to it.
        unsafe { libc::munmap(page, LENGTH) };
        return None;
    }
    // SAFETY: SAFETY.md F15: the page is readable and writable, aligned, zeroed and never unmapped,
    // and from now on it is accessed only as an atomic.
    Some(unsafe { &*page.cast::<AtomicU32>() })
}

/// Returns a word that a handler sets to zero in a child before `fork` returns.
fn wiped_by_handler() -> Option<&'static AtomicU32> {
    static MARK: AtomicU32 = AtomicU32::new(UNSET);
    extern "C" fn wipe() {
        MARK.store(UNSET, Ordering::Relaxed);
    }
    if cfg!(miri) {
        return None; // Miri cannot fork
    }
    // SAFETY: SAFETY.md F15: the handler runs in a child, where it stores to an atomic. It is never
    // unloaded while registered: if it is linked into a library that is unloaded, the C library
    // removes its handlers (pthread_atfork(3)).
    let errno = unsafe { libc::pthread_atfork(None, None, Some(wipe)) };
    (errno == 0).then_some(&MARK)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::cell::Cell;
    use std::panic::{self, AssertUnwindSafe};
    use std::sync::{Arc, Barrier};

    use super::*;

    /// Runs a check in a forked child, and asserts that it returns true. The check may fork in
    /// turn.
    fn in_descendants(check: &dyn Fn() -> bool) {
        // SAFETY: SAFETY.md F15: the child only makes calls that wait for no other thread, and
        // exits below.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "no child");
        if pid == 0 {
            // SAFETY: SAFETY.md F15: the alarm ends this child, or one of its children that hangs.
            unsafe { libc::alarm(20) };
            // A panic must not leave this call in the child, whose exit would then look like success.
            let is_true = panic::catch_unwind(AssertUnwindSafe(check)).unwrap_or(false);
            let status = i32::from(!is_true);
            // SAFETY: SAFETY.md F15: nothing else runs in this child.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: SAFETY.md F15: the pid is that of a child of this process, and `status` may be
        // written.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0, "what the child saw");
    }

    /// Checks that parent, child and grandchild differ, and that each keeps its identity, even if
    /// its first call comes late.
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
        // The kernel refuses this before Linux 4.14, and so do some emulators. The next test then
        // covers the distinction.
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

    #[test]
    fn a_forked_child_begins_with_a_value_of_its_own() {
        let count = Cell::new(PerProcess::new(1));
        let add = |begin: fn(&mut i32)| {
            let mut value = count.get();
            *value.get(begin) += 1;
            count.set(value);
            value
        };
        assert_eq!(add(|_| unreachable!()).current(), Some(&2));
        in_descendants(&|| {
            let is_parents = count.get().current().is_some();
            let first = add(|value| *value *= 10).current() == Some(&21);
            let second = add(|value| *value *= 10).current() == Some(&22);
            in_descendants(&|| add(|value| *value *= 10).current() == Some(&221));
            !is_parents && first && second
        });
        assert_eq!(add(|_| unreachable!()).current(), Some(&3));
    }

    /// All threads get the same generation, even if several are the first to request it.
    #[test]
    fn all_threads_are_of_one_process() {
        for _ in 0..100 {
            let (this, begin) = (Arc::new(This::new()), Arc::new(Barrier::new(4)));
            // There is only one word that a handler clears, so this test uses a new word in each
            // round.
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
