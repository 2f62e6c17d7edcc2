//! Operations: what they do, and what becomes of their memory when nobody waits for them.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

mod cancelled;
mod done;
mod ended;
mod full;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rdma_async::{Connection, Driver};
use rdma_mem::{AccessFlags, Buffer, BufferPool, ProtectionDomain, SharedRegion, open_device};
use rdma_qp::prelude::*;
use rdma_qp::{MaxRnrRetries, QueuePairBuilder};
use rdma_soft::{Builder, Schedule};

/// A device that executes requests at a later poll or on another thread.
const DEFERRED: &str = "softlate0";
/// A device that executes requests when the test says so.
const HELD: &str = "softheld0";
/// A device that sends packets.
const WIRE: &str = "softwire0";
/// Those that work by themselves.
const DEVICES: [&str; 4] = ["soft0", "softib0", DEFERRED, WIRE];
/// Nothing takes so long, unless it hangs.
const HANG: Duration = Duration::from_secs(60);

/// Two connections, to each other, and memory of the second one's that the first may use.
struct Pair {
    one: Connection,
    other: Connection,
    board: SharedRegion,
    pool: BufferPool,
    pd: ProtectionDomain,
    driver: Driver,
}

fn all() -> AccessFlags {
    let local = AccessFlags::new().with_local_write();
    local.with_remote_write().with_remote_read().with_remote_atomic()
}

fn domain(device: &str) -> ProtectionDomain {
    rdma_soft::install();
    for (name, schedule) in [(DEFERRED, Schedule::Deferred { seed: 7 }), (HELD, Schedule::Held)] {
        // Another test may have been first.
        let _ = Builder::new(name).schedule(schedule).install();
    }
    let _ = Builder::new(WIRE).force_wire().install();
    open_device(device).unwrap().allocate_pd().unwrap()
}

impl Pair {
    fn new(device: &str) -> Self {
        Self::with(device, |builder| builder)
    }

    fn with(
        device: &str,
        knobs: impl for<'a> Fn(QueuePairBuilder<'a>) -> QueuePairBuilder<'a>,
    ) -> Self {
        let pd = domain(device);
        let driver = Driver::spawn(pd.context()).unwrap();
        Self::of(driver, pd, knobs)
    }

    fn of(
        driver: Driver,
        pd: ProtectionDomain,
        knobs: impl for<'a> Fn(QueuePairBuilder<'a>) -> QueuePairBuilder<'a>,
    ) -> Self {
        let prepare = || {
            driver
                .prepare(knobs(
                    pd.create_qp().access(all()).max_rnr_retries(MaxRnrRetries::unlimited()),
                ))
                .unwrap()
        };
        let (one, other) = (prepare(), prepare());
        let (at_one, at_other) = (one.endpoint(), other.endpoint());
        let (one, other) = (one.handshake(at_other).unwrap(), other.handshake(at_one).unwrap());
        let board = pd.allocate_shared_region(4096, all()).unwrap();
        Self { one, other, board, pool: BufferPool::new(&pd), pd, driver }
    }

    fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.allocate(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// How many buffers are not given back.
    fn buffers(&self) -> usize {
        self.pool.usage().buffers
    }
}

/// In both kinds of runtime.
fn run<F: Future<Output = ()> + Send + 'static>(test: impl Fn() -> F) {
    let current = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    current.block_on(async { tokio::time::timeout(HANG, test()).await.unwrap() });
    let many =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let spawned = many.spawn(test());
    many.block_on(async { tokio::time::timeout(HANG, spawned).await.unwrap().unwrap() });
}

/// Polls once, with a waker that wakes nobody.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}
