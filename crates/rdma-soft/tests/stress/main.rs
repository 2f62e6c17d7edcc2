//! Many threads, queue pairs, regions, windows, deregistrations, destructions and errors, by seed.
//!
//! Threads meet in pairs, round after round. Both sides post and poll, and in wild rounds destroy memory and queue
//! pairs while the other uses them. Every message, READ and WRITE carries a tag, so the expected contents of all memory
//! are known. Every request is accounted for once and in order. Returned memory is poisoned and checked again later.
//! Everything is destroyed at the end of a round, which is refused if anything is left. Besides these pairs, many
//! threads share a receive queue.
//!
//! `RDMA_STRESS_SEED` repeats a run, as far as threads can be repeated; `RDMA_STRESS_SECONDS` makes it longer than five
//! seconds.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // The programs' side may use any of these.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.
#![allow(clippy::cast_possible_truncation)] // Small numbers, and the device is 64-bit only.

mod crowd;
mod link;
mod meeting;
mod memory;
mod party;
mod shared;

use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdma_soft::{Builder, Link, Schedule};

use link::Score;
use meeting::Meeting;
use memory::{Dice, Memory};
use party::{Party, Plan};

const PAIRS_PER_DEVICE: usize = 2;
/// The minimum number of rounds, however short the time.
const LEAST_ROUNDS: u64 = 4;

fn number_of(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {value}")))
}

/// Ends the process at once when a thread panics, since its peer would wait without a limit. Prints the seed that
/// repeats the run.
fn abort_on_panic(seed: u64) {
    std::panic::set_hook(Box::new(move |panic| {
        // Written directly: the harness would capture and lose it.
        let _ = writeln!(std::io::stderr(), "{panic}\nRDMA_STRESS_SEED={seed}");
        std::process::abort();
    }));
}

/// Runs the rounds of one pair until `end`.
fn run_pair(device: &str, pair: usize, seed: u64, end: Instant) -> (Score, u64) {
    let mut dice = Dice::new(seed ^ (pair as u64) << 32);
    let (mut total, mut round) = (Score::default(), 0);
    let mut remains: Vec<Arc<Memory>> = Vec::new();
    while round < LEAST_ROUNDS || Instant::now() < end {
        let (meeting, steps) = (Meeting::new(), 200 + dice.below(800));
        let plans = [0, 1].map(|side| Plan {
            device,
            meeting: &meeting,
            pair,
            side,
            round,
            wild: round % 4 != 0,
            steps,
            seed: dice.roll(),
        });
        let results = thread::scope(|scope| {
            let parties = [0, 1].map(|side| {
                scope.spawn({
                    let plan = &plans[side];
                    move || Party::attend(plan)
                })
            });
            parties.map(|party| party.join().unwrap())
        });
        // A whole round later, the returned memory of the previous round must be unwritten.
        remains.iter().for_each(|memory| memory.assert_all_poisoned());
        remains.clear();
        for (score, memory) in results {
            total += score;
            remains.extend(memory);
        }
        round += 1;
    }
    remains.iter().for_each(|memory| memory.assert_all_poisoned());
    (total, round)
}

#[test]
fn every_request_is_accounted_for_and_nothing_outlives_its_owner() {
    let seed = number_of("RDMA_STRESS_SEED").unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.unwrap().as_nanos() as u64
    });
    let seconds = number_of("RDMA_STRESS_SECONDS").unwrap_or(5);
    println!("RDMA_STRESS_SEED={seed}");
    abort_on_panic(seed);
    let devices = [
        ("stress-immediate", Link::Ethernet, Schedule::Immediate),
        ("stress-deferred", Link::Ethernet, Schedule::Deferred { seed }),
        ("stress-infiniband", Link::InfiniBand, Schedule::Deferred { seed: !seed }),
    ];
    for (name, link, schedule) in devices {
        Builder::new(name).link(link).schedule(schedule).install().unwrap();
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut score, mut rounds) = (Score::default(), 0);
    thread::scope(|scope| {
        let pairs = (0..devices.len() * PAIRS_PER_DEVICE).map(|pair| {
            let device = devices[pair % devices.len()].0;
            scope.spawn(move || run_pair(device, pair, seed, end))
        });
        let (pairs, mut messages) = (pairs.collect::<Vec<_>>(), 0);
        let servers = devices.map(|(name, ..)| scope.spawn(move || shared::run(name, seed, end)));
        let crowds = devices.map(|(name, ..)| scope.spawn(move || crowd::run(name, seed, end)));
        let requests: u64 = crowds.into_iter().map(|crowd| crowd.join().unwrap()).sum();
        println!("{requests} requests of clients with borrowed memory");
        for server in servers {
            messages += server.join().unwrap();
        }
        println!("{messages} messages to shared receive queues");
        for pair in pairs {
            let (of_pair, rounds_of_pair) = pair.join().unwrap();
            score += of_pair;
            rounds += rounds_of_pair;
        }
    });
    let _ = std::panic::take_hook();
    println!("{rounds} rounds: {score:?}");
    assert!(score.succeeded > 0 && score.failed > 0 && score.flushed > 0, "{score:?}");
}
