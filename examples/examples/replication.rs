//! Tests a small replication protocol on a simulated network, which finds the protocol's bug.
//!
//! A primary appends entries to a log, and writes each one by RDMA to two backups, which run no
//! code for that. A backup's memory contains the length of the log, followed by the log's entries.
//! When the primary fails, only the logs of the backups are left, and they must be consistent.
//!
//! The hasty protocol writes the length before the entry. On a single machine, this always works.
//!
//! Everything runs in one process, because the simulated network does. Only then does the same seed
//! always find the same error.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rdma::prelude::*;
use rdma::qp::{AckTimeout, MaxAckRetries};
use rdma::soft::{Builder, LinkModel, Network, SoftDevice};
use rdma_examples_common::{Failure, program};

/// Tests two ways to write a log to backups, each with many network failures
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, default_value_t = 50, help = "The number of failures that each is tested with")]
    seeds: u64,
}

const ENTRIES: usize = 20;
/// The size of the length field at the beginning of the log, in bytes.
const LENGTH: usize = size_of::<usize>();
const ENTRY: usize = 32;
/// The length of the longest write, in bytes.
const INLINE: u32 = 32;

/// The part of the log that is written first when an entry is appended.
#[derive(Debug, Clone, Copy, PartialEq)]
enum First {
    /// The entry. It is already complete when the length begins to include it.
    Entry,
    /// The length, as in the hasty protocol.
    Length,
}

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let mut report = String::new();
    for (first, name) in [(First::Length, "length first"), (First::Entry, "entry first")] {
        let mut outcome = format!("no log was damaged in {} seeds", arguments.seeds);
        for seed in 0..arguments.seeds {
            if let Some(damage) = damage(seed, first)? {
                outcome = format!("seed {seed}: {damage}");
                break;
            }
        }
        report += &format!("{name}: {outcome}\n");
    }
    Ok(report.trim_end().to_owned())
}

/// Replicates a log over a network that loses packets. At some point, the primary loses its
/// connections to the backups. Returns the inconsistency in the backups' logs at that moment, if
/// there is one.
fn damage(seed: u64, first: First) -> Result<Option<String>, Failure> {
    let network = Network::simulated(seed);
    network.set_all_links(LinkModel::new().latency(Duration::from_micros(20)).loss(0.02));
    let device = |name| Builder::new(name).network(&network).install();
    let primary = device("primary")?;
    let pd = open_device(primary.name())?.allocate_pd()?;
    let (a, b) = (device("backup-a")?, device("backup-b")?);
    let mut backups = [Backup::new(&a, &pd)?, Backup::new(&b, &pd)?];

    // The primary's last moment, which may be at any time during the run.
    let end = Duration::from_micros(seed * 61 % 3000);
    for backup in [&a, &b] {
        network.set_link_after(end, &primary, backup, LinkModel::cut())?;
    }
    let mut committed = 0;
    for number in 0..ENTRIES {
        // A backup that does not answer gets no further entries. An entry is committed if at least
        // one backup has it.
        for backup in &mut backups {
            if backup.append(number, first)? {
                committed = number + 1;
            }
        }
    }

    let mut longest = 0;
    for (name, backup) in ["a", "b"].into_iter().zip(&backups) {
        let (length, whole) = backup.log()?;
        if whole < length {
            let now = network.now();
            return Ok(Some(format!(
                "backup {name} claims {length} entries and has {whole}, after {now:?}"
            )));
        }
        longest = longest.max(length);
    }
    Ok((longest < committed)
        .then(|| format!("{committed} entries were committed, {longest} are there")))
}

/// Returns the contents of an entry.
fn entry(number: usize) -> [u8; ENTRY] {
    [number.to_ne_bytes()[0] ^ 0xa5; ENTRY]
}

/// The memory of a backup, and the primary's connection to it.
struct Backup {
    log: SharedRegion,
    remote: RemoteMemoryRegion,
    channel: Channel,
    _far: Channel,
}

impl Backup {
    fn new(device: &SoftDevice, primary: &ProtectionDomain) -> Result<Self, Failure> {
        let pd = open_device(device.name())?.allocate_pd()?;
        let access = AccessFlags::new().with_local_write().with_remote_write();
        let log = pd.allocate_shared_region(LENGTH + ENTRIES * ENTRY, access)?;
        // The channel gives up after a few milliseconds, because the distances are short.
        let (timeout, retries) = (AckTimeout::from_code(6), MaxAckRetries::from_code(3));
        let near = primary.create_channel().ack_timeout(timeout.ok_or("no such code")?);
        let near = near.max_ack_retries(retries.ok_or("no such number")?);
        let near = near.max_inline_data(INLINE).build()?;
        let far = pd.create_channel().build()?;
        let (near_end, far_end) = (near.endpoint(), far.endpoint());
        let (channel, far) = (near.handshake(far_end)?, far.handshake(near_end)?);
        Ok(Self { remote: log.remote(), log, channel, _far: far })
    }

    /// Appends an entry. Returns true if the backup has it. If not, the backup must get no further
    /// entries.
    fn append(&mut self, number: usize, first: First) -> Result<bool, Failure> {
        let place = self.remote.sub_region(LENGTH + number * ENTRY).ok_or("the log is full")?;
        let (entry, length) = (entry(number), (number + 1).to_ne_bytes());
        let mut writes = [(&entry[..], place), (&length[..], self.remote)];
        if first == First::Length {
            writes.reverse();
        }
        for (bytes, place) in writes {
            match self.channel.write_inline(bytes, place) {
                Ok(_) => {}
                Err(TransportError::WorkError(_) | TransportError::Closed { .. }) => {
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Returns the length that the log claims to have, and how many of these entries are intact.
    fn log(&self) -> Result<(usize, usize), Failure> {
        let mut length = [0; LENGTH];
        self.log.read(0, &mut length)?;
        let length = usize::from_ne_bytes(length);
        for number in 0..length {
            let mut found = [0; ENTRY];
            self.log.read(LENGTH + number * ENTRY, &mut found)?;
            if found != entry(number) {
                return Ok((length, number));
            }
        }
        Ok((length, length))
    }
}
