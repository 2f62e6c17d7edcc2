//! Threads that a peer may hold up. Releasing a file that another process sent may take as long as that process likes.
//! For example, a socket may linger, or a file may be in a FUSE file system. Each call that may release such a file is
//! therefore made on one of these threads, and nothing waits for the call.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::abi::fork::Process;
use crate::fabric::emitters::emit_one;
use crate::fabric::thread::{STACK, spawn};
use crate::sync::locked_to_wait;

/// The maximum number of threads that peers can hold up.
const THREADS: usize = 4;

/// The maximum number of calls that wait for a thread. While the queue is full, no connection is accepted or made.
const WAITING: usize = 64;

type Call = Box<dyn FnOnce() + Send>;

struct Pool {
    /// The process that owns the threads. A forked child has none of them.
    process: Option<Process>,
    /// Calls that threads will make next. These threads already count as busy.
    begun: VecDeque<Call>,
    waiting: VecDeque<Call>,
    threads: usize,
    /// The number of threads that are making a call.
    busy: usize,
    /// The number of reserved threads, one for each [`Claim`].
    claimed: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    process: None,
    begun: VecDeque::new(),
    waiting: VecDeque::new(),
    threads: 0,
    busy: 0,
    claimed: 0,
});
static MORE: Condvar = Condvar::new();

/// Starts the first thread, which runs until the process exits. Other threads start when calls or claims find no idle
/// thread, and end when nothing is waiting.
///
/// # Errors
/// Fails if the process has no thread of this kind and cannot start one.
pub(super) fn start() -> io::Result<()> {
    let pool = &mut *locked_to_wait(&POOL);
    if !pool.process.is_some_and(Process::is_current) {
        // A parent's unfinished calls still belong to the parent.
        pool.begun.drain(..).chain(pool.waiting.drain(..)).for_each(std::mem::forget);
        pool.process = Some(Process::current());
        (pool.threads, pool.busy, pool.claimed) = (0, 0, 0);
    }
    if pool.threads == 0 {
        pool.start_thread(true)?;
    }
    Ok(())
}

/// Makes a call on one of these threads.
pub(super) fn run(call: impl FnOnce() + Send + 'static) {
    let pool = &mut *locked_to_wait(&POOL);
    pool.waiting.push_back(Box::new(call));
    pool.begin_waiting();
}

/// A reserved thread that no peer holds up, and that makes no other call in the meantime.
#[derive(Debug)]
pub(super) struct Claim(());

impl Claim {
    /// Reserves a thread. Returns `None` if none is available.
    pub(super) fn new() -> Option<Self> {
        let pool = &mut *locked_to_wait(&POOL);
        pool.has_thread().then(|| {
            pool.claimed += 1;
            Self(())
        })
    }

    /// Makes a call on this thread.
    pub(super) fn run(self, call: impl FnOnce() + Send + 'static) {
        let pool = &mut *locked_to_wait(&POOL);
        pool.waiting.push_front(Box::new(call));
        let _ = ManuallyDrop::new(self);
        pool.claimed -= 1;
        pool.begin_waiting();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let pool = &mut *locked_to_wait(&POOL);
        pool.claimed -= 1;
        pool.begin_waiting();
        // The thread that was kept for the claim may now end.
        MORE.notify_all();
    }
}

/// Returns true if peers hold up all threads and the queue of waiting calls is full.
pub(super) fn is_full() -> bool {
    locked_to_wait(&POOL).waiting.len() >= WAITING
}

/// Reports that peers hold up the threads, once per process.
pub(super) fn report() {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        emit_one(|| {
            tracing::warn!(
                threads = THREADS,
                waiting = WAITING,
                "other processes of this host hold up the threads that close the files they have sent: no new connection \
                 between processes is made or accepted until these continue. Linux 6.16 and later refuse files of users \
                 that may not connect"
            );
        });
    }
}

impl Pool {
    fn start_thread(&mut self, stays: bool) -> io::Result<()> {
        spawn("rdma-soft close", STACK, move || serve(stays))?;
        self.threads += 1;
        Ok(())
    }

    /// Returns true if a thread is free for a new call. Starts a thread if necessary.
    fn has_thread(&mut self) -> bool {
        debug_assert!(self.busy + self.claimed <= self.threads && self.threads <= THREADS);
        // If another thread cannot be started, calls wait for the existing ones.
        self.busy + self.claimed < self.threads
            || self.threads < THREADS && self.start_thread(false).is_ok()
    }

    fn begin_waiting(&mut self) {
        while !self.waiting.is_empty() && self.has_thread() {
            self.busy += 1;
            self.begun.extend(self.waiting.pop_front());
            MORE.notify_one();
        }
    }
}

fn serve(stays: bool) {
    let mut pool = locked_to_wait(&POOL);
    loop {
        if let Some(call) = pool.begun.pop_front() {
            drop(pool);
            call();
            pool = locked_to_wait(&POOL);
            pool.busy -= 1;
            pool.begin_waiting();
            if pool.busy + pool.claimed < pool.threads {
                // Lets idle threads end, except the first.
                MORE.notify_all();
            }
        } else if stays || pool.busy + pool.claimed == pool.threads {
            pool = MORE.wait(pool).unwrap_or_else(PoisonError::into_inner);
        } else {
            pool.threads -= 1;
            return;
        }
    }
}
