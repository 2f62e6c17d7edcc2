//! The long messages of this end, which the peer reads from this end's memory.

use std::mem;

use rdma_mem::{Buffer, BufferPool};
use rdma_message::Operation;
use rdma_message::frame::Remote;

use super::Lent;
use super::window::Window;

/// The requests for windows.
pub trait LeaseRequests {
    /// Posts the bind of a window to all of its buffer. Its completion is reported with [`Lender::bound`].
    ///
    /// # Errors
    /// Returns the window if the bind was not posted. It is not bound.
    fn bind(&mut self, lease: usize, window: Window<Buffer>) -> Result<(), Window<Buffer>>;

    /// Posts the invalidation of a bound window. Its completion is reported with [`Lender::invalidated`]. If it is not
    /// posted, the connection ends, and the window is deallocated.
    fn invalidate(&mut self, lease: usize, window: Window<Buffer>);

    /// Deallocates a window when the session is not locked. Its memory is freed afterwards.
    fn deallocate(&mut self, window: Window<Buffer>);

    /// Frees memory when the session is not locked.
    fn free(&mut self, memory: Buffer);
}

/// A window that lends one message at a time.
#[derive(Debug, Default)]
struct Lease {
    /// `None` while a request uses the window.
    window: Option<Window<Buffer>>,
    /// The memory of the window while it is idle.
    spare: Option<Buffer>,
    /// The operation whose message is lent, until the operation is over.
    operation: Option<Operation>,
}

impl Lease {
    const fn is_idle(&self) -> bool {
        self.window.is_some() && self.operation.is_none()
    }
}

/// The windows of this end. They are allocated when they are first needed, and used again.
#[derive(Debug, Default)]
pub struct Lender {
    leases: Vec<Lease>,
    limit: usize,
    /// The operation that waits for a window. Only the next one to be sent can.
    waiting: Option<Operation>,
}

impl Lender {
    /// Creates a lender with at most `limit` windows.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { leases: Vec::new(), limit, waiting: None }
    }

    /// Begins to lend a message.
    pub fn lend(
        &mut self,
        operation: Operation,
        buffer: Buffer,
        pool: &BufferPool,
        requests: &mut impl LeaseRequests,
    ) -> Lent {
        let Some((at, mut window)) = self.idle(pool) else {
            if self.leases.iter().all(|lease| lease.operation.is_some()) {
                return Lent::Refused(buffer);
            }
            self.waiting = Some(operation);
            return Lent::Later(buffer);
        };
        let Some(lease) = self.leases.get_mut(at) else { return Lent::Refused(buffer) };
        let spare = mem::replace(window.memory_mut(), buffer);
        match requests.bind(at, window) {
            Ok(()) => {
                (lease.spare, lease.operation) = (Some(spare), Some(operation));
                Lent::Begun
            }
            Err(mut window) => {
                let buffer = mem::replace(window.memory_mut(), spare);
                lease.window = Some(window);
                Lent::Refused(buffer)
            }
        }
    }

    /// Returns an idle window with its index.
    fn idle(&mut self, pool: &BufferPool) -> Option<(usize, Window<Buffer>)> {
        if let Some(at) = self.leases.iter().position(Lease::is_idle) {
            return Some((at, self.leases.get_mut(at)?.window.take()?));
        }
        if self.leases.len() >= self.limit {
            return None;
        }
        let window = Window::allocate(pool.try_allocate(1).ok()??).ok()?;
        self.leases.push(Lease::default());
        Some((self.leases.len() - 1, window))
    }

    /// Continues after a bind. Returns the operation and the address for the peer, unless the operation is over.
    pub fn bound(
        &mut self,
        at: usize,
        window: Window<Buffer>,
        requests: &mut impl LeaseRequests,
    ) -> Option<(Operation, Remote)> {
        let (rkey, remote) = window.remote()?;
        let lease = self.leases.get_mut(at)?;
        let Some(operation) = lease.operation else {
            requests.invalidate(at, window);
            return None;
        };
        lease.window = Some(window);
        Some((operation, Remote { va: remote.address(), rkey }))
    }

    /// Ends the lease of an operation that is over.
    pub fn end(&mut self, operation: Operation, requests: &mut impl LeaseRequests) {
        self.waiting.take_if(|waiting| *waiting == operation);
        let is_of = |lease: &Lease| lease.operation == Some(operation);
        let Some(at) = self.leases.iter().position(is_of) else { return };
        let Some(lease) = self.leases.get_mut(at) else { return };
        lease.operation = None;
        if let Some(window) = lease.window.take() {
            requests.invalidate(at, window);
        }
    }

    /// Frees the memory of a lease that has ended. Returns the operation that waited for its window.
    pub fn invalidated(
        &mut self,
        at: usize,
        mut window: Window<Buffer>,
        requests: &mut impl LeaseRequests,
    ) -> Option<Operation> {
        let lease = self.leases.get_mut(at)?;
        requests.free(mem::replace(window.memory_mut(), lease.spare.take()?));
        lease.window = Some(window);
        self.waiting.take()
    }

    /// Ends all leases, because the queue pair has been destroyed. Each window is deallocated before its memory is freed.
    pub fn close(&mut self, requests: &mut impl LeaseRequests) {
        let windows = self.leases.drain(..).filter_map(|lease| lease.window);
        windows.for_each(|window| requests.deallocate(window));
        (self.limit, self.waiting) = (0, None);
    }
}
