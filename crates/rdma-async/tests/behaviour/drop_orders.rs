//! Everything is dropped in any order, in the same thread or another one, or forgotten. Queue pairs are destroyed
//! before the memory of their requests is released, no operation waits forever, and nothing is leaked.
//!
//! `RDMA_TEST_SEED` sets the seed of the random orders, and `RDMA_TEST_ROUNDS` their number.

mod messages;

use std::any::Any;
use std::env;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex};
use std::thread;

use rdma_async::{
    Connection, Descriptor, Driver, EndedLease, Incoming, Lease, LeaseLimits, Pool, Region,
    RemoteRegion, Reserved, prelude::*,
};
use rdma_mem::{AccessFlags, BufferPool, MemoryWindow, ProtectionDomain, WindowType};
use rdma_qp::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::common::chance::Chance;
use crate::common::kinds::{BYTES, Kind, Way};
use crate::common::provider::Provider;
use crate::common::{DEFERRED, HANG, HELD, Pair, WIRE, forget, poll_once, run};

/// A value to drop: its name, its group, and itself.
type Part = (&'static str, usize, Box<dyn Any + Send>);

/// The values to drop, and the provider of their context.
type Parts = (Vec<Part>, Arc<Provider>);

/// The number of groups.
const GROUPS: usize = 5;

/// The kinds of programs.
#[derive(Clone, Copy, Debug)]
enum Program {
    Operations,
    Messages,
}

impl Program {
    /// Devices that execute requests at once and later. The third one executes them on release, which does not happen
    /// here, or sends packets.
    const fn devices(self) -> [&'static str; 3] {
        match self {
            Self::Operations => ["soft0", DEFERRED, HELD],
            Self::Messages => ["soft0", DEFERRED, WIRE],
        }
    }

    async fn parts(self, device: &str) -> Parts {
        match self {
            Self::Operations => parts(device).await,
            Self::Messages => messages::parts(device).await,
        }
    }
}

/// The pool, which the test inspects while it exists.
struct Watched(Arc<Mutex<Option<BufferPool>>>);

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.0.lock().unwrap().take());
    }
}

/// A pool to drop. It must have the memory of all requests whenever a queue pair is destroyed.
fn watched(pool: BufferPool, provider: &Arc<Provider>) -> Part {
    let pool = Arc::new(Mutex::new(Some(pool)));
    provider.at_destroy({
        let (provider, pool) = (Arc::downgrade(provider), Arc::clone(&pool));
        move || {
            let Some(buffers) = pool.lock().unwrap().as_ref().map(|pool| pool.usage().buffers)
            else {
                return;
            };
            let provider = provider.upgrade().unwrap();
            if buffers < provider.lent() {
                provider.wrong(format!("there are {buffers} buffers, and more are lent"));
            }
        }
    });
    ("the pool", 3, Box::new(Watched(pool)))
}

const WRITE: AccessFlags = AccessFlags::new().with_remote_write();

fn region(pd: &ProtectionDomain) -> Region {
    Region::allocate(pd, BYTES).unwrap()
}

async fn reserved(pd: &ProtectionDomain) -> Reserved<Descriptor> {
    region(pd).reserve(WRITE, HANG, async |descriptor| descriptor).await.unwrap()
}

/// A lease that lasts until it ends, and the borrowed memory of the other end.
async fn lent(lender: &Connection, borrower: &Connection) -> (Lease, RemoteRegion) {
    let lease = lender.lend(region(lender.pd()), WRITE, HANG).await.unwrap();
    (lease, borrower.receive_lease().await.unwrap())
}

async fn ended(lender: &Connection, borrower: &Connection) -> EndedLease {
    let (lease, lent) = lent(lender, borrower).await;
    drop(lent);
    lease.await.unwrap()
}

