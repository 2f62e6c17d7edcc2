//! Times that a busy machine does not distort: those of the median batch.
//!
//! A thread that must wait for its core makes one batch long and leaves the others unchanged. The mean would show how
//! busy the machine was.

use std::time::{Duration, Instant};

use criterion::{Bencher, BenchmarkGroup, measurement::WallTime};

/// Enough for a median, even if few rounds are requested.
const LEAST: u64 = 128;

/// Returns the number of batches for that many rounds.
pub(crate) fn count(rounds: u64, batch: u64) -> u64 {
    rounds.div_ceil(batch).max(LEAST)
}

/// Measures one call of `f`, in batches that last some microseconds.
pub(crate) fn iter(b: &mut Bencher<'_>, batch: u64, mut f: impl FnMut()) {
    b.iter_custom(|rounds| {
        let mut times: Vec<f64> =
            (0..count(rounds, batch)).map(|_| ns_of_one(batch, &mut f)).collect();
        total(rounds, median(&mut times))
    });
}

/// Measures one call of `f`, each after a preparation that does not count. The time includes one read of the clock.
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

/// Benches `f` in turn with a reference, and prints both.
///
/// `game` receives a number of batches and runs them. It returns for each the time of one round in nanoseconds, of `f`
/// and of the reference.
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
    // Empty if a filter excluded this bench.
    if !own.is_empty() {
        let (ns, other) = (median(&mut own), median(&mut others));
        let (least, most) = (others[0], others[others.len() - 1]);
        println!(
            "    median {ns:.1} ns; {beside}: {other:.1} ns ({least:.1} to {most:.1}), ratio {:.2}",
            ns / other
        );
    }
}

/// Returns the time of one `f` in a batch, in nanoseconds.
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
