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
        if self.order.is_empty() {
            return Vec::new();
        }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fabric::run_queue::Entry;

    /// A task that never runs. It is not of size zero, so each has an address of its own.
    #[derive(Debug)]
    struct Idle {
        _place: u8,
    }

    impl Task for Idle {
        fn entry(&self) -> &Entry {
            unreachable!("{self:?} never gets a turn")
        }
    }

    fn tasks(count: usize) -> Vec<Arc<dyn Task>> {
        (0..count).map(|_| Arc::new(Idle { _place: 0 }) as Arc<dyn Task>).collect()
    }

    fn weak(tasks: &[Arc<dyn Task>]) -> Vec<Weak<dyn Task>> {
        tasks.iter().map(Arc::downgrade).collect()
    }

    fn places(tasks: &[Weak<dyn Task>]) -> Vec<usize> {
        tasks.iter().map(place).collect()
    }

    #[test]
    fn tasks_are_queued_once_and_taken_in_order() {
        let tasks = tasks(3);
        let mut queue = TaskQueue::default();
        assert!(queue.is_empty());
        for task in weak(&tasks).iter().chain(&weak(&tasks)) {
            queue.add(task.clone());
        }
        assert_eq!(places(&queue.all()), places(&weak(&tasks)));
        assert_eq!(places(&queue.take(2)), places(&weak(&tasks[..2])));
        queue.add(Arc::downgrade(&tasks[0]));
        assert_eq!(places(&queue.take(9)), places(&weak(&[tasks[2].clone(), tasks[0].clone()])));
        assert!(queue.is_empty());
    }

    #[test]
    fn tasks_that_no_longer_exist_are_removed() {
        let mut queue = TaskQueue::default();
        for _ in 0..100 {
            queue.add(Arc::downgrade(&tasks(1)[0]));
        }
        assert!(queue.order.len() < 10 && queue.queued.len() == queue.order.len());
    }
}
