//! Tests whether a device confines peers to the range of a memory window.
//!
//! Except in this test, windows are always bound to all of their region. Even a device that ignored the range would
//! therefore expose only what a registration does. However, a device that ignores the range cannot be trusted to follow
//! the other rules of windows. The software device of Linux 6.1 (`docs/rxe-differences.md`) keeps windows bound after
//! their queue pair has ended. Its kernel crashes when a window that is not bound is invalidated.

use rdma_connect::messaging::Window;
use std::sync::Arc;
use std::time::Duration;

use rdma_connect::TransportError;
use rdma_mem::{AccessFlags, Buffer, BufferPool, OwnedRegion, ProtectionDomain};
use rdma_qp::prelude::*;
use rdma_qp::{Error, WorkErrorClass};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::kinds::Bind;
use crate::connection::Connection;
use crate::driver::Driver;
use crate::driver::shared::Handle;
use crate::ledger::post::RequestSpec;
use crate::link::{Inner, Link};
use crate::operation::Op;

/// The time limit of the test. Only a device that does not answer reaches the limit.
const LIMIT: Duration = Duration::from_secs(10);

/// The size of each of the region's four parts, in bytes. Only the second part is open.
const PART: usize = 64;

/// Returns true if the device of this connection confines peers to the range of a window. Each driver tests this once,
/// in a separate task, so that the test continues even if the first caller is dropped. A device that does not answer in
/// time counts as one that does not confine peers. If the test itself fails, this call returns false, and a later call
/// repeats the test.
pub(crate) async fn are_windows_bounded(link: &Inner) -> bool {
    if let Some(known) = link.driver.0.windows.known.get() {
        return *known;
    }
    let port = link.look(|entry| entry.port());
    Box::pin(probe_once(&link.driver, port)).await
}

/// Like [`are_windows_bounded`], before there is a connection, which will use this port. Also called for a connection
/// that cannot wait: it reads the result from the driver.
pub(crate) async fn prepare(driver: &Driver, port: Option<u8>) {
    if driver.0.0.windows.known.get().is_none() {
        Box::pin(probe_once(&driver.0, port)).await;
    }
}

#[cold]
async fn probe_once(driver: &Arc<Handle>, port: Option<u8>) -> bool {
    let mut answer = {
        let mut asked = driver.0.windows.asked();
        // Starts another test if the task of an earlier test has ended with its runtime.
        match asked.take_if(|asked| asked.has_changed().is_ok()) {
            Some(before) => asked.insert(before).clone(),
            None => asked.insert(begin(driver, port)).clone(),
        }
    };
    let answer = answer.wait_for(Option::is_some).await;
    answer.ok().and_then(|answer| *answer).unwrap_or(false)
}

/// Starts the test.
fn begin(driver: &Arc<Handle>, port: Option<u8>) -> watch::Receiver<Option<bool>> {
    let (sender, answer) = watch::channel(None);
    let driver = Driver(Arc::clone(driver));
    tokio::spawn(async move {
        let shared = Arc::clone(&driver.0);
        let windows = &shared.0.windows;
        let found = timeout(LIMIT, probe(driver, port)).await;
        let is_bounded = matches!(found, Ok(Ok(true)));
        match found {
            Ok(Ok(_)) => {
                let _ = windows.known.set(is_bounded);
            }
            Err(_) => {
                tracing::warn!("the device does not answer: its memory windows are not used");
                let _ = windows.known.set(false);
            }
            // A later test may have another outcome.
            Ok(Err(error)) => {
                tracing::warn!(%error, "the test of the device's memory windows failed: they are not used this time");
                *windows.asked() = None;
            }
        }
        let _ = sender.send(Some(is_bounded));
    });
    answer
}

/// Both ends of a connection, a window at the first end, and the bytes that the second end writes into it.
struct Rig {
    one: Connection,
    other: Connection,
    window: Window,
    words: [Buffer; 2],
}

async fn probe(driver: Driver, port: Option<u8>) -> Result<bool, TransportError> {
    let Some(rig) = call_blocking(move || Rig::new(&driver, port)).await else { return Ok(false) };
    // The device has no windows.
    let Some(rig) = rig? else { return Ok(false) };
    let Rig { one, other, window, words: [within, across] } = rig;
    let access = AccessFlags::REMOTE_WRITE;
    let request = RequestSpec::Bind(PART, 2 * PART, access);
    let window = Op::<Bind>::new(Link::Borrowed(one.inner()), window, request).await?;
    let Some((key, open)) = window.remote() else { unreachable!("it is bound") };
    let Some(inside) = open.slice(0..PART) else { unreachable!("it is as long") };
    other.write(within, inside).await?;
    // This write would fit only if the window ended half a part later.
    let beyond = open.address() + (PART / 2) as u64;
    let beyond = rdma_mem::RemoteMemoryRegion::new(beyond, PART, key);
    let refused = match other.write(across, beyond).await.map_err(|failed| failed.error) {
        Err(TransportError::WorkError(work)) => work.error.class() == WorkErrorClass::Remote,
        _ => false,
    };
    let kept = call_blocking(move || {
        // Dropping the connections destroys the queue pairs. Afterwards only this thread uses the memory.
        drop((one, other));
        window.close().is_ok_and(|region| is_as_written(&region))
    });
    Ok(refused && kept.await.unwrap_or(false))
}

/// Returns true if all of the open part was written, and nothing else.
fn is_as_written(region: &OwnedRegion) -> bool {
    let mut parts = region.chunks(PART);
    let mut is_all = |byte| parts.next().is_some_and(|part| part.iter().all(|&is| is == byte));
    is_all(0) && is_all(1) && is_all(0) && is_all(0)
}

impl Rig {
    /// Returns `None` if the device has no windows.
    fn new(driver: &Driver, port: Option<u8>) -> Result<Option<Self>, TransportError> {
        let pd = driver.context().allocate_pd()?;
        let region = pd.allocate_bindable_region(4 * PART)?;
        let window = match Window::allocate(region) {
            Ok(window) => window,
            Err((_, rdma_mem::Error::NoWindows { .. })) => return Ok(None),
            Err((_, error)) => return Err(error.into()),
        };
        let pool = BufferPool::with_region_size(&pd, 4096);
        let mut words = [pool.allocate(PART)?, pool.allocate(PART)?];
        words[0].fill(1);
        words[1].fill(2);
        let [one, other] = Self::connect(driver, &pd, port)?;
        Ok(Some(Self { one, other, window, words }))
    }

    fn connect(
        driver: &Driver,
        pd: &ProtectionDomain,
        port: Option<u8>,
    ) -> Result<[Connection; 2], Error> {
        let prepare = || {
            let qp = pd.create_qp().access(AccessFlags::REMOTE_WRITE);
            driver.prepare(match port {
                Some(port) => qp.port(port),
                None => qp,
            })
        };
        let (one, other) = (prepare()?, prepare()?);
        let (at_one, at_other) = (one.endpoint(), other.endpoint());
        Ok([one.handshake(at_other)?, other.handshake(at_one)?])
    }
}

/// Calls the provider on another thread, because the call may take long. Returns `None` if the runtime has shut down.
async fn call_blocking<R: Send + 'static>(call: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    spawn_blocking(call).await.ok()
}
