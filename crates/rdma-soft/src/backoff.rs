//! How a thread waits for another that will be done soon: it spins, then yields, then sleeps.

/// The state of one wait.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    rounds: u32,
}

#[cfg(not(loom))]
impl Backoff {
    /// Rounds of 1, 2, 4 … pauses of the processor.
    const SPINS: u32 = 6;
    const YIELDS: u32 = 32;
    const LONGEST_SLEEP_US: u64 = 200;

    /// Waits a moment, each time longer. A thread that sleeps lets one of lower priority go on.
    #[cold]
    pub(crate) fn wait(&mut self) {
        match self.rounds {
            0..Self::SPINS => (0..1 << self.rounds).for_each(|_| std::hint::spin_loop()),
            Self::SPINS..Self::YIELDS => std::thread::yield_now(),
            rounds => {
                let us = u64::from(rounds - Self::YIELDS + 1) * 10;
                std::thread::sleep(std::time::Duration::from_micros(
                    us.min(Self::LONGEST_SLEEP_US),
                ));
            }
        }
        self.rounds = self.rounds.saturating_add(1);
    }
}

#[cfg(loom)]
impl Backoff {
    pub(crate) fn wait(&mut self) {
        self.rounds = self.rounds.saturating_add(1);
        loom::thread::yield_now();
    }
}
