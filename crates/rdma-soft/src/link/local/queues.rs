//! Everything that waits for a neighbor: bursts of connections, datagrams and questions. If there is no space, the
//! sender of a burst waits, but a datagram is lost.

use std::collections::VecDeque;

use super::head::{HEAD, LONGEST, LONGEST_MESSAGE, MOST, encode};
use super::questions::Questions;
use super::silence::Silence;
use crate::device::Device;
use crate::engine::wire::letter::{BURST_BYTES, Letter};
use crate::link::outbox::{Outbox, Sizes};
use crate::link::task_queue::TaskQueue;

/// Sizes for the bursts of connections. Datagrams use buffers of the same outbox.
const CONNECTIONS: Sizes = Sizes { bursts: 64, spare: 4, buffer: BURST_BYTES };
/// The maximum number of bytes in waiting datagrams, including their headers.
pub(super) const DATAGRAM_BYTES: usize = 1 << 20;
/// While at least this many datagrams wait, each new datagram is moved to a buffer of exactly its size.
const CROWD: usize = 16;

/// A message: bursts with their headers.
pub(super) type Message = Vec<([u8; HEAD], Letter)>;

#[derive(Debug)]
pub(super) struct Queues {
    pub(super) connections: Outbox<Letter>,
    datagrams: VecDeque<Letter>,
    /// The number of bytes in the waiting datagrams, including their headers.
    datagram_bytes: usize,
    /// Whether the next message begins with a datagram, if one is waiting.
    datagrams_first: bool,
    /// The queue pairs that are connected to the process.
    pub(super) users: TaskQueue,
    pub(super) questions: Questions,
    pub(super) silence: Silence,
}

/// Returns the size of a datagram, including its header.
fn size(letter: &Letter) -> usize {
    HEAD + letter.payload().len()
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            connections: Outbox::new(CONNECTIONS),
            datagrams: VecDeque::new(),
            datagram_bytes: 0,
            datagrams_first: false,
            users: TaskQueue::default(),
            questions: Questions::default(),
            silence: Silence::default(),
        }
    }
}

impl Queues {
    /// Returns true if there is space for a datagram with this length.
    pub(super) fn has_room_for_datagram(&self, length: usize) -> bool {
        self.datagram_bytes + HEAD + length <= DATAGRAM_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.connections.waiting.is_empty() && self.datagrams.is_empty()
    }

    pub(super) fn put(&mut self, letter: Letter) {
        if letter.datagram.is_none() {
            self.questions.note_put();
            return self.connections.put(letter);
        }
        self.connections.lent -= 1;
        self.datagram_bytes += size(&letter);
        let letter = if self.datagrams.len() < CROWD {
            letter
        } else {
            let (letter, buffer) = letter.of_own_size();
            self.connections.keep(buffer);
            letter
        };
        self.datagrams.push_back(letter);
    }

    /// Moves bursts to `message`, with their headers, until the message is full. Messages alternately begin with bursts
    /// of connections and with datagrams.
    pub(super) fn fill(&mut self, device: &Device, message: &mut Message) {
        if self.is_empty() && !self.questions.are_open() {
            // Nothing waits for the process: everything was written, or datagrams waited and were dropped.
            self.silence.end();
        }
        let (mut behind, first) = (0, self.datagrams_first);
        while message.len() < MOST {
            let is_datagram = if first {
                !self.datagrams.is_empty()
            } else {
                self.connections.waiting.is_empty()
            };
            let queue =
                if is_datagram { &mut self.datagrams } else { &mut self.connections.waiting };
            let Some(letter) = queue.front() else { break };
            let length = letter.payload().len();
            if !message.is_empty() {
                // The receiver copies the payload of each burst except the first.
                behind += HEAD + length;
                if length > LONGEST || behind > LONGEST_MESSAGE {
                    break;
                }
            } else {
                behind = length;
            }
            let head = encode(device, letter);
            let Some(letter) = queue.pop_front() else { break };
            if is_datagram {
                self.datagram_bytes -= size(&letter);
            }
            match head {
                Some(head) => message.push((head, letter)),
                None => {
                    debug_assert!(false, "a letter that no device sends");
                    self.connections.keep(letter.into_buffer());
                }
            }
        }
    }

    /// Records that the message was written.
    pub(super) fn has_written(&mut self, message: &mut Message) {
        let of_connections = message.iter().filter(|(_, letter)| letter.datagram.is_none());
        self.questions.note_written(of_connections.count() as u64);
        message.drain(..).for_each(|(_, letter)| self.connections.keep(letter.into_buffer()));
        self.note_written();
    }

    fn note_written(&mut self) {
        // Alternated only after a write. If each attempt alternated, one kind might find space each time and the other
        // never.
        self.datagrams_first = !self.datagrams_first;
        self.silence.stalled = None;
        if !self.questions.are_open() {
            self.silence.end();
        }
    }

    /// Returns true if nothing waits for the process, or for space.
    pub(super) fn are_idle(&self) -> bool {
        self.is_empty() && !self.connections.has_waiting_senders()
    }

    /// Records that a burst of a connection is about to be written without waiting. Questions asked from now on cover it.
    pub(super) fn begin_at_once(&mut self) {
        self.questions.note_put();
    }

    /// Records that the burst was written, or that there was none.
    pub(super) fn end_at_once(&mut self, is_written: bool) {
        self.questions.note_written(1);
        if is_written {
            self.note_written();
        }
    }

    /// Puts the bursts of a message back at the front of the queues, because the ring has no space for them.
    pub(super) fn put_back(&mut self, message: &mut Message) {
        for (_, letter) in message.drain(..).rev() {
            if letter.datagram.is_some() {
                self.datagram_bytes += size(&letter);
                self.datagrams.push_front(letter);
            } else {
                self.connections.waiting.push_front(letter);
            }
        }
    }

    /// Removes and returns all datagrams, so that they can be counted as lost.
    pub(super) fn take_datagrams(&mut self) -> VecDeque<Letter> {
        self.datagram_bytes = 0;
        std::mem::take(&mut self.datagrams)
    }

    /// Drops everything, because the process has exited.
    pub(super) fn clear(&mut self) {
        self.connections.clear();
        self.take_datagrams();
    }
}
