//! A small replication protocol is tested on a simulated network, which finds its bug.
//!
//! A primary appends entries to a log, and writes each to two backups by RDMA; no program runs there. The memory of a
//! backup has the length of the log, followed by its entries. When the primary fails, only a backup's log is left, and
//! it must be consistent.
//!
//! The hasty protocol writes the length first. On a single machine it always works.
//!
//! All of it is one process, because the simulated network is: only so does the same seed find the same error again.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rdma::prelude::*;
use rdma::qp::{AckTimeout, MaxAckRetries};
use rdma::soft::{Builder, LinkModel, Network, SoftDevice};
use rdma_examples_common::{Failure, program};

/// Tests two ways to write a log to backups, each with many failures of the network.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, default_value_t = 50, help = "The number of failures that each is tested with")]
    seeds: u64,
}

const ENTRIES: usize = 20;
/// The size of the length at the beginning of the log.
const LENGTH: usize = size_of::<usize>();
const ENTRY: usize = 32;
/// The longest write.
const INLINE: u32 = 32;

/// The part of an entry that is written first.
#[derive(Debug, Clone, Copy, PartialEq)]
enum First {
    /// The entry: it is complete when the length includes it.
    Entry,
    /// The length: the hasty protocol.
    Length,
}

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let mut report = String::new();
    for (first, name) in [(First::Length, "length first"), (First::Entry, "entry first")] {
        let mut outcome = format!("no log was damaged with {} seeds", arguments.seeds);
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

/// Replicates a log, while the network is bad and the primary loses it at some time. Returns the error in the backups'
/// logs at that time, if any.
fn damage(seed: u64, first: First) -> Result<Option<String>, Failure> {
    let network = Network::simulated(seed);
    network.set_all_links(LinkModel::new().latency(Duration::from_micros(20)).loss(0.02));
    let device = |name| Builder::new(name).network(&network).install();
    let primary = device("primary")?;
    let pd = open_device(primary.name())?.allocate_pd()?;
    let (a, b) = (device("backup-a")?, device("backup-b")?);
    let mut backups = [Backup::new(&a, &pd)?, Backup::new(&b, &pd)?];

    // The primary's last moment: at any time within the duration of the run.
    let end = Duration::from_micros(seed * 61 % 3000);
    for backup in [&a, &b] {
        network.set_link_after(end, &primary, backup, LinkModel::cut())?;
    }
    let mut committed = 0;
    for number in 0..ENTRIES {
        // A backup that does not answer gets no further entries; an entry is committed if at least one has it.
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

/// Returns the content of an entry.
fn entry(number: usize) -> [u8; ENTRY] {
    [number.to_ne_bytes()[0] ^ 0xa5; ENTRY]
}

/// A backup's memory, and the primary's connection to it.
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
        // It gives up after some milliseconds, since distances are short.
        let (timeout, retries) = (AckTimeout::from_code(6), MaxAckRetries::from_code(3));
        let near = primary.create_channel().ack_timeout(timeout.ok_or("no such code")?);
        let near = near.max_ack_retries(retries.ok_or("no such number")?);
        let near = near.max_inline_data(INLINE).build()?;
        let far = pd.create_channel().build()?;
        let (near_end, far_end) = (near.endpoint(), far.endpoint());
        let (channel, far) = (near.handshake(far_end)?, far.handshake(near_end)?);
        Ok(Self { remote: log.remote(), log, channel, _far: far })
    }

    /// Appends an entry. Returns true if the backup has it; otherwise it gets no further entries.
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

    /// Returns the number of entries that it claims, and how many of them are intact.
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
