//! Memory for long messages. If the pool has to grow, it grows in a task.

use std::sync::{Arc, Weak};

use rdma_connect::messaging::{RETRY, Requests as _, Shortage, report_refused};
use rdma_mem::{Buffer, BufferPool, RemoteMemoryRegion};
use rdma_message::Incoming;
use rdma_message::frame::Remote;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::mailbox::Mailbox;
use crate::buffer::pool::Pool;
use crate::message::requests::Requests;
use crate::message::session::Session;
use crate::message::turns::{self, Turn};
use crate::sync::now;

/// The pool of a connection, and the fetches that wait for memory.
#[derive(Debug)]
pub(super) struct Supply {
    pool: Pool,
    runtime: Handle,
    session: Weak<Session<Mailbox>>,
    /// The messages to fetch that wait for memory.
    waiting: Vec<(Incoming, RemoteMemoryRegion)>,
    /// Whether a task grows the pool. Stays true if the runtime shuts down, because it then runs no further task.
    is_growing: bool,
    shortage: Shortage,
}

impl Supply {
    /// # Panics
    /// If this is not called within a tokio runtime.
    pub(super) fn new(pool: Pool) -> Self {
        Self {
            pool,
            runtime: Handle::current(),
            session: Weak::new(),
            waiting: Vec::new(),
            is_growing: false,
            shortage: Shortage::default(),
        }
    }

    pub(super) fn enter(&mut self, session: &Weak<Session<Mailbox>>) {
        self.session = Weak::clone(session);
    }

    pub(super) const fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn blocking(&self) -> &BufferPool {
        self.pool.as_blocking()
    }

    /// Returns memory of the pool. If it has none, it grows for later messages.
    pub(super) fn stage(&mut self, length: usize) -> Option<Buffer> {
        let buffer = self.blocking().try_allocate(length).ok()?;
        if buffer.is_none() && !self.is_growing && self.shortage.may_grow(length, now()) {
            self.is_growing = true;
            let (pool, session) = (self.pool.clone(), Weak::clone(&self.session));
            self.runtime.spawn(async move {
                let has_grown = pool.grow(length).await.is_ok();
                if let Some(session) = session.upgrade() {
                    session.with(|state| state.protocol.supply().grown(length, has_grown));
                }
            });
        }
        buffer
    }

    fn grown(&mut self, length: usize, has_grown: bool) {
        self.is_growing = false;
        if !has_grown {
            self.shortage.note(length, now());
        }
    }

    /// Fetches a message of the peer.
    pub(super) fn fetch(
        &mut self,
        message: Incoming,
        Remote { va, rkey, .. }: Remote,
        length: u32,
        requests: &mut Requests,
    ) {
        let length = length as usize;
        let source = RemoteMemoryRegion::new(va, length, rkey);
        if let Ok(Some(into)) = self.blocking().try_allocate(length) {
            return requests.read(message, source, into);
        }
        self.waiting.push((message, source));
        let (pool, session) = (self.pool.clone(), Weak::clone(&self.session));
        let wait = Wait { message, session };
        self.runtime.spawn(async move {
            let mut is_reported = false;
            while wait.is_awaited() {
                match pool.allocate(length).await {
                    Ok(memory) => return wait.fetch_into(memory),
                    Err(error) if !is_reported => {
                        is_reported = true;
                        let session = wait.session.upgrade();
                        let peer = session.and_then(|session| session.peer());
                        report_refused(&error, length, peer);
                    }
                    Err(_) => {}
                }
                sleep(RETRY).await;
            }
        });
    }

    fn is_awaited(&self, message: Incoming) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == message)
    }

    fn fetch_into(&mut self, message: Incoming, into: Option<Buffer>, requests: &mut Requests) {
        let at = self.waiting.iter().position(|(waiting, _)| *waiting == message);
        let Some((_, source)) = at.map(|at| self.waiting.swap_remove(at)) else { return };
        match into {
            Some(into) => requests.read(message, source, into),
            None => requests.fail(),
        }
    }

    /// Ends the fetches that wait for memory.
    pub(super) fn close(&mut self) {
        self.waiting.clear();
    }
}

/// A fetch that waits for memory. If this is dropped, because the runtime has shut down, the connection ends.
struct Wait {
    message: Incoming,
    session: Weak<Session<Mailbox>>,
}

impl Wait {
    fn is_awaited(&self) -> bool {
        let session = self.session.upgrade();
        session.is_some_and(|session| {
            session.with(|state| state.protocol.supply().is_awaited(self.message))
        })
    }

    fn fetch_into(&self, memory: Buffer) {
        if let Some(session) = self.session.upgrade() {
            fetch_into(&session, self.message, Some(memory));
        }
    }
}

fn fetch_into(session: &Session<Mailbox>, message: Incoming, memory: Option<Buffer>) {
    session.with(|state| {
        let requests = &mut state.requests;
        state.protocol.supply().fetch_into(message, memory, requests);
    });
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(session) = self.session.upgrade() {
            // After the current turn: a runtime that has shut down drops its tasks while they are spawned.
            turns::wake(Arc::new(Lacking { message: self.message, session }));
        }
    }
}

/// A message that gets no memory. Does nothing if it has got some.
struct Lacking {
    message: Incoming,
    session: Arc<Session<Mailbox>>,
}

impl Turn for Lacking {
    fn run(&self) {
        fetch_into(&self.session, self.message, None);
    }
}
