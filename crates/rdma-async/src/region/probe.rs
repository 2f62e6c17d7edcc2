//! Whether windows of a device keep peers within them.

use std::sync::Arc;
use std::time::Duration;

use rdma_channel::TransportError;
use rdma_mem::{AccessFlags, Buffer, BufferPool, OwnedRegion, ProtectionDomain};
use rdma_qp::prelude::*;
use rdma_qp::{Error, WorkErrorClass};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::kinds::Bind;
use crate::buffer::window::Window;
use crate::connection::Connection;
use crate::driver::Driver;
use crate::ledger::post::Request;
use crate::link::{Inner, Link};
use crate::operation::Op;

/// Nothing takes so long, unless the device does not answer.
const LIMIT: Duration = Duration::from_secs(10);

/// The region has four parts of so many bytes, of which the second one is open.
const PART: usize = 64;

/// Whether windows of the connection's device keep peers within them. Found out once for its driver; if it cannot be, they
/// do not.
pub(super) async fn are_windows_bounded(link: &Inner) -> bool {
    let shared = &link.driver.0;
    if let Some(known) = shared.windows.get() {
        return *known;
    }
    let find_out = async {
        let (driver, port) = (Driver(Arc::clone(&link.driver)), link.look(|place| place.port()));
        match timeout(LIMIT, probe(driver, port)).await {
            Ok(Ok(is_bounded)) => is_bounded,
            Ok(Err(error)) => {
                tracing::debug!(%error, "memory windows cannot be used");
                false
            }
            Err(_) => {
                tracing::debug!("the device does not answer: no memory windows are used");
                false
            }
        }
    };
    *Box::pin(shared.windows.get_or_init(|| find_out)).await
}

/// Both ends of a connection, a window of the first one's, and what the second one writes into it.
struct Rig {
    one: Connection,
    other: Connection,
    window: Window,
    words: [Buffer; 2],
}

async fn probe(driver: Driver, port: Option<u8>) -> Result<bool, TransportError> {
    let Some(rig) = apart(move || Rig::new(&driver, port)).await else { return Ok(false) };
    let Rig { one, other, window, words: [within, across] } = rig?;
    let access = AccessFlags::REMOTE_WRITE;
    let request = Request::Bind(PART, 2 * PART, access);
    let window = Op::<Bind>::new(Link::Borrowed(one.inner()), window, request).await?;
    let Some((key, open)) = window.remote() else { unreachable!("it is bound") };
    let Some(inside) = open.slice(0..PART) else { unreachable!("it is as long") };
    other.write(within, inside).await?;
    // The same as if the window ended half a part later.
    let beyond = open.address() + (PART / 2) as u64;
    let beyond = rdma_mem::RemoteMemoryRegion::new(beyond, PART, key);
    let refused = match other.write(across, beyond).await.map_err(|failed| failed.error) {
        Err(TransportError::WorkError(work)) => work.error.class() == WorkErrorClass::Remote,
        _ => false,
    };
    let kept = apart(move || {
        // Queue pairs are destroyed, and the memory is nobody else's then.
        drop((one, other));
        window.close().is_ok_and(|region| is_as_written(&region))
    });
    Ok(refused && kept.await.unwrap_or(false))
}

/// Whether the open part was written, and nothing else.
fn is_as_written(region: &OwnedRegion) -> bool {
    let mut parts = region.chunks(PART);
    let mut is_all = |byte| parts.next().is_some_and(|part| part.iter().all(|&is| is == byte));
    is_all(0) && is_all(1) && is_all(0) && is_all(0)
}

impl Rig {
    fn new(driver: &Driver, port: Option<u8>) -> Result<Self, TransportError> {
        let pd = driver.context().allocate_pd()?;
        let region = pd.allocate_bindable_region(4 * PART)?;
        let window = Window::allocate(region).map_err(|(_, error)| error)?;
        let pool = BufferPool::with_region_size(&pd, 4096);
        let mut words = [pool.allocate(PART)?, pool.allocate(PART)?];
        words[0].fill(1);
        words[1].fill(2);
        let [one, other] = Self::connect(driver, &pd, port)?;
        Ok(Self { one, other, window, words })
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

/// Has another thread call the provider, which takes its time. `None` if the runtime has ended.
async fn apart<R: Send + 'static>(call: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    spawn_blocking(call).await.ok()
}
