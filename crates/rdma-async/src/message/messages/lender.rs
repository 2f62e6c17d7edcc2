//! The long messages of this end, which the peer reads from this end's memory.

use std::mem;

use rdma_connect::messaging::Lent;
use rdma_mem::{Buffer, BufferPool};
use rdma_message::Operation;
use rdma_message::frame::Remote;

use crate::buffer::held::sealed::Lease as _;
use crate::buffer::window::Window;
use crate::message::requests::Requests;
use crate::message::turns;

/// A window that lends one message at a time.
#[derive(Debug, Default)]
struct Loan {
    /// `None` while a request uses the window.
    window: Option<Window<Buffer>>,
    /// The memory of the window while it is idle.
    spare: Option<Buffer>,
    /// The operation whose message is lent, until the operation is over.
    operation: Option<Operation>,
}

impl Loan {
    const fn is_idle(&self) -> bool {
        self.window.is_some() && self.operation.is_none()
    }
}

/// The windows of this end. They are allocated when they are first needed, and used again.
#[derive(Debug)]
pub(super) struct Lender {
    loans: Vec<Loan>,
    limit: usize,
    /// The operation that waits for a window. Only the next one to be sent can.
    waiting: Option<Operation>,
}

impl Lender {
    /// Creates a lender with at most `limit` windows.
    pub(super) const fn new(limit: usize) -> Self {
        Self { loans: Vec::new(), limit, waiting: None }
    }

    /// Begins to lend a message.
    pub(super) fn lend(
        &mut self,
        operation: Operation,
        buffer: Buffer,
        pool: &BufferPool,
        requests: &mut Requests,
    ) -> Lent {
        let Some((at, mut window)) = self.idle(pool) else {
            if self.loans.iter().all(|loan| loan.operation.is_some()) {
                return Lent::Refused(buffer);
            }
            self.waiting = Some(operation);
            return Lent::Later(buffer);
        };
        let Some(loan) = self.loans.get_mut(at) else { return Lent::Refused(buffer) };
        let spare = mem::replace(window.memory_mut(), buffer);
        match requests.bind(at, window) {
            Ok(()) => {
                (loan.spare, loan.operation) = (Some(spare), Some(operation));
                Lent::Begun
            }
            Err(mut window) => {
                let buffer = mem::replace(window.memory_mut(), spare);
                loan.window = Some(window);
                Lent::Refused(buffer)
            }
        }
    }

    /// Returns an idle window with its index.
    fn idle(&mut self, pool: &BufferPool) -> Option<(usize, Window<Buffer>)> {
        if let Some(at) = self.loans.iter().position(Loan::is_idle) {
            return Some((at, self.loans.get_mut(at)?.window.take()?));
        }
        if self.loans.len() >= self.limit {
            return None;
        }
        let window = Window::allocate(pool.try_allocate(1).ok()??).ok()?;
        self.loans.push(Loan::default());
        Some((self.loans.len() - 1, window))
    }

    /// Continues after a bind. Returns the operation and the address for the peer, unless the operation is over.
    pub(super) fn bound(
        &mut self,
        at: usize,
        window: Window<Buffer>,
        requests: &mut Requests,
    ) -> Option<(Operation, Remote)> {
        let (rkey, remote) = window.remote()?;
        let loan = self.loans.get_mut(at)?;
        let Some(operation) = loan.operation else {
            requests.invalidate(at, window);
            return None;
        };
        loan.window = Some(window);
        Some((operation, Remote { va: remote.address(), rkey }))
    }

    /// Ends the loan of an operation that is over.
    pub(super) fn end(&mut self, operation: Operation, requests: &mut Requests) {
        self.waiting.take_if(|waiting| *waiting == operation);
        let is_of = |loan: &Loan| loan.operation == Some(operation);
        let Some(at) = self.loans.iter().position(is_of) else { return };
        let Some(loan) = self.loans.get_mut(at) else { return };
        loan.operation = None;
        if let Some(window) = loan.window.take() {
            requests.invalidate(at, window);
        }
    }

    /// Frees the memory of a loan that has ended. Returns the operation that waited for its window.
    pub(super) fn invalidated(
        &mut self,
        at: usize,
        mut window: Window<Buffer>,
    ) -> Option<Operation> {
        let loan = self.loans.get_mut(at)?;
        turns::free(mem::replace(window.memory_mut(), loan.spare.take()?).into_held());
        loan.window = Some(window);
        self.waiting.take()
    }

    /// Ends all loans, because the queue pair has been destroyed. Each window is deallocated before its memory is freed.
    pub(super) fn close(&mut self) {
        let windows = self.loans.drain(..).filter_map(|loan| loan.window);
        windows.for_each(|window| turns::free(window.into_held()));
        (self.limit, self.waiting) = (0, None);
    }
}