/// Lent memory, with a write to it in flight.
async fn leases(pair: &Pair) -> Vec<Part> {
    let Pair { one, other, .. } = pair;
    let (lease, borrowed) = lent(other, one).await;
    let mut write = borrowed.write(pair.buffer(&[6; BYTES])).try_post().unwrap();
    let _ = poll_once(&mut write);
    let asked = one.borrow(BYTES, WRITE, HANG / 2).await.unwrap();
    vec![
        ("a lease", 1, Box::new(lease)),
        ("a write to it", 0, Box::new(write)),
        ("the borrowed memory", 1, Box::new(borrowed)),
        ("memory that was requested", 1, Box::new(asked)),
        ("memory that was returned", 3, Box::new(ended(one, other).await)),
        ("memory that was reserved", 3, Box::new(reserved(&pair.pd).await)),
        ("memory that was never open", 3, Box::new(region(&pair.pd))),
        ("limits", 3, Box::new(LeaseLimits::new(WRITE))),
    ]
}

/// Values of all kinds, with operations in flight.
async fn parts(device: &str) -> Parts {
    let (pd, provider) = Provider::faulty(device);
    let driver = Driver::spawn(pd.context()).unwrap();
    let (pair, listener) = Pair::by_address(driver, pd).await;
    drop(pair.one.receive(pair.buffer(&[1; BYTES])).post().await.unwrap());
    let unposted = pair.one.write(pair.buffer(&[2; BYTES]), pair.board.remote());
    let unposted = unposted.into_owned(&pair.one);
    let mut begun = [Kind::Receive, Kind::Read].map(|kind| kind.begin(&pair, Way::Tried));
    let [receive, read] = &mut begun;
    assert!(poll_once(receive).is_pending());
    let _ = poll_once(read);
    let [receive, read] = begun;
    let dropped = pair.one.write(pair.buffer(&[3; BYTES]), pair.board.remote());
    drop(dropped.try_post().unwrap());
    let spare = pair.buffer(&[4; BYTES]);
    let window = MemoryWindow::allocate(pair.buffer(&[5; BYTES]), WindowType::Two).unwrap();
    let leases = leases(&pair).await;
    let Pair { one, other, board, pool, pd, driver } = pair;
    let mut parts: Vec<Part> = vec![
        ("an operation that is not posted", 0, Box::new(unposted)),
        ("a receive", 0, Box::new(receive)),
        ("a read", 0, Box::new(read)),
        ("the connection", 1, Box::new(one)),
        ("the peer's", 1, Box::new(other)),
        ("the driver", 2, Box::new(driver)),
        ("the listener", 2, Box::new(listener)),
        ("the board", 3, Box::new(board)),
        watched(pool, &provider),
        ("a buffer", 3, Box::new(spare)),
        ("a window", 3, Box::new(window)),
        ("the context", 4, Box::new(pd.context().clone())),
        ("the domain", 4, Box::new(pd)),
    ];
    parts.extend(leases);
    (parts, provider)
}

