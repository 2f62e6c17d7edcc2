//! The number of instructions of awaited operations, compared with a blocking channel.
//!
//! Works like rdma-channel's bench of the same name, on the same device that does nothing. It fails if a limit is
//! exceeded, or without valgrind or gcc.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)] // a failing bench reports it

use std::path::Path;
use std::process::ExitCode;

use rdma_async::{Connection, Driver, TransportError};
use rdma_channel::{Channel, prelude::*};
use rdma_mem::{
    AccessFlags, Buffer, BufferPool, GatherList, OwnedRegion, RemoteMemoryRegion, open_device,
};
use rdma_qp::WriteWorkRequest;
use test_support::beside_c::{Cost, bench};
use test_support::c_loops::{Calls, DEPTH, LENGTH, Loops, PLACES, ids};
use tokio::runtime::Runtime;

/// The objects that the loops work with.
struct Rig {
    channel: Channel,
    source: OwnedRegion,
    connection: Connection,
    buffers: Vec<Buffer>,
    remote: RemoteMemoryRegion,
    runtime: Runtime,
}

/// One kind of work. Each operation is a write.
struct Row {
    name: &'static str,
    work: fn(&mut Rig, u64) -> Result<u64, TransportError>,
    /// The limit, in instructions more than a blocking channel.
    most: f64,
}

const ROWS: [Row; 5] = [
    Row { name: "a blocking channel", work: blocking, most: 0.0 },
    Row { name: "awaited", work: awaited, most: 325.0 },
    Row { name: "awaited, owned", work: owned, most: 355.0 },
    Row { name: "posted, then awaited", work: posted, most: 620.0 },
    Row { name: "16 posted, then awaited", work: outstanding, most: 630.0 },
];

const GOAL: f64 = 300.0;

fn blocking(rig: &mut Rig, n: u64) -> Result<u64, TransportError> {
    let mut sum = 0;
    for id in 0..n {
        let list = GatherList::from([rig.source.get_ref(0, LENGTH).unwrap()]);
        rig.channel.write(WriteWorkRequest::from_list(&list, rig.remote))?;
        sum += id;
    }
    Ok(sum)
}

fn awaited(rig: &mut Rig, n: u64) -> Result<u64, TransportError> {
    let Rig { connection, buffers, remote, runtime, .. } = rig;
    runtime.block_on(async {
        let (mut buffer, mut sum) = (buffers.pop().unwrap(), 0);
        for id in 0..n {
            buffer = connection.write(buffer, *remote).await?;
            sum += id;
        }
        buffers.push(buffer);
        Ok(sum)
    })
}

fn owned(rig: &mut Rig, n: u64) -> Result<u64, TransportError> {
    let Rig { connection, buffers, remote, runtime, .. } = rig;
    runtime.block_on(async {
        let (mut buffer, mut sum) = (buffers.pop().unwrap(), 0);
        for id in 0..n {
            buffer = connection.write(buffer, *remote).into_owned(connection).await?;
            sum += id;
        }
        buffers.push(buffer);
        Ok(sum)
    })
}

fn posted(rig: &mut Rig, n: u64) -> Result<u64, TransportError> {
    let Rig { connection, buffers, remote, runtime, .. } = rig;
    runtime.block_on(async {
        let (mut buffer, mut sum) = (buffers.pop().unwrap(), 0);
        for id in 0..n {
            buffer = connection.write(buffer, *remote).post().await?.await?;
            sum += id;
        }
        buffers.push(buffer);
        Ok(sum)
    })
}

fn outstanding(rig: &mut Rig, n: u64) -> Result<u64, TransportError> {
    let Rig { connection, buffers, remote, runtime, .. } = rig;
    runtime.block_on(async {
        let (mut posted, mut sum) = (Vec::with_capacity(DEPTH), 0);
        for first in (0..n).step_by(DEPTH) {
            for buffer in buffers.drain(..) {
                posted.push(connection.write(buffer, *remote).try_post()?);
            }
            for (posted, id) in posted.drain(..).zip(first..) {
                buffers.push(posted.await?);
                sum += id;
            }
        }
        Ok(sum)
    })
}

fn main() -> ExitCode {
    bench(Path::new(env!("CARGO_TARGET_TMPDIR")), run_all, compare)
}

/// Prints the table. Returns true if all costs are within the limits.
fn compare(costs: &[Cost]) -> Option<bool> {
    let (channel, _) = costs.split_first()?;
    println!("{:<30}{:>8}{:>10}{:>13}", "instructions of a write", "own", "more", "with device");
    let mut within = costs.len() == ROWS.len();
    for (row, cost) in ROWS.iter().zip(costs) {
        let more = cost.own - channel.own;
        let remark = if more > row.most { "  TOO MUCH" } else { "" };
        println!("{:<30}{:>8.1}{more:>+10.1}{:>13.1}{remark}", row.name, cost.own, cost.all);
        within &= more <= row.most;
    }
    println!("goal: an awaited one {GOAL} more; it fails above {:?}", ROWS.map(|row| row.most));
    Some(within)
}

/// Runs every loop, in the order of the table.
fn run_all(object: &Path) {
    rdma_soft::install();
    let context = open_device("soft0").unwrap();
    let pd = context.allocate_pd().unwrap();
    let channel = pd.create_channel().build().unwrap();
    let itself = channel.endpoint();
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let board = pd.allocate_shared_region(PLACES * LENGTH, access).unwrap();
    let (driver, manual) = Driver::manual(&context).unwrap();
    let connection = driver.prepare(pd.create_qp()).unwrap();
    let peer = connection.endpoint();
    let pool = BufferPool::new(&pd);
    let mut rig = Rig {
        channel: channel.handshake(itself).unwrap(),
        source: pd.allocate_region(LENGTH).unwrap(),
        connection: connection.handshake(peer).unwrap(),
        buffers: (0..DEPTH).map(|_| pool.allocate(LENGTH).unwrap()).collect(),
        remote: board.remote(),
        runtime: tokio::runtime::Builder::new_current_thread().build().unwrap(),
    };
    // SAFETY: the context is closed later. Requests are posted by one loop at a time, to one queue pair.
    let mut loops = unsafe { Loops::new(object, context.as_raw()) };
    for row in &ROWS {
        // A poll takes all completions that have arrived, up to 8.
        let calls = match row.name {
            "16 posted, then awaited" => |n| Calls::writes(n, n, n / 8),
            _ => |n| Calls::writes(n, n, n),
        };
        loops.rust(row.name, calls, ids, &mut |n| (row.work)(&mut rig, n).unwrap());
    }
    // These objects poll when they are dropped, so they are dropped before `loops`, which contains
    // the code of the device.
    drop((rig, driver, manual));
}
