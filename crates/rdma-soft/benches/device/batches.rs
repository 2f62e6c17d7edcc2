//! Times that a busy machine does not spoil: those of the median batch.
//!
//! A thread that has to wait for its core makes one batch long and leaves the others as they are,
//! whereas the mean tells how busy the machine was.

use std::time::{Duration, Instant};

use criterion::{Bencher, BenchmarkGroup, measurement::WallTime};

/// Enough for a median, however few rounds are asked for.
const LEAST: u64 = 128;

/// How many batches make so many rounds.
pub(crate) fn count(rounds: u64, batch: u64) -> u64 {
    rounds.div_ceil(batch).max(LEAST)
}

/// What one of `f` takes, in batches that last some microseconds.
pub(crate) fn iter(b: &mut Bencher<'_>, batch: u64, mut f: impl FnMut()) {
    b.iter_custom(|rounds| {
        let mut times: Vec<f64> =
            (0..count(rounds, batch)).map(|_| ns_of_one(batch, &mut f)).collect();
        total(rounds, median(&mut times))
    });
}

/// What one of `f` takes, each behind a preparation that does not count. A look at the clock is in it.
pub(crate) fn iter_each<T>(
    b: &mut Bencher<'_>,
    with: &mut T,
    prepare: impl Fn(&mut T),
    f: impl Fn(&mut T),
) {
    b.iter_custom(|rounds| {
        let one = |_| {
            prepare(with);
            ns_of_one(1, || f(with))
        };
        let mut times: Vec<f64> = (0..rounds.max(LEAST)).map(one).collect();
        total(rounds, median(&mut times))
    });
}

/// Benches `f`, and beside it, in turn with it, what it is to be compared with; says what that took.
///
/// `game` is given a number of batches, plays them, and returns for each what one round took, in
/// nanoseconds: of the thing, and of what is beside it.
pub(crate) fn bench_beside(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    beside: &str,
    batch: u64,
    mut game: impl FnMut(u64) -> Vec<(f64, f64)>,
) {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    group.bench_function(name, |b| {
        b.iter_custom(|rounds| {
            let (mut game, mut besides): (Vec<_>, Vec<_>) =
                game(count(rounds, batch)).into_iter().unzip();
            let ns = median(&mut game);
            own.push(ns);
            others.push(median(&mut besides));
            total(rounds, ns)
        });
    });
    // Empty if a filter left this bench out.
    if !own.is_empty() {
        let (ns, other) = (median(&mut own), median(&mut others));
        let (least, most) = (others[0], others[others.len() - 1]);
        println!(
            "    median {ns:.1} ns; {beside} beside it {other:.1} ns ({least:.1} to {most:.1}), ratio {:.2}",
            ns / other
        );
    }
}

/// What one of `f` took in a batch, in nanoseconds.
pub(crate) fn ns_of_one(batch: u64, mut f: impl FnMut()) -> f64 {
    let begin = Instant::now();
    (0..batch).for_each(|_| f());
    begin.elapsed().as_nanos() as f64 / batch as f64
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

fn total(rounds: u64, ns: f64) -> Duration {
    Duration::from_secs_f64(ns * 1e-9 * rounds as f64)
}