/// The place where everything is dropped.
#[derive(Clone, Copy, Debug)]
enum DropSite {
    Task,
    Thread,
    /// After the runtime has ended.
    Behind,
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Drops all parts in the order that `order` arranges.
fn drop_all(
    (program, device): (Program, &str),
    place: DropSite,
    order: impl FnOnce(&mut Vec<Part>),
    yields: u64,
) {
    let runtime = runtime();
    let (mut parts, provider) = runtime.block_on(program.parts(device));
    order(&mut parts);
    let names: Vec<_> = parts.iter().map(|part| part.0).collect();
    println!("{device}, {place:?}: {names:?}");
    match place {
        DropSite::Task => runtime.block_on(async {
            for (index, (.., part)) in parts.into_iter().enumerate() {
                drop(part);
                if yields & 1 << index != 0 {
                    tokio::task::yield_now().await;
                }
            }
            provider.gone().await;
        }),
        DropSite::Thread => {
            let thread = thread::spawn(move || parts.into_iter().for_each(drop));
            runtime.block_on(provider.gone());
            thread.join().unwrap();
        }
        DropSite::Behind => {
            drop(runtime);
            parts.into_iter().for_each(drop);
            provider.assert_gone();
        }
    }
}

/// All orders of that many groups (Heap's algorithm).
fn orders(count: usize) -> Vec<Vec<usize>> {
    fn of(order: &mut Vec<usize>, first: usize, all: &mut Vec<Vec<usize>>) {
        if first < 2 {
            return all.push(order.clone());
        }
        for index in 0..first {
            of(order, first - 1, all);
            order.swap(if first.is_multiple_of(2) { index } else { 0 }, first - 1);
        }
    }
    let mut all = Vec::new();
    of(&mut (0..count).collect(), count, &mut all);
    all
}

fn drop_in_all_orders_of_groups(program: Program) {
    let orders = orders(GROUPS);
    assert_eq!(orders.len(), 120);
    let devices = program.devices();
    for (number, order) in orders.iter().enumerate() {
        let device = devices[number % devices.len()];
        let place =
            [DropSite::Task, DropSite::Thread, DropSite::Behind][number / devices.len() % 3];
        let order = |parts: &mut Vec<Part>| parts.sort_by_key(|part| order[part.1]);
        drop_all((program, device), place, order, u64::MAX);
    }
}

/// The number of orders exceeds a `u64`.
fn drop_in_random_orders(program: Program) {
    let asked = |name| env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let seed = asked("RDMA_TEST_SEED").unwrap_or(20_260_101);
    println!("RDMA_TEST_SEED={seed}");
    let mut chance = Chance(seed);
    for _ in 0..asked("RDMA_TEST_ROUNDS").unwrap_or(30) {
        for device in program.devices() {
            for place in [DropSite::Task, DropSite::Thread, DropSite::Behind] {
                let yields = chance.next();
                drop_all((program, device), place, |parts| chance.shuffle(parts), yields);
            }
        }
    }
}

#[test]
fn every_drop_order_of_groups_leaks_nothing() {
    drop_in_all_orders_of_groups(Program::Operations);
}

#[test]
fn random_drop_orders_leak_nothing() {
    drop_in_random_orders(Program::Operations);
}

#[test]
fn every_drop_order_of_groups_with_messages_leaks_nothing() {
    drop_in_all_orders_of_groups(Program::Messages);
}

#[test]
fn random_drop_orders_with_messages_leak_nothing() {
    drop_in_random_orders(Program::Messages);
}

/// Forgets a future that was polled once, and must be pending.
fn forget_waiting<F: Future + Send + 'static>(future: F) {
    assert!(forget_polled(future), "it waits");
}

/// Forgets a future that was polled once. Returns true if it is pending.
fn forget_polled<F: Future + Send + 'static>(future: F) -> bool {
    let mut future = Box::pin(future);
    let waits = poll_once(&mut future).is_pending();
    forget(future);
    waits
}

/// The kinds of values to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    BufferSlice,
    SharedBuffer,
    Connection,
    ConnectionOptions,
    Driver,
    Events,
    Failed,
    Incoming,
    Listener,
    Op,
    Posted,
    PostThatWaits,
    PreparedConnection,
    Received,
    Run,
    RunThatWaits,
    Accept,
    Connect,
    IncomingThatWaits,
    Listen,
    Next,
    Shutdown,
    Region,
    Reserved,
    Descriptor,
    LeaseLimits,
    Lease,
    EndedLease,
    RemoteRegion,
    Reserve,
    Request,
    ReceiveLease,
    ReceiveRegion,
    Reconnect,
    Further,
    Disconnect,
    Pool,
    PoolError,
    Allocate,
}

impl What {
    const ALL: [Self; 39] = [
        Self::BufferSlice,
        Self::SharedBuffer,
        Self::Connection,
        Self::ConnectionOptions,
        Self::Driver,
        Self::Events,
        Self::Failed,
        Self::Incoming,
        Self::Listener,
        Self::Op,
        Self::Posted,
        Self::PostThatWaits,
        Self::PreparedConnection,
        Self::Received,
        Self::Run,
        Self::RunThatWaits,
        Self::Accept,
        Self::Connect,
        Self::IncomingThatWaits,
        Self::Listen,
        Self::Next,
        Self::Shutdown,
        Self::Region,
        Self::Reserved,
        Self::Descriptor,
        Self::LeaseLimits,
        Self::Lease,
        Self::EndedLease,
        Self::RemoteRegion,
        Self::Reserve,
        Self::Request,
        Self::ReceiveLease,
        Self::ReceiveRegion,
        Self::Reconnect,
        Self::Further,
        Self::Disconnect,
        Self::Pool,
        Self::PoolError,
        Self::Allocate,
    ];

