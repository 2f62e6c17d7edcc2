//! Two connected ends in one process.

#![allow(dead_code)] // each test binary uses a part

use std::any::Any;
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rdma_mem::{
    AccessFlags, AtomicCapability, Context, ProtectionDomain, SharedRegion, open_device,
};
use rdma_qp::{
    CompletionQueue, Error, PollSlot, QueuePair, QueuePairBuilder, WorkCompletion, prelude::*,
};

/// The time after which a test counts as hanging.
pub(crate) const HANG: Duration = Duration::from_secs(20);

/// Every device that the tests run on: RoCE, InfiniBand, and those below.
pub(crate) const DEVICES: [&str; 5] = ["soft0", "softib0", LATE, CALLS, LATE_CALLS];

/// A RoCE device that executes requests at a later poll or on another thread.
pub(crate) const LATE: &str = "softlate0";

/// A RoCE device whose queue pairs post by function calls, and whose completions have timestamps.
pub(crate) const CALLS: &str = "softcalls0";

/// Like [`CALLS`], and late like [`LATE`].
pub(crate) const LATE_CALLS: &str = "softlatecalls0";

/// One end, with a domain, a completion queue and 4 KiB that the peer may use.
pub(crate) struct TestPeer {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) pd: ProtectionDomain,
    pub(crate) board: SharedRegion,
}

pub(crate) fn everything() -> AccessFlags {
    let local = AccessFlags::new().with_local_write();
    local.with_remote_write().with_remote_read().with_remote_atomic()
}

/// Returns all access that the device of this domain supports for peers.
pub(crate) fn all_of(pd: &ProtectionDomain) -> AccessFlags {
    let device = pd.context().query_device().unwrap();
    let local = AccessFlags::new().with_local_write().with_remote_write().with_remote_read();
    match device.atomic_capability {
        AtomicCapability::NONE => local,
        _ => local.with_remote_atomic(),
    }
}

/// Opens one of the [`DEVICES`].
pub(crate) fn open(device: &str) -> Context {
    rdma_soft::install();
    let late = rdma_soft::Schedule::Deferred { seed: 7 };
    let schedules = [(LATE, late), (LATE_CALLS, late), (CALLS, rdma_soft::Schedule::Immediate)];
    if let Some((name, schedule)) = schedules.into_iter().find(|(name, _)| *name == device) {
        // Another test may have installed it already.
        let _ = rdma_soft::Builder::new(name).schedule(schedule).install();
    }
    open_device(device).unwrap()
}

/// Returns a domain and a completion queue of a new context.
pub(crate) fn parts(device: &str) -> (ProtectionDomain, CompletionQueue) {
    let context = open(device);
    let calls = [CALLS, LATE_CALLS].contains(&device);
    let cq = CompletionQueue::builder(&context).timestamps(calls).build(256).unwrap();
    (context.allocate_pd().unwrap(), cq)
}

/// Returns two ends that are connected to each other.
pub(crate) fn pair(device: &str) -> (TestPeer, TestPeer) {
    pair_with(device, |builder| builder)
}

/// Returns two such ends with other options.
pub(crate) fn pair_with(
    device: &str,
    knobs: impl for<'a> Fn(QueuePairBuilder<'a>) -> QueuePairBuilder<'a>,
) -> (TestPeer, TestPeer) {
    connect(parts(device), parts(device), knobs)
}

/// Returns two such ends. The second one is on this context.
pub(crate) fn pair_on(device: &str, context: &Context) -> (TestPeer, TestPeer) {
    let cq = CompletionQueue::create(context, 256).unwrap();
    connect(parts(device), (context.allocate_pd().unwrap(), cq), |builder| builder)
}

/// Fails if `work` does not return in time.
pub(crate) fn must_end(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let worker = thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    assert_ne!(ended.recv_timeout(HANG), Err(RecvTimeoutError::Timeout), "it hangs");
    worker.join().unwrap();
}

/// Forgets a value like `mem::forget`, but keeps it visible for a leak checker.
pub(crate) fn forget(value: impl Any + Send) {
    static FORGOTTEN: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());
    FORGOTTEN.lock().unwrap().push(Box::new(value));
}

type Parts = (ProtectionDomain, CompletionQueue);

fn connect(
    a: Parts,
    b: Parts,
    knobs: impl for<'a> Fn(QueuePairBuilder<'a>) -> QueuePairBuilder<'a>,
) -> (TestPeer, TestPeer) {
    try_connect(a, b, knobs).unwrap()
}

/// Returns two such ends, or the error of their connection.
pub(crate) fn try_connect(
    (a_pd, a_cq): Parts,
    (b_pd, b_cq): Parts,
    knobs: impl for<'a> Fn(QueuePairBuilder<'a>) -> QueuePairBuilder<'a>,
) -> Result<(TestPeer, TestPeer), Error> {
    let prepare = |pd: &ProtectionDomain, cq| {
        let builder = pd.create_qp().send_cq(cq).recv_cq(cq).access(all_of(pd));
        knobs(builder.extended(cq.has_timestamps())).build().unwrap()
    };
    let (a, b) = (prepare(&a_pd, &a_cq), prepare(&b_pd, &b_cq));
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.handshake(b_end)?, b.handshake(a_end)?);
    let end = |qp, cq, pd: ProtectionDomain| {
        let board = pd.allocate_shared_region(4096, all_of(&pd)).unwrap();
        TestPeer { qp, cq, pd, board }
    };
    Ok((end(a, a_cq, a_pd), end(b, b_cq, b_pd)))
}

impl TestPeer {
    /// Waits for the next completion, and panics if it takes too long.
    pub(crate) fn next(&self) -> WorkCompletion {
        let mut slots = [PollSlot::default()];
        let begin = Instant::now();
        loop {
            if let Some(completion) = self.cq.poll(&mut slots).unwrap().next() {
                return completion;
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "no completion");
            std::hint::spin_loop();
        }
    }

    /// Returns true if nothing has completed.
    pub(crate) fn is_idle(&self) -> bool {
        self.cq.poll(&mut [PollSlot::default()]).unwrap().is_empty()
    }

    /// Returns the contents of the board.
    pub(crate) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.board.read(offset, &mut bytes).unwrap();
        bytes
    }
}
