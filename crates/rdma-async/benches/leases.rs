//! What it costs to lend memory for a time, and how punctual the end is.
//!
//! ```sh
//! cargo bench -p rdma-async --bench leases
//! ```
#![allow(clippy::panic)] // A bench that fails says so.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rdma_async::{Connection, ConnectionOptions, Driver, LeaseEnd, LeaseLimits, Region};
use rdma_mem::{AccessFlags, BufferPool, ProtectionDomain, SharedRegion};
use test_support::usage::{resident, ticks};
use tokio::task::JoinSet;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const WRITE: AccessFlags = AccessFlags::new().with_local_write().with_remote_write();
const LENGTH: usize = 4096;
/// So many leases one after another, and after how many the memory is looked at: soft0 uses a place of its table of keys again after
/// so many that it has grown until then.
const LEASES: usize = 300_000;
const FIRST: usize = 200_000;
/// What the process may have taken meanwhile, in KiB: ten bytes for each lease behind the first ones.
const MOST_GROWN: u64 = 1024;
/// So many at once, whose times end in as many milliseconds behind this.
const LIVE: u64 = 1000;
const WAIT: Duration = Duration::from_secs(2);

struct Host {
    pd: ProtectionDomain,
    pool: BufferPool,
    client: Connection,
    server: Connection,
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(measure()));
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

async fn measure() -> Outcome<()> {
    let host = Host::new().await?;
    host.one_after_another().await?;
    host.live().await
}

impl Host {
    async fn new() -> Outcome<Self> {
        rdma_soft::install();
        let context = rdma_mem::open_device("soft0")?;
        let pd = context.allocate_pd()?;
        let driver = Driver::spawn(&context)?;
        let options = ConnectionOptions::new(&pd)
            .lease_limits(LeaseLimits::new(AccessFlags::new().with_remote_write()));
        let listener = driver.listen("127.0.0.1:0", options.clone()).await?;
        let connect = driver.connect(listener.local_addr(), options);
        let (client, server) = tokio::join!(connect, listener.accept());
        Ok(Self { pool: BufferPool::new(&pd), pd, client: client?.0, server: server? })
    }

    /// Asked for, written, and given back.
    async fn one_after_another(&self) -> Outcome<()> {
        let access = AccessFlags::new().with_remote_write();
        // There from the beginning: it counts as memory, too.
        let mut keys = vec![u32::MAX; LEASES];
        let mut buffer = self.pool.allocate(8)?;
        let (mut begin, mut after_first) = (Instant::now(), 0);
        for (count, key) in keys.iter_mut().enumerate() {
            if count == FIRST {
                (begin, after_first) = (Instant::now(), resident()?);
            }
            let region = self.client.request(LENGTH, access, Duration::from_secs(10)).await?;
            buffer = region.slice(0..8).ok_or("it has so many")?.write(buffer).await?;
            *key = region.remote().rkey().into();
        }
        let each = begin.elapsed() / u32::try_from(LEASES - FIRST)?;
        let grown = resident()?.saturating_sub(after_first) / 1024;
        let keys: HashSet<_> = keys.into_iter().collect();
        println!("a lease of {LENGTH} bytes, asked for, written once and given back: {each:.1?}");
        println!("{LEASES} of them: {grown} KiB more than after {FIRST}, {} keys", keys.len());
        if keys.len() < LEASES || grown > MOST_GROWN {
            return Err("keys come again, or memory grows".into());
        }
        let begin = Instant::now();
        const BESIDE: u32 = 10_000;
        for _ in 0..BESIDE {
            drop(SharedRegion::allocate(&self.pd, LENGTH, WRITE)?);
        }
        let each = begin.elapsed() / BESIDE;
        println!("beside it, memory allocated, registered and deregistered: {each:.1?}");
        Ok(())
    }

    /// Many that are open at once, and end by their times.
    async fn live(&self) -> Outcome<()> {
        let access = AccessFlags::new().with_remote_write();
        let mut ends = JoinSet::new();
        for number in 0..LIVE {
            let region = Region::allocate(&self.pd, LENGTH)?;
            let time = WAIT + Duration::from_millis(number);
            let until = Instant::now() + time;
            let loan = self.server.lend(region, access, time).await?;
            ends.spawn(async move { (until, loan.await, Instant::now()) });
        }
        let before = ticks()?;
        tokio::time::sleep(WAIT - Duration::from_millis(500)).await;
        println!(
            "{LIVE} live leases: {} ticks of 10 ms in 1.5 s without an end",
            ticks()? - before
        );
        let (mut earliest, mut latest) = (Duration::MAX, Duration::ZERO);
        while let Some(ended) = ends.join_next().await {
            let (until, ended, now) = ended?;
            if ended?.end != LeaseEnd::TimeOver || now < until {
                return Err("it has ended before its time".into());
            }
            let late = now.saturating_duration_since(until);
            (earliest, latest) = (earliest.min(late), latest.max(late));
        }
        println!("each ended {earliest:.1?} to {latest:.1?} behind its time");
        Ok(())
    }
}
