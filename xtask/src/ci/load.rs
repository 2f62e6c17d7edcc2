//! Keeps the machine busy during a step, with two loops for each processor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

const LOOPS_PER_PROCESSOR: usize = 2;

/// Keeps the processors busy until it is dropped. The loops are threads of this process, so they
/// end with the process, however it ends.
pub(super) struct Load {
    is_over: Arc<AtomicBool>,
    loops: Vec<JoinHandle<()>>,
}

impl Load {
    pub(super) fn start() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let is_over = Arc::new(AtomicBool::new(false));
        let busy = |_| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let loops = (0..processors * LOOPS_PER_PROCESSOR).map(busy).collect();
        Self { is_over, loops }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for one in self.loops.drain(..) {
            // A loop contains nothing that could panic.
            let _ = one.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_loops_run_until_it_is_dropped() {
        let load = Load::start();
        let is_over = Arc::clone(&load.is_over);
        let processors = thread::available_parallelism().unwrap().get();
        assert_eq!(load.loops.len(), 2 * processors);
        assert!(!load.loops.iter().any(JoinHandle::is_finished));
        drop(load);
        assert_eq!(Arc::strong_count(&is_over), 1, "a loop still runs");
    }
}
