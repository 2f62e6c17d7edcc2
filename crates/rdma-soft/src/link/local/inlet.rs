//! The receiving end of a connection from another process. It has a message ring in memory that both processes share,
//! and a connection on which each side notifies the other.

mod reading;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rdma_types::Psn;
use rustix::event::epoll;
use rustix::io::Errno;

use self::reading::{Reading, RingRead};
use super::listener::Guest;
use super::mapped::given::Giver;
use super::shared::{ALIGN, RingReceiver};
use super::socket::{notify, receive_notification, receive_ring};
use crate::device::Device;
use crate::device::arrivals::answer_soon;
use crate::engine::wire::grant::{Version, Want};
use crate::engine::wire::letter::ExecutedWords;
use crate::engine::wire::word::WordKey;
use crate::fabric::run_queue::{Entry, Task};
use crate::link::descriptor::Descriptor;
use crate::link::driver::{Driver, Paused, SocketEvent, Token, Watched};
use crate::link::executed::versions::ordered;
use crate::link::ring::CAPACITY;
use crate::sync::delegation::{DelegationGuard, DelegationLock};
use crate::sync::{AtomicBool, AtomicU32, Ordering, fence};

/// The maximum number of messages that one turn reads.
const TURN: u32 = 16;

/// The delay before an answer is sent again after the kernel had no memory for it.
const AGAIN: Duration = Duration::from_millis(1);

/// A limit on the number of turns: twice as many as a ring full of the shortest messages requires. A full inbox ends a turn
/// early.
const MOST_TURNS: u32 = 2 * CAPACITY / ALIGN / TURN;

#[derive(Debug)]
pub(super) struct Inlet {
    driver: &'static Driver,
    device: &'static Device,
    connection: Descriptor,
    /// Keeps the connection counted until it is closed. Declared after `connection` so that it is dropped later.
    _guest: Guest,
    /// The token under which the driver knows this inlet.
    token: Token,
    /// The ring, after it has been received.
    ring: OnceLock<RingReceiver>,
    /// Whether the connection is not read for now, because another thread reads the ring, or because receiving the ring is
    /// postponed. It is postponed if other processes hold up all threads that could close the ring's file. It also is if
    /// this process forks, cannot open another file, or is low on memory.
    paused: Paused,
    /// Whether the connection has something to read.
    readable: AtomicBool,
    /// Whether a message was read since the last notification.
    has_read: AtomicBool,
    /// Whether the connection has ended.
    ended: AtomicBool,
    /// Whether receiving has ended. Another thread may still be processing a message.
    closed: AtomicBool,
    /// Whether the driver looks at the ring without being notified.
    polled: AtomicBool,
    /// Locked by the thread that reads, so that messages stay in order. It may read a long message, so looks and turns do
    /// not wait.
    reading: DelegationLock<Reading>,
    /// Whether this inlet waits for space in an inbox instead of for messages.
    waits: AtomicBool,
    /// The number of the last question that arrived.
    asked: AtomicU32,
    /// The number of the last question that is ready to be answered, because everything that arrived before it has been
    /// executed.
    executed: AtomicU32,
    /// The number of the last question that was answered.
    answered: AtomicU32,
    /// The grants to the process, if it belongs to this user.
    giver: Option<Giver>,
    entry: Entry,
}

/// The delay before another attempt to receive the ring.
const RETRY: Duration = Duration::from_millis(100);

