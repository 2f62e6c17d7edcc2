//! The outbox of a neighbor: bursts of connections, which make their senders wait when there is no space, and datagrams,
//! which do not.

use std::collections::VecDeque;
use std::time::Duration;

use super::head::{HEAD, LONGEST, LONGEST_MESSAGE, MOST, encode};
use super::questions::Questions;
use crate::device::Device;
use crate::engine::wire::letter::{BURST_BYTES, Letter};
use crate::fabric::clock::Time;
use crate::link::turned_away::TurnedAway;

/// The most bursts of connections that wait.
const BURSTS: usize = 64;
/// The most bytes of datagrams that wait, with their heads.
pub(super) const DATAGRAM_BYTES: usize = 1 << 20;
/// The most unused buffers that are kept.
const SPARE: usize = 16;
/// The number of waiting datagrams from which each further one has a buffer of its own size.
const CROWD: usize = 16;

/// A message: bursts with their heads.
pub(super) type Message = Vec<([u8; HEAD], Letter)>;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Bursts of connections.
    connections: VecDeque<Letter>,
    datagrams: VecDeque<Letter>,
    /// The bytes of the datagrams, with their heads.
    datagram_bytes: usize,
    /// Whether the next message begins with a datagram, if there is one.
    datagrams_first: bool,
    /// Buffers that queue pairs write to.
    lent: usize,
    spare: Vec<Box<[u8]>>,
    pub(super) turned_away: TurnedAway,
    /// Queue pairs with connections to that process.
    pub(super) users: TurnedAway,
    pub(super) questions: Questions,
    pub(super) silence: Silence,
}

/// The time for which a process has given no sign of life that it owes.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// The time at which the ring became full, for datagrams, which are lost after a while.
    pub(super) stalled: Option<Time>,
    /// The time at which the ring became full, or a question was asked.
    since: Option<Time>,
    /// Whether half of the limit has passed.
    noticed: bool,
    /// Whether all of it has passed.
    over: bool,
}

/// Parts of the limit that have just passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) half: bool,
    pub(super) all: bool,
}

impl Silence {
    /// The process owes a sign of life from now on.
    pub(super) fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// The process owes nothing.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Returns true if the limit has passed.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Returns the parts of the limit that have passed, each of them once.
    pub(super) fn pass(&mut self, now: Time, limit: Duration) -> Passed {
        let Some(since) = self.since else { return Passed::default() };
        let half = !self.noticed && since + limit / 2 <= now;
        let all = !self.over && since + limit <= now;
        self.noticed |= half;
        self.over |= all;
        Passed { half, all }
    }

    /// Returns the time of the next part.
    pub(super) fn next(&self, limit: Duration) -> Option<Time> {
        let since = self.since.filter(|_| !self.over)?;
        Some(since + if self.noticed { limit } else { limit / 2 })
    }
}

/// Returns the bytes of a datagram, with its head.
fn size(letter: &Letter) -> usize {
    HEAD + letter.payload().len()
}

impl Outbox {
    /// Returns the space that is left, in bursts of connections.
    pub(super) fn space(&self) -> usize {
        BURSTS.saturating_sub(self.connections.len() + self.lent)
    }

    /// Returns true if there is space for a datagram of that length.
    pub(super) fn has_room_for_datagram(&self, length: usize) -> bool {
        self.datagram_bytes + HEAD + length <= DATAGRAM_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.datagrams.is_empty()
    }

    /// Lends a buffer; `None` if the caller has to make one. The buffer comes back by [`take_back`](Self::take_back) or
    /// [`put`](Self::put).
    pub(super) fn lend(&mut self) -> Option<Box<[u8]>> {
        self.lent += 1;
        self.spare.pop()
    }

    pub(super) fn take_back(&mut self, buffer: Box<[u8]>) {
        self.lent -= 1;
        self.keep(buffer);
    }

    pub(super) fn put(&mut self, letter: Letter) {
        self.lent -= 1;
        if letter.datagram.is_none() {
            self.questions.note_put();
            return self.connections.push_back(letter);
        }
        self.datagram_bytes += size(&letter);
        let letter = if self.datagrams.len() < CROWD {
            letter
        } else {
            let (letter, buffer) = letter.of_own_size();
            self.keep(buffer);
            letter
        };
        self.datagrams.push_back(letter);
    }

    pub(super) fn keep(&mut self, buffer: Box<[u8]>) {
        if self.spare.len() < SPARE && buffer.len() == BURST_BYTES {
            self.spare.push(buffer);
        }
    }

    /// Moves as many bursts as a message holds to `message`, with their heads. Messages begin with bursts of connections
    /// and with datagrams in turn.
    pub(super) fn fill(&mut self, device: &Device, message: &mut Message) {
        if self.is_empty() && !self.questions.are_open() {
            // Lost datagrams were all that it owed.
            self.silence.end();
        }
        let (mut behind, first) = (0, self.datagrams_first);
        while message.len() < MOST {
            let is_datagram =
                if first { !self.datagrams.is_empty() } else { self.connections.is_empty() };
            let queue = if is_datagram { &mut self.datagrams } else { &mut self.connections };
            let Some(letter) = queue.front() else { break };
            let length = letter.payload().len();
            if !message.is_empty() {
                // The receiver copies the payload of all but the first.
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
                    self.keep(letter.into_buffer());
                }
            }
        }
    }

    /// The message was written.
    pub(super) fn has_written(&mut self, message: &mut Message) {
        let of_connections = message.iter().filter(|(_, letter)| letter.datagram.is_none());
        self.questions.note_written(of_connections.count() as u64);
        message.drain(..).for_each(|(_, letter)| self.keep(letter.into_buffer()));
        // Only now: if each attempt did, one kind might find space each time and the other never.
        self.datagrams_first = !self.datagrams_first;
        self.silence.stalled = None;
        if !self.questions.are_open() {
            self.silence.end();
        }
    }

    /// Returns a message, for which there was no space, to the front of the queues.
    pub(super) fn put_back(&mut self, message: &mut Message) {
        for (_, letter) in message.drain(..).rev() {
            if letter.datagram.is_some() {
                self.datagram_bytes += size(&letter);
                self.datagrams.push_front(letter);
            } else {
                self.connections.push_front(letter);
            }
        }
    }

    /// Removes and returns all datagrams, which are lost.
    pub(super) fn take_datagrams(&mut self) -> VecDeque<Letter> {
        self.datagram_bytes = 0;
        std::mem::take(&mut self.datagrams)
    }

    /// Drops everything: the process has ended.
    pub(super) fn clear(&mut self) {
        self.connections = VecDeque::new();
        self.take_datagrams();
    }
}
