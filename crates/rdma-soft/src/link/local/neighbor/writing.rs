//! Writing to the ring: in turns of the neighbor, or at once.
//!
//! The call that sends a burst holds locks of the engine. If nothing else waits and the ring has space and pages, it copies
//! the burst from the program's memory to the ring. For this, it does not wait for a turn that writes. It makes no system
//! call, unless the kernel copies memory that [may be gone](crate::memory::copy::Reach). If the process must be notified, a
//! turn does that.

use rustix::io::Errno;

use super::{AGAIN, Neighbor, RETRY};
use crate::engine::wire::in_ring::InRing;
use crate::engine::wire::letter::BURST_BYTES;
use crate::engine::wire::single::Single;
use crate::engine::wire::{Carrier as _, Fill};
use crate::link::local::head::{HEAD, LONGEST, encode, encode_single};
use crate::link::local::queues::{Message, Queues};
use crate::link::local::shared::DATA;
use crate::link::local::socket::notify;
use crate::link::outbox::new_buffer;
use crate::memory::copy::Segment;
use crate::sync::{Ordering, locked_in_models as locked};

/// The maximum number of messages that one turn writes.
const MESSAGES: u32 = 64;

impl Neighbor {
    /// Writes waiting messages. Returns true if there are more and the ring accepts more.
    pub(super) fn write(&self, message: &mut Message) -> bool {
        self.pay_notification();
        match self.handshake.answer(&self.connection) {
            Ok(true) => {}
            Ok(false) => self.entry.set_timer(self.device.fabric.clock.now() + RETRY),
            Err(_) => {
                self.disconnect();
                return false;
            }
        }
        for _ in 0..MESSAGES {
            locked(&self.queues).fill(self.device, message);
            if message.is_empty() {
                return false;
            }
            match self.send_message(message) {
                Ok(true) => {
                    locked(&self.queues).has_written(message);
                }
                Ok(false) => {
                    self.put_back(message);
                    if !self.finds_space() {
                        return false;
                    }
                }
                // Linux reports a lack of memory for the ring in one of these ways.
                Err(Errno::NOMEM | Errno::FAULT) => {
                    self.put_back(message);
                    self.entry.set_timer(self.device.fabric.clock.now() + AGAIN);
                    return false;
                }
                Err(_) => {
                    message.clear();
                    self.disconnect();
                    return false;
                }
            }
        }
        true
    }

    /// Writes a message to the ring. Returns true if there was space for it.
    fn send_message(&self, message: &Message) -> rustix::io::Result<bool> {
        let parts = message.iter().flat_map(|(head, letter)| [&head[..], letter.payload()]);
        let written = self.ring.write(parts, 0)?;
        if written == Some(true) {
            self.owes_notification.store(true, Ordering::Relaxed);
            self.pay_notification();
        }
        Ok(written.is_some())
    }

    /// Notifies the process, if it has the ring; otherwise, it finds all messages when it receives the ring. Returns
    /// false if there is no memory for the notification.
    pub(super) fn notify(&self) -> bool {
        !self.handshake.is_complete() || notify(&self.connection)
    }

    fn put_back(&self, message: &mut Message) {
        let queues = &mut *locked(&self.queues);
        if self.has_ended() {
            return message.clear();
        }
        queues.put_back(message);
    }

    /// Handles a full ring: requests a notification of space. Returns true if there is space already.
    fn finds_space(&self) -> bool {
        let now = self.device.fabric.clock.now();
        // If the ring is broken, returns true, because the next write then finds the error.
        let finds = self.ring.wait().unwrap_or(true);
        if !finds {
            self.begin_silence(now, true);
        }
        finds
    }

    /// Lets `fill` write a burst of a connection to the ring, if nothing else waits, and the ring has space and pages.
    /// Returns true if `fill` was called.
    pub(super) fn write_in_place(&self, fill: &mut Fill<'_>) -> bool {
        if !self.handshake.is_complete() {
            return false;
        }
        // Another thread may be writing earlier bursts.
        let Ok(_writing) = self.writing.try_lock() else { return false };
        let room = self.ring.room(BURST_BYTES);
        if room < LONGEST {
            return false;
        }
        let spare = {
            let queues = &mut *locked(&self.queues);
            if self.has_ended() || !queues.are_idle() {
                return false;
            }
            queues.begin_at_once();
            queues.connections.take_spare()
        };
        let buffer = spare.unwrap_or_else(|| new_buffer(BURST_BYTES));
        let in_ring = InRing::new(self.ring.memory_from(DATA), &buffer[..room]);
        let (written, buffer) = match fill(buffer, Some(in_ring)) {
            Ok(letter) => {
                let length = letter.payload().len();
                let write = |head: [u8; HEAD]| {
                    self.ring.write([&head[..]].into_iter(), length).ok().flatten()
                };
                let written = encode(self.device, &letter).and_then(write);
                debug_assert!(written.is_some(), "the head is valid, and the ring has space");
                (written, letter.into_buffer())
            }
            Err(buffer) => (None, buffer),
        };
        let queues = &mut *locked(&self.queues);
        queues.connections.keep(buffer);
        self.end_at_once(queues, written);
        true
    }

    /// Writes a message of one packet to the ring at once, if nothing else waits, and the ring has space and pages. Returns
    /// true if it was written.
    #[inline]
    pub(super) fn write_single_at_once(&self, single: &Single, data: &[Segment]) -> bool {
        let queues = &mut *locked(&self.queues);
        let length = usize::from(single.length);
        let may_write = self.handshake.is_complete() && queues.are_idle() && !self.has_ended();
        if !may_write || !self.ring.has_pages(HEAD + length) {
            return false;
        }
        let Ok(_writing) = self.writing.try_lock() else { return false };
        let Some(head) = encode_single(self.device, single) else { return false };
        queues.begin_at_once();
        let written = self.ring.write_single(&head, data, length).ok().flatten();
        self.end_at_once(queues, written);
        written.is_some()
    }

    /// Records whether a burst was written without a turn. If the process must be notified of it, a turn does that.
    #[inline]
    fn end_at_once(&self, queues: &mut Queues, written: Option<bool>) {
        queues.end_at_once(written.is_some());
        if written == Some(true) {
            self.owes_notification.store(true, Ordering::Relaxed);
            self.entry.queue();
        }
    }

    /// Notifies the process of what was written, if that is owed. If there is no memory, tries again later. The caller
    /// holds no lock of the engine.
    fn pay_notification(&self) {
        if self.owes_notification.swap(false, Ordering::Relaxed) && !self.notify() {
            self.owes_notification.store(true, Ordering::Relaxed);
            self.ring.notification_failed();
            self.entry.set_timer(self.device.fabric.clock.now() + AGAIN);
        }
    }
}
