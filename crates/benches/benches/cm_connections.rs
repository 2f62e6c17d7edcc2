//! Connections by rdma_cm between two processes on soft0: the time to connect, and the memory and processor time of many
//! that are held.
//!
//! ```sh
//! ulimit -Hn 20000                                    # each connection uses a file in both processes
//! cargo bench -p benches --bench cm_connections       # 10,000 connections
//! ```
#![allow(clippy::panic)] // a failing bench panics

use std::env;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rdma_cm::{Connection, Error, EventChannel, Listener};
use rdma_mem::ProtectionDomain;
use rdma_qp::{CompletionQueue, PreparedQueuePair, prelude::*};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::usage::{resident, ticks};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The environment variable of the server's process.
const SERVER: &str = "RDMA_CM_BENCH_SERVER";
/// The connections that are held.
const COUNT: usize = 10_000;
/// The first and the last connections, whose times are reported.
const TIMED: usize = 1_000;
/// The time in which no message is sent.
const IDLE: Duration = Duration::from_secs(10);
/// The limit of a step, which is only reached if the other process has failed.
const LIMIT: Duration = Duration::from_secs(60);

fn main() {
    let outcome = match env::var(SERVER) {
        Ok(_) => be_server(),
        // `cargo test --benches` only checks that it starts.
        Err(_) if !env::args().any(|argument| argument == "--bench") => Ok(()),
        Err(_) => be_client(),
    };
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// The objects of one end.
struct Node {
    channel: EventChannel,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Node {
    fn new() -> Outcome<Self> {
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
        rdma_soft::install();
        let context = rdma_mem::open_device("soft0")?;
        let (pd, cq) = (context.allocate_pd()?, CompletionQueue::create(&context, 16)?);
        Ok(Self { channel: EventChannel::open(&context)?, pd, cq })
    }

    /// Creates a queue pair with the smallest queues, whose memory is not of interest.
    fn queue_pair(&self) -> Result<PreparedQueuePair, rdma_qp::Error> {
        let builder = self.pd.create_qp().send_cq(&self.cq).recv_cq(&self.cq);
        builder.max_send_wr(1).max_recv_wr(1).max_send_sge(1).max_recv_sge(1).build()
    }

    fn queue_pairs(&self) -> Outcome<Vec<PreparedQueuePair>> {
        Ok((0..COUNT).map(|_| self.queue_pair()).collect::<Result<_, _>>()?)
    }
}

/// The memory of a process before and after its queue pairs were created, and after they were connected.
struct Memory {
    end: &'static str,
    before: u64,
    created: u64,
}

impl Memory {
    fn report(&self) -> Outcome<()> {
        let each = |from: u64, to: u64| to.saturating_sub(from) / COUNT as u64;
        let (own, connected) = (each(self.before, self.created), each(self.created, resident()?));
        println!(
            "memory of each {}: {own} bytes before it is connected, and {connected} more after",
            self.end
        );
        Ok(())
    }
}

/// Accepts the connections, and holds them until the other end of standard input is closed.
fn be_server() -> Outcome<()> {
    let node = Node::new()?;
    let listener = Listener::bind(&node.channel, "localhost:0")?;
    let mut memory = Memory { end: "server's end", before: resident()?, created: 0 };
    let queue_pairs = node.queue_pairs()?;
    memory.created = resident()?;
    eprintln!("{}", listener.local_address());
    let accept =
        |queue_pair| listener.incoming(LIMIT)?.prepare(queue_pair)?.accept(b"")?.wait(LIMIT);
    let held = queue_pairs.into_iter().map(accept).collect::<Result<Vec<Connection>, Error>>()?;
    memory.report()?;
    idle("server", &node)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(held);
    Ok(())
}

/// Waits for events that do not arrive, and reports the processor time of it.
fn idle(end: &str, node: &Node) -> Outcome<()> {
    let before = ticks()?;
    if let Some(event) = node.channel.next(Some(IDLE))? {
        return Err(format!("it was idle, and {event:?}").into());
    }
    println!(
        "processor time of the {end} in {IDLE:?} without messages: {} ticks",
        ticks()? - before
    );
    Ok(())
}

fn be_client() -> Outcome<()> {
    let mut server = Command::new(env::current_exe()?)
        .env(SERVER, "")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut address = Vec::new();
    let said = server.stderr.as_mut().ok_or("no standard error")?;
    while !address.ends_with(b"\n") {
        let mut byte = [0];
        said.read_exact(&mut byte)?;
        address.extend(byte);
    }
    // The rest are errors.
    let mut said = server.stderr.take().ok_or("no standard error")?;
    let errors = thread::spawn(move || std::io::copy(&mut said, &mut std::io::stderr()));

    let node = Node::new()?;
    let resolved = node.channel.resolve(String::from_utf8(address)?.trim())?;
    let mut memory = Memory { end: "client's end", before: resident()?, created: 0 };
    let queue_pairs = node.queue_pairs()?;
    memory.created = resident()?;
    let (mut held, mut times) = (Vec::with_capacity(COUNT), Vec::with_capacity(COUNT));
    let begin = Instant::now();
    for queue_pair in queue_pairs {
        let begin = Instant::now();
        held.push(resolved.connect(queue_pair, b"")?.wait(LIMIT)?.establish()?);
        times.push(begin.elapsed());
    }
    let all = begin.elapsed();
    for (name, at) in [("first", 0), ("last", COUNT - TIMED)] {
        let times = &mut times[at..at + TIMED];
        let sum: Duration = times.iter().sum();
        times.sort_unstable();
        let per_second = TIMED as u128 * 1_000_000_000 / sum.as_nanos();
        let [median, late] = [times[TIMED / 2], times[TIMED * 99 / 100]];
        println!(
            "the {name} {TIMED} connects: median {median:.0?}, 99th percentile {late:.0?}, {per_second} a second"
        );
    }
    println!("{COUNT} connects one after another: {all:.2?}");
    memory.report()?;
    idle("client", &node)?;
    let mut input = server.stdin.take().ok_or("no standard input")?;
    input.flush()?;
    drop(input);
    let status = server.wait()?;
    drop(held);
    errors.join().map_err(|_| "the reader of the errors failed")??;
    if status.success() { Ok(()) } else { Err(format!("the server: {status}").into()) }
}