    /// Creates one and forgets it. The receive queue has two slots.
    async fn forget(self, pair: &Pair) {
        let (one, other, driver) = (&pair.one, &pair.other, &pair.driver);
        let receive = || one.receive(pair.buffer(&[1; BYTES])).into_owned(one);
        let options = || rdma_async::ConnectionOptions::new(&pair.pd);
        let listener = async || driver.listen("127.0.0.1:0", options()).await.unwrap();
        match self {
            Self::BufferSlice => forget(pair.buffer(&[1; BYTES]).slice(2..4)),
            Self::SharedBuffer => forget(pair.buffer(&[1; BYTES]).freeze()),
            Self::Connection => forget(one.clone()),
            Self::ConnectionOptions => forget(options()),
            Self::Driver => forget(driver.clone()),
            Self::Events => forget(driver.events().unwrap()),
            Self::Failed => {
                let nowhere = rdma_mem::RemoteMemoryRegion::new(0x1000, BYTES, 0x1234_5678);
                forget(other.write(pair.buffer(&[1; BYTES]), nowhere).await.unwrap_err());
            }
            Self::Incoming => forget(incoming(pair, &listener().await).await),
            Self::Listener => forget(listener().await),
            Self::Op => forget(receive()),
            Self::Posted => forget(receive().try_post().unwrap()),
            Self::PostThatWaits | Self::RunThatWaits => {
                let stand = [receive().try_post().unwrap(), receive().try_post().unwrap()];
                match self {
                    Self::PostThatWaits => forget_waiting(receive().post()),
                    _ => forget_waiting(receive().into_future()),
                }
                drop(stand);
            }
            Self::PreparedConnection => forget(driver.prepare(pair.pd.create_qp()).unwrap()),
            Self::Received => {
                let posted = receive().try_post().unwrap();
                other.send(pair.buffer(&[2; BYTES])).await.unwrap();
                forget(posted.await.unwrap());
            }
            Self::Run => forget_waiting(receive().into_future()),
            Self::Accept => {
                let listener = listener().await;
                forget_waiting(async move { drop(listener.accept().await) });
            }
            Self::Connect => {
                let (driver, options) = (driver.clone(), options());
                let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                let address = silent.local_addr().unwrap();
                forget_waiting(async move { drop(driver.connect(address, options).await) });
            }
            Self::IncomingThatWaits => {
                let listener = listener().await;
                forget_waiting(async move { drop(listener.incoming().await) });
            }
            Self::Listen => {
                let (driver, options) = (driver.clone(), options());
                // Another thread looks up the name, which may be fast.
                forget_polled(async move { drop(driver.listen(("localhost", 0), options).await) });
            }
            Self::Next => {
                let mut events = driver.events().unwrap();
                forget_waiting(async move { drop(events.next().await) });
            }
            Self::Pool => forget(Pool::new(&pair.pd)),
            Self::PoolError => forget(full(&pair.pd).allocate(BYTES).await.unwrap_err()),
            // Another thread registers memory for it, which may be fast; the buffer is forgotten, too.
            Self::Allocate => {
                let pool = Pool::new(&pair.pd);
                forget_polled(async move { pool.allocate(BYTES).await.is_ok() });
            }
            // The driver's task may be on another thread.
            Self::Shutdown => drop(forget_polled(driver.clone().shutdown())),
            _ => {
                let (pair, _listener) = Pair::by_address(driver.clone(), pair.pd.clone()).await;
                self.forget_lease(&pair).await;
            }
        }
    }

