//! The backoff of a thread that waits for another one.

#[cfg(loom)]
pub(crate) use model::Backoff;
#[cfg(not(loom))]
pub(crate) use waiting::Backoff;

#[cfg(not(loom))]
mod waiting {
    use std::hint::spin_loop;
    use std::time::Duration;

    use rustix::thread::{NanosleepRelativeResult, nanosleep, sched_yield};
    use rustix::time::Timespec;

    /// The backoff of a thread that waits for another one. The thread first spins, since most locks are released at
    /// once. Then it yields its core, which the holder may need. Then it sleeps, so that a holder with lower priority
    /// can run and a long copy does not keep two cores busy.
    #[derive(Debug, Default)]
    pub(crate) struct Backoff {
        rounds: u32,
    }

    /// The number of rounds that spin. The number of spins doubles each round, up to 32; all of them together take a
    /// few microseconds.
    const SPINNING: u32 = 8;
    const YIELDING: u32 = SPINNING + 8;
    const SHORTEST_SLEEP: Duration = Duration::from_micros(16);
    const LONGEST_SLEEP: Duration = Duration::from_millis(1);

    impl Backoff {
        /// Waits for a moment, longer each time.
        pub(crate) fn wait(&mut self) {
            match self.rounds {
                spins @ 0..SPINNING => (0..1 << spins.min(5)).for_each(|_| spin_loop()),
                SPINNING..YIELDING => sched_yield(),
                sleeps => {
                    sleep((SHORTEST_SLEEP * (1 << (sleeps - YIELDING).min(6))).min(LONGEST_SLEEP))
                }
            }
            self.rounds = self.rounds.saturating_add(1);
        }
    }

    /// Calls the system directly. libc's function is a cancellation point: `pthread_cancel` could end the thread in the
    /// middle of a post. It also sets `errno`.
    fn sleep(time: Duration) {
        let time = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        match nanosleep(&time) {
            // A signal interrupted the sleep. The caller checks the lock again anyway.
            NanosleepRelativeResult::Ok | NanosleepRelativeResult::Interrupted(_) => {}
            NanosleepRelativeResult::Err(_) => sched_yield(),
        }
    }
}

#[cfg(loom)]
mod model {
    #[derive(Debug, Default)]
    pub(crate) struct Backoff;

    impl Backoff {
        pub(crate) fn wait(&mut self) {
            loom::thread::yield_now();
        }
    }
}
