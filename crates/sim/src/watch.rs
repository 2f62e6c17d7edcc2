//! Reports a workload that hangs, and ends the process. Otherwise it could hang forever, because
//! runs have no limit in real time.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use crate::campaign::Kind;

static BEGUN: OnceLock<Sender<u64>> = OnceLock::new();

/// Aborts the process if a workload takes longer than `limit`. Prints the workload's seed first.
///
/// `of` describes where the workloads come from, and is printed too. A program calls this once,
/// before the first workload.
///
/// # Errors
///
/// Returns an error if the thread cannot be created, or if this was called before.
pub fn watch(kind: Kind, of: String, limit: Duration) -> Result<(), String> {
    let (begins, begun) = mpsc::channel();
    let watcher = move || {
        // Until the first workload begins, there is nothing to watch.
        let Ok(mut workload) = begun.recv() else { return };
        loop {
            match begun.recv_timeout(limit) {
                Ok(next) => workload = next,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        // `println` is not used, because the hanging thread may hold its lock.
        let text = format!(
            "hangs: workload {workload:#x} ({of}) has not ended in {limit:?}\n\
             to repeat: cargo xtask sim {} {workload:#x}\n",
            kind.option()
        );
        let _ = std::io::stderr().write_all(text.as_bytes());
        std::process::abort();
    };
    BEGUN.set(begins).map_err(|_| "the watch is already set".to_owned())?;
    let thread = thread::Builder::new().name("watch".into()).spawn(watcher);
    thread.map(drop).map_err(|error| error.to_string())
}

/// Records that a workload begins, and therefore that the previous one has ended.
pub(crate) fn begins(workload: u64) {
    if let Some(begun) = BEGUN.get() {
        // At the end of the process, the watching thread may no longer exist.
        let _ = begun.send(workload);
    }
}
