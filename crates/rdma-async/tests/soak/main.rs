//! Many operations on many connections, with lent memory. Some are dropped at any await, and connections end and are
//! made again. At the end nothing is left.
//!
//! `RDMA_TEST_OPERATIONS=1000000 cargo test --release -p rdma-async --test soak` is the long form. `RDMA_TEST_SEED`
//! sets the seed of another run. `messages` does the same with messages between two processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests

#[path = "../common/mod.rs"]
mod common;
mod leases;
mod messages;

use std::env;
use std::fs;
use std::time::Duration;

use rdma_async::{Connection, ConnectionOptions, Driver, Failed, LeaseLimits, TransportError};
use rdma_mem::{
    Buffer, BufferPool, ProtectionDomain, RemoteMemoryRegion, SharedRegion, open_device,
};
use rdma_qp::{MaxRnrRetries, QueuePair, QueuePairBuilder};
use test_support::program::in_own_process;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use common::chance::Chance;
use common::{HANG, all};
use leases::{Back, Kept};

const CONNECTIONS: u16 = 100;
/// The longest wait of an operation for a slot that is never freed.
const PATIENCE: Duration = Duration::from_millis(200);
/// The number of regions of the device.
const REGIONS: u32 = 4096;

struct Worker {
    number: u16,
    driver: Driver,
    options: ConnectionOptions,
    qp: QueuePairBuilder<'static>,
    /// The number of the newest further connection.
    further: u32,
    address: std::net::SocketAddr,
    accepted: mpsc::UnboundedReceiver<Connection>,
    pd: ProtectionDomain,
    pool: BufferPool,
    board: RemoteMemoryRegion,
    kept: Kept,
    back: Back,
    chance: Chance,
}

impl Worker {
    /// Both ends of a new connection.
    async fn connect(&mut self) -> (Connection, Connection) {
        let options = self.options.clone().user_bytes(&self.number.to_le_bytes());
        let connect = self.driver.connect(self.address, options);
        let client = timeout(HANG, connect).await.unwrap().unwrap().0;
        let server = timeout(HANG, self.accepted.recv()).await.unwrap().unwrap();
        (client, server)
    }

    fn buffer(&mut self) -> Buffer {
        let length = usize::try_from(self.chance.below(300)).unwrap();
        self.pool.allocate(length).unwrap()
    }

    /// Runs that many operations. Returns the numbers of dropped operations and of connections, and the returned
    /// regions.
    async fn work(mut self, operations: u64) -> ([u64; 2], Back) {
        let (mut client, mut server) = self.connect().await;
        let [mut dropped, mut connections] = [0, 1];
        for _ in 0..operations {
            let lends = self.chance.below(4) == 0;
            let most = if lends { 60 } else { 3 };
            let polls = (self.chance.below(4) == 0).then(|| self.chance.below(most));
            let done = timeout(HANG, async {
                if lends {
                    self.one_lease(&client, &server, polls).await
                } else {
                    self.one(&client, &server, polls).await
                }
            });
            let done = done.await;
            dropped += u64::from(polls.is_some());
            let outcome = done.unwrap_or_else(|_| panic!("a hang: {client:?}, {server:?}"));
            let is_over = outcome.is_err() || self.chance.below(400) == 0;
            if is_over {
                (client, server) = self.renew(client, server).await;
                connections += 1;
            }
        }
        ([dropped, connections], self.back)
    }

    /// Both ends of another connection, or of the same one with another queue pair.
    async fn renew(&mut self, client: Connection, server: Connection) -> (Connection, Connection) {
        match self.chance.below(5) {
            0 => server.close().unwrap(),
            1 => {
                // Earlier sends may have no receive.
                let _ = client.disconnect(Duration::from_millis(1)).await;
            }
            2 => {
                self.further += 1;
                let [one, other] = [&client, &server]
                    .map(|end| end.connect_additional(self.further, self.qp.clone()));
                let further = async { tokio::join!(one, other) };
                let (one, other) = timeout(HANG, further).await.unwrap();
                return (one.unwrap(), other.unwrap());
            }
            3 => {
                let given_up = if self.chance.below(2) == 0 { &client } else { &server };
                for _ in 0..self.chance.below(3) {
                    let micros = Duration::from_micros(self.chance.below(2000));
                    // The result may be that of the attempt that continues.
                    let _ = timeout(micros, given_up.reconnect()).await;
                }
                let both = async { tokio::join!(client.reconnect(), server.reconnect()) };
                let (one, other) = timeout(HANG, both).await.unwrap();
                assert_eq!(one.unwrap(), other.unwrap());
                return (client, server);
            }
            _ => {}
        }
        drop((client, server));
        self.connect().await
    }

