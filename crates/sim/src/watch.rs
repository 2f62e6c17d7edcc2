//! A workload that does not end is said and ended: no run has a limit of its own in real time.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

static BEGUN: OnceLock<Sender<u64>> = OnceLock::new();

/// From now on a workload that takes longer than that ends the process (`abort`), which says its seed.
///
/// `of` says what all workloads come from. A program calls it once, before the first workload.
///
/// # Errors
///
/// If there can be no thread, or if it was called before.
pub fn watch(of: String, limit: Duration) -> Result<(), String> {
    let (begins, begun) = mpsc::channel();
    let watcher = move || {
        // Nothing is there to be watched before the first one.
        let Ok(mut workload) = begun.recv() else { return };
        loop {
            match begun.recv_timeout(limit) {
                Ok(next) => workload = next,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        // Not by `println`, whose lock may be held by the thread that hangs.
        let text = format!(
            "hangs: workload {workload:#x} ({of}) has not ended in {limit:?}\n\
             again: cargo xtask sim --workload {workload:#x}\n"
        );
        let _ = std::io::stderr().write_all(text.as_bytes());
        std::process::abort();
    };
    BEGUN.set(begins).map_err(|_| "it watches already".to_owned())?;
    let thread = thread::Builder::new().name("watch".into()).spawn(watcher);
    thread.map(drop).map_err(|error| error.to_string())
}

/// A workload begins, and so the one before has ended.
pub(crate) fn begins(workload: u64) {
    if let Some(begun) = BEGUN.get() {
        // Nobody watches while the process ends.
        let _ = begun.send(workload);
    }
}
