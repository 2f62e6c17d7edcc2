//! The settings of a measurement, shared by both ends.

use anyhow::ensure;
use clap::ValueEnum;
use rdma::device::{AtomicCapability, Context, PortAttributes, PortState};
use serde::{Deserialize, Serialize};

use crate::perf::report::Measure;

/// The settings of a run. The client sends them to the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) measure: Measure,
    pub(crate) operation: Operation,
    pub(crate) api: Api,
    pub(crate) wait: Wait,
    /// The message lengths, in bytes.
    pub(crate) sizes: Vec<u32>,
    /// The number of queue pairs.
    pub(crate) queue_pairs: u32,
    /// The maximum number of requests outstanding on a queue pair.
    pub(crate) depth: u32,
    /// The maximum length of messages that are posted inline.
    pub(crate) inline: u32,
    /// Whether the registered memory is owned by the program, not by the library.
    pub(crate) foreign_memory: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    /// RDMA write
    Write,
    /// RDMA read
    Read,
    /// Send and receive
    Send,
    /// Fetch and add of 8 bytes
    Atomic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Api {
    /// Queue pairs and completion queues
    Qp,
    /// Blocking channels
    Channel,
    /// Futures
    Async,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wait {
    /// Poll completion queues
    Poll,
    /// Sleep until a completion event arrives
    Sleep,
    /// Poll the memory that the peer writes (`lat write`)
    Memory,
}

impl Operation {
    /// Returns true if the server posts receives for this operation.
    pub(crate) fn has_receives(self, wait: Wait, measure: Measure) -> bool {
        match self {
            Self::Send => true,
            // In a ping-pong, the peer detects a write by its immediate data, unless it polls the
            // memory itself.
            Self::Write => measure == Measure::Lat && wait != Wait::Memory,
            Self::Read | Self::Atomic => false,
        }
    }

    /// Returns true if, in a latency measurement, both ends post this operation in turn.
    pub(crate) const fn is_halved(self) -> bool {
        matches!(self, Self::Send | Self::Write)
    }
}

/// Returns the name of a value as it is written on the command line.
pub(crate) fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The size of a word for atomic operations, in bytes.
pub(crate) const WORD: u32 = 8;
/// The maximum number of queue pairs in a run.
pub(crate) const MOST_QUEUE_PAIRS: u32 = 4096;
/// The maximum number of message lengths in a run.
const MOST_SIZES: usize = 1024;
/// An upper bound of the memory that one work request takes in a queue, in bytes.
const WORK_REQUEST: u64 = 256;

impl Settings {
    /// Returns the length of the longest message, in bytes.
    pub(crate) fn longest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(1)
    }

    pub(crate) fn has_receives(&self) -> bool {
        self.operation.has_receives(self.wait, self.measure)
    }

    /// Returns the number of receives to post on a queue pair. They are enough for the messages
    /// that arrive while this end is busy.
    pub(crate) const fn receives(&self) -> u32 {
        self.depth.saturating_mul(2)
    }

    /// Returns an upper bound, in bytes, on the memory that an end needs for its messages and
    /// queues.
    fn memory(&self) -> u64 {
        let longest = u64::from(self.longest());
        let sinks: u64 = match self.operation {
            Operation::Read | Operation::Atomic => self.sizes.iter().copied().map(u64::from).sum(),
            Operation::Send | Operation::Write => longest,
        };
        let requests = u64::from(self.depth) + u64::from(self.receives());
        let outstanding = u64::from(self.queue_pairs) * requests;
        let messages = match self.api {
            Api::Qp => 2,
            Api::Channel => 4,
            Api::Async => outstanding.saturating_add(2), // one buffer per operation
        };
        let messages = longest.saturating_mul(messages).saturating_add(sinks);
        messages.saturating_add(outstanding * WORK_REQUEST)
    }

    /// Returns the mode of a row: the interface, the wait mode, and other settings if they differ
    /// from the defaults.
    pub(crate) fn mode(&self, bytes: u32) -> String {
        let wait = match self.wait {
            Wait::Poll => "polling",
            Wait::Sleep => "asleep",
            Wait::Memory => "memory",
        };
        let inline = if bytes <= self.inline { ", inline" } else { "" };
        let foreign = if self.foreign_memory { ", foreign memory" } else { "" };
        format!("{}, {wait}{inline}{foreign}", name(self.api))
    }

    /// Checks that the settings fit each other and the device. Returns the first active port.
    ///
    /// # Errors
    /// Returns an error if a setting does not fit, no port is active, or the device cannot be
    /// queried.
    pub(crate) fn check(&self, context: &Context) -> anyhow::Result<PortAttributes> {
        let Self { measure, operation, api, wait, queue_pairs, depth, .. } = self;
        ensure!(
            !self.sizes.is_empty() && self.sizes.iter().all(|&size| size > 0),
            "a message has at least one byte"
        );
        let count = self.sizes.len();
        ensure!(
            count <= MOST_SIZES,
            "{count} lengths of messages are more than {MOST_SIZES}: give fewer"
        );
        ensure!(
            *operation != Operation::Atomic || self.sizes.iter().all(|&size| size == WORD),
            "an atomic operation has {WORD} bytes: leave out `--size`"
        );
        ensure!(
            (1..=MOST_QUEUE_PAIRS).contains(queue_pairs),
            "{queue_pairs} queue pairs are outside 1 to {MOST_QUEUE_PAIRS}"
        );
        ensure!(
            *measure != Measure::Lat || (*queue_pairs, *depth) == (1, 1),
            "a latency is that of one request on one queue pair: leave out `--queue-pairs` and `--depth`"
        );
        ensure!(
            *wait != Wait::Memory
                || (*measure, *operation, *api) == (Measure::Lat, Operation::Write, Api::Qp),
            "`--wait memory` is for `lat write` with `--api qp` only"
        );
        ensure!(
            *api == Api::Qp || (self.inline, self.foreign_memory) == (0, false),
            "`--inline` and `--foreign-memory` are for `--api qp` only"
        );
        ensure!(
            self.inline == 0 || operation.is_halved(),
            "only sends and writes can be inline: leave out `--inline`"
        );
        let (device, name) = (context.query_device()?, context.device().name().to_owned());
        ensure!(
            *operation != Operation::Atomic || device.atomic_capability != AtomicCapability::NONE,
            "{name} has no atomic operations"
        );
        let most = device.max_qp_wr;
        ensure!(
            (1..=most).contains(depth) && (!self.has_receives() || self.receives() <= most),
            "a depth of {depth} is outside 1 to {}, the limit of {name}",
            if self.has_receives() { most / 2 } else { most }
        );
        let port = active_port(context)?;
        let (longest, most) = (self.longest(), port.max_message_size);
        ensure!(longest <= most, "a message of {longest} bytes exceeds the {most} bytes of {name}");
        let (memory, most) = (self.memory(), machine_memory() / 2);
        ensure!(
            memory <= most,
            "the settings may need {memory} bytes of memory at each end, more than half of this machine's ({most}): give \
             smaller or fewer messages, or less depth"
        );
        Ok(port)
    }
}

