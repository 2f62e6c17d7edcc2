//! The report that `rdmatool perf --json` writes and `rdmatool compare` reads.

use serde::{Deserialize, Serialize};

/// The version of this format. It changes when a field is removed or changes its meaning.
pub(crate) const VERSION: u32 = 1;

/// One run of `rdmatool perf`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    /// The version of the format, [`VERSION`].
    pub(crate) version: u32,
    /// The program's version.
    pub(crate) rdmatool: String,
    /// The time of the run, in seconds since 1970 (UTC).
    pub(crate) time: u64,
    pub(crate) machine: Machine,
    pub(crate) device: Device,
    pub(crate) rows: Vec<Row>,
}

/// The machine that ran the measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    /// The processor's model name.
    pub(crate) processor: String,
    /// The number of processors that the process may use.
    pub(crate) processors: u32,
    /// The kernel's release.
    pub(crate) kernel: String,
}

/// The RDMA device that was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) provider: String,
    pub(crate) firmware: String,
    /// The path MTU, in bytes.
    pub(crate) mtu: u32,
}

/// One row of the table: an operation with one message length.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) measure: Measure,
    /// The operation, such as `write`, or the name of a reference, such as `tcp` or `memcpy`.
    pub(crate) operation: String,
    /// The length of a message, in bytes.
    pub(crate) bytes: u64,
    pub(crate) queue_pairs: u32,
    /// The number of outstanding requests per queue pair.
    pub(crate) depth: u32,
    /// The way in which the row was measured: the interface, the wait mode and special settings,
    /// such as `qp, polling, inline`.
    pub(crate) mode: String,
    /// The number of operations in all blocks together.
    pub(crate) operations: u64,
    /// The distribution of the latencies. Present only for `lat`, except in rows of perftest.
    pub(crate) latency: Option<Latency>,
    /// One figure per block. Depending on the measure, it is the median latency in nanoseconds,
    /// bytes per second, or messages per second. The blocks of different rows were measured
    /// alternately.
    pub(crate) blocks: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measure {
    /// Half the round trip time of writes and sends, the whole time of reads and atomics.
    Lat,
    /// Bytes per second, with many requests outstanding.
    Bw,
    /// Messages per second, with many requests outstanding.
    Rate,
}

/// The distribution of latencies, in nanoseconds. These are half round trips of writes and sends,
/// and full operations of reads, atomics and copies.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Latency {
    pub(crate) min: u64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    pub(crate) mean: f64,
}