impl Inlet {
    pub(super) fn new(
        driver: &'static Driver,
        device: &'static Device,
        guest: Guest,
        connection: Descriptor,
        token: Token,
        giver: Option<Giver>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| Self {
            driver,
            device,
            connection,
            giver,
            _guest: guest,
            token,
            ring: OnceLock::new(),
            paused: Paused::default(),
            readable: AtomicBool::new(false),
            has_read: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            polled: AtomicBool::new(false),
            reading: DelegationLock::default(),
            waits: AtomicBool::new(false),
            asked: AtomicU32::new(0),
            executed: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            entry: Entry::new(device.fabric, weak.clone()),
        })
    }

    /// Enables or disables the driver's events for messages.
    fn set_message_events(&self, messages: bool) {
        let flags = if messages { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        self.driver.set_flags(self.token, &self.connection, flags);
    }

    /// Returns true if the ring has a message, the inbox has space for it, and no other thread will read it anyway.
    fn has_message(&self) -> bool {
        self.ring.get().is_some_and(RingReceiver::has_arrived)
            && !self.reading.has_left_work()
            && !self.waits.load(Ordering::Relaxed)
            && !self.closed.load(Ordering::Relaxed)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // The process may still exist, and not know yet that the connection has ended.
        if let Some(giver) = &self.giver {
            giver.end();
        }
        self.driver.close(self.token);
    }

    /// Receives from the connection: first the ring, then one notification, and finally the end of the connection. Any
    /// other data ends the connection. Returns true if a question has arrived.
    fn read_connection(self: &Arc<Self>) -> bool {
        let mut notified = false;
        while !notified {
            let received = match self.ring.get() {
                None => receive_ring(&self.connection).map(|ring| self.set_ring(ring)),
                Some(_) => receive_notification(&self.connection).inspect(|_| notified = true),
            };
            match received {
                Ok(true) => {}
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(Errno::BUSY | Errno::MFILE | Errno::NFILE | Errno::NOMEM) => {
                    self.back_off();
                    return false;
                }
                Ok(false) | Err(_) => {
                    if received != Err(Errno::PIPE) {
                        self.device.tally.rare.malformed.count();
                    }
                    self.ended.store(true, Ordering::Relaxed);
                    return false;
                }
            }
        }
        let Some(ring) = self.ring.get() else { return false };
        // Either this thread sees that the driver no longer looks, or the driver has seen that there is a ring.
        fence(Ordering::SeqCst);
        // Requests the next notification, because the peer sends one per request. The next look finds everything that
        // arrived before the request.
        if !self.polled.load(Ordering::Acquire) {
            ring.request_notifications();
        }
        if notified && !ring.has_arrived() && !self.has_read.swap(false, Ordering::Relaxed) {
            self.driver.note_useless();
        }
        let asked = ring.asked();
        self.asked.swap(asked, Ordering::Relaxed) != asked
    }

    /// Answers a question once everything that arrived before it has been read. The first turn executes the remaining
    /// packets. The queue pairs then acknowledge these packets in their own turns, and a later turn of this inlet
    /// answers the question. Returns true if that turn must be queued.
    fn answer(self: &Arc<Self>) -> bool {
        let Some(ring) = self.ring.get() else { return false };
        let asked = self.asked.load(Ordering::Relaxed);
        if asked == self.answered.load(Ordering::Relaxed) {
            return false;
        }
        {
            // Another thread may read a message, and does not answer. This turn then waits for it.
            let Some(_reading) = self.reading.try_lock(|| self.take_over()) else { return true };
            if ring.has_arrived() {
                return !self.waits.load(Ordering::Relaxed) && !self.closed.load(Ordering::Relaxed);
            }
        }
        if self.executed.load(Ordering::Acquire) != asked {
            self.device.execute_all();
            answer_soon(self.device);
            self.executed.store(asked, Ordering::Release);
            return true;
        }
        ring.answer(asked);
        if notify(&self.connection) {
            self.answered.store(asked, Ordering::Relaxed);
        } else {
            self.entry.set_timer(self.device.fabric.clock.now() + AGAIN);
        }
        false
    }

    /// Stores the ring, and makes grants possible. Returns true if there was no ring before.
    fn set_ring(self: &Arc<Self>, ring: RingReceiver) -> bool {
        if self.giver.as_ref().is_some_and(|giver| giver.prepare().is_err()) {
            self.device.tally.rare.unmapped_regions.count();
        }
        self.give();
        self.ring.set(ring).is_ok()
    }

    /// Sends the grants that are wanted.
    fn give(self: &Arc<Self>) {
        let giver = self.giver.as_ref().filter(|_| !self.closed.load(Ordering::Relaxed));
        let Some(giver) = giver else { return };
        let own: Arc<dyn ExecutedWords> = Arc::<Self>::clone(self);
        if giver.give(&self.connection, &own) {
            self.entry.set_timer(self.device.fabric.clock.now() + AGAIN);
        }
    }

    fn back_off(&self) {
        self.driver.pause(&self.connection, &self.paused);
        self.entry.set_timer(self.device.fabric.clock.now() + RETRY);
    }

    /// Waits until no other thread reads.
    fn reading(&self) -> DelegationGuard<'_, Reading, impl Fn()> {
        self.reading.lock(|| self.take_over())
    }

    /// Continues the work of a thread that wanted to read while this one did.
    fn take_over(&self) {
        self.entry.queue();
    }

    /// Reads some messages. Returns true if there are more, or if a question remains to be answered.
    fn read_some(self: &Arc<Self>, mut reading: DelegationGuard<'_, Reading, impl Fn()>) -> bool {
        let more = (0..TURN).all(|_| self.handle_one(&mut reading));
        drop(reading);
        self.give();
        more || self.answer()
    }

    /// Handles one message, if there is one. Returns true if there was a message or a question.
    fn handle_one(self: &Arc<Self>, reading: &mut Reading) -> bool {
        if self.closed.load(Ordering::Relaxed) {
            return false;
        }
        if !self.driver.resume(self.token, &self.connection, &self.paused) {
            self.entry.set_timer(self.device.fabric.clock.now() + RETRY);
        }
        if self.waits.load(Ordering::Relaxed) && self.waits.swap(false, Ordering::Relaxed) {
            self.set_message_events(true);
        }
        loop {
            match self.read(reading) {
                RingRead::Message => {
                    self.has_read.store(true, Ordering::Relaxed);
                    return true;
                }
                RingRead::Nothing => {}
                RingRead::NoRoom => {
                    // The inbox queues a turn when it has space. Until then, no thread should look for messages.
                    self.waits.store(true, Ordering::Relaxed);
                    self.set_message_events(false);
                    return false;
                }
                RingRead::Malformed => {
                    self.device.tally.rare.malformed.count();
                    self.close();
                    return false;
                }
            }
            if self.ended.load(Ordering::Relaxed) {
                // Everything that the peer sent before its exit has been read.
                self.close();
                return false;
            }
            if !self.readable.swap(false, Ordering::Acquire) {
                return false;
            }
            if self.read_connection() {
                // A separate turn answers the question.
                self.entry().queue();
                return true;
            }
        }
    }
}

