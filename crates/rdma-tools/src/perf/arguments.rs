//! The command line of `rdmatool perf`.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;

use crate::perf::client::{Length, Line, Run};
use crate::perf::protocol::Work;
use crate::perf::report::Measure;
use crate::perf::settings::{Api, Operation, Settings, WORD, Wait};
use crate::units::bytes_of;

/// The arguments of the end that measures. The end that listens gets its settings from its clients.
const CLIENT: [&str; 14] = [
    "measure",
    "connect",
    "threads",
    "size",
    "queue_pairs",
    "depth",
    "inline",
    "api",
    "wait",
    "foreign_memory",
    "iterations",
    "duration",
    "scale",
    "verbose",
];

/// Measures latency, bandwidth or message rate
///
/// Without --listen or --connect, a second process is started as the other end.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The quantity to measure
    #[arg(required_unless_present_any = ["listen", "once", "serve"])]
    measure: Option<Measure>,
    /// The operation to measure
    #[arg(required_unless_present_any = ["listen", "once", "serve"])]
    operation: Option<Operation>,
    /// The RDMA device [default: the one named by RDMA_DEVICE, or the first NIC with an active port, or soft0]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// The index of the GID to use, such as that of a VLAN [default: the one that fits the peer's]
    #[arg(long, value_name = "N")]
    pub(crate) gid_index: Option<u8>,
    /// Serve the clients that connect to this address; they send the settings
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = CLIENT)]
    pub(crate) listen: Option<String>,
    /// Exit after serving one client
    #[arg(long, requires = "listen", conflicts_with_all = ["measure", "connect", "serve"])]
    pub(crate) once: bool,
    /// Measure with the process that listens at this address
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "threads")]
    pub(crate) connect: Option<String>,
    /// Serve the process that waits at this address
    #[arg(long, value_name = "HOST:PORT", hide = true, conflicts_with_all = ["measure", "listen", "connect", "threads"])]
    pub(crate) serve: Option<String>,
    /// Run both ends as threads of this process
    #[arg(long)]
    pub(crate) threads: bool,
    /// Message lengths in bytes, such as 8,64K,1M [default: 8,64,512,4K,64K,1M]
    #[arg(long, short, value_name = "BYTES", value_delimiter = ',', value_parser = bytes_of)]
    size: Vec<u32>,
    /// Numbers of queue pairs, for bw and rate
    #[arg(long, short, value_name = "N", value_delimiter = ',', default_value = "1", value_parser = RangedU64ValueParser::<u32>::new().range(1..=4096))]
    queue_pairs: Vec<u32>,
    /// Numbers of outstanding requests per queue pair, for bw and rate [default: 64]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = RangedU64ValueParser::<u32>::new().range(1..=u64::from(u32::MAX)))]
    depth: Vec<u32>,
    /// Post messages of at most this length inline
    #[arg(long, value_name = "BYTES", value_parser = bytes_of)]
    inline: Option<u32>,
    /// The interface of the library to use
    #[arg(long, default_value = "qp")]
    api: Api,
    /// The way in which both ends wait [default: memory for `lat write` on queue pairs, poll
    /// otherwise]
    #[arg(long)]
    wait: Option<Wait>,
    /// Register memory that the program owns, not the library
    #[arg(long)]
    foreign_memory: bool,
    /// The number of operations per row, rounded up to a multiple of the 10 blocks
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "duration", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    iterations: Option<u64>,
    /// The time to measure each row
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    duration: Duration,
    /// Also measure memcpy, TCP between the same ends, and the perftest program if it is installed
    #[arg(long)]
    pub(crate) scale: bool,
    /// Write the result as JSON to this file; `-` prints it to standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw the result to this file; its extension, .svg or .png, selects the format
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print each block to standard error
    #[arg(long, short)]
    verbose: bool,
}

/// The lengths to measure if `--size` is not given, in bytes.
const SIZES: [u32; 6] = [8, 64, 512, 4 << 10, 64 << 10, 1 << 20];
/// The number of outstanding requests if `--depth` is not given, except for latencies.
const DEPTH: u32 = 64;

impl Arguments {
    /// Returns the run that the client performs, or `None` if this end serves.
    pub(crate) fn run(&self) -> Option<Run> {
        let (measure, operation) = (self.measure?, self.operation?);
        let is_latency = measure == Measure::Lat;
        let default = match (is_latency, operation, self.api) {
            (true, Operation::Write, Api::Qp) => Wait::Memory,
            _ => Wait::Poll,
        };
        let sizes = match operation {
            _ if !self.size.is_empty() => distinct(&self.size),
            Operation::Atomic => vec![WORD],
            _ => SIZES.to_vec(),
        };
        let depths = match is_latency {
            _ if !self.depth.is_empty() => distinct(&self.depth),
            true => vec![1],
            false => vec![DEPTH],
        };
        let most = |values: &[u32]| values.iter().copied().max().unwrap_or(1);
        let settings = Settings {
            measure,
            operation,
            api: self.api,
            wait: self.wait.unwrap_or(default),
            queue_pairs: most(&self.queue_pairs),
            depth: most(&depths),
            sizes,
            inline: self.inline.unwrap_or(0),
            foreign_memory: self.foreign_memory,
        };
        let length = match self.iterations {
            Some(iterations) => Length::Iterations(iterations),
            None => Length::Duration(self.duration),
        };
        let mut lines = Vec::new();
        for size in 0..settings.sizes.len() {
            for &queue_pairs in &distinct(&self.queue_pairs) {
                for &depth in &depths {
                    lines.push(Line { work: Work::Rdma, size, queue_pairs, depth });
                }
            }
            let references = [Work::Tcp, Work::Memcpy].into_iter().filter(|_| self.scale);
            lines.extend(references.map(|work| Line { work, size, queue_pairs: 1, depth: 1 }));
        }
        Some(Run { settings, lines, length, perftest: None, verbose: self.verbose })
    }
}

/// Removes duplicates but keeps the order of the values, because a report has one row per
/// combination.
fn distinct(values: &[u32]) -> Vec<u32> {
    let mut seen = HashSet::new();
    values.iter().copied().filter(|value| seen.insert(*value)).collect()
}

fn seconds(text: &str) -> Result<Duration, String> {
    let parsed = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    parsed
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "not a number of seconds above 0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_finite_and_not_zero() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert!(["0", "-1", "nan", "inf", "1e300", ""].iter().all(|bad| seconds(bad).is_err()));
    }
}
