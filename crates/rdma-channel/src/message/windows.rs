//! Tests whether a device confines peers to the range of a memory window, before long messages are lent.
//!
//! A window of a message lends a part of a region of the pool, so a device that ignores the range would expose the rest.

use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdma_connect::messaging::Window;
use rdma_connect::{Operation, TransportError};
use rdma_mem::{AccessFlags, Buffer, BufferPool, Error, ProtectionDomain, RemoteMemoryRegion};
use rdma_qp::WorkErrorClass;

use super::owned::{Memory, Owned};
use crate::channel::Channel;
use crate::deadline::Deadline;

/// The time limit of each step. Only a device that does not answer reaches it.
const LIMIT: Duration = Duration::from_secs(10);

/// The size of each of the four parts of the memory, in bytes. Only the second part is open.
const PART: usize = 64;

/// A device that was tested: the functions of its provider, its name, and the result.
type Tested = (usize, String, bool);

static TESTED: Mutex<Vec<Tested>> = Mutex::new(Vec::new());

/// Returns true if the device confines peers to the range of a window. Each device is tested once, but again if the test
/// itself has failed.
pub(super) fn are_bounded(pd: &ProtectionDomain) -> bool {
    let (provider, name) = (ptr::from_ref(pd.verbs()).addr(), pd.context().device().name());
    let tested = || TESTED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_this = |(of, device, _): &&Tested| *of == provider && *device == name;
    if let Some(&(.., known)) = tested().iter().find(is_this) {
        return known;
    }
    match probe(pd) {
        Ok(are_bounded) => {
            tested().push((provider, name.to_owned(), are_bounded));
            are_bounded
        }
        Err(error) => {
            tracing::warn!(%error, "the test of the device's memory windows failed: they are not used this time");
            false
        }
    }
}

fn probe(pd: &ProtectionDomain) -> Result<bool, TransportError> {
    let pool = BufferPool::with_region_size(pd, 4096);
    let allocate = |length, byte| {
        let mut buffer = pool.allocate(length)?;
        buffer.fill(byte);
        Ok::<_, Error>(buffer)
    };
    let window = match Window::allocate(allocate(4 * PART, 0)?) {
        Ok(window) => window,
        Err((_, Error::NoWindows { .. })) => return Ok(false),
        Err((_, error)) => return Err(error.into()),
    };
    let (within, across) = (allocate(PART, 1)?, allocate(PART, 2)?);
    let (one, mut other) = connect(pd)?;
    let mut one = Owned::new(one);
    let Some(window) = bind(&mut one, window)? else { return Ok(false) };
    let Some((key, open)) = window.remote() else { return Ok(false) };
    other.write_from(&within, open)?;
    // This write would fit only if the window ended half a part later.
    let beyond = RemoteMemoryRegion::new(open.address() + (PART / 2) as u64, PART, key);
    let is_refused = match other.write_from(&across, beyond) {
        Err(TransportError::WorkError(work)) => work.error.class() == WorkErrorClass::Remote,
        _ => false,
    };
    // Destroys the queue pairs. Afterwards only this thread uses the memory.
    drop((one, other));
    Ok(is_refused && window.close().is_ok_and(|memory| is_as_written(&memory)))
}

fn connect(pd: &ProtectionDomain) -> Result<(Channel, Channel), TransportError> {
    let prepare = || Channel::builder().pd(pd).write_timeout(LIMIT).build();
    let (one, other) = (prepare()?, prepare()?);
    let (at_one, at_other) = (one.endpoint(), other.endpoint());
    Ok((one.handshake(at_other)?, other.handshake(at_one)?))
}

/// Binds a window to its second part. `None` if the device refuses that, or does not answer.
fn bind(
    owned: &mut Owned<()>,
    window: Window<Buffer>,
) -> Result<Option<Window<Buffer>>, TransportError> {
    if owned.bind((), window, PART..2 * PART, AccessFlags::REMOTE_WRITE).is_err() {
        return Ok(None);
    }
    let mut deadline = Deadline::new(LIMIT);
    loop {
        if let Some(((), result, Memory::Window(window))) = owned.next() {
            return Ok(result.is_ok().then_some(window));
        }
        let ledger = &owned.channel().ledger;
        if !ledger.take_completions()? && ledger.pause(&mut deadline, Operation::Bind)? {
            tracing::warn!("the device does not answer: its memory windows are not used");
            return Ok(None);
        }
    }
}

/// Returns true if all of the open part was written, and nothing else.
fn is_as_written(memory: &[u8]) -> bool {
    let mut parts = memory.chunks(PART);
    let mut is_all = |byte| parts.next().is_some_and(|part| part.iter().all(|&is| is == byte));
    is_all(0) && is_all(1) && is_all(0) && is_all(0)
}