impl ExecutedWords for Inlet {
    fn store(&self, key: WordKey, expected: Psn) {
        if let Some(ring) = self.ring.get() {
            ring.store(key, expected);
        }
    }

    fn is_patient(&self, key: WordKey) -> bool {
        self.ring.get().is_some_and(|ring| ring.is_patient(key))
    }

    fn lend_version(&self) -> Option<Version> {
        self.giver.as_ref()?.lend()
    }

    fn has_file(&self, key: u32) -> bool {
        self.giver.as_ref().is_some_and(|giver| giver.has_given(key, self))
    }

    fn take_version(&self, index: u32) {
        if let Some(giver) = &self.giver {
            giver.take(index);
            // Makes the process drop its grants, and with them its mappings.
            notify(&self.connection);
        }
    }

    fn grant(&self, want: Want) {
        if let Some(giver) = &self.giver {
            giver.want(want);
            self.entry.queue();
        }
    }

    fn visit(&self, index: usize) -> Option<u32> {
        if self.giver.as_ref()?.has_ended() {
            return None;
        }
        ordered();
        self.ring.get()?.visit(index)
    }

    fn end_grants(&self) {
        if let Some(giver) = &self.giver {
            giver.end_of_process();
        }
    }

    fn announce(&self) {
        if let Some(ring) = self.ring.get() {
            ring.announce(|| notify(&self.connection));
        }
    }
}

impl Watched for Inlet {
    fn descriptor(&self) -> &Descriptor {
        &self.connection
    }

    fn handle_event(self: Arc<Self>, flags: epoll::EventFlags) -> SocketEvent {
        if !flags.is_empty() {
            self.readable.store(true, Ordering::Release);
        }
        self.entry().queue();
        SocketEvent::Messages
    }

    fn is_doorbell(&self) -> bool {
        true
    }

    fn has_arrived(&self) -> bool {
        self.has_message()
    }

    fn may_have_message(&self) -> bool {
        self.has_message() || self.readable.load(Ordering::Relaxed)
    }

    /// Handles a single message, because small messages arrive one at a time.
    fn look(self: Arc<Self>) -> bool {
        let reading = self.reading.try_lock(|| self.take_over());
        reading.is_some_and(|mut reading| self.handle_one(&mut reading))
    }

    fn start_polling(&self) {
        self.polled.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if let Some(ring) = self.ring.get() {
            ring.suppress_notifications();
        }
    }

    fn stop_polling(&self, _: bool) {
        self.polled.store(false, Ordering::Release);
        fence(Ordering::SeqCst);
        if let Some(ring) = self.ring.get() {
            ring.request_notifications();
        }
    }

    fn has_work(&self) -> bool {
        self.reading.has_left_work()
    }

    fn read_all(self: Arc<Self>) {
        match self.ring.get() {
            // The message with the ring may be on the connection.
            None => self.readable.store(true, Ordering::Release),
            // The lock waits until another reading thread has executed its messages or passed them to the inbox.
            Some(ring) => {
                let _reading = self.reading();
                if !ring.has_arrived() {
                    return;
                }
            }
        }
        // The number of turns is bounded, because the process may send endlessly.
        for _ in 0..MOST_TURNS {
            let more = self.read_some(self.reading());
            self.device.execute_all();
            // A turn also ends when an inbox has no space, and all of them are empty now.
            if !more && !self.waits.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn is_used(&self) -> bool {
        true
    }
}

impl Task for Inlet {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Reads some messages. If another thread is reading, for example a long message, leaves them to that thread.
    fn run(self: Arc<Self>) -> bool {
        let take_over = || self.take_over();
        let mut reading = self.reading.try_lock(take_over);
        if reading.is_none() {
            // Otherwise, the driver's thread would not sleep until the other thread has read the connection.
            self.driver.pause(&self.connection, &self.paused);
            reading = self.reading.lock_or_leave(take_over);
        }
        reading.is_some_and(|reading| self.read_some(reading))
    }

    fn expire(self: Arc<Self>) {
        // Resumes events, and retries an answer that could not be sent, if there is one.
        self.entry().queue();
    }
}

#[cfg(test)]
mod tests;
