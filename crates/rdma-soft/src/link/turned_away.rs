//! Who found no space, or waits for something else, in the order in which they came.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Weak;

use crate::fabric::run_queue::Task;

/// Each is there once.
#[derive(Debug, Default)]
pub(crate) struct TurnedAway {
    order: VecDeque<Weak<dyn Task>>,
    /// Where they are in memory, which is theirs as long as they are in the order.
    there: BTreeSet<usize>,
}

impl TurnedAway {
    #[cfg(not(loom))]
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn add(&mut self, sender: Weak<dyn Task>) {
        if !self.there.insert(place(&sender)) {
            return;
        }
        if self.order.len() == self.order.capacity() {
            // Those that are gone wait for nothing.
            let there = &mut self.there;
            self.order.retain(|other| {
                let lives = other.strong_count() > 0;
                if !lives {
                    there.remove(&place(other));
                }
                lives
            });
        }
        self.order.push_back(sender);
    }

    /// Returns all of them, without removing any.
    #[cfg(not(loom))]
    pub(crate) fn all(&self) -> Vec<Weak<dyn Task>> {
        self.order.iter().cloned().collect()
    }

    /// The first ones, which are to have another turn.
    pub(crate) fn take(&mut self, most: usize) -> Vec<Weak<dyn Task>> {
        let first = self.order.drain(..most.min(self.order.len())).collect::<Vec<_>>();
        first.iter().for_each(|sender| {
            self.there.remove(&place(sender));
        });
        first
    }
}

fn place(sender: &Weak<dyn Task>) -> usize {
    sender.as_ptr().cast::<()>().addr()
}
