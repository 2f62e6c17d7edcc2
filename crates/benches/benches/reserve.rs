//! The time to open memory and to close it again, compared with the calls that do it.
//!
//! ```sh
//! cargo bench -p benches --bench reserve
//! ```
//! `RDMA_DEVICE` names a device other than soft0.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)] // a failing bench reports it

use std::env;
use std::time::{Duration, Instant};

use rdma_async::{Connection, Driver, Region};
use rdma_mem::{
    AccessFlags, MemoryWindow, OwnedRegion, ProtectionDomain, RegionMemory, WindowType, open_device,
};
use rdma_qp::prelude::*;
use rdma_qp::{CompletionQueue, LocalInvalidate, PollSlot, QueuePair, QueuePairBuilder};
use tokio::runtime::Runtime;

const LENGTH: usize = 4096;
const WRITE: AccessFlags = AccessFlags::new().with_remote_write();
const TIME: Duration = Duration::from_secs(60);
/// The number of calls that are timed together, and the number of such rounds, which alternate with the comparison.
const ROUNDS: [u32; 2] = [2_000, 101];

/// A comparison, and the goal for the ratio of the times.
struct Row {
    name: &'static str,
    work: fn(&mut Rig),
    beside: &'static str,
    by_hand: fn(&mut Rig),
    goal: f64,
}

const ROWS: [Row; 2] = [
    Row {
        name: "reserve_for",
        work: reserve_for,
        beside: "bind, invalidate",
        by_hand: bind,
        goal: 1.5,
    },
    Row {
        name: "reserve",
        work: reserve,
        beside: "register, deregister",
        by_hand: register,
        goal: 1.2,
    },
];

struct Rig {
    runtime: Runtime,
    connection: Connection,
    /// The regions for `reserve_for` and for `reserve`.
    regions: [Option<Region>; 2],
    pd: ProtectionDomain,
    qp: QueuePair,
    cq: CompletionQueue,
    window: MemoryWindow<OwnedRegion>,
    memory: Option<RegionMemory>,
}

fn main() {
    rdma_soft::install();
    let mut rig = Rig::new();
    for row in ROWS {
        let mut timed: [Vec<Duration>; 2] = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS[1] {
            for (work, times) in [row.work, row.by_hand].into_iter().zip(&mut timed) {
                let begin = Instant::now();
                work(&mut rig);
                times.push(begin.elapsed());
            }
        }
        let [own, by_hand] = timed.map(nanoseconds);
        let (name, beside, goal, ratio) = (row.name, row.beside, row.goal, own / by_hand);
        println!("{name}: {own:.0} ns; {beside}: {by_hand:.0} ns; {ratio:.2} times, goal {goal}");
    }
}

/// The median time of one call.
fn nanoseconds(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e9 / f64::from(ROUNDS[0])
}

impl Rig {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let device = env::var("RDMA_DEVICE").unwrap_or_else(|_| "soft0".to_owned());
        let pd = open_device(&device).unwrap().allocate_pd().unwrap();
        let of = |builder: QueuePairBuilder<'_>, driver: &Driver| {
            let [one, other] = [(); 2].map(|()| driver.prepare(builder.clone()).unwrap());
            let (at_one, at_other) = (one.endpoint(), other.endpoint());
            (one.handshake(at_other).unwrap(), other.handshake(at_one).unwrap())
        };
        let connection = runtime.block_on(async {
            let driver = Driver::spawn(pd.context()).unwrap();
            of(pd.create_qp().access(WRITE), &driver).0
        });
        let cq = CompletionQueue::create(pd.context(), 64).unwrap();
        let qp = pd.create_qp().send_cq(&cq).recv_cq(&cq).access(WRITE).build().unwrap();
        let itself = qp.endpoint();
        let region = pd.allocate_bindable_region(LENGTH).unwrap();
        let window = MemoryWindow::allocate(region, WindowType::Two).unwrap();
        Self {
            runtime,
            connection,
            regions: [(); 2].map(|()| Region::allocate(&pd, LENGTH).ok()),
            qp: qp.handshake(itself).unwrap(),
            cq,
            window,
            memory: RegionMemory::allocate(LENGTH).ok(),
            pd,
        }
    }

    fn poll(&self) {
        let mut slots = [PollSlot::default(); 8];
        loop {
            if let Some(done) = self.cq.poll(&mut slots).unwrap().next() {
                done.result().unwrap();
                return;
            }
        }
    }
}

fn reserve_for(rig: &mut Rig) {
    let Rig { runtime, connection, regions: [region, _], .. } = rig;
    runtime.block_on(async {
        for _ in 0..ROUNDS[0] {
            let reserved =
                region.take().unwrap().reserve_for(connection, WRITE, TIME, async |_| ());
            *region = Some(reserved.await.unwrap().region);
        }
    });
}

fn bind(rig: &mut Rig) {
    for _ in 0..ROUNDS[0] {
        // SAFETY: SAFETY.md F16: the window has its region, and no one has its key.
        unsafe { rig.qp.bind(&mut rig.window, 0..LENGTH, WRITE, 1) }.unwrap();
        rig.poll();
        let invalidate = LocalInvalidate::new(rig.window.rkey().unwrap());
        // SAFETY: SAFETY.md F22: a request without memory.
        unsafe { rig.qp.post(invalidate, 2) }.unwrap();
        rig.poll();
        // SAFETY: SAFETY.md F25: its invalidation has completed.
        unsafe { rig.window.unbound() };
    }
}

fn reserve(rig: &mut Rig) {
    let Rig { runtime, regions: [_, region], .. } = rig;
    runtime.block_on(async {
        for _ in 0..ROUNDS[0] {
            let reserved = region.take().unwrap().reserve(WRITE, TIME, async |_| ());
            *region = Some(reserved.await.unwrap().region);
        }
    });
}

fn register(rig: &mut Rig) {
    for _ in 0..ROUNDS[0] {
        let memory = rig.memory.take().unwrap();
        let open = rig.pd.register_shared(memory, WRITE.with_local_write()).unwrap();
        rig.memory = Some(open.close().unwrap());
    }
}
