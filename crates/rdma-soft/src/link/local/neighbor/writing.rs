//! Writing to the ring: in turns of the neighbor, or at once.
//!
//! The call that sends a burst holds locks of the engine. It writes a short burst or a message of one packet at once. For
//! this, it does not wait for a turn that writes, and makes no system call. If the process must be notified, a turn does
//! that.

use rustix::io::Errno;

use super::{AGAIN, Neighbor, RETRY};
use crate::engine::wire::Carrier as _;
use crate::engine::wire::letter::Letter;
use crate::engine::wire::single::Single;
use crate::link::local::head::{HEAD, encode, encode_single};
use crate::link::local::queues::{Message, Queues};
use crate::link::local::socket::notify;
use crate::memory::copy::Segment;
use crate::sync::{Ordering, locked_in_models as locked};

/// The maximum number of messages that one turn writes.
const MESSAGES: u32 = 64;

/// The longest payload in bytes of a burst that is written at once.
const SHORT: usize = 4096;

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
        let written = self.ring.write(parts)?;
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

    /// Writes a burst of a connection to the ring at once, if it is short and alone, nothing else waits, and the ring has
    /// space. Returns true if it was written. The caller then takes its buffer back.
    pub(super) fn write_at_once(&self, queues: &mut Queues, letter: &Letter) -> bool {
        let length = letter.payload().len();
        if !letter.is_alone || length > SHORT {
            return false;
        }
        self.write_if_idle(queues, HEAD + length, || {
            let head = encode(self.device, letter)?;
            let parts = [&head[..], letter.payload()];
            self.ring.write(parts.into_iter()).ok().flatten()
        })
    }

    /// Writes a message of one packet like [`write_at_once`](Self::write_at_once).
    #[inline]
    pub(super) fn write_single_at_once(&self, single: &Single, data: &[Segment]) -> bool {
        let queues = &mut *locked(&self.queues);
        let length = usize::from(single.length);
        !self.has_ended()
            && self.write_if_idle(queues, HEAD + length, || {
                let head = encode_single(self.device, single)?;
                self.ring.write_single(&head, data, length).ok().flatten()
            })
    }

    /// Runs `write` if nothing else waits, and the ring has pages for a message of `length` bytes. If `write` writes a
    /// message, it returns whether the process must be notified, and this function returns true.
    #[inline]
    fn write_if_idle(
        &self,
        queues: &mut Queues,
        length: usize,
        write: impl FnOnce() -> Option<bool>,
    ) -> bool {
        if !self.handshake.is_complete() || !queues.are_idle() || !self.ring.has_pages(length) {
            return false;
        }
        // Another thread may be writing earlier bursts.
        let Ok(_writing) = self.writing.try_lock() else { return false };
        let Some(must_notify) = write() else { return false };
        queues.has_written_at_once();
        if must_notify {
            self.owes_notification.store(true, Ordering::Relaxed);
            self.entry.queue();
        }
        true
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
