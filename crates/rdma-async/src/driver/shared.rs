//! The state shared by a driver, its task and its connections.

use std::sync::{Arc, PoisonError};

use rdma_connect::CloseReason;
use rdma_mem::{AsyncEvent, AsyncEventKind, AsyncEventSource, Context};
use rdma_qp::{CompletionChannel, CompletionQueue, Error};
use tokio::sync::Notify;

#[cfg(not(loom))]
use crate::driver::windows::Windows;
use crate::ledger::Ledger;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

/// The capacity of a completion queue, in completions, unless a connection needs more.
const COMPLETIONS: u32 = 4096;

/// The number of completions of a queue after which a sweep by the waker leaves the rest to the task. Meanwhile, the
/// runtime's thread serves no other files and no timers.
const MOST_AT_ONCE: usize = 64;

/// The state of a driver, kept alive by its task and its connections.
#[derive(Debug)]
pub(crate) struct Shared {
    // Declared first, so that they are dropped before the channel to which their completion queues refer. A sweep shares
    // the list, and so copies nothing.
    ledgers: Mutex<Arc<Vec<Arc<Ledger>>>>,
    pub(crate) channel: CompletionChannel,
    /// Whether a task ends the driver, and a waker or that task sweeps.
    pub(super) has_task: bool,
    /// Locked by the thread that sweeps for the task, or ends the driver.
    sweeping: Mutex<()>,
    /// Whether the driver has ended. After that, nothing polls.
    pub(super) is_shut_down: AtomicBool,
    /// Whether all queue pairs have been destroyed.
    pub(super) is_done: AtomicBool,
    /// Notified when the last handle is dropped or the driver has to end.
    pub(crate) ends: Notify,
    /// Notified when the driver has ended.
    pub(super) has_ended: Notify,
    /// Whether the device confines peers to the range of a window, once this has been tested.
    #[cfg(not(loom))]
    pub(crate) windows: Windows,
}

