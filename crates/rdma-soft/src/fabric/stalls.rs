//! Points at which a thread that serves devices might be delayed while it has packets or a deadline to handle. A build
//! with `--cfg rdma_stalls` delays it at random, so that tests find code that relies on the thread's speed.

#[cfg(not(rdma_stalls))]
pub(crate) const fn here() {}

/// Sleeps for up to six milliseconds at every eighth call on average, but only during a process's first calls.
#[cfg(rdma_stalls)]
pub(crate) fn here() {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use crate::fabric::random::SplitMix;

    const ENOUGH: u32 = 16_000;
    static TIMES: AtomicU32 = AtomicU32::new(0);
    let time = TIMES.fetch_add(1, Ordering::Relaxed);
    let mut random = SplitMix::new(u64::from(std::process::id()) << 32 | u64::from(time));
    if time < ENOUGH && random.below(8) == 0 {
        std::thread::sleep(Duration::from_micros(random.below(6000).into()));
    }
}
