//! Points where a thread that serves devices may be held up, with packets or a deadline in hand. A build with `--cfg
//! rdma_stalls` holds it up at random, so that tests find code that relies on its speed.

#[cfg(not(rdma_stalls))]
pub(crate) const fn here() {}

/// Sleeps at every eighth call on average, for up to six milliseconds. A process does this only for its first calls.
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
