//! Bursts that wait for a link or for the receiving device, and the buffers for their payloads.

use std::collections::VecDeque;
use std::sync::Weak;

use super::turned_away::TurnedAway;
use crate::fabric::run_queue::Task;

/// The size limits of an outbox.
#[derive(Debug)]
pub(super) struct Sizes {
    /// The maximum number of bursts that wait or are being written.
    pub(super) bursts: usize,
    /// The maximum number of unused buffers that are kept.
    pub(super) spare: usize,
    /// The size of a buffer in bytes.
    pub(super) buffer: usize,
}

/// A queue of bursts, whose senders write payloads to buffers of the queue.
#[derive(Debug)]
pub(super) struct Outbox<T> {
    sizes: Sizes,
    pub(super) waiting: VecDeque<T>,
    /// The number of buffers that senders are writing to, plus the number of simulated packets on their way.
    pub(super) lent: usize,
    spare: Vec<Box<[u8]>>,
    turned_away: TurnedAway,
}

impl<T> Outbox<T> {
    pub(super) fn new(sizes: Sizes) -> Self {
        let (waiting, spare, turned_away) = (VecDeque::new(), Vec::new(), TurnedAway::default());
        Self { sizes, waiting, lent: 0, spare, turned_away }
    }

    /// Returns how many more bursts fit.
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

    /// Removes and returns as many waiting senders as there is space for now. Also returns whether another turn can
    /// follow: there was space, and other senders still wait.
    #[cfg(not(loom))]
    pub(super) fn readmit(&mut self) -> (Vec<Weak<dyn Task>>, bool) {
        let first = self.turned_away.take(self.space());
        let more = !first.is_empty() && !self.turned_away.is_empty();
        (first, more)
    }

    /// Lends a buffer, or returns `None` if the caller must create one. The caller returns it with
    /// [`take_back`](Self::take_back) or [`put`](Self::put).
    pub(super) fn lend(&mut self) -> Option<Box<[u8]>> {
        self.lent += 1;
        self.spare.pop()
    }

    /// Takes back a lent buffer that was not used.
    pub(super) fn take_back(&mut self, buffer: Box<[u8]>) {
        self.lent -= 1;
        self.keep(buffer);
    }

    /// Appends a burst whose payload is in a lent buffer.
    pub(super) fn put(&mut self, burst: T) {
        self.lent -= 1;
        self.waiting.push_back(burst);
    }

    /// Keeps a buffer for reuse. Buffers with an unusual size are dropped.
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

/// Creates a buffer. Callers hold none of the outbox's locks, since this allocates memory.
pub(super) fn new_buffer(bytes: usize) -> Box<[u8]> {
    vec![0; bytes].into_boxed_slice()
}
