//! The test set-up on the mock device: connections, and a minimal runtime.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use rdma_mem::{Buffer, BufferPool, ProtectionDomain};

use super::{Nic, provider};
use crate::connection::Connection;
use crate::driver::shared::{Handle, Shared};
use crate::link::Inner;
use crate::sync::{Condvar, Mutex};

/// A driver without a task, on its own device.
pub(crate) struct Rig {
    pub(crate) nic: Arc<Nic>,
    pub(crate) driver: Arc<Handle>,
    pub(crate) pool: BufferPool,
    pd: ProtectionDomain,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let nic = Arc::<Nic>::default();
        let context = provider::open(&nic);
        let pd = context.allocate_pd().unwrap();
        let driver = Arc::new(Handle(Shared::new(&context, false).unwrap()));
        Self { nic, driver, pool: BufferPool::with_region_size(&pd, 4096), pd }
    }

    /// Creates a connection with these numbers of send and receive slots.
    pub(crate) fn connect(&self, depth: [u32; 2]) -> Connection {
        let ledger = self.driver.0.ledger_for(depth[0] + depth[1]).unwrap();
        let qp = provider::queue_pair(&self.nic, &self.pd, ledger.cq());
        Connection::new(Inner::new(ledger, qp, depth, Arc::clone(&self.driver)))
    }

    pub(crate) fn buffer(&self) -> Buffer {
        self.pool.allocate(16).unwrap()
    }

    /// Lets the device end one request, if any is outstanding.
    #[cfg(loom)]
    pub(crate) fn serve_what_is_there(&self) {
        self.nic.serve_what_is_there(|| self.pool.usage().buffers);
    }

    /// Does the driver's work: sleeps on the file, and polls completions.
    pub(crate) fn drive(&self) {
        loop {
            // The sweep has already notified all waiters of a failure.
            if self.driver.0.sweep(false).is_err() || !self.nic.wait_for_event() {
                return;
            }
        }
    }
}

/// A task that sleeps until it is woken.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    wakes: Mutex<usize>,
    is_woken: Condvar,
}

impl Sleeper {
    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    /// Returns the number of wake-ups since the last call.
    pub(crate) fn take_wakes(&self) -> usize {
        std::mem::take(&mut *self.wakes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn sleep(&self) {
        let mut wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
        while *wakes == 0 {
            wakes = self.is_woken.wait(wakes).unwrap_or_else(PoisonError::into_inner);
        }
        *wakes = 0;
    }
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        *self.wakes.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.is_woken.notify_one();
    }
}

/// Runs a future. A lost wake-up shows as a deadlock.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let (mut future, sleeper) = (pin!(future), Arc::<Sleeper>::default());
    let waker = sleeper.waker();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => sleeper.sleep(),
        }
    }
}

/// Polls a future once, with the waker of this sleeper.
pub(crate) fn poll_once<F: Future + Unpin>(
    future: &mut F,
    sleeper: &Arc<Sleeper>,
) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&sleeper.waker()))
}
