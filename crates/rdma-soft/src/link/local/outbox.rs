//! What waits to be written for another process: of connections, whose senders wait when there is no space, and
//! datagrams, whose senders do not.

use std::collections::VecDeque;
use std::time::Duration;

use super::head::{HEAD, LONGEST, LONGEST_MESSAGE, MOST, encode};
use super::questions::Questions;
use crate::device::Device;
use crate::fabric::clock::Time;
use crate::link::memory::{BURST_BYTES, Letter};
use crate::link::turned_away::TurnedAway;

/// How many bursts of connections wait for a process that does not read.
const BURSTS: usize = 64;
/// How many bytes of datagrams do, with what a message has beside them.
pub(super) const DATAGRAM_BYTES: usize = 1 << 20;
/// How many buffers are kept that are not in use.
const SPARE: usize = 16;
/// When more datagrams wait, each has a buffer of its own size.
const CROWD: usize = 16;

/// A message: bursts with their heads.
pub(super) type Message = Vec<([u8; HEAD], Letter)>;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Of connections.
    connections: VecDeque<Letter>,
    datagrams: VecDeque<Letter>,
    /// What the datagrams take.
    datagram_bytes: usize,
    /// The next message begins with a datagram, if there is one.
    datagrams_first: bool,
    /// Buffers that queue pairs write to.
    lent: usize,
    spare: Vec<Box<[u8]>>,
    pub(super) turned_away: TurnedAway,
    /// Whose connections lead there.
    pub(super) users: TurnedAway,
    pub(super) questions: Questions,
    pub(super) silence: Silence,
}

/// What the process owes.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Since when it takes nothing, if something waits for it; for datagrams, which are lost after a while.
    pub(super) stalled: Option<Time>,
    /// Since when it has neither taken what waits nor answered a question.
    since: Option<Time>,
    /// Half of the time that it has was over.
    noticed: bool,
    /// All of it was.
    over: bool,
}

/// What a silence has come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) half: bool,
    pub(super) all: bool,
}

impl Silence {
    /// Something waits that the process does not take, or was asked.
    pub(super) fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// The process has shown that it runs.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Whether all of the time that the process has is over.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// What has passed by now of the time that the process has, each of it once.
    pub(super) fn pass(&mut self, now: Time, limit: Duration) -> Passed {
        let Some(since) = self.since else { return Passed::default() };
        let half = !self.noticed && since + limit / 2 <= now;
        let all = !self.over && since + limit <= now;
        self.noticed |= half;
        self.over |= all;
        Passed { half, all }
    }

    /// When to look again.
    pub(super) fn next(&self, limit: Duration) -> Option<Time> {
        let since = self.since.filter(|_| !self.over)?;
        Some(since + if self.noticed { limit } else { limit / 2 })
    }
}

/// What a datagram takes.
fn size(letter: &Letter) -> usize {
    HEAD + letter.payload().len()
}

impl Outbox {
    /// For how many bursts of connections there is space.
    pub(super) fn space(&self) -> usize {
        BURSTS.saturating_sub(self.connections.len() + self.lent)
    }

    /// Whether there is space for a datagram of so many bytes.
    pub(super) fn has_room_for_datagram(&self, length: usize) -> bool {
        self.datagram_bytes + HEAD + length <= DATAGRAM_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.datagrams.is_empty()
    }

    /// A buffer that is not in use, if there is one. It is to be [taken back](Self::take_back), or [put](Self::put) here
    /// with what it has.
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

    /// Takes as many bursts as one message has, with their heads: in turn, first of connections, or first datagrams.
    pub(super) fn fill(&mut self, device: &Device, message: &mut Message) {
        if self.is_empty() && !self.questions.are_open() {
            // What had waited is lost.
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

    /// A message was written.
    pub(super) fn has_written(&mut self, message: &mut Message) {
        let of_connections = message.iter().filter(|(_, letter)| letter.datagram.is_none());
        self.questions.note_written(of_connections.count() as u64);
        message.drain(..).for_each(|(_, letter)| self.keep(letter.into_buffer()));
        // Not before: else the one kind might find space each time, and the other none.
        self.datagrams_first = !self.datagrams_first;
        self.silence.stalled = None;
        if !self.questions.are_open() {
            self.silence.end();
        }
    }

    /// There was no space for a message, which is the first to go.
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

    /// What waits of datagrams is lost.
    pub(super) fn take_datagrams(&mut self) -> VecDeque<Letter> {
        self.datagram_bytes = 0;
        std::mem::take(&mut self.datagrams)
    }

    /// Nothing waits any more: nobody is there who would take it.
    pub(super) fn clear(&mut self) {
        self.connections = VecDeque::new();
        self.take_datagrams();
    }
}
