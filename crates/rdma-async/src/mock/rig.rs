//! What tests and models have of the mock device: connections, and the smallest of runtimes.

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

/// A driver without a task, on a device of its own.
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

    /// A connection that can have so many requests outstanding.
    pub(crate) fn connect(&self, depth: [u32; 2]) -> Connection {
        let ledger = self.driver.0.ledger_for(depth[0] + depth[1]).unwrap();
        let qp = provider::queue_pair(&self.nic, &self.pd, ledger.cq());
        Connection::new(Inner::new(ledger, qp, depth, Arc::clone(&self.driver)))
    }

    pub(crate) fn buffer(&self) -> Buffer {
        self.pool.allocate(16).unwrap()
    }

    /// The device ends a request, if one is there.
    #[cfg(loom)]
    pub(crate) fn serve_what_is_there(&self) {
        self.nic.serve_what_is_there(|| self.pool.usage().buffers);
    }

    /// What the driver's task does: sleeps on the file, and takes what has completed.
    pub(crate) fn drive(&self) {
        loop {
            // It has said so itself, to all who wait.
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

    /// How often it was woken since this was asked.
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

/// Runs a future; a wake-up that it does not get is a deadlock.
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

/// Polls a future once, for this task.
pub(crate) fn poll_once<F: Future + Unpin>(
    future: &mut F,
    sleeper: &Arc<Sleeper>,
) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&sleeper.waker()))
}