    /// Runs one or two operations. Drops them after `polls` polls, if set.
    async fn one(
        &mut self,
        client: &Connection,
        server: &Connection,
        polls: Option<u64>,
    ) -> Result<(), TransportError> {
        let (buffer, other, kind) =
            (self.buffer(), self.pool.allocate(300).unwrap(), self.chance.below(6));
        let board = self.board.slice(0..buffer.len()).unwrap();
        let word = self.board.slice(0..8).unwrap();
        let work = async {
            match kind {
                0 => drop(client.write(buffer, board).await.map_err(cause)?),
                1 => drop(client.read(buffer, board).await.map_err(cause)?),
                2 => drop(client.fetch_add(word, 1).await.map_err(cause)?),
                3 => drop(client.write(buffer, board).post().await.map_err(cause)?),
                // Another receive gets the message, if this one was dropped.
                4 => drop(server.receive(other).try_post().map_err(cause)?),
                _ => {
                    let receive = server.receive(other).post().await.map_err(cause)?;
                    client.send(buffer).await.map_err(cause)?;
                    // An earlier dropped receive may have got the message.
                    if server.take_unclaimed().is_none() {
                        drop(receive);
                    }
                }
            }
            Ok(())
        };
        let limited = async {
            // Dropped receives have occupied all slots: then the connection is made again.
            timeout(PATIENCE, work).await.unwrap_or(Err(TransportError::WouldBlock))
        };
        dropped_after(polls, limited).await.unwrap_or(Ok(()))
    }

    /// Lends or borrows memory at either end. Drops the future after `polls` polls, if set.
    async fn one_lease(
        &mut self,
        client: &Connection,
        server: &Connection,
        polls: Option<u64>,
    ) -> Result<(), TransportError> {
        let (one, other) =
            if self.chance.below(2) == 0 { (client, server) } else { (server, client) };
        let kind = self.chance.below(8);
        let work = async {
            self.use_kept().await;
            match kind {
                0..3 => self.ask(one, other).await,
                3..6 => self.lend(one, other).await,
                6 => self.open(one, other).await,
                _ => self.lend_parts(one, other).await,
            }
        };
        dropped_after(polls, work).await.unwrap_or(Ok(()))
    }
}

/// The outcome, unless the future was dropped first.
async fn dropped_after<R>(polls: Option<u64>, work: impl Future<Output = R>) -> Option<R> {
    let Some(polls) = polls else { return Some(work.await) };
    tokio::select! {
        biased;
        outcome = work => Some(outcome),
        () = async {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
        } => None,
    }
}

fn cause<B>(failed: Failed<B>) -> TransportError {
    failed.error
}

/// The open files of this process, without the sockets of the device. It opens one for each other process, and another
/// one for every few thousand queue pairs. Only these sockets are of type SEQPACKET.
fn files() -> Vec<String> {
    let unix = fs::read_to_string("/proc/net/unix").unwrap();
    let of_device = |name: &str| {
        let inode = name.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix("]"));
        inode.is_some_and(|inode| {
            let mut lines = unix.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            lines.any(|line| line.get(4) == Some(&"0005") && line.get(6) == Some(&inode))
        })
    };
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    let links = entries.map(|entry| fs::read_link(entry.unwrap().path()));
    let mut names: Vec<_> =
        links.filter_map(Result::ok).map(|link| link.display().to_string()).collect();
    names.retain(|name| !of_device(name));
    names.sort();
    names
}

/// Lets the device open the files that it opens once.
fn warm_up(pd: &ProtectionDomain) {
    let once = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    once.block_on(async {
        let driver = Driver::spawn(pd.context()).unwrap();
        let itself = driver.prepare(QueuePair::builder(pd)).unwrap();
        let endpoint = itself.endpoint();
        drop(itself.handshake(endpoint).unwrap());
        driver.shutdown().await;
    });
}

