//! Threads count and lock with atomic operations on memory of a peer.

use std::sync::atomic::Ordering::Acquire;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_channel::{Channel, prelude::*};
use rdma_mem::{AccessFlags, OwnedRegion, ProtectionDomain, RemoteRef, ScatterList};

/// Draws numbers from a counter of a peer, and adds them up under a lock of the peer.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, default_value_t = 4, help = "How many threads, each with a channel of its own")]
    threads: u64,
    #[arg(long, default_value_t = 100, help = "How many numbers each of them draws")]
    numbers: u64,
}

const ACCESS: AccessFlags = AccessFlags::new().with_local_write().with_remote_atomic();
const LIMIT: Duration = Duration::from_secs(10);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the threads share, in the memory of the peer: a counter, a lock, and the sum that it guards.
type Board = [RemoteRef<u64>; 3];

/// A channel, the word that its requests use, and the peer's end.
struct Client {
    channel: Channel,
    word: OwnedRegion,
    _peer: Channel,
}

fn main() -> Result<(), Failure> {
    println!("{}", run(&Arguments::parse())?);
    Ok(())
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { device, threads: count, numbers } = arguments;
    rdma_soft::install();
    let pd = rdma_mem::open_device(device)?.allocate_pd()?;
    let memory = pd.allocate_shared_region(24, ACCESS)?;
    let word = |offset| memory.remote().typed(offset).ok_or("too short");
    let board = [word(0)?, word(8)?, word(16)?];
    let clients = (0..*count).map(|_| Client::new(&pd)).collect::<Result<Vec<_>, Failure>>()?;
    thread::scope(|threads| {
        let all: Vec<_> = (1..)
            .zip(clients)
            .map(|(id, mut client)| threads.spawn(move || client.work(board, id, *numbers)))
            .collect();
        all.into_iter().try_for_each(|one| one.join().map_err(|_| "a thread panicked")?)
    })?;
    let (drawn, sum) = (memory.atomic_u64(0)?, memory.atomic_u64(16)?);
    Ok(format!("{device}: {} numbers, and their sum is {}", drawn.load(Acquire), sum.load(Acquire)))
}

impl Client {
    fn new(pd: &ProtectionDomain) -> Result<Self, Failure> {
        let builder = || pd.create_channel().atomic_timeout(LIMIT).access(ACCESS);
        let (here, there) = (builder().build()?, builder().build()?);
        let (here_end, there_end) = (here.endpoint(), there.endpoint());
        let (channel, peer) = (here.handshake(there_end)?, there.handshake(here_end)?);
        Ok(Self { channel, word: pd.allocate_region(8)?, _peer: peer })
    }

    fn work(&mut self, [counter, lock, sum]: Board, id: u64, numbers: u64) -> Result<(), Failure> {
        for _ in 0..numbers {
            let number = self.add(counter, 1)?;
            let begin = Instant::now();
            // 0 is a free lock.
            while self.swap(lock, 0, id)? != 0 {
                if begin.elapsed() > LIMIT {
                    return Err("the lock is never free".into());
                }
            }
            let old = self.add(sum, 0)?;
            if self.swap(sum, old, old + number)? != old {
                return Err("another thread was there, in spite of the lock".into());
            }
            self.swap(lock, id, 0)?;
        }
        Ok(())
    }

    fn add(&mut self, word: RemoteRef<u64>, n: u64) -> Result<u64, Failure> {
        let mut before = ScatterList::from([self.word.as_slice_mut()]);
        self.channel.fetch_add(&mut before, word, n)?;
        self.before()
    }

    fn swap(&mut self, word: RemoteRef<u64>, old: u64, new: u64) -> Result<u64, Failure> {
        let mut before = ScatterList::from([self.word.as_slice_mut()]);
        self.channel.compare_and_swap(&mut before, word, old, new)?;
        self.before()
    }

    /// What the remote word was.
    fn before(&self) -> Result<u64, Failure> {
        Ok(u64::from_ne_bytes(self.word[..].try_into()?))
    }
}
