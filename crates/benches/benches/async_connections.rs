//! The cost of idle connections, the speed of making them, and the longest turns of other tasks
//! meanwhile.
//!
//! ```sh
//! cargo bench -p benches --bench async_connections            # 1,000 in one process, and between two
//! ```
#![allow(clippy::panic)] // a failing bench reports it

use std::env;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdma_async::{Connection, ConnectionOptions, Driver, Listener};
use rdma_mem::BufferPool;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use test_support::usage::{resident, ticks};
use tokio::runtime::{Builder, Runtime};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The environment variable with the server's address, for the process of the clients.
const ADDRESS: &str = "RDMA_ASYNC_BENCH_SERVER";
const CONNECTIONS: u32 = 1000;
/// The time in which no messages are sent.
const IDLE: Duration = Duration::from_secs(10);

/// A driver, and the options of its connections, which have 16 requests in each queue.
struct Host {
    driver: Driver,
    options: ConnectionOptions,
    pool: BufferPool,
}

fn main() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome = raised.map_err(Into::into).and_then(|()| {
        let runtime = runtime?;
        match env::var(ADDRESS) {
            Ok(address) => be_clients(&runtime, address.parse()?),
            // `between_two` runs first, because it measures memory, and later allocations may reuse
            // memory that was freed.
            Err(_) => {
                between_two(&runtime).and_then(|()| in_one_process(&runtime)).and_then(|()| turns())
            }
        }
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

impl Host {
    fn new() -> Outcome<Self> {
        rdma_soft::install();
        let context = rdma_mem::open_device("soft0")?;
        let pd = context.allocate_pd()?;
        let driver = Driver::spawn(&context)?;
        let access = rdma_mem::AccessFlags::new().with_remote_write();
        let qp = rdma_qp::QueuePair::builder(&pd).max_send_wr(16).max_recv_wr(16).access(access);
        Ok(Self { driver, options: qp.into(), pool: BufferPool::new(&pd) })
    }

    async fn connect(&self, address: SocketAddr) -> Outcome<Vec<Connection>> {
        let begin = Instant::now();
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(self.driver.connect(address, self.options.clone()).await?.0);
        }
        println!("{CONNECTIONS} connections one after another: {:.0?}", begin.elapsed());
        Ok(clients)
    }

    async fn accept(&self, listener: &Listener) -> Outcome<Vec<Connection>> {
        let mut servers = Vec::new();
        for _ in 0..CONNECTIONS {
            servers.push(listener.accept().await?);
        }
        Ok(servers)
    }

    /// Sends a message on each connection.
    async fn talk(&self, from: &[Connection], to: &[Connection]) -> Outcome<()> {
        for (from, to) in from.iter().zip(to) {
            let receive = to.receive(self.pool.allocate(8)?).post().await?;
            from.send(self.pool.allocate(8)?).await?;
            receive.await?;
        }
        Ok(())
    }
}

/// Measures how long a task waits for its turn while connections are made, used, reconnected and dropped in the same
/// thread. Prints the three longest waits, in processor time of the thread.
fn turns() -> Outcome<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut longest = runtime.block_on(async {
        let host = Host::new()?;
        // The pool registers its memory here, before the measurement. A program does this in
        // advance, or on another thread.
        drop(host.pool.allocate(8)?);
        let (end, mut ended) = tokio::sync::oneshot::channel::<()>();
        let turns = tokio::spawn(async move {
            let (mut turns, mut before) = (Vec::new(), of_thread());
            while ended.try_recv().is_err() {
                tokio::task::yield_now().await;
                let now = of_thread();
                turns.push(now.saturating_sub(before));
                before = now;
            }
            turns
        });
        let listener = host.driver.listen("127.0.0.1:0", host.options.clone()).await?;
        let connect = host.connect(listener.local_addr());
        let (clients, servers) = tokio::try_join!(connect, host.accept(&listener))?;
        host.talk(&clients, &servers).await?;
        for (client, server) in clients.iter().zip(&servers).take(100) {
            tokio::try_join!(client.reconnect(), server.reconnect())?;
        }
        // The connections are dropped one after another, because a turn that drops several would
        // count as one.
        for (client, server) in clients.into_iter().zip(&servers) {
            drop(client);
            while server.closed().is_none() {
                tokio::task::yield_now().await;
            }
        }
        let _ = end.send(());
        Outcome::Ok(turns.await?)
    })?;
    longest.sort_unstable_by(|a, b| b.cmp(a));
    longest.truncate(3);
    println!("the longest turns of other tasks: {longest:.0?}");
    Ok(())
}

/// The processor time that this thread has used.
fn of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn in_one_process(runtime: &Runtime) -> Outcome<()> {
    runtime.block_on(async {
        let host = Host::new()?;
        let listener = host.driver.listen("127.0.0.1:0", host.options.clone()).await?;
        let connect = host.connect(listener.local_addr());
        let (clients, servers) = tokio::try_join!(connect, host.accept(&listener))?;
        idle().await?;
        let begin = Instant::now();
        host.talk(&clients, &servers).await?;
        println!("a message on each: {:.0?}", begin.elapsed());
        Ok(())
    })
}

fn between_two(runtime: &Runtime) -> Outcome<()> {
    runtime.block_on(async {
        let host = Host::new()?;
        let listener = host.driver.listen("127.0.0.1:0", host.options.clone()).await?;
        let before = resident()?;
        let mut others = Command::new(env::current_exe()?)
            .env(ADDRESS, listener.local_addr().to_string())
            .stdin(Stdio::piped())
            .spawn()?;
        println!("between two processes:");
        let servers = host.accept(&listener).await?;
        let each = resident()?.saturating_sub(before) / u64::from(CONNECTIONS);
        println!("{each} bytes of memory for this end");
        idle().await?;
        others.stdin.take().map_or(Ok(()), |mut input| input.flush())?;
        others.wait()?;
        let begin = Instant::now();
        while servers.iter().any(|server| server.closed().is_none()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        println!("all were noticed to be gone {:.0?} after the process", begin.elapsed());
        Ok(())
    })
}

/// Runs all clients until the other end of standard input is closed.
fn be_clients(runtime: &Runtime, address: SocketAddr) -> Outcome<()> {
    let clients = runtime.block_on(async { Host::new()?.connect(address).await })?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(clients);
    Ok(())
}

async fn idle() -> Outcome<()> {
    let before = ticks()?;
    tokio::time::sleep(IDLE).await;
    println!("idle for {IDLE:?}: {} ticks of the processor", ticks()? - before);
    Ok(())
}
