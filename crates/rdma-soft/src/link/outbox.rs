//! Bursts that wait for a link, or for the device that they are sent to, and the buffers of their payloads.

use std::collections::VecDeque;
use std::sync::Weak;

use super::turned_away::TurnedAway;
use crate::fabric::run_queue::Task;

/// The sizes of an outbox.
#[derive(Debug)]
pub(super) struct Sizes {
    /// The most bursts that wait or are being written.
    pub(super) bursts: usize,
    /// The most unused buffers that are kept.
    pub(super) spare: usize,
    /// The bytes of a buffer.
    pub(super) buffer: usize,
}

/// A queue of bursts. Their senders write payloads to its buffers.
#[derive(Debug)]
pub(super) struct Outbox<T> {
    sizes: Sizes,
    pub(super) waiting: VecDeque<T>,
    /// The number of buffers that senders write to, and of simulated packets on their way.
    pub(super) lent: usize,
    spare: Vec<Box<[u8]>>,
    turned_away: TurnedAway,
}

impl<T> Outbox<T> {
    pub(super) fn new(sizes: Sizes) -> Self {
        let (waiting, spare, turned_away) = (VecDeque::new(), Vec::new(), TurnedAway::default());
        Self { sizes, waiting, lent: 0, spare, turned_away }
    }

    /// Returns the space that is left, in bursts.
    pub(super) fn space(&self) -> usize {
        self.sizes.bursts.saturating_sub(self.waiting.len() + self.lent)
    }

    /// Registers a sender that found no space.
    pub(super) fn turn_away(&mut self, sender: Weak<dyn Task>) {
        self.turned_away.add(sender);
    }

    /// Removes and returns all senders that found no space.
    pub(super) fn readmit_all(&mut self) -> Vec<Weak<dyn Task>> {
        self.turned_away.take(usize::MAX)
    }

    /// Removes and returns as many senders that found no space as there is space for now. Returns true if others are
    /// left for the next turn.
    #[cfg(not(loom))]
    pub(super) fn readmit(&mut self) -> (Vec<Weak<dyn Task>>, bool) {
        let first = self.turned_away.take(self.space());
        let more = !first.is_empty() && !self.turned_away.is_empty();
        (first, more)
    }

    /// Lends a buffer; `None` if the caller has to make one. The buffer returns by [`take_back`](Self::take_back) or
    /// [`put`](Self::put).
    pub(super) fn lend(&mut self) -> Option<Box<[u8]>> {
        self.lent += 1;
        self.spare.pop()
    }

    /// Receives a lent buffer that was not used.
    pub(super) fn take_back(&mut self, buffer: Box<[u8]>) {
        self.lent -= 1;
        self.keep(buffer);
    }

    /// Appends a burst whose payload is in a lent buffer.
    pub(super) fn put(&mut self, burst: T) {
        self.lent -= 1;
        self.waiting.push_back(burst);
    }

    /// Keeps a buffer for later. Some have a size of their own; those are dropped.
    pub(super) fn keep(&mut self, buffer: Box<[u8]>) {
        if self.spare.len() < self.sizes.spare && buffer.len() == self.sizes.buffer {
            self.spare.push(buffer);
        }
    }

    /// Drops all bursts and unused buffers.
    pub(super) fn clear(&mut self) {
        self.waiting = VecDeque::new();
        self.spare = Vec::new();
    }
}

/// Makes a buffer. Senders call this while they hold no lock of the outbox.
pub(super) fn new_buffer(bytes: usize) -> Box<[u8]> {
    vec![0; bytes].into_boxed_slice()
}