/// Keeps the driver running: the driver ends when the last handle is dropped.
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        // A forked child does not wake its parent's tasks.
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
            sweeping: Mutex::new(()),
            is_shut_down: AtomicBool::new(false),
            is_done: AtomicBool::new(false),
            ends: Notify::new(),
            has_ended: Notify::new(),
            #[cfg(not(loom))]
            windows: Windows::default(),
        }))
    }

    /// Returns true unless this is a forked child, where the thread that holds a lock may not exist.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.channel.context().check_process().is_ok()
    }

    pub(super) fn ledgers(&self) -> MutexGuard<'_, Arc<Vec<Arc<Ledger>>>> {
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a completion queue after reserving room for this many requests in it.
    pub(crate) fn ledger_for(&self, requests: u32) -> Result<Arc<Ledger>, Error> {
        let mut ledgers = self.ledgers();
        if let Some(fits) = ledgers.iter().find(|ledger| ledger.reserve(requests)) {
            return Ok(Arc::clone(fits));
        }
        let capacity = requests.max(COMPLETIONS);
        let cq = CompletionQueue::create_with_channel(&self.channel, capacity, 0)?;
        let ledger = Arc::new(Ledger::new(cq));
        ledger.reserve(requests);
        Arc::make_mut(&mut ledgers).push(Arc::clone(&ledger));
        Ok(ledger)
    }

    /// Receives all events and polls all completions. Arms each queue whose completions have to wake a task or release
    /// memory, or all queues if `always` is set. A caller that then sleeps on the channel's file misses no event.
    /// Returns the number of completions.
    ///
    /// # Errors
    /// If the channel fails, or a completion queue cannot be armed. A failed completion queue is not an error, because
    /// its operations have already ended.
    pub(crate) fn sweep(&self, always: bool) -> Result<usize, Error> {
        self.sweep_up_to(always, usize::MAX).map(|(all, _)| all)
    }

    /// Sweeps for the task, unless another thread sweeps. Returns false if that is the case, or if a queue has more
    /// than [`MOST_AT_ONCE`] completions. The task must then [sweep](Self::sweep_all).
    pub(super) fn sweep_some(&self) -> Result<bool, Error> {
        let Ok(_sweeping) = self.sweeping.try_lock() else { return Ok(false) };
        self.sweep_up_to(false, MOST_AT_ONCE).map(|(_, is_done)| is_done)
    }

    /// Sweeps for the task.
    pub(super) fn sweep_all(&self) -> Result<(), Error> {
        let _sweeping = self.sweeping();
        self.sweep(false).map(drop)
    }

    fn sweeping(&self) -> MutexGuard<'_, ()> {
        self.sweeping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sweeps, but polls only about this many completions of each queue. Returns false if some may be left.
    fn sweep_up_to(&self, always: bool, most: usize) -> Result<(usize, bool), Error> {
        self.receive_events()?;
        let ledgers = self.ledgers().clone();
        let (mut all, mut is_done, mut failure) = (0, true, None);
        for ledger in ledgers.iter().filter(|ledger| !ledger.is_failed()) {
            // Every queue is swept even after an error, because the events of all queues have been received and will
            // not be repeated.
            match ledger.sweep(always, most) {
                Ok(count) => (all, is_done) = (all + count, is_done && count < most),
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        failure.map_or(Ok((all, is_done)), Err)
    }

    /// Receives events until none is left. An armed queue sends one event, so this is usually known without a call that
    /// finds none.
    fn receive_events(&self) -> Result<(), Error> {
        // Always all queues: another thread may add one, whose event is then among those that are received.
        let ledgers = || self.ledgers().clone();
        let expected = || ledgers().iter().map(|ledger| ledger.expect_events()).sum::<usize>();
        // At least one call, because the file may be readable without an event.
        let mut most = expected().max(1);
        while most > 0 {
            let Some(queue) = self.channel.try_get_event()? else {
                ledgers().iter().for_each(|ledger| ledger.note_no_event());
                return Ok(());
            };
            if let Some(ledger) = ledgers().iter().find(|ledger| ledger.cq().id() == queue) {
                ledger.note_event();
            }
            // A queue that was armed meanwhile may have sent its event before the file was last emptied. A device need
            // not make the file readable again for the next one.
            most = expected();
        }
        Ok(())
    }

    /// Polls all completion queues.
    pub(super) fn poll(&self) -> usize {
        let ledgers = self.ledgers().clone();
        ledgers.iter().map(|ledger| ledger.progress().unwrap_or(0)).sum()
    }

    /// Ends the connections that depend on the failed port or device.
    pub(super) fn note(&self, event: &AsyncEvent) {
        let (reason, port) = match (event.kind, event.source) {
            (AsyncEventKind::DEVICE_FATAL, _) => (CloseReason::Device, None),
            (AsyncEventKind::PORT_ERR, AsyncEventSource::Port(port)) => {
                (CloseReason::Port { port }, Some(port))
            }
            _ => return,
        };
        tracing::debug!(kind = %event.kind, "connections end because their port or device has failed");
        let ledgers = self.ledgers().clone();
        ledgers.iter().for_each(|ledger| ledger.close_those_of(port, reason));
    }

    /// Ends the driver for the task, after a sweep of another thread has released its memory.
    pub(super) fn end_task(&self) {
        let _sweeping = self.sweeping();
        self.end();
    }

    /// Destroys all queue pairs, which ends all operations.
    pub(crate) fn end(&self) {
        self.is_shut_down.store(true, Ordering::Release);
        let ledgers = self.ledgers().clone();
        ledgers.iter().for_each(|ledger| ledger.close_all(CloseReason::Destroyed));
        self.is_done.store(true, Ordering::Release);
        self.has_ended.notify_waiters();
    }
}

impl Handle {
    pub(crate) fn is_shut_down(&self) -> bool {
        self.0.is_shut_down.load(Ordering::Acquire)
    }
}
