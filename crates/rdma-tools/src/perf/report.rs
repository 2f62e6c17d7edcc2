//! The result of `rdmatool perf`, as written by `--json` and read by `rdmatool compare`.

use serde::{Deserialize, Serialize};

/// The version of this format. It changes if a field changes its meaning or is removed.
pub(crate) const VERSION: u32 = 1;

/// One run of `rdmatool perf`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    /// [`VERSION`].
    pub(crate) version: u32,
    /// The program's version.
    pub(crate) rdmatool: String,
    /// Seconds since 1970, UTC.
    pub(crate) time: u64,
    pub(crate) machine: Machine,
    pub(crate) device: Device,
    pub(crate) rows: Vec<Row>,
}

/// The machine of the measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    /// The processor's model name.
    pub(crate) processor: String,
    /// Processors that the process may use.
    pub(crate) processors: u32,
    /// The kernel's release.
    pub(crate) kernel: String,
}

/// The RDMA device of the measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) provider: String,
    pub(crate) firmware: String,
    /// The path MTU, in bytes.
    pub(crate) mtu: u32,
}

/// One line of the table: an operation of one size.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) measure: Measure,
    /// The operation, such as `write`, or the name of a reference, such as `tcp` and `memcpy`.
    pub(crate) operation: String,
    /// The length of a message, in bytes.
    pub(crate) bytes: u64,
    pub(crate) queue_pairs: u32,
    /// Requests outstanding for each queue pair.
    pub(crate) depth: u32,
    /// The way of waiting, the memory and the interface, such as `polling` and `async`.
    pub(crate) mode: String,
    /// Operations measured in all blocks.
    pub(crate) operations: u64,
    /// Half round trips; for `lat` only.
    pub(crate) latency: Option<Latency>,
    /// One value for each of the interleaved blocks. Depending on the measure, it is the median half round trip in
    /// nanoseconds, bytes per second, or messages per second.
    pub(crate) blocks: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measure {
    /// Half of the round trip time.
    Lat,
    /// Bytes per second, many requests outstanding.
    Bw,
    /// Messages per second, many requests outstanding.
    Rate,
}

/// Half round trips, in nanoseconds.
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
