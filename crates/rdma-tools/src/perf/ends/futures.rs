//! Futures on connections, which all run in one task.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rdma::aio::{BufferExt as _, Connection, Driver, Kind, Op, Posted};
use rdma::memory::{Buffer, BufferPool, RemoteMemoryRegion};
use rdma::qp::CreateQueuePair as _;
use tokio::runtime::{Builder, Runtime};

use crate::perf::ends::memory::{Target, access};
use crate::perf::ends::{End, Path, Peer, Plan, Ready, Role};
use crate::perf::samples::Samples;
use crate::perf::settings::{Operation, Settings, Wait};
use crate::perf::watch::Watch;

/// The time that the driver polls before it would sleep, which is longer than any wait here.
const POLLING: Duration = Duration::from_secs(3600);

/// The connections of one driver. They are dropped before the runtime, because the driver's task
/// runs in it.
struct Connections {
    messages: Messages,
    runtime: Runtime,
}

/// The connections, and the memory and settings that their operations use.
struct Messages {
    connections: Vec<Connection>,
    pool: BufferPool,
    /// Buffers that no operation is using.
    free: RefCell<Vec<Buffer>>,
    remote: RemoteMemoryRegion,
    operation: Operation,
    has_receives: bool,
    sleeps: bool,
}

pub(super) fn connect<'m>(
    peer: &mut Peer<'_>,
    target: &Target,
) -> anyhow::Result<(Box<dyn End + 'm>, Path)> {
    let Settings { queue_pairs, depth, operation, wait, .. } = *peer.settings;
    let has_receives = peer.settings.has_receives();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let driver = {
        let _inside = runtime.enter();
        Driver::spawn(peer.pd.context())?
    };
    let receives = if has_receives { peer.settings.receives() } else { 1 };
    let prepare = |_| {
        let builder = peer.pd.create_qp().access(access(operation)).gid_choice(peer.gid_choice());
        driver.prepare(builder.max_send_wr(depth).max_recv_wr(receives))
    };
    let prepared = (0..queue_pairs).map(prepare).collect::<Result<Vec<_>, _>>()?;
    let met = peer.meet(prepared, target)?;
    let messages = Messages {
        connections: met.connections,
        pool: BufferPool::new(peer.pd),
        free: RefCell::default(),
        remote: met.remote,
        operation,
        has_receives,
        sleeps: wait == Wait::Sleep,
    };
    let end = Connections { messages, runtime };
    Ok((Box::new(end), Path { mtu: met.mtu, is_ordered: true }))
}

impl End for Connections {
    fn client(
        &mut self,
        plan: &Plan,
        watch: &mut Watch,
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        let Self { messages, runtime } = self;
        messages.trim(plan);
        let mut no_word = || Ok(());
        let block = async {
            match plan.role {
                Role::PingPong => {
                    samples.start();
                    messages.ping_pong(plan, true, &mut no_word, || samples.round_trip()).await
                }
                Role::Requests => {
                    samples.start();
                    messages.requests(plan, 1, || samples.request()).await
                }
                Role::Stream => {
                    let begin = Instant::now();
                    messages.requests(plan, plan.depth * plan.queue_pairs, || {}).await?;
                    samples.stream(plan.iterations, begin.elapsed());
                    Ok(())
                }
            }
        };
        runtime.block_on(watched(block, watch))
    }

    fn server(&mut self, plan: &Plan, watch: &mut Watch, ready: Ready<'_>) -> anyhow::Result<()> {
        let Self { messages, runtime } = self;
        messages.trim(plan);
        let block = async {
            match plan.role {
                Role::PingPong => messages.ping_pong(plan, false, ready, || {}).await,
                Role::Stream if messages.has_receives => messages.receives(plan, ready).await,
                Role::Stream | Role::Requests => ready(),
            }
        };
        runtime.block_on(watched(block, watch))
    }
}

/// Runs a block, unless the watch ends it first.
async fn watched(
    block: impl Future<Output = anyhow::Result<()>>,
    watch: &mut Watch,
) -> anyhow::Result<()> {
    let stop = async {
        loop {
            tokio::time::sleep(Watch::INTERVAL).await;
            watch.begin(); // progress is not visible here, so the clock restarts
            if let Err(stop) = watch.check() {
                return stop;
            }
        }
    };
    tokio::select! {
        outcome = block => outcome,
        stop = stop => Err(stop.into()),
    }
}

/// Posts the operation.
async fn post<'c, K: Kind>(operation: Op<'c, K>) -> anyhow::Result<Posted<'c, K>> {
    operation.post().await.map_err(|failed| failed.error.into())
}

impl Messages {
    /// Drops the free buffers whose length differs from that of this block's messages.
    fn trim(&self, plan: &Plan) {
        self.free.borrow_mut().retain(|buffer| buffer.len() == plan.bytes);
    }

    fn buffer(&self, plan: &Plan) -> anyhow::Result<Buffer> {
        match self.free.borrow_mut().pop() {
            Some(buffer) => Ok(buffer),
            None => Ok(self.pool.allocate(plan.bytes)?),
        }
    }

