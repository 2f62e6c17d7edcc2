//! What a driver, its task and its connections share.

use std::sync::{Arc, PoisonError};

use rdma_connect::CloseReason;
use rdma_mem::{AsyncEvent, AsyncEventKind, AsyncEventSource, Context};
use rdma_qp::{CompletionChannel, CompletionQueue, Error};
use tokio::sync::Notify;

#[cfg(not(loom))]
use crate::driver::windows::Windows;
use crate::ledger::Ledger;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

/// How many completions a completion queue has room for, if no connection needs more.
const COMPLETIONS: u32 = 4096;

/// What a driver has, as long as its task or a connection is there.
#[derive(Debug)]
pub(crate) struct Shared {
    // First: they have queues of the channel.
    ledgers: Mutex<Vec<Arc<Ledger>>>,
    pub(crate) channel: CompletionChannel,
    /// A task polls, and ends the driver.
    pub(super) has_task: bool,
    /// Nobody polls any more.
    pub(super) is_over: AtomicBool,
    /// All queue pairs were destroyed.
    pub(super) is_done: AtomicBool,
    /// Told when the last handle is gone, or the driver is to end.
    pub(crate) ends: Notify,
    /// Told when it has ended.
    pub(super) has_ended: Notify,
    /// Whether windows of the device keep peers within them, once somebody has wanted to know.
    #[cfg(not(loom))]
    pub(crate) windows: Windows,
}

/// Keeps the driver going: it ends when the last one is dropped.
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        // A forked child wakes nobody of its parent's.
        if self.0.is_of_this_process() {
            self.0.ends.notify_one();
        }
    }
}

impl Shared {
    pub(crate) fn new(context: &Context, has_task: bool) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            ledgers: Mutex::default(),
            channel: CompletionChannel::create(context)?,
            has_task,
            is_over: AtomicBool::new(false),
            is_done: AtomicBool::new(false),
            ends: Notify::new(),
            has_ended: Notify::new(),
            #[cfg(not(loom))]
            windows: Windows::default(),
        }))
    }

    /// Whether this is no forked child, in which nobody may be there to unlock anything.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.channel.context().check_process().is_ok()
    }

    pub(super) fn ledgers(&self) -> MutexGuard<'_, Vec<Arc<Ledger>>> {
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A completion queue with room for so many requests, which are taken.
    pub(crate) fn ledger_for(&self, requests: u32) -> Result<Arc<Ledger>, Error> {
        let mut ledgers = self.ledgers();
        if let Some(fits) = ledgers.iter().find(|ledger| ledger.reserve(requests)) {
            return Ok(Arc::clone(fits));
        }
        let capacity = requests.max(COMPLETIONS);
        let cq = CompletionQueue::create_with_channel(&self.channel, capacity, 0)?;
        let ledger = Arc::new(Ledger::new(cq));
        ledger.reserve(requests);
        ledgers.push(Arc::clone(&ledger));
        Ok(ledger)
    }

    /// Takes all events, takes the completions that are there, and has the next ones make events where somebody has to be
    /// told, or `always`: who sleeps on the file of the channel after this misses none. How many completions there were.
    ///
    /// # Errors
    /// If the channel has failed, or a completion queue cannot be asked. One that has failed has ended its operations.
    pub(crate) fn sweep(&self, always: bool) -> Result<usize, Error> {
        while self.channel.try_get_event()?.is_some() {}
        let ledgers = self.ledgers().clone();
        let (mut all, mut failure) = (0, None);
        for ledger in ledgers.iter().filter(|ledger| !ledger.is_failed()) {
            // Each of them, since the events of all were taken.
            match ledger.sweep(always) {
                Ok(count) => all += count,
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        failure.map_or(Ok(all), Err)
    }

    /// Polls all completion queues.
    pub(super) fn poll(&self) -> usize {
        let ledgers = self.ledgers().clone();
        ledgers.iter().map(|ledger| ledger.progress().unwrap_or(0)).sum()
    }

    /// Ends what depends on what has failed.
    pub(super) fn note(&self, event: &AsyncEvent) {
        let (reason, port) = match (event.kind, event.source) {
            (AsyncEventKind::DEVICE_FATAL, _) => (CloseReason::Device, None),
            (AsyncEventKind::PORT_ERR, AsyncEventSource::Port(port)) => {
                (CloseReason::Port { port }, Some(port))
            }
            _ => return,
        };
        tracing::debug!(kind = %event.kind, "connections end with what they depend on");
        let ledgers = self.ledgers().clone();
        ledgers.iter().for_each(|ledger| ledger.close_those_of(port, reason));
    }

    /// Destroys all queue pairs: all operations are over then.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        let ledgers = self.ledgers().clone();
        ledgers.iter().for_each(|ledger| ledger.close_all(CloseReason::Destroyed));
        self.is_done.store(true, Ordering::Release);
        self.has_ended.notify_waiters();
    }
}

impl Handle {
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_over.load(Ordering::Acquire)
    }
}
