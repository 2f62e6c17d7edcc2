//! Threads count, and use a lock, with atomic operations on memory of a peer.

use std::process::ExitCode;
use std::sync::atomic::Ordering::Acquire;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma::prelude::*;
use rdma_examples::ends::{Ends, OtherEnd};
use rdma_examples_common::{Failure, program};

/// Draws numbers from a counter at a peer, and adds them up under a lock at the peer. The peer is a
/// thread, or another process with the same number of threads. In that case, the peer listens, and
/// the process that draws connects.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, default_value_t = 4, help = "The number of threads, each with its own channel")]
    threads: usize,
    #[arg(long, default_value_t = 100, help = "The number of numbers that each of them draws")]
    numbers: u64,
    #[command(flatten)]
    ends: Ends,
}

const ACCESS: AccessFlags = AccessFlags::new().with_local_write().with_remote_atomic();
const LIMIT: Duration = Duration::from_secs(10);

/// The words in the peer's memory that all threads use: a counter, a lock, and the sum that the
/// lock protects.
type Board = [RemoteRef<u64>; 3];

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let line = |line: String| format!("{}: {line}", arguments.ends.device());
    arguments.ends.run(
        |context, clients| lend(context, clients, arguments).map(line),
        |context, owner| draw(context, owner, arguments).map(line),
    )
}

/// Shares the board, and then only waits. The device executes the other end's requests.
fn lend(
    context: &Context,
    clients: &mut OtherEnd,
    arguments: &Arguments,
) -> Result<String, Failure> {
    let pd = context.allocate_pd()?; // a peer can access only memory in the domain of its queue pair
    let memory = pd.allocate_shared_region(24, ACCESS)?;
    let prepared = prepare(&pd, arguments.threads)?;
    let _channels = clients.connect_all(prepared)?;
    clients.lend(memory.remote())?;
    clients.ready()?;
    clients.finish()?;
    let (drawn, sum) = (memory.atomic_u64(0)?, memory.atomic_u64(16)?);
    Ok(format!("{} numbers, and their sum is {}", drawn.load(Acquire), sum.load(Acquire)))
}

/// Runs the threads that draw numbers.
fn draw(context: &Context, owner: &mut OtherEnd, arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { threads: count, numbers, .. } = arguments;
    let channels = owner.connect_all(prepare(&context.allocate_pd()?, *count)?)?;
    let memory = owner.borrow()?;
    let word = |offset| memory.typed(offset).ok_or("the board is too short");
    let board = [word(0)?, word(8)?, word(16)?];
    owner.ready()?;
    thread::scope(|threads| {
        let all: Vec<_> = (1..)
            .zip(channels)
            .map(|(id, channel)| threads.spawn(move || work(channel, board, id, *numbers)))
            .collect();
        all.into_iter().try_for_each(|one| one.join().map_err(|_| "a thread panicked")?)
    })?;
    owner.finish()?;
    Ok(format!("{count} threads drew {numbers} numbers each"))
}

fn prepare(pd: &ProtectionDomain, count: usize) -> Result<Vec<PreparedChannel>, Failure> {
    let channel = || pd.create_channel().atomic_timeout(LIMIT).access(ACCESS);
    (0..count).map(|_| Ok(channel().build()?)).collect()
}

fn work(
    mut channel: Channel,
    [counter, lock, sum]: Board,
    id: u64,
    numbers: u64,
) -> Result<(), Failure> {
    for _ in 0..numbers {
        let number = channel.fetch_add(counter, 1)?;
        let begin = Instant::now();
        // The value 0 means that the lock is free.
        while channel.compare_and_swap(lock, 0, id)? != 0 {
            if begin.elapsed() > LIMIT {
                return Err("the lock was not released in time".into());
            }
        }
        let old = channel.fetch_add(sum, 0)?;
        if channel.compare_and_swap(sum, old, old + number)? != old {
            return Err("another thread changed the sum despite the lock".into());
        }
        channel.compare_and_swap(lock, id, 0)?;
    }
    Ok(())
}
