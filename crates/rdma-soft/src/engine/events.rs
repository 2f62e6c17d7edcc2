//! Events: a queue of events, and a file that is readable while the queue is not empty.
//!
//! The events themselves stay in the queue, so an object's events can be removed when the object is destroyed. The file
//! holds one byte while the queue is not empty.
//!
//! Events occur while engine locks are held, but writing a byte takes a system call. So an event is only queued at
//! first. The file becomes readable when the thread [settles](Fabric::run_queue). The thread does this once it holds no
//! lock, and before its verb returns.

#[cfg(not(all(test, loom)))]
pub(crate) mod file;
pub(crate) mod report;

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, Condvar, PoisonError, Weak};

use rustix::io::Errno;

#[cfg(not(all(test, loom)))]
use crate::engine::events::file::EventFile;
#[cfg(all(test, loom))]
use crate::engine::models::file::EventFile;
use crate::fabric::Fabric;
use crate::fabric::run_queue::Settle;
use crate::fabric::stalls;
use crate::fabric::watchers::Watcher;
use crate::sync::{Lock, Mutex, locked_for_calls, locked_to_wait};

#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    fabric: &'static Fabric,
    state: Lock<QueuedEvents<E>>,
    file: EventFile,
    /// Held by a thread while it writes to the file. That thread holds no engine lock. If another thread is already
    /// about to write the byte for a settling thread's event, the settling thread waits here.
    writing: Mutex<()>,
}

#[derive(Debug)]
struct QueuedEvents<E> {
    events: VecDeque<E>,
    /// Whether the file contains a byte, or is about to. A thread that clears this flag then takes a byte from the
    /// file. This need not be the byte for this flag, which another thread may not have written yet.
    readable: bool,
    /// The number of bytes that waiting threads took although another thread had cleared `readable` and still has to
    /// take that byte. When that other thread finds no byte, it subtracts one here. A write before that adds a byte for
    /// it. Negative while a waiting thread has yet to add one.
    missing: isize,
    /// Whether a thread is writing to the file. After the write, that thread checks for further events, and finally
    /// removes the queue from the run queue.
    writing: bool,
    /// The maximum number of different events that can be queued.
    room: usize,
    /// Whether the queue is in the run queue.
    is_queued: bool,
    /// The number of threads that execute what has arrived, and then take an event. While there are any, no byte is
    /// written for an event. The last of them writes it if an event is left.
    executing: u32,
    /// The number of events that were taken.
    taken: u32,
}

impl<E> QueuedEvents<E> {
    /// Called when the queue may have become empty. Returns true if the caller must [take](EventQueue::clear) a byte
    /// from the file.
    fn clear(&mut self) -> bool {
        self.events.is_empty() && std::mem::take(&mut self.readable)
    }

    fn is_due(&self) -> bool {
        !self.events.is_empty() && !self.readable && self.executing == 0
    }

    fn pop(&mut self) -> Option<E> {
        let event = self.events.pop_front();
        self.taken = self.taken.wrapping_add(u32::from(event.is_some()));
        event
    }
}

