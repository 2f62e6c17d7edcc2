//! The GIDs of a port move to other indexes of its table, as happens when an address of a RoCE NIC is
//! added or removed. A program that keeps an index then connects from another address, or with
//! another version of RoCE.
//!
//! This program keeps the GID. When an event reports that the GIDs have changed, it looks the GID up
//! in the new table and reconnects. Both ends are in one process. A fault of the software device
//! `moving0` moves the GIDs.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rdma::device::{AsyncEventKind, AsyncEvents, GidEntry, GidType};
use rdma::prelude::*;
use rdma::soft::Builder;
use rdma_examples_common::{Failure, program};

/// Reconnects whenever the GIDs of its port have moved
#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value_t = 2, help = "The number of moves after which the program ends")]
    moves: u64,
}

const FAULTS: &str = "gid_move=500ms";
const WRITE: AccessFlags = AccessFlags::new().with_local_write().with_remote_write();
/// The maximum time between a move of the GIDs and its event.
const SOON: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    program(run)
}

fn run(arguments: &Arguments) -> Result<String, Failure> {
    Builder::new("moving0").faults(FAULTS.parse()?).install()?;
    let context = open_device("moving0")?;
    let mut own = Own::choose(context.allocate_pd()?, context.async_events()?)?;
    let peer = open_device("soft0")?.allocate_pd()?;
    let memory = peer.allocate_shared_region(8, WRITE)?;
    let mut report = vec![own.entry.gid.to_string()];
    for number in 0..=arguments.moves {
        // After the event, the old index is stale, and so is anything else that the program read
        // from the table.
        while number > 0 && own.events.get_event()?.kind != AsyncEventKind::GID_CHANGE {}
        own.write(&peer, number, memory.remote())?;
        let mut written = [0; 8];
        memory.read(0, &mut written)?;
        let (index, written) = (own.entry.index, u64::from_ne_bytes(written));
        report.push(format!("connected from index {index}, and wrote {written}"));
    }
    Ok(report.join("\n"))
}

/// The end whose GIDs move.
struct Own {
    pd: ProtectionDomain,
    events: AsyncEvents,
    /// The chosen GID, and its index when the program last read the table.
    entry: GidEntry,
}

impl Own {
    /// Chooses an IPv4 address with RoCE v2.
    fn choose(pd: ProtectionDomain, events: AsyncEvents) -> Result<Self, Failure> {
        let mut table = pd.context().gid_table()?.into_iter();
        let fits = |it: &GidEntry| it.gid.is_ipv4_mapped() && it.gid_type == GidType::ROCE_V2;
        let entry = table.find(fits).ok_or("the device has no IPv4 address with RoCE v2")?;
        Ok(Self { pd, events, entry })
    }

    /// Connects and writes a number. Repeats this if the GIDs move again in the meantime.
    fn write(
        &mut self,
        peer: &ProtectionDomain,
        number: u64,
        to: RemoteMemoryRegion,
    ) -> Result<(), Failure> {
        loop {
            match self.try_write(peer, number, to) {
                Err(error) if self.events.get_event_timeout(SOON)?.is_none() => return Err(error),
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Looks the GID up, connects and writes a number.
    fn try_write(
        &mut self,
        peer: &ProtectionDomain,
        number: u64,
        to: RemoteMemoryRegion,
    ) -> Result<(), Failure> {
        let table = self.pd.context().gid_table()?;
        let own = (self.entry.gid, self.entry.gid_type);
        let found = table.into_iter().find(|entry| (entry.gid, entry.gid_type) == own);
        self.entry = found.ok_or("the device no longer has the GID")?;
        let here = self.pd.create_channel().gid_index(self.entry.index.try_into()?).build()?;
        let there = peer.create_channel().access(WRITE).build()?;
        let (at_here, at_there) = (here.endpoint(), there.endpoint());
        if at_here.gids().iter().all(|gid| (gid.gid, gid.gid_type) != own) {
            return Err("the index names another GID: look the GID up again".into());
        }
        let (mut here, _there) = (here.handshake(at_there)?, there.handshake(at_here)?);
        Ok(here.write_inline(&number.to_ne_bytes(), to)?)
    }
}
