//! Threads that a peer may hold up. Releasing a file that another process has sent takes as long as that process likes.
//! A socket may linger, and a file may be of a FUSE file system. So each call that may release one is made on these
//! threads, and nothing waits for them.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::abi::fork::Process;
use crate::fabric::tellers::tell_aside;
use crate::fabric::thread::{STACK, spawn};
use crate::sync::locked_to_wait;

/// The most threads that peers can hold up.
const THREADS: usize = 4;

/// The calls that may wait for a thread. While that many wait, no connection is accepted or made.
const WAITING: usize = 64;

type Call = Box<dyn FnOnce() + Send>;

struct Pool {
    /// The process that has the threads: a forked child has none of them.
    process: Option<Process>,
    /// Calls with a reserved thread, which makes them next.
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

/// Starts the first thread, which lives as long as the process. Other threads start with calls and claims that find no
/// idle thread, and end when nothing waits.
///
/// # Errors
/// If the process has no thread of this kind and cannot start one.
pub(super) fn start() -> io::Result<()> {
    let pool = &mut *locked_to_wait(&POOL);
    if !pool.process.is_some_and(Process::is_current) {
        // The calls that a parent has left belong to the parent.
        pool.begun.drain(..).chain(pool.waiting.drain(..)).for_each(std::mem::forget);
        pool.process = Some(Process::current());
        (pool.threads, pool.busy, pool.claimed) = (0, 0, 0);
    }
    if pool.threads == 0 {
        pool.start_thread(true)?;
    }
    Ok(())
}

/// Makes a call on one of the threads.
pub(super) fn run(call: impl FnOnce() + Send + 'static) {
    let pool = &mut *locked_to_wait(&POOL);
    pool.waiting.push_back(Box::new(call));
    pool.begin_waiting();
}

/// A thread that no peer holds up, and that makes no other call meanwhile.
#[derive(Debug)]
pub(super) struct Claim(());

impl Claim {
    /// Returns `None` while there is no such thread.
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
        // The thread that was kept may be one that now ends.
        MORE.notify_all();
    }
}

/// Returns true if peers hold up all threads, and the queue of waiting calls is full.
pub(super) fn is_full() -> bool {
    locked_to_wait(&POOL).waiting.len() >= WAITING
}

/// Reports once in the life of a process that its threads are held up.
pub(super) fn report() {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        tell_aside(|| {
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

    /// Returns true if a thread is free for a new call. Starts one if necessary.
    fn has_thread(&mut self) -> bool {
        debug_assert!(self.busy + self.claimed <= self.threads && self.threads <= THREADS);
        // If no further thread can start, calls wait for the existing ones.
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
                // Idle threads end, except the first.
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
