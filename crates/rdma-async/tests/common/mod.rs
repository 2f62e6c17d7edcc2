//! Both ends of a connection in one process, and helpers that several test binaries share.
#![allow(dead_code)] // each test binary uses a part

pub(crate) mod chance;
pub(crate) mod host;
pub(crate) mod kinds;
pub(crate) mod peer;
pub(crate) mod provider;
pub(crate) mod relay;

use std::any::Any;
use std::env;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::pin;
use std::process::abort;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use rdma_async::{
    Connection, ConnectionOptions, Driver, LeaseLimits, Listener, Region, RemoteMemoryRegion,
    TransportError,
};
use rdma_mem::{AccessFlags, Buffer, BufferPool, ProtectionDomain, SharedRegion, open_device};
use rdma_qp::prelude::*;
use rdma_qp::{MaxRnrRetries, QueuePairBuilder};
use rdma_soft::{Builder, Schedule, SoftDevice};
use test_support::program::this_program;
use tokio::time::timeout;

use kinds::{Kind, Way};
use provider::Provider;

/// A device that executes requests at a later poll or on another thread.
pub(crate) const DEFERRED: &str = "softlate0";
/// A device that executes requests only on release.
pub(crate) const HELD: &str = "softheld0";
/// A device that sends packets.
pub(crate) const WIRE: &str = "softwire0";
/// Devices that work by themselves.
pub(crate) const DEVICES: [&str; 4] = ["soft0", "softib0", DEFERRED, WIRE];
/// A time that is only exceeded by a hang.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// Two connections that are connected to each other, and memory of the second one that the first may use.
pub(crate) struct Pair {
    pub(crate) one: Connection,
    pub(crate) other: Connection,
    pub(crate) board: SharedRegion,
    pub(crate) pool: BufferPool,
    pub(crate) pd: ProtectionDomain,
    pub(crate) driver: Driver,
}

pub(crate) fn all() -> AccessFlags {
    let local = AccessFlags::new().with_local_write();
    local.with_remote_write().with_remote_read().with_remote_atomic()
}

pub(crate) fn install() {
    rdma_soft::install();
    for (name, schedule) in [(DEFERRED, Schedule::Deferred { seed: 7 }), (HELD, Schedule::Held)] {
        // Another test may have been first.
        let _ = Builder::new(name).schedule(schedule).install();
    }
    let _ = Builder::new(WIRE).force_wire().install();
}

/// A device of that name with its port up. Another run of the test may have created it.
pub(crate) fn device_with_port(name: &str) -> SoftDevice {
    let device = SoftDevice::find(name).unwrap_or_else(|| Builder::new(name).install().unwrap());
    device.set_port_up(true);
    device
}

pub(crate) fn domain(device: &str) -> ProtectionDomain {
    install();
    open_device(device).unwrap().allocate_pd().unwrap()
}

impl Pair {
    pub(crate) fn new(device: &str) -> Self {
        Self::with(device, |builder| builder)
    }