impl<E: Copy + Send + std::fmt::Debug + 'static> EventQueue<E> {
    pub(crate) fn new(fabric: &'static Fabric) -> rustix::io::Result<Arc<Self>> {
        Ok(Self::with_file(fabric, EventFile::new()?))
    }

    fn with_file(fabric: &'static Fabric, file: EventFile) -> Arc<Self> {
        let events = VecDeque::new();
        let state = QueuedEvents {
            events,
            readable: false,
            missing: 0,
            writing: false,
            room: 0,
            is_queued: false,
            executing: 0,
            taken: 0,
        };
        fabric.run_queue.reserve();
        Arc::new(Self { fabric, state: Lock::new(state), file, writing: Mutex::new(()) })
    }

    #[cfg(all(test, loom))]
    pub(crate) fn fabric(&self) -> &'static Fabric {
        self.fabric
    }

    #[cfg(all(test, loom))]
    pub(crate) fn file(&self) -> &EventFile {
        &self.file
    }

    #[cfg(all(test, loom))]
    pub(crate) fn events(&self) -> usize {
        self.state.lock().events.len()
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.file.fd()
    }

    /// Allows the file to be readable before there is an event. Returns the file that the program uses from now on.
    pub(crate) fn wake_early(self: &Arc<Self>) -> rustix::io::Result<RawFd> {
        let file = self.file.wake_early()?;
        self.fabric.watchers.add(self.as_watcher());
        Ok(file)
    }

    /// Returns true unless time is virtual.
    pub(crate) fn is_in_real_time(&self) -> bool {
        self.fabric.simulation.is_none()
    }

    /// Ends [`wake_early`](Self::wake_early), because the program destroys the object.
    pub(crate) fn end_early(self: &Arc<Self>) {
        if self.file.wakes_early() {
            self.fabric.watchers.remove(&self.as_watcher());
        }
    }

    fn as_watcher(self: &Arc<Self>) -> Weak<dyn Watcher> {
        Arc::downgrade(&(Arc::<Self>::clone(self) as Arc<dyn Watcher>))
    }

    /// Queues an event. The caller [settles](Fabric::run_queue) once it holds no lock.
    pub(crate) fn push(self: &Arc<Self>, event: E) {
        self.push_if(event, |_| true);
    }

    /// Like [`push`](Self::push), unless the queue already contains the same event.
    pub(crate) fn push_new(self: &Arc<Self>, event: E)
    where
        E: PartialEq,
    {
        self.push_if(event, |events| !events.contains(&event));
    }

    fn push_if(self: &Arc<Self>, event: E, is_wanted: impl FnOnce(&VecDeque<E>) -> bool) {
        let mut state = self.state.lock();
        if is_wanted(&state.events) {
            state.events.push_back(event);
            if !state.is_queued {
                state.is_queued = true;
                self.fabric.run_queue.add_unsettled(Arc::<Self>::clone(self));
            }
        }
    }

    /// Registers another object, which can have at most `kinds` different events in the queue. Reserves space for them,
    /// so that reporting does not allocate.
    pub(crate) fn join(&self, kinds: usize) {
        let mut state = self.state.lock();
        state.room += kinds;
        let room = state.room;
        state.events.reserve(room);
    }

    pub(crate) fn leave(&self, kinds: usize) {
        self.state.lock().room -= kinds;
    }

    /// Takes the oldest event, and passes it to `deliver` before it can be discarded. Waits for an event, unless the
    /// program made its end of the file non-blocking. In virtual time, waiting advances the clock.
    pub(crate) fn take<R>(&self, deliver: impl Fn(E) -> R) -> Result<R, Errno> {
        let mut has_byte = false;
        loop {
            if let Some(taken) = self.take_oldest(&deliver, has_byte) {
                if self.file.wakes_early() {
                    // An edge-triggered program that expects no other event is not woken again for arrivals.
                    self.handle_arrivals();
                }
                return Ok(taken);
            }
            has_byte = false;
            if self.file.wakes_early() {
                if let Some(taken) = self.take_after(&deliver, || self.handle_arrivals()) {
                    return Ok(taken);
                }
                // Saves a read of the file, unless a thread has been woken without an event.
                if !self.state.lock().readable {
                    return Err(Errno::AGAIN);
                }
            }
            if self.fabric.simulation.is_some() && self.file.is_blocking() {
                while self.is_empty() && self.fabric.step() {}
                if !self.is_empty() {
                    continue;
                }
            }
            self.file.take()?;
            has_byte = true;
        }
    }

    /// Executes what has arrived, if a channel watches the link.
    fn handle_arrivals(&self) {
        self.fabric.polled.get().into_iter().for_each(|link| link.handle_arrivals());
    }

    /// Takes the oldest event, if any. `has_byte` states whether the thread has taken a byte from the file.
    fn take_oldest<R>(&self, deliver: impl Fn(E) -> R, has_byte: bool) -> Option<R> {
        self.take_with(deliver, has_byte, |state| {
            if has_byte && (state.missing < 0 || !std::mem::take(&mut state.readable)) {
                state.missing += 1;
            }
        })
    }

    /// Executes what has arrived, and takes the oldest event. No byte is written for an event that is taken here.
    pub(crate) fn take_after<R>(
        &self,
        deliver: impl Fn(E) -> R,
        execute: impl FnOnce(),
    ) -> Option<R> {
        self.state.lock().executing += 1;
        execute();
        self.take_with(deliver, true, |state| state.executing -= 1)
    }

    /// Prepares the state, takes the oldest event, and if `settles` is set, makes the file readable for the others.
    fn take_with<R>(
        &self,
        deliver: impl Fn(E) -> R,
        settles: bool,
        prepare: impl FnOnce(&mut QueuedEvents<E>),
    ) -> Option<R> {
        let (taken, clear, are_more) = {
            let mut state = self.state.lock();
            prepare(&mut state);
            (state.pop().map(deliver), state.clear(), !state.events.is_empty())
        };
        if clear {
            self.clear();
        } else if settles && are_more {
            self.settle();
        }
        taken
    }

    fn is_empty(&self) -> bool {
        self.state.lock().events.is_empty()
    }

    /// Takes a byte from the file, if necessary after waiting for a thread that is about to write one. If there is
    /// still no byte, subtracts one from `missing`, because a waiting thread has taken it.
    fn clear(&self) {
        if self.file.clear() {
            return;
        }
        let _writing = locked_for_calls(&self.writing);
        if !self.file.clear() {
            self.state.lock().missing -= 1;
        }
    }

    /// Makes the file readable without an event, unless it is readable already, so that a sleeping thread checks again.
    pub(crate) fn wake(&self) {
        let _writing = locked_for_calls(&self.writing);
        self.set_while(|state| !state.readable);
        self.set_while(QueuedEvents::is_due);
    }

    /// Removes the events that match `unwanted`.
    pub(crate) fn discard(&self, unwanted: impl Fn(E) -> bool) {
        let clear = {
            let mut state = self.state.lock();
            state.events.retain(|&event| !unwanted(event));
            state.clear()
        };
        if clear {
            self.clear();
        }
    }
}

