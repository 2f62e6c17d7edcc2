//! Memory that is open to one peer for a limited time, through a window where the device has them.

mod dropped;
mod ended;
mod faults;
mod open;

use std::future::{Future, IntoFuture, poll_fn};
use std::time::Duration;

use rdma_async::{Connection, Region};
use rdma_mem::{AccessFlags, ProtectionDomain, RemoteMemoryRegion};
use rdma_soft::{Builder, Schedule, SoftDevice};
use tokio::time::timeout;

use crate::common::{HANG, Pair, region};

const WRITE: AccessFlags = AccessFlags::new().with_remote_write();
const SHORT: Duration = Duration::from_millis(50);

/// Checks that a write of the peer after the end fails and changes nothing.
async fn is_closed(pair: &Pair, key: RemoteMemoryRegion, region: &Region) {
    pair.is_closed(&pair.other, key, region).await;
}

/// The same for memory that was dropped: closing it may take a while.
async fn is_closed_soon(pair: &Pair, key: RemoteMemoryRegion) {
    loop {
        let again = Pair::of(pair.driver.clone(), pair.pd.clone(), |builder| builder);
        let late = again.other.write(again.buffer(b"late"), key.slice(0..4).unwrap());
        if again.released(late.into_future()).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// A device of that name, which executes requests only on release.
fn held(name: &str) -> &str {
    let _ = Builder::new(name).schedule(Schedule::Held).install();
    name
}

/// Lets the driver probe the windows of any device; no other request is outstanding.
async fn probed(pair: &Pair) {
    let device = SoftDevice::find(pair.pd.context().device().name()).unwrap();
    let first = first(&pair.one, &pair.pd);
    let release = || {
        device.release_all();
    };
    released_by(release, first).await;
}

/// Lets the device execute only the requests of the first end while the future runs.
async fn own_released<F: Future>(pair: &Pair, future: F) -> F::Output {
    let device = SoftDevice::find(pair.pd.context().device().name()).unwrap();
    let release = || {
        device.release(pair.one.qpn(), u32::MAX);
    };
    released_by(release, future).await
}

async fn released_by<F: Future>(release: impl Fn(), future: F) -> F::Output {
    let mut future = Box::pin(future);
    let all = poll_fn(|cx| {
        release();
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            cx.waker().wake_by_ref();
        }
        polled
    });
    timeout(HANG, all).await.unwrap()
}

async fn first(connection: &Connection, pd: &ProtectionDomain) {
    region(pd, 8).reserve_for(connection, WRITE, HANG, async |_| ()).await.unwrap();
}
