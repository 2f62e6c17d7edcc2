//! Threads that a peer may hold up. To release a file that another process has sent takes as long as that process likes (a
//! socket that lingers, a file of a FUSE file system), so each call that may release one is made here, and nothing waits for
//! these threads.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::abi::fork::Process;
use crate::device::notices::tell_aside;
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
    waiting: VecDeque<Call>,
    threads: usize,
    /// Threads that wait for a call.
    idle: usize,
}

static POOL: Mutex<Pool> =
    Mutex::new(Pool { process: None, waiting: VecDeque::new(), threads: 0, idle: 0 });
static MORE: Condvar = Condvar::new();

/// Starts the first thread, which stays. Others come with calls that find no idle thread, and end when nothing waits.
///
/// # Errors
/// If the process has no thread of this kind and cannot start one.
pub(super) fn start() -> io::Result<()> {
    let pool = &mut *locked_to_wait(&POOL);
    if !pool.process.is_some_and(Process::is_current) {
        // What a parent has left belongs to the parent.
        std::mem::take(&mut pool.waiting).into_iter().for_each(std::mem::forget);
        (pool.process, pool.threads, pool.idle) = (Some(Process::current()), 0, 0);
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
    if pool.waiting.len() <= pool.idle {
        MORE.notify_one();
    } else if pool.threads < THREADS {
        // If there can be no further thread, the call waits for those that there are.
        let _ = pool.start_thread(false);
    }
}

/// Whether a call that is made now need not wait. What it is to release is in nobody's way then: a child that was forked
/// meanwhile would have it, too.
pub(super) fn is_ready() -> bool {
    let pool = locked_to_wait(&POOL);
    pool.waiting.len() < pool.idle + (THREADS - pool.threads)
}

/// Whether peers hold up all threads, and as many calls wait as may.
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
                "other processes of this host hold up the threads that close what they have sent: no new connection \
                 between processes is made or accepted until these go on. Linux 6.16 and later refuse such files for \
                 users who may not connect"
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
}

fn serve(stays: bool) {
    let mut pool = locked_to_wait(&POOL);
    loop {
        if let Some(call) = pool.waiting.pop_front() {
            drop(pool);
            call();
            pool = locked_to_wait(&POOL);
        } else if stays {
            pool.idle += 1;
            pool = MORE.wait(pool).unwrap_or_else(PoisonError::into_inner);
            pool.idle -= 1;
        } else {
            pool.threads -= 1;
            return;
        }
    }
}