    fn connection(&self, n: u64, plan: &Plan) -> anyhow::Result<&Connection> {
        let index = usize::try_from(n % plan.queue_pairs as u64)?;
        self.connections.get(index).context("no such connection")
    }

    fn remote(&self, plan: &Plan) -> anyhow::Result<RemoteMemoryRegion> {
        self.remote.slice(0..plan.bytes).context("the peer lends too few bytes")
    }

    async fn outcome<K: Kind>(&self, posted: Posted<'_, K>) -> anyhow::Result<K::Output> {
        let outcome = match self.sleeps {
            true => posted.await,
            false => posted.busy_poll(POLLING).await,
        };
        outcome.map_err(|failed| failed.error.into())
    }

    /// Takes turns with the peer in sending a message and waiting for one. The end that `begins`
    /// sends first. The receive for the peer's next message is posted before this end sends.
    async fn ping_pong(
        &self,
        plan: &Plan,
        begins: bool,
        ready: Ready<'_>,
        mut round_trip: impl FnMut(),
    ) -> anyhow::Result<()> {
        let (connection, remote) = (self.connection(0, plan)?, self.remote(plan)?);
        let source = self.pool.allocate(plan.bytes)?.freeze();
        let send = async || match self.operation {
            Operation::Write => {
                let write = connection.write_with_imm(source.clone(), remote, 0);
                self.outcome(post(write).await?).await.map(drop)
            }
            _ => self.outcome(post(connection.send(source.clone())).await?).await.map(drop),
        };
        let receive = async |buffer: Buffer| post(connection.receive(buffer)).await;
        let mut next = Some(receive(self.buffer(plan)?).await?);
        ready()?;
        for left in (0..plan.iterations).rev() {
            if begins {
                send().await?;
            }
            let received = self.outcome(next.take().context("no receive")?).await?;
            if left > 0 {
                next = Some(receive(received.memory).await?);
            }
            round_trip();
            if !begins {
                send().await?;
            }
        }
        Ok(())
    }

    /// Posts requests, and keeps `outstanding` of them outstanding. Calls `done` after each one has
    /// completed.
    async fn requests(
        &self,
        plan: &Plan,
        outstanding: usize,
        done: impl FnMut(),
    ) -> anyhow::Result<()> {
        let source = self.pool.allocate(plan.bytes)?.freeze();
        let remote = self.remote(plan)?;
        let full = || Ok(());
        match self.operation {
            Operation::Send => {
                let send = async |n| post(self.connection(n, plan)?.send(source.clone())).await;
                self.stream(plan, outstanding, send, drop, full, done).await
            }
            Operation::Write => {
                let write =
                    async |n| post(self.connection(n, plan)?.write(source.clone(), remote)).await;
                self.stream(plan, outstanding, write, drop, full, done).await
            }
            Operation::Read => {
                let read = async |n| {
                    post(self.connection(n, plan)?.read(self.buffer(plan)?, remote)).await
                };
                let back = |buffer| self.free.borrow_mut().push(buffer);
                self.stream(plan, outstanding, read, back, full, done).await
            }
            Operation::Atomic => {
                let add = async |n| post(self.connection(n, plan)?.fetch_add(remote, 1)).await;
                self.stream(plan, outstanding, add, drop, full, done).await
            }
        }
    }

    /// Receives the block's messages.
    async fn receives(&self, plan: &Plan, ready: Ready<'_>) -> anyhow::Result<()> {
        let receive = async |n| post(self.connection(n, plan)?.receive(self.buffer(plan)?)).await;
        let back = |received: rdma::aio::Received<Buffer>| {
            self.free.borrow_mut().push(received.memory);
        };
        // There are twice as many receives as outstanding sends, because the client may be ahead.
        let outstanding = 2 * plan.depth * plan.queue_pairs;
        self.stream(plan, outstanding, receive, back, ready, || {}).await
    }

    /// Posts operations on the connections in turn, and keeps `outstanding` of them outstanding.
    /// Calls `full` once that number, or all operations, are posted. Calls `back` with each output.
    async fn stream<'c, K: Kind>(
        &self,
        plan: &Plan,
        outstanding: usize,
        post: impl AsyncFn(u64) -> anyhow::Result<Posted<'c, K>>,
        back: impl Fn(K::Output),
        full: impl FnOnce() -> anyhow::Result<()>,
        mut done: impl FnMut(),
    ) -> anyhow::Result<()> {
        let mut flight = VecDeque::with_capacity(outstanding);
        let first = plan.iterations.min(outstanding as u64);
        for n in 0..first {
            flight.push_back(post(n).await?);
        }
        full()?;
        let mut next = first;
        while let Some(oldest) = flight.pop_front() {
            back(self.outcome(oldest).await?);
            done();
            if next < plan.iterations {
                flight.push_back(post(next).await?);
                next += 1;
            }
        }
        Ok(())
    }
}