impl<E: Copy + Send + std::fmt::Debug + 'static> Settle for EventQueue<E> {
    /// Makes the file readable if the queue is not empty.
    fn settle(&self) {
        {
            // The thread that is woken by a byte can get here before the writing thread returns from its system call.
            // If the event was already taken, there is nothing to wait for.
            let mut state = self.state.lock();
            if state.events.is_empty() || state.readable && !state.writing {
                return self.is_settled(&mut state);
            }
        }
        let _writing = locked_for_calls(&self.writing);
        self.set_while(QueuedEvents::is_due);
    }
}

impl<E> EventQueue<E> {
    /// Writes to the file until `is_due` returns false. The caller holds `writing`.
    fn set_while(&self, is_due: impl Fn(&QueuedEvents<E>) -> bool) {
        loop {
            let bytes = {
                let mut state = self.state.lock();
                state.writing = is_due(&state);
                if !state.writing {
                    return self.is_settled(&mut state);
                }
                state.readable = true;
                let missing = state.missing.max(0);
                state.missing -= missing;
                1 + missing
            };
            stalls::here();
            (0..bytes).for_each(|_| self.file.set());
        }
    }

    /// Removes the queue from the run queue, because there is no byte to write. If a thread is writing, leaves this to
    /// that thread.
    fn is_settled(&self, state: &mut QueuedEvents<E>) {
        if !state.writing && std::mem::take(&mut state.is_queued) {
            self.fabric.run_queue.remove_settled(std::ptr::from_ref(self).cast());
        }
    }
}

impl<E: Copy + Send + std::fmt::Debug + 'static> Watcher for EventQueue<E> {
    fn watch(&self, link: BorrowedFd<'_>) -> bool {
        self.file.watch(link)
    }

    fn unwatch(&self, link: BorrowedFd<'_>) {
        self.file.unwatch(link);
    }

    fn taken(&self) -> u32 {
        self.state.lock().taken
    }
}

impl<E> Drop for EventQueue<E> {
    fn drop(&mut self) {
        self.fabric.run_queue.unreserve();
    }
}

/// The number of an object's events that were delivered but not yet acknowledged. The object is not destroyed until
/// this is zero (man ibv_get_cq_event, ibv_get_async_event).
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    missing: std::sync::Mutex<u64>,
    none: Condvar,
}

impl Acknowledgements {
    pub(crate) fn delivered(&self) {
        *locked_to_wait(&self.missing) += 1;
    }

    pub(crate) fn acknowledge(&self, count: u32) {
        let mut missing = locked_to_wait(&self.missing);
        *missing = missing.saturating_sub(u64::from(count));
        if *missing == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until every event is acknowledged.
    pub(crate) fn wait(&self) {
        let mut missing = locked_to_wait(&self.missing);
        while *missing > 0 {
            missing = self.none.wait(missing).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::expect_used)] // A failing helper fails its test.
impl<E> EventQueue<E> {
    pub(crate) fn early_file(&self) -> BorrowedFd<'_> {
        self.file.early().expect("a file that wakes early")
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