    /// The same for leases, which involve both ends.
    async fn forget_lease(self, pair: &Pair) {
        let Pair { one, other, pd, .. } = pair;
        let own = one.clone();
        match self {
            Self::Region => forget(region(pd)),
            Self::Reserved => forget(reserved(pd).await),
            Self::Descriptor => forget(reserved(pd).await.value),
            Self::LeaseLimits => forget(LeaseLimits::new(WRITE)),
            Self::Lease => forget(lent(one, other).await.0),
            Self::EndedLease => forget(ended(one, other).await),
            Self::RemoteRegion => forget(lent(one, other).await.1),
            Self::Reserve => {
                let region = region(pd);
                forget_waiting(async move {
                    drop(region.reserve(WRITE, HANG, async |_| pending::<()>().await).await);
                });
            }
            Self::Request => {
                forget_waiting(async move { drop(own.borrow(BYTES, WRITE, HANG / 2).await) });
            }
            Self::ReceiveLease => forget_waiting(async move { drop(own.receive_lease().await) }),
            Self::ReceiveRegion => forget_waiting(async move { drop(own.receive_region().await) }),
            Self::Reconnect => {
                forget_waiting(async move { drop(own.reconnect().await) });
            }
            Self::Further => {
                let qp = pd.create_qp();
                forget_waiting(async move { drop(own.connect_additional(1, qp).await) });
            }
            Self::Disconnect => {
                forget_waiting(async move { drop(own.disconnect(HANG).await) });
            }
            _ => unreachable!("not a lease"),
        }
    }
}

/// A pool that may not grow.
fn full(pd: &ProtectionDomain) -> Pool {
    let pool = BufferPool::new(pd);
    pool.set_limit(0);
    pool.into()
}

/// A client that was not accepted.
async fn incoming(pair: &Pair, listener: &rdma_async::Listener) -> Incoming {
    let address = listener.local_addr();
    let (driver, options) = (pair.driver.clone(), rdma_async::ConnectionOptions::new(&pair.pd));
    drop(tokio::spawn(async move { driver.connect(address, options).await.is_ok() }));
    listener.incoming().await.unwrap()
}

/// Other connections continue, the driver ends, and no memory of the forgotten value is freed.
#[test]
fn a_forgotten_value_leaks_only_itself() {
    for what in What::ALL {
        run(move || async move {
            let (pd, provider) = Provider::faulty("soft0");
            let driver = Driver::spawn(pd.context()).unwrap();
            let make = || {
                Pair::of(driver.clone(), pd.clone(), |builder| {
                    builder.max_send_wr(2).max_recv_wr(2)
                })
            };
            let (pair, second) = (make(), make());
            what.forget(&pair).await;
            if what != What::Shutdown {
                second.assert_works().await;
            }
            let Pair { one, other, board, pool, pd: domain, driver: also } = pair;
            drop((one, other, board, domain, also, second, pd));
            timeout(HANG, driver.shutdown()).await.unwrap();
            // A forgotten attempt keeps its queue pair, which was not connected and uses no memory.
            let offers = [What::PreparedConnection, What::Connect, What::Reconnect, What::Further];
            let kept = usize::from(offers.contains(&what));
            // The regions of a pool, which may be forgotten with a buffer, and those that were forgotten while open.
            let open = 1 + usize::from(what == What::Reserve);
            let left = async {
                while (provider.live()[5], provider.lent()) != (kept, 0)
                    || provider.live()[2] > open
                {
                    tokio::task::yield_now().await;
                }
            };
            let left = timeout(HANG, left).await;
            assert!(left.is_ok(), "{what:?}: {:?}, {} lent", provider.live(), provider.lent());
            assert!(pool.usage().buffers <= 1, "{what:?}");
            provider.assert_kept();
        });
    }
}

/// The program no longer drives.
#[test]
fn a_manual_driver_is_forgotten() {
    let (pd, provider) = Provider::faulty("soft0");
    let (driver, manual) = Driver::manual(pd.context()).unwrap();
    let pair = Pair::of(driver, pd, |builder| builder);
    let mut receive = Kind::Receive.begin(&pair, Way::Tried);
    assert!(poll_once(&mut receive).is_pending());
    forget(manual);
    drop(pair);
    assert_eq!(provider.lent(), 1, "the receive has its connection");
    drop(receive);
    assert_eq!((provider.live()[5], provider.lent()), (0, 0));
    provider.assert_kept();
}
