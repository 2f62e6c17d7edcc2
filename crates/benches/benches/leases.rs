//! The cost of lending memory for a limited time, and how punctually a lease ends.
//!
//! ```sh
//! cargo bench -p benches --bench leases
//! ```
//! `RDMA_DEVICE` names a device other than soft0. `RDMA_LEASES` and `RDMA_REGISTRATIONS` set the numbers of leases and
//! of registrations.
#![allow(clippy::panic)] // a failing bench reports it

use std::collections::HashSet;
use std::env;
use std::time::{Duration, Instant};

use rdma_async::{Connection, ConnectionOptions, Driver, LeaseEnd, LeaseLimits, Region};
use rdma_mem::{AccessFlags, BufferPool, ProtectionDomain};
use test_support::usage::{resident, ticks};
use tokio::task::JoinSet;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const WRITE: AccessFlags = AccessFlags::new().with_local_write().with_remote_write();
const LENGTH: usize = 4096;
/// The default number of leases and of registrations, which are made one after another. Memory growth is measured after
/// two thirds of the leases. By then soft0 reuses the entries of its key table (after 131,072 keys), so the table no
/// longer grows.
const LEASES: usize = 300_000;
/// The maximum growth of the process during the last third of the leases, in KiB: about ten bytes
/// for each of these leases.
const MOST_GROWN: u64 = 1024;
/// The number of simultaneous leases. The first one lasts for `WAIT`, and each further one for a
/// millisecond longer.
const LIVE: u64 = 1000;
const WAIT: Duration = Duration::from_secs(2);

struct Host {
    device: String,
    leases: usize,
    registrations: usize,
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
    host.registered()?;
    host.live().await
}

impl Host {
    async fn new() -> Outcome<Self> {
        rdma_soft::install();
        let device = env::var("RDMA_DEVICE").unwrap_or_else(|_| "soft0".to_owned());
        let number = |name| env::var(name).map_or(Ok(LEASES), |number| number.parse::<usize>());
        let (leases, registrations) = (number("RDMA_LEASES")?, number("RDMA_REGISTRATIONS")?);
        let context = rdma_mem::open_device(&device)?;
        let pd = context.allocate_pd()?;
        let driver = Driver::spawn(&context)?;
        let options = ConnectionOptions::new(&pd)
            .lease_limits(LeaseLimits::new(AccessFlags::new().with_remote_write()));
        let listener = driver.listen("127.0.0.1:0", options.clone()).await?;
        let connect = driver.connect(listener.local_addr(), options);
        let (client, server) = tokio::join!(connect, listener.accept());
        let (client, server) = (client?.0, server?);
        Ok(Self { device, leases, registrations, pool: BufferPool::new(&pd), pd, client, server })
    }

    /// Leases that are requested, written and returned, one after another.
    async fn one_after_another(&self) -> Outcome<()> {
        let access = AccessFlags::new().with_remote_write();
        let (leases, first) = (self.leases, self.leases / 3 * 2);
        // The list is allocated in advance, because its memory would count too.
        let mut keys = vec![u32::MAX; leases];
        let mut buffer = self.pool.allocate(8)?;
        let (mut begin, mut after_first) = (Instant::now(), 0);
        for (count, key) in keys.iter_mut().enumerate() {
            if count == first {
                (begin, after_first) = (Instant::now(), resident()?);
            }
            let region = self.client.borrow(LENGTH, access, Duration::from_secs(10)).await?;
            buffer = region.slice(0..8).ok_or("the region has 8 bytes")?.write(buffer).await?;
            *key = region.remote().rkey().into();
        }
        let each = begin.elapsed() / u32::try_from(leases - first)?;
        let grown = resident()?.saturating_sub(after_first) / 1024;
        let keys: HashSet<_> = keys.into_iter().collect();
        println!("a lease of {LENGTH} bytes, requested, written once and returned: {each:.1?}");
        println!("{leases} of them: {grown} KiB more than after {first}, {} keys", keys.len());
        // Only soft0 must not reuse keys; kernels and NICs may.
        if (self.device == "soft0" && keys.len() < leases) || grown > MOST_GROWN {
            return Err("keys were reused, or memory grows".into());
        }
        Ok(())
    }

    /// For comparison: registrations, one after another.
    fn registered(&self) -> Outcome<()> {
        let registrations = self.registrations;
        let mut keys = HashSet::with_capacity(registrations);
        let (begin, mut first) = (Instant::now(), None);
        for count in 0..registrations {
            let region = self.pd.allocate_shared_region(LENGTH, WRITE)?;
            if !keys.insert(u32::from(region.remote().rkey())) {
                first.get_or_insert(count);
            }
        }
        let each = begin.elapsed() / u32::try_from(registrations)?;
        println!("for comparison, memory allocated, registered and deregistered: {each:.1?}");
        let first =
            first.map_or_else(String::new, |first| format!(", the first again after {first}"));
        println!("{registrations} of these: {} keys{first}", keys.len());
        Ok(())
    }

    /// Many leases that are open at once, and end when their time is over.
    async fn live(&self) -> Outcome<()> {
        let access = AccessFlags::new().with_remote_write();
        let mut ends = JoinSet::new();
        for number in 0..LIVE {
            let region = Region::allocate(&self.pd, LENGTH)?;
            let time = WAIT + Duration::from_millis(number);
            let until = Instant::now() + time;
            let lease = self.server.lend(region, access, time).await?;
            ends.spawn(async move { (until, lease.await, Instant::now()) });
        }
        let before = ticks()?;
        tokio::time::sleep(WAIT - Duration::from_millis(500)).await;
        println!(
            "{LIVE} live leases: {} ticks of 10 ms in 1.5 s in which none ends",
            ticks()? - before
        );
        let (mut earliest, mut latest) = (Duration::MAX, Duration::ZERO);
        while let Some(ended) = ends.join_next().await {
            let (until, ended, now) = ended?;
            if ended?.end != LeaseEnd::TimeOver || now < until {
                return Err("the lease has ended before its time".into());
            }
            let late = now.saturating_duration_since(until);
            (earliest, latest) = (earliest.min(late), latest.max(late));
        }
        println!("each ended {earliest:.1?} to {latest:.1?} after its time");
        Ok(())
    }
}