/// The sum of the work of all workers.
async fn work_all(
    pd: &ProtectionDomain,
    pool: &BufferPool,
    board: RemoteMemoryRegion,
    operations: u64,
    seed: u64,
) -> ([u64; 2], Back) {
    let driver = Driver::spawn(pd.context()).unwrap();
    let qp = QueuePair::builder(pd).access(all()).max_rnr_retries(MaxRnrRetries::unlimited());
    let qp = qp.max_send_wr(4).max_recv_wr(4);
    let options = ConnectionOptions::from(qp.clone());
    let options = options.lease_limits(LeaseLimits::new(leases::ALL));
    let listener = driver.listen("127.0.0.1:0", options.clone()).await.unwrap();
    let mut senders = Vec::new();
    let mut workers = JoinSet::new();
    for number in 0..CONNECTIONS {
        let (sender, accepted) = mpsc::unbounded_channel();
        senders.push(sender);
        let worker = Worker {
            number,
            driver: driver.clone(),
            options: options.clone(),
            qp: qp.clone(),
            further: 0,
            address: listener.local_addr(),
            accepted,
            pd: pd.clone(),
            pool: pool.clone(),
            board,
            kept: Kept::default(),
            back: Back::default(),
            chance: Chance(seed.wrapping_mul(1000) + u64::from(number)),
        };
        workers.spawn(worker.work(operations / u64::from(CONNECTIONS)));
    }
    let accepts = tokio::spawn(async move {
        loop {
            let incoming = listener.incoming().await.unwrap();
            let number = u16::from_le_bytes(incoming.user_bytes().try_into().unwrap());
            if let Ok(connection) = incoming.accept(&[]) {
                // Its worker may have ended.
                let _ = senders[usize::from(number)].send(connection);
            }
        }
    });
    let mut counts = ([0; 2], Back::default());
    while let Some(done) = workers.join_next().await {
        let ([dropped, connections], back) = done.unwrap();
        counts.0 = [counts.0[0] + dropped, counts.0[1] + connections];
        counts.1.add(back);
    }
    accepts.abort();
    assert!(accepts.await.is_err());
    timeout(HANG, driver.shutdown()).await.unwrap();
    counts
}

/// Waits until all tasks of the runtime have ended.
async fn no_tasks() {
    let metrics = tokio::runtime::Handle::current().metrics();
    while metrics.num_alive_tasks() != 0 {
        tokio::task::yield_now().await;
    }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Registers that many regions.
fn all_regions(pd: &ProtectionDomain, count: u32) -> Result<Vec<SharedRegion>, rdma_mem::Error> {
    (0..count).map(|_| pd.allocate_shared_region(1, all())).collect()
}

#[test]
fn many_operations_and_connections_leak_nothing() {
    in_own_process("many_operations_and_connections_leak_nothing", work_and_count);
}

fn work_and_count() {
    let operations = number("RDMA_TEST_OPERATIONS").unwrap_or(20_000);
    let seed = number("RDMA_TEST_SEED").unwrap_or(1);
    println!("RDMA_TEST_SEED={seed}");
    rdma_soft::Builder::new("softsoak0")
        .limits(rdma_soft::Limits::default().max_mr(REGIONS))
        .install()
        .unwrap();
    let context = open_device("softsoak0").unwrap();
    let pd = context.allocate_pd().unwrap();
    let pool = BufferPool::new(&pd);
    let board = pd.allocate_shared_region(4096, all()).unwrap();
    warm_up(&pd);
    let files_before = files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let ([dropped, connections], back) = runtime.block_on(async {
        let counts = work_all(&pd, &pool, board.remote(), operations, seed).await;
        assert!(timeout(HANG, no_tasks()).await.is_ok(), "tasks are left");
        counts
    });
    drop(runtime);
    assert_eq!(pool.usage().buffers, 0, "memory was not returned");
    assert_eq!(files(), files_before, "files were not closed");
    println!("{operations} operations, {dropped} dropped, on {connections} connections, {back:?}");
    // Nothing depends on them any more.
    drop((pool, board));
    // All regions of the device can be registered again.
    let regions = all_regions(&pd, REGIONS);
    assert!(regions.is_ok(), "regions are left: {regions:?}");
    assert!(dropped > 0 && connections > u64::from(CONNECTIONS) && back.is_mixed());
}
