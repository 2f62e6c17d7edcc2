//! Tasks that found no space or wait for something else, in order of arrival.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Weak;

use crate::fabric::run_queue::Task;

/// A queue that holds each task at most once.
#[derive(Debug, Default)]
pub(crate) struct TaskQueue {
    order: VecDeque<Weak<dyn Task>>,
    /// The addresses of the queued tasks. A task's address is not reused while the task is queued.
    queued: BTreeSet<usize>,
}

impl TaskQueue {
    #[cfg(not(loom))]
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn add(&mut self, sender: Weak<dyn Task>) {
        if !self.queued.insert(place(&sender)) {
            return;
        }
        if self.order.len() == self.order.capacity() {
            // Removes tasks that no longer exist.
            let queued = &mut self.queued;
            self.order.retain(|other| {
                let lives = other.strong_count() > 0;
                if !lives {
                    queued.remove(&place(other));
                }
                lives
            });
        }
        self.order.push_back(sender);
    }

    /// Returns all queued tasks, without removing any.
    #[cfg(not(loom))]
    pub(crate) fn all(&self) -> Vec<Weak<dyn Task>> {
        self.order.iter().cloned().collect()
    }

    /// Removes and returns up to `most` tasks, oldest first. The caller queues a turn for each one.
    pub(crate) fn take(&mut self, most: usize) -> Vec<Weak<dyn Task>> {
        let first = self.order.drain(..most.min(self.order.len())).collect::<Vec<_>>();
        first.iter().for_each(|sender| {
            self.queued.remove(&place(sender));
        });
        first
    }
}

fn place(sender: &Weak<dyn Task>) -> usize {
    sender.as_ptr().cast::<()>().addr()
}
