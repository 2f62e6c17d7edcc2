//! The samples of a block, and the totals of all blocks of a row.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::perf::protocol::PATIENCE;
use crate::perf::report::{Latency, Measure};

/// Returns a histogram with three significant digits for times up to a minute, the longest possible
/// wait.
fn histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new_with_max(nanoseconds(PATIENCE), 3)?)
}

/// The samples of one block.
#[derive(Debug)]
pub(crate) struct Samples {
    /// The latency of each operation in nanoseconds: half a round trip, or a full request. Empty
    /// for streams.
    times: Histogram<u64>,
    last: Instant,
    operations: u64,
    elapsed: Duration,
    /// The figure of the block, if another program measured it.
    figure: Option<f64>,
}

impl Samples {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            times: histogram()?,
            last: Instant::now(),
            operations: 0,
            elapsed: Duration::ZERO,
            figure: None,
        })
    }

    /// Marks the start of the first operation.
    pub(crate) fn start(&mut self) {
        self.last = Instant::now();
    }

    /// Records half the time since the previous operation ended.
    #[inline]
    pub(crate) fn round_trip(&mut self) {
        self.record(2);
    }

    /// Records the time since the previous operation ended.
    #[inline]
    pub(crate) fn request(&mut self) {
        self.record(1);
    }

    #[inline]
    fn record(&mut self, parts: u64) {
        let now = Instant::now();
        let nanoseconds = nanoseconds(now.duration_since(self.last));
        self.times.saturating_record(nanoseconds / parts);
        self.last = now;
        self.operations += 1;
    }

    /// Records a number of operations that were in flight together, and the time that they took.
    pub(crate) fn stream(&mut self, operations: u64, elapsed: Duration) {
        self.operations += operations;
        self.elapsed += elapsed;
    }

    /// Records a figure measured by another program.
    pub(crate) fn foreign(&mut self, operations: u64, figure: f64) {
        self.operations += operations;
        self.figure = Some(figure);
    }

    /// Returns the figure of the block, which becomes an element of
    /// [`Row::blocks`](crate::perf::report::Row::blocks).
    fn figure(&self, measure: Measure, bytes: u32) -> f64 {
        if let Some(figure) = self.figure {
            return figure;
        }
        let rate = self.operations as f64 / self.elapsed.as_secs_f64().max(1e-9);
        match measure {
            Measure::Lat => self.times.value_at_quantile(0.5) as f64,
            Measure::Bw => rate * f64::from(bytes),
            Measure::Rate => rate,
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The samples of all blocks of a row.
#[derive(Debug)]
pub(crate) struct Total {
    times: Histogram<u64>,
    pub(crate) operations: u64,
    pub(crate) blocks: Vec<f64>,
}

impl Total {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self { times: histogram()?, operations: 0, blocks: Vec::new() })
    }

    /// Adds the samples of a block. Returns the block's figure.
    ///
    /// # Errors
    /// Returns an error if a counter overflows.
    pub(crate) fn add(
        &mut self,
        block: &Samples,
        measure: Measure,
        bytes: u32,
    ) -> anyhow::Result<f64> {
        self.times.add(&block.times)?;
        self.operations += block.operations;
        let figure = block.figure(measure, bytes);
        self.blocks.push(figure);
        Ok(figure)
    }

    /// Returns the distribution of the latencies, if any were recorded.
    pub(crate) fn latency(&self) -> Option<Latency> {
        let times = &self.times;
        let at = |quantile| times.value_at_quantile(quantile);
        (!times.is_empty()).then(|| Latency {
            min: times.min(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: times.max(),
            mean: times.mean(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_bandwidths_and_rates() -> anyhow::Result<()> {
        let mut block = Samples::new()?;
        for time in [100, 200, 900] {
            block.times.saturating_record(time);
        }
        block.stream(1000, Duration::from_millis(10));
        let mut total = Total::new()?;
        let mut figure = |measure| total.add(&block, measure, 8);
        assert_eq!(figure(Measure::Lat)?, 200.0);
        assert_eq!((figure(Measure::Bw)?, figure(Measure::Rate)?), (800_000.0, 100_000.0));
        let latency = total.latency().map(|all| (all.min, all.p50, all.p999, all.max));
        assert_eq!((latency, total.operations), (Some((100, 200, 900, 900)), 3000));
        Ok(())
    }
}
