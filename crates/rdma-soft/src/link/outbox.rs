//! Bursts that wait for a link or for the receiving device, and the buffers for their payloads.

use std::collections::VecDeque;
use std::sync::{Mutex, Weak};

use super::task_queue::TaskQueue;
use crate::engine::wire::letter::BURST_BYTES;
use crate::fabric::run_queue::Task;
use crate::sync::locked;

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
    waiting_senders: TaskQueue,
}

impl<T> Outbox<T> {
    pub(super) fn new(sizes: Sizes) -> Self {
        let (waiting, spare, waiting_senders) = (VecDeque::new(), Vec::new(), TaskQueue::default());
        Self { sizes, waiting, lent: 0, spare, waiting_senders }
    }

    /// Returns how many more bursts fit.
    pub(super) fn space(&self) -> usize {
        self.sizes.bursts.saturating_sub(self.waiting.len() + self.lent)
    }

    /// Registers a sender that found no space.
    pub(super) fn add_waiting_sender(&mut self, sender: Weak<dyn Task>) {
        self.waiting_senders.add(sender);
    }

    #[cfg(not(loom))]
    pub(super) fn has_waiting_senders(&self) -> bool {
        !self.waiting_senders.is_empty()
    }

    /// Removes and returns all senders that found no space.
    pub(super) fn take_all_senders(&mut self) -> Vec<Weak<dyn Task>> {
        self.waiting_senders.take(usize::MAX)
    }

    /// Removes and returns as many waiting senders as there is space for now. Also returns whether another turn can
    /// follow: there was space, and other senders still wait.
    #[cfg(not(loom))]
    pub(super) fn take_senders(&mut self) -> (Vec<Weak<dyn Task>>, bool) {
        let first = self.waiting_senders.take(self.space());
        let more = !first.is_empty() && !self.waiting_senders.is_empty();
        (first, more)
    }

    /// Lends a buffer, or returns `None` if the caller must create one. The caller returns it with
    /// [`take_back`](Self::take_back) or [`put`](Self::put).
    pub(super) fn lend(&mut self) -> Option<Box<[u8]>> {
        self.lent += 1;
        self.spare.pop()
    }

    /// Returns an unused buffer, if there is one, for a burst that does not wait. It takes no space, and the caller returns
    /// it with [`keep`](Self::keep).
    #[cfg(not(loom))]
    pub(super) fn take_spare(&mut self) -> Option<Box<[u8]>> {
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
        } else if buffer.len() == BURST_BYTES {
            let mut common = locked(&COMMON);
            if common.len() < MOST_COMMON {
                common.push(buffer);
            }
        }
    }

    /// Drops all bursts and unused buffers.
    pub(super) fn clear(&mut self) {
        self.waiting = VecDeque::new();
        self.spare = Vec::new();
    }
}

/// Returns a buffer that is in no outbox. Callers hold none of the outbox's locks, since this may allocate memory.
pub(super) fn new_buffer(bytes: usize) -> Box<[u8]> {
    let common = if bytes == BURST_BYTES { locked(&COMMON).pop() } else { None };
    common.unwrap_or_else(|| vec![0; bytes].into_boxed_slice())
}

/// Unused buffers of [`BURST_BYTES`] bytes that their outboxes do not keep. With many peers, the outboxes need them by
/// turns. Memory that is freed and allocated again costs a page fault for each page.
static COMMON: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());
/// The maximum number of these buffers, which have 16 MiB in all.
const MOST_COMMON: usize = 256;
