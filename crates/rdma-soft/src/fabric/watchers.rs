//! The completion channels whose files can watch the link, and the choice of the one that does.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, Weak};

use crate::sync::locked_to_wait;

/// A completion channel whose file can be readable before there is an event. A thread that sleeps on the file can watch
/// the link in place of the link's thread.
pub(crate) trait Watcher: Send + Sync + std::fmt::Debug {
    /// Makes the channel's file readable while `link` is readable. Returns false if the kernel refuses.
    fn watch(&self, link: BorrowedFd<'_>) -> bool;

    /// Ends [`watch`](Self::watch).
    fn unwatch(&self, link: BorrowedFd<'_>);

    /// Returns the number of events that programs have taken.
    fn taken(&self) -> u32;
}

/// The channels of a fabric. At most one of them watches the link: an arrival that woke several threads would cost more
/// than one that wakes the link's thread.
#[derive(Debug)]
pub(crate) struct Watchers(Mutex<Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    channel: Weak<dyn Watcher>,
    /// The number of taken events at the last comparison.
    taken: u32,
    watches: bool,
}

impl Entry {
    /// Returns the number of events that programs have taken since the last call.
    fn take_new(&mut self) -> u32 {
        let Some(channel) = self.channel.upgrade() else { return 0 };
        let taken = channel.taken();
        taken.wrapping_sub(std::mem::replace(&mut self.taken, taken))
    }
}

impl Watchers {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(crate) fn add(&self, channel: Weak<dyn Watcher>) {
        locked_to_wait(&self.0).push(Entry { channel, taken: 0, watches: false });
    }

    /// Removes a channel that is being destroyed. After this, no other thread refers to it.
    pub(crate) fn remove(&self, channel: &Weak<dyn Watcher>) {
        locked_to_wait(&self.0).retain(|entry| !entry.channel.ptr_eq(channel));
    }

    /// Makes the channel that took the most events since the last comparison watch the link, in place of any other.
    /// Keeps the current one unless another took twice as many. Returns true if a channel watches the link.
    pub(crate) fn choose(&self, link: BorrowedFd<'_>) -> bool {
        let entries = &mut *locked_to_wait(&self.0);
        let score =
            |entry: &mut Entry| (2 - u64::from(!entry.watches)) * u64::from(entry.take_new());
        let scores = entries.iter_mut().map(score).enumerate();
        let best = scores.max_by_key(|(_, score)| *score).filter(|(_, score)| *score > 0);
        let Some((best, _)) = best else { return false };
        if entries[best].watches {
            return true;
        }
        end(entries, link);
        let channel = entries[best].channel.upgrade();
        entries[best].watches = channel.is_some_and(|channel| channel.watch(link));
        entries[best].watches
    }

    /// Makes no channel watch the link.
    pub(crate) fn end(&self, link: BorrowedFd<'_>) {
        end(&mut locked_to_wait(&self.0), link);
    }
}

fn end(entries: &mut [Entry], link: BorrowedFd<'_>) {
    for entry in entries {
        if std::mem::take(&mut entry.watches)
            && let Some(channel) = entry.channel.upgrade()
        {
            channel.unwatch(link);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

    use super::*;

    #[derive(Debug, Default)]
    struct Channel {
        taken: AtomicU32,
        watches: AtomicBool,
        refuses: AtomicBool,
    }

    impl Watcher for Channel {
        fn watch(&self, _: BorrowedFd<'_>) -> bool {
            let watches = !self.refuses.load(Relaxed);
            self.watches.store(watches, Relaxed);
            watches
        }

        fn unwatch(&self, _: BorrowedFd<'_>) {
            self.watches.store(false, Relaxed);
        }

        fn taken(&self) -> u32 {
            self.taken.load(Relaxed)
        }
    }

    fn weak(channel: &Arc<Channel>) -> Weak<dyn Watcher> {
        Arc::downgrade(&(Arc::clone(channel) as Arc<dyn Watcher>))
    }

    #[test]
    fn the_busiest_channel_watches() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let (watchers, channels) = (Watchers::new(), [(); 3].map(|()| Arc::<Channel>::default()));
        channels.iter().for_each(|channel| watchers.add(weak(channel)));
        let step = |new: [u32; 3]| {
            channels.iter().zip(new).for_each(|(channel, new)| {
                channel.taken.fetch_add(new, Relaxed);
            });
            let chosen = watchers.choose(file.as_fd());
            (chosen, channels.each_ref().map(|channel| channel.watches.load(Relaxed)))
        };
        assert_eq!(step([0, 0, 0]), (false, [false; 3]));
        assert_eq!(step([1, 5, 4]), (true, [false, true, false]));
        assert_eq!(
            step([1, 5, 8]),
            (true, [false, true, false]),
            "the other took less than twice as many"
        );
        assert_eq!(step([1, 5, 11]), (true, [false, false, true]));
        channels[0].refuses.store(true, Relaxed);
        assert_eq!(step([9, 0, 0]), (false, [false; 3]));
        assert_eq!(step([0, 1, 0]), (true, [false, true, false]));
        watchers.end(file.as_fd());
        assert!(!channels[1].watches.load(Relaxed));
        watchers.remove(&weak(&channels[1]));
        assert_eq!(step([0, 9, 1]), (true, [false, false, true]), "the second one is gone");
    }
}
