//! Random conversations. `RDMA_MESSAGE_SEED` repeats one of them, and `RDMA_MESSAGE_RUNS` sets their
//! number.

use std::env;

use fastrand::Rng;

use crate::pair::{Choices, Conversation, converse};

impl Choices for Rng {
    fn below(&mut self, end: usize) -> usize {
        self.usize(..end)
    }

    fn is_over(&self) -> bool {
        false
    }
}

/// Returns the first seed and the number of runs.
fn seeds(runs: u64) -> std::ops::Range<u64> {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("RDMA_MESSAGE_SEED").unwrap_or_else(|| fastrand::u64(..u64::MAX / 2));
    let runs = match env::var("RDMA_MESSAGE_SEED") {
        Ok(_) => 1,
        Err(_) => number("RDMA_MESSAGE_RUNS").unwrap_or(runs),
    };
    first..first + runs
}

#[test]
fn messages_arrive_in_order_exactly_once_and_every_operation_ends() {
    let (mut steps, mut delivered) = (0, 0);
    for seed in seeds(150) {
        println!("RDMA_MESSAGE_SEED={seed}");
        let mut run = Conversation::new(Rng::with_seed(seed));
        for _ in 0..1_000 {
            run.step();
            steps += 1;
        }
        delivered += run.finish();
    }
    println!("{steps} steps, {delivered} messages");
}

#[test]
fn every_operation_ends_when_the_connection_is_lost_at_any_time() {
    for seed in seeds(300) {
        println!("RDMA_MESSAGE_SEED={seed}");
        let mut run = Conversation::new(Rng::with_seed(seed));
        for _ in 0..run.choices.below(400) {
            run.step();
        }
        run.cut();
    }
}

#[test]
fn stream_bytes_arrive_in_order_exactly_once() {
    for seed in seeds(100) {
        println!("RDMA_MESSAGE_SEED={seed}");
        converse(&mut Rng::with_seed(seed));
    }
}
