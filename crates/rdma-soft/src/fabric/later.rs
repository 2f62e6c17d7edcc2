//! Who has something to send that can wait for a moment: what the program sends next may be more urgent.

use std::sync::{Arc, Weak};

use crate::fabric::turns::Driven;
use crate::sync::{AtomicUsize, Mutex, Ordering, locked_in_models as locked};

/// Those that wait for the same moment.
#[derive(Debug, Default)]
pub(crate) struct Later {
    /// Also those that have had a turn since, which are no more than there are.
    list: Mutex<Vec<Weak<dyn Driven>>>,
    /// How long the list is.
    count: AtomicUsize,
}

impl Later {
    /// Somebody waits. Any lock but a leaf may be held.
    pub(crate) fn add<D: Driven + 'static>(&self, driven: &Arc<D>) {
        if driven.place().wait() {
            let driven: Weak<dyn Driven> = Arc::<D>::downgrade(driven);
            let mut list = locked(&self.list);
            list.push(driven);
            self.count.store(list.len(), Ordering::Release);
        }
    }

    /// The moment has come: `give_turn` is called for whoever still waits. Says whether somebody does.
    #[inline]
    pub(crate) fn come(&self, give_turn: impl FnMut(&Arc<dyn Driven>)) -> bool {
        self.count.load(Ordering::Acquire) != 0 && self.call(give_turn)
    }

    /// It goes away.
    pub(crate) fn forget<D: Driven + 'static>(&self, driven: &Arc<D>) {
        let mut list = locked(&self.list);
        list.retain(|other| !std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(driven)));
        self.count.store(list.len(), Ordering::Release);
    }

    #[cold]
    fn call(&self, mut give_turn: impl FnMut(&Arc<dyn Driven>)) -> bool {
        let mut called = false;
        // One at a time, so that the list keeps its memory; as many as there are now.
        for _ in 0..self.count.load(Ordering::Acquire) {
            let next = {
                let mut list = locked(&self.list);
                let next = list.pop();
                self.count.store(list.len(), Ordering::Release);
                next
            };
            let Some(next) = next else { break };
            if let Some(driven) = next.upgrade()
                && driven.place().leave_list()
            {
                give_turn(&driven);
                called = true;
            }
        }
        called
    }
}
