//! The completion driver: either a task that sleeps on the completion channel, or the program itself.

pub(crate) mod events;
pub(crate) mod file;
pub(crate) mod manual;
pub(crate) mod shared;
pub(crate) mod task;
#[cfg(not(loom))]
pub(crate) mod windows;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_connect::ConnectError;
use rdma_mem::Context;
use rdma_qp::{Error, QueuePairBuilder};

use self::events::Events;
use self::manual::ManualDriver;
use self::shared::{Handle, Shared};
use crate::ledger::slots::MOST;
use crate::prepared::PreparedConnection;

/// Drives operations to completion: owns the completion queues of connections, and wakes the tasks that wait for
/// completions.
///
/// A task that awaits an operation polls the completion queue itself, so the driver only sleeps on the completion
/// channel and wakes tasks. The runtime's thread that waits for files does this, without a task. It also processes
/// messages. The code of the program that it calls, a waker or a subscriber of `tracing`, must neither block nor call
/// `block_in_place`.
///
/// Clones are cheap. The driver ends when the last clone and the last connection are dropped. It also ends when its task is dropped, for example because the runtime shuts down. It then destroys its queue pairs,
/// and operations in flight fail with [`TransportError::Closed`](rdma_connect::TransportError::Closed) and return their
/// memory.
///
/// # Examples
/// ```
/// use rdma_async::Driver;
/// use rdma_mem::BufferPool;
/// use rdma_qp::prelude::*;
///
/// # rdma_soft::install();
/// # tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
/// let context = rdma_mem::open_device("soft0")?;
/// let pd = context.allocate_pd()?;
/// let driver = Driver::spawn(&context)?;
/// // Both ends are in this process; otherwise each sends its endpoint to the other.
/// let (one, other) = (driver.prepare(pd.create_qp())?, driver.prepare(pd.create_qp())?);
/// let (at_one, at_other) = (one.endpoint(), other.endpoint());
/// let (one, other) = (one.handshake(at_other)?, other.handshake(at_one)?);
///
/// let pool = BufferPool::new(&pd);
/// let receive = other.receive(pool.allocate(64)?).post().await?;
/// let mut message = pool.allocate(5)?;
/// message.copy_from_slice(b"hello");
/// one.send(message).await?;
/// let received = receive.await?;
/// assert_eq!(received.memory[..received.length], *b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Driver(pub(crate) Arc<Handle>);

impl Driver {
    /// Starts a driver whose task runs in the current runtime.
    ///
    /// # Errors
    /// If the completion channel cannot be created, or if the runtime cannot watch it or the context's asynchronous
    /// events.
    ///
    /// # Panics
    /// If this is not called within a tokio runtime that has I/O (`enable_io`).
    pub fn spawn(context: &Context) -> Result<Self, std::io::Error> {
        let shared = Shared::new(context, true).map_err(std::io::Error::other)?;
        task::spawn(&shared)?;
        Ok(Self(Arc::new(Handle(shared))))
    }

    /// Creates a driver that the program polls itself, in any runtime or without one.
    ///
    /// # Errors
    /// If the completion channel cannot be created.
    pub fn manual(context: &Context) -> Result<(Self, ManualDriver), Error> {
        let shared = Shared::new(context, false)?;
        let manual = ManualDriver::new(Arc::clone(&shared));
        Ok((Self(Arc::new(Handle(shared))), manual))
    }

    /// Prepares a connection, which then waits for the peer's endpoint. The program and its peer exchange endpoints by
    /// any means. `builder` holds the options of the queue pair; its completion queues are the driver's.
    ///
    /// # Errors
    /// Same errors as [`QueuePairBuilder::build`]; [`Error::TooLarge`] for a queue of more than 32,768 requests;
    /// [`Error::SharedReceives`] for a builder with a shared receive queue; or an error from creating a completion
    /// queue.
    pub fn prepare(&self, builder: QueuePairBuilder<'_>) -> Result<PreparedConnection, Error> {
        // Receives of a shared queue would complete here with WR IDs that the program chose.
        if builder.has_srq() {
            return Err(Error::SharedReceives);
        }
        let asked = builder.asked();
        let depth = [asked.max_send_wr, asked.max_recv_wr];
        for (knob, value) in [("max_send_wr", depth[0]), ("max_recv_wr", depth[1])] {
            if value > MOST / 2 {
                return Err(Error::TooLarge { knob, value, most: MOST / 2 });
            }
        }
        let ledger = self.0.0.ledger_for(depth[0] + depth[1])?;
        PreparedConnection::new(builder, ledger, depth, Arc::clone(&self.0))
    }

    /// Returns a stream of the context's asynchronous events from now on.
    ///
    /// # Errors
    /// If the process cannot open three more files, or the context's event file cannot be made non-blocking.
    ///
    /// # Panics
    /// If this is not called within a tokio runtime that has I/O.
    pub fn events(&self) -> Result<Events, std::io::Error> {
        Events::of(self.context())
    }

    pub(crate) fn context(&self) -> &Context {
        self.0.0.channel.context()
    }

    /// Checks that the driver has not ended, so that it can connect by address.
    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        if !self.0.is_shut_down() {
            return Ok(());
        }
        let source = std::io::Error::other("the driver has ended: create another one");
        Err(ConnectError::Io { tried: "using a driver".to_owned(), source })
    }

    /// Ends the driver, and waits for its task to end. By then, all operations have ended and returned their memory.
    /// Its connections are closed permanently.
    pub async fn shutdown(self) {
        let shared = Arc::clone(&self.0.0);
        if !shared.has_task {
            return shared.end();
        }
        let ended = shared.has_ended.notified();
        tokio::pin!(ended);
        // Enabled before the check, so that the notification is not missed.
        ended.as_mut().enable();
        shared.ends.notify_one();
        drop(self);
        if !shared.is_done.load(Ordering::Acquire) {
            ended.await;
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.0.ledgers().len();
        f.debug_struct("Driver").field("completion_queues", &count).finish_non_exhaustive()
    }
}