/// Returns the size of this machine's memory, in bytes.
fn machine_memory() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram.saturating_mul(system.mem_unit.into())
}

/// Returns the attributes of the first active port.
fn active_port(context: &Context) -> anyhow::Result<PortAttributes> {
    let count = context.query_device()?.port_count;
    let ports =
        (1..=count).map(|number| context.query_port(number)).collect::<Result<Vec<_>, _>>()?;
    Ok(first_active(ports, context.device().name())?)
}

/// The error if no port of the device is active.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no port of {device} is active ({states}): bring its link up, on InfiniBand with a subnet manager"
)]
struct PortDown {
    device: String,
    states: String,
}

fn first_active(ports: Vec<PortAttributes>, device: &str) -> Result<PortAttributes, PortDown> {
    let state = |(number, port): (u32, &PortAttributes)| format!("port {number} is {}", port.state);
    let states = (1..).zip(&ports).map(state).collect::<Vec<_>>().join(", ");
    let active = ports.into_iter().find(|port| port.state == PortState::ACTIVE);
    active.ok_or_else(|| PortDown { device: device.to_owned(), states })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_an_active_port_is_refused_with_the_states() -> anyhow::Result<()> {
        let context = rdma::device::open_device("soft0")?;
        let mut port = context.query_port(1)?;
        assert!(first_active(vec![port.clone()], "soft0").is_ok());
        port.state = PortState::DOWN;
        let error = first_active(vec![port], "nic0").map(drop).map_err(|error| error.to_string());
        assert_eq!(
            error.err().as_deref(),
            Some(
                "no port of nic0 is active (port 1 is down): bring its link up, on InfiniBand with a subnet manager"
            )
        );
        Ok(())
    }
}
