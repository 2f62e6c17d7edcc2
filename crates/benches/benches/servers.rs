//! Cost of idle clients of a server: memory and processor time.
//!
//! ```sh
//! cargo bench -p benches --bench servers              # 100 clients, and 1,000
//! ```
#![allow(clippy::panic)] // a failing bench panics

use std::env;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdma_channel::{ServerEvent, Wait, prelude::*};
use rdma_mem::ProtectionDomain;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::usage::{resident, ticks};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Environment variables of the clients' process: the server's address, and the number of clients.
const ADDRESS: &str = "RDMA_CHANNEL_BENCH_SERVER";
const CLIENTS: &str = "RDMA_CHANNEL_BENCH_CLIENTS";

/// The time in which no client sends anything.
const IDLE: Duration = Duration::from_secs(10);

fn main() {
    let outcome = match env::var(ADDRESS) {
        Ok(address) => be_clients(&address),
        Err(_) => [100, 1000].into_iter().try_for_each(be_server),
    };
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

fn domain() -> Outcome<ProtectionDomain> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    rdma_soft::install();
    Ok(rdma_mem::open_device("soft0")?.allocate_pd()?)
}

/// Runs all clients, until the other end of standard input is closed.
fn be_clients(address: &str) -> Outcome<()> {
    let (pd, count) = (domain()?, env::var(CLIENTS)?.parse::<usize>()?);
    let begin = Instant::now();
    let connect = |_| pd.create_channel().wait(Wait::Spin).connect(address);
    let clients = (0..count).map(connect).collect::<Result<Vec<_>, _>>()?;
    println!("{count} clients one after another: {:.0?}", begin.elapsed());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(clients);
    Ok(())
}

fn be_server(clients: u32) -> Outcome<()> {
    let builder = domain()?;
    let builder = builder.create_server().max_peers(clients);
    let mut server = builder.bind("127.0.0.1:0")?;
    let mut others = Command::new(env::current_exe()?)
        .env(ADDRESS, server.local_addr().to_string())
        .env(CLIENTS, clients.to_string())
        .stdin(Stdio::piped())
        .spawn()?;
    let before = resident()?;
    for _ in 0..clients {
        let event = server.next(None)?;
        let Some(ServerEvent::Joined { .. }) = event else {
            return Err(format!("no client, but {event:?}").into());
        };
    }
    let each = resident()?.saturating_sub(before) / u64::from(clients);
    println!("{clients} clients: {each} bytes of memory each");
    let before = ticks()?;
    if let Some(event) = server.next(Some(IDLE))? {
        return Err(format!("it was idle, and {event:?}").into());
    }
    println!("idle for {IDLE:?}: {} ticks of the processor", ticks()? - before);
    others.stdin.take().map_or(Ok(()), |mut input| input.flush())?;
    for _ in 0..clients {
        server.next(None)?;
    }
    others.wait()?;
    Ok(())
}