    pub(crate) fn with(
        device: &str,
        knobs: impl for<'a> Fn(QueuePairBuilder<'a>) -> QueuePairBuilder<'a>,
    ) -> Self {
        let pd = domain(device);
        let driver = Driver::spawn(pd.context()).unwrap();
        Self::of(driver, pd, knobs)
    }

    pub(crate) fn of(
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

    /// A pair by an address, with its listener. The ends lend to each other on request.
    pub(crate) async fn by_address(driver: Driver, pd: ProtectionDomain) -> (Self, Listener) {
        let options = || {
            let qp = pd.create_qp().access(all()).max_rnr_retries(MaxRnrRetries::unlimited());
            ConnectionOptions::from(qp).lease_limits(LeaseLimits::new(all()))
        };
        let listener = driver.listen("127.0.0.1:0", options()).await.unwrap();
        let connect = driver.connect(listener.local_addr(), options());
        let ((one, _), other) = tokio::try_join!(connect, listener.accept()).unwrap();
        let board = pd.allocate_shared_region(4096, all()).unwrap();
        (Self { one, other, board, pool: BufferPool::new(&pd), pd, driver }, listener)
    }

    pub(crate) fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.allocate(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// A pair on a device with faults, and its provider.
    pub(crate) fn faulty(device: &str) -> (Self, Arc<Provider>) {
        Self::faulty_with(device, |builder| builder)
    }

    pub(crate) fn faulty_with(
        device: &str,
        knobs: impl for<'a> Fn(QueuePairBuilder<'a>) -> QueuePairBuilder<'a>,
    ) -> (Self, Arc<Provider>) {
        let (pd, provider) = Provider::faulty(device);
        let driver = Driver::spawn(pd.context()).unwrap();
        (Self::of(driver, pd, knobs), provider)
    }

    /// The number of buffers in use.
    pub(crate) fn buffers(&self) -> usize {
        self.pool.usage().buffers
    }

    /// Checks that a write after the end fails and changes nothing.
    pub(crate) async fn is_closed(
        &self,
        by: &Connection,
        key: RemoteMemoryRegion,
        region: &Region,
    ) {
        let before = region.to_vec();
        let late = by.write(self.buffer(b"late"), key.slice(0..4).unwrap());
        assert_refused(&self.released(late.into_future()).await.unwrap_err().error);
        assert!(**region == *before, "a byte has changed");
    }

    /// Lets the device execute that many requests of each end.
    pub(crate) fn release(&self, count: u32) {
        let device = SoftDevice::find(self.pd.context().device().name()).unwrap();
        for end in [&self.one, &self.other] {
            device.release(end.qpn(), count);
        }
    }

    /// Waits for the future on any device.
    pub(crate) async fn released<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let released = poll_fn(|cx| {
            self.release(u32::MAX);
            let polled = future.as_mut().poll(cx);
            if polled.is_pending() {
                cx.waker().wake_by_ref();
            }
            polled
        });
        timeout(HANG, released).await.unwrap()
    }

    /// Checks that operations of all kinds work, one after the other.
    pub(crate) async fn assert_works(&self) {
        for kind in Kind::ALL {
            let answer = kind.answer(self, Way::Awaited);
            let (done, answered) = self
                .released(async {
                    tokio::join!(kind.begin(self, Way::Awaited), async { answer?.await })
                })
                .await;
            assert!(done.is_none() && answered.is_none(), "{kind:?}: {done:?}, {answered:?}");
        }
    }

    /// Waits until all buffers were returned.
    pub(crate) async fn assert_given_back(&self) {
        let all = poll_fn(|cx| {
            if self.buffers() == 0 {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        let given_back = timeout(HANG, self.released(all)).await;
        assert!(given_back.is_ok(), "{} buffers were not returned", self.buffers());
    }
}

/// Memory for peers, filled with ones.
pub(crate) fn region(pd: &ProtectionDomain, length: usize) -> Region {
    let mut region = Region::allocate(pd, length).unwrap();
    region.fill(1);
    region
}

/// A time that ends that many microseconds before the last instant of this machine's clock.
pub(crate) fn nearly_endless(micros: u64) -> Duration {
    let now = Instant::now();
    let (mut least, mut most) = (Duration::ZERO, Duration::MAX);
    while most - least > Duration::from_nanos(1) {
        let middle = least + (most - least) / 2;
        match now.checked_add(middle) {
            Some(_) => least = middle,
            None => most = middle,
        }
    }
    least - Duration::from_micros(micros)
}

/// Checks that a late peer was refused.
pub(crate) fn assert_refused(error: &TransportError) {
    assert!(matches!(error, TransportError::WorkError(_)), "{error}");
    assert!(error.to_string().contains("remote access"), "{error}");
}

/// Runs the test in both kinds of runtime.
pub(crate) fn run<F: Future<Output = ()> + Send + 'static>(test: impl Fn() -> F) {
    run_in_one_thread(&test);
    let many =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let spawned = many.spawn(test());
    many.block_on(async { timeout(HANG, spawned).await.unwrap().unwrap() });
}

/// Runs a slow test in one kind of runtime.
pub(crate) fn run_in_one_thread<F: Future<Output = ()>>(test: impl Fn() -> F) {
    within_in_one_thread(HANG, test);
}

/// Runs a test of many thousand frames, which a busy machine handles in minutes, in a runtime of one thread.
pub(crate) fn run_long_in_one_thread<F: Future<Output = ()>>(test: impl Fn() -> F) {
    within_in_one_thread(30 * HANG, test);
}

fn within_in_one_thread<F: Future<Output = ()>>(limit: Duration, test: impl Fn() -> F) {
    let current = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    current.block_on(async { timeout(limit, test()).await.unwrap() });
}

/// Polls once, with a waker that does nothing.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls once, with that waker.
pub(crate) fn poll_for<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(waker))
}

/// Polls that many times, whether or not it is woken, and then drops it. Returns `None` if it was not ready.
pub(crate) async fn polled<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Like [`polled`], with time between the polls for the peer.
pub(crate) async fn polled_slowly<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(outcome) = poll_once(&mut future) {
            return Some(outcome);
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    None
}

/// A waker that counts its wake-ups.
#[derive(Default)]
pub(crate) struct Count(pub(crate) AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Forgotten values. A leak checker finds them here.
static FORGOTTEN: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// Like `std::mem::forget`.
pub(crate) fn forget(what: impl Any + Send) {
    FORGOTTEN.lock().unwrap().push(Box::new(what));
}

/// Runs a test that keeps memory forever in a separate process, which ends before a leak checker looks. It is the whole
/// test of that name.
pub(crate) fn in_a_process_of_its_own(name: &str, test: impl FnOnce()) {
    const CHILD: &str = "RDMA_TEST_CHILD";
    const KEPT: &str = "the test in the child process passed";
    if env::var_os(CHILD).is_none() {
        let mut child = this_program();
        let ended = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(said.contains(KEPT), "{said}{}", String::from_utf8_lossy(&ended.stderr));
        return;
    }
    test();
    println!("{KEPT}");
    abort();
}
