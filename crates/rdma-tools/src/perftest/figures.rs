//! The results of a test, in perftest's units.

use std::time::{Duration, Instant};

use super::talk::Report;

/// perftest's megabyte, in bytes.
const MEGABYTE: f64 = 1_048_576.0;

/// When requests were posted, and when the last one completed.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    /// When each request was posted or, in a bandwidth test, when the first one was.
    pub(super) posts: Vec<Instant>,
    pub(super) end: Instant,
}

impl Figures {
    /// Returns the minimum, maximum, typical and average latency as text, in microseconds. A
    /// latency is the time from one post to the next. If `halved`, it is half of that, because the
    /// peer posts in between.
    pub(super) fn latency(&self, halved: bool) -> String {
        let pairs = self.posts.iter().zip(self.posts.iter().skip(1));
        let factor = if halved { 2.0 } else { 1.0 };
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / factor;
        let mut times: Vec<_> = pairs.map(|(from, to)| micros(to.duration_since(*from))).collect();
        times.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (times.first(), times.last()) else {
            return "too few for a latency".to_owned();
        };
        let typical = times.get(times.len() / 2).unwrap_or(most);
        let average = times.iter().sum::<f64>() / times.len() as f64;
        format!("usec: min {least:.2}, max {most:.2}, typical {typical:.2}, avg {average:.2}")
    }

    fn seconds(&self) -> f64 {
        let begin = self.posts.first().unwrap_or(&self.end);
        self.end.duration_since(*begin).as_secs_f64().max(1e-9)
    }

    /// Returns the report to send to the peer. It does not state a peak.
    pub(super) fn report(&self, size: usize, iterations: u32) -> Report {
        let rate = f64::from(iterations) / self.seconds();
        let average = rate * size as f64 / MEGABYTE;
        let (size, iterations) = (size as u64, iterations.into());
        Report { size, iterations, peak: 0.0, average, rate: rate / 1e6 }
    }

    /// Returns the average bandwidth and message rate as text.
    pub(super) fn bandwidth(&self, size: usize, iterations: u32) -> String {
        let Report { average, rate, .. } = self.report(size, iterations);
        format!("{average:.2} MB/s, {rate:.6} Mpps")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_perftest() {
        let begin = Instant::now();
        let at = |micros| begin + Duration::from_micros(micros);
        let figures = Figures { posts: vec![at(0), at(10), at(40), at(60)], end: at(100) };
        let full = "usec: min 10.00, max 30.00, typical 20.00, avg 20.00";
        assert_eq!(figures.latency(false), full);
        assert!(figures.latency(true).starts_with("usec: min 5.00, max 15.00"));
        let report = figures.report(1 << 20, 4);
        assert_eq!((report.size, report.iterations, report.peak), (1 << 20, 4, 0.0));
        assert!((report.average - 40_000.0).abs() < 1e-6 && (report.rate - 0.04).abs() < 1e-9);
        assert_eq!(figures.bandwidth(1 << 20, 4), "40000.00 MB/s, 0.040000 Mpps");
        let few = Figures { posts: vec![begin], end: begin };
        assert!(few.latency(true).contains("too few"));
    }
}
