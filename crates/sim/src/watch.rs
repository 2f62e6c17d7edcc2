//! Reports and ends a workload that hangs, because runs have no limit in real time.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

static BEGUN: OnceLock<Sender<u64>> = OnceLock::new();

/// Aborts the process if a workload exceeds the limit, after printing the workload's seed.
///
/// `of` describes the source of all workloads. A program calls this once, before the first
/// workload.
///
/// # Errors
///
/// If the thread cannot be created, or if this was called before.
pub fn watch(of: String, limit: Duration) -> Result<(), String> {
    let (begins, begun) = mpsc::channel();
    let watcher = move || {
        // There is nothing to watch before the first workload.
        let Ok(mut workload) = begun.recv() else { return };
        loop {
            match begun.recv_timeout(limit) {
                Ok(next) => workload = next,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        // Do not use `println`: the hanging thread may hold its lock.
        let text = format!(
            "hangs: workload {workload:#x} ({of}) has not ended in {limit:?}\n\
             to repeat: cargo xtask sim --workload {workload:#x}\n"
        );
        let _ = std::io::stderr().write_all(text.as_bytes());
        std::process::abort();
    };
    BEGUN.set(begins).map_err(|_| "the watch is already set".to_owned())?;
    let thread = thread::Builder::new().name("watch".into()).spawn(watcher);
    thread.map(drop).map_err(|error| error.to_string())
}

/// Records that a workload begins, which means that the previous one has ended.
pub(crate) fn begins(workload: u64) {
    if let Some(begun) = BEGUN.get() {
        // The watching thread may already be gone when the process ends.
        let _ = begun.send(workload);
    }
}
