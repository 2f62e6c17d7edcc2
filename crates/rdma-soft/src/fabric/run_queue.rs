//! Work that a thread postpones until it holds no lock.
//!
//! [`Task`]s are queue pairs, inboxes and links that have packets to send or receive. Each task gets a turn, and then
//! returns to the end of the queue with the rest of its work. [`Settle`] is work that must be complete when a verb
//! returns. For example, the queue pairs of an overflowed completion queue go to error, event files become readable,
//! and captures get their packets. Last, [emitters](crate::fabric::emitters) report dropped packets to the program.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::fabric::Fabric;
use crate::fabric::clock::Time;
use crate::fabric::emitters::{self, EventSource};
use crate::fabric::stalls;
use crate::fabric::timers::Timer;
use crate::sync::{AtomicU32, AtomicUsize, Held, Mutex, MutexGuard, Ordering, locked_in_models};

/// The number of turns that a thread executes before it continues with its own work. The number is smaller in models.
pub(crate) const TURNS: u32 = if cfg!(loom) { 4 } else { 64 };

/// Work that is done in turns and when a timer expires.
pub(crate) trait Task: Send + Sync + std::fmt::Debug {
    /// Returns the task's entry in the run queue.
    fn entry(&self) -> &Entry;

    /// Does some of the work. Returns true if there is more. The caller holds no lock.
    fn run(self: Arc<Self>) -> bool {
        false
    }

    /// Handles news from the peer's process: the [word](crate::engine::wire::Carrier::claim_word) of the task has changed.
    /// The caller holds no lock of the engine, and runs the queue afterwards.
    fn word_has_changed(self: Arc<Self>) {
        self.entry().queue();
    }

    /// Handles the expiry of the task's timer. The caller holds no lock, and runs the queue afterwards.
    fn expire(self: Arc<Self>) {}
}

/// The entry of a task. A task is in the queue at most once, and has one timer.
#[derive(Debug)]
pub(crate) struct Entry {
    task: Weak<dyn Task>,
    is_queued: AtomicU32,
    timer: Timer,
}

impl Entry {
    pub(crate) fn new(fabric: &'static Fabric, task: Weak<dyn Task>) -> Self {
        let timer = Timer::new(fabric, task.clone());
        Self { task, is_queued: AtomicU32::new(0), timer }
    }

    /// Queues the task for a turn. The caller may hold any lock.
    pub(crate) fn queue(&self) {
        if self.is_queued.swap(1, Ordering::AcqRel) == 0 {
            self.timer.fabric.run_queue.push(self.task.clone());
        }
    }

    /// Makes the task [expire](Task::expire) at `at`, or earlier if its timer is already set to an earlier time.
    pub(crate) fn set_timer(&self, at: Time) {
        self.timer.set(at);
    }

    /// Makes the task expire and the queue run soon, on the next thread that can do so.
    pub(crate) fn wake(&self) {
        self.timer.set(Time::AT_ONCE);
    }

    /// Marks the task as not queued, so that new work queues it again.
    fn mark_dequeued(&self) {
        // Synchronizes with all threads that found the task queued, so that it sees the work they added.
        self.is_queued.swap(0, Ordering::AcqRel);
    }

    #[cfg(all(test, loom))]
    pub(crate) fn timer(&self) -> &Timer {
        &self.timer
    }
}

/// Work that is complete when a [run](RunQueue::run) returns, if it was left before that run began.
pub(crate) trait Settle: Send + Sync + std::fmt::Debug {
    /// Does the work, or waits for the thread that does it, and then [removes](RunQueue::remove_settled) it. The caller
    /// holds no lock.
    fn settle(&self);

    /// Returns true if the work can leave further work. Such work is done first.
    fn leaves_work(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Queued {
    tasks: VecDeque<Weak<dyn Task>>,
    /// The work that has not been settled. Each item occurs once.
    unsettled: Vec<Arc<dyn Settle>>,
    sources: Vec<&'static dyn EventSource>,
    /// The number of objects that may leave work to settle. Space is reserved for all of them, so that leaving work
    /// does not allocate.
    settlers: usize,
}

/// The kind of work, if only one kind is queued.
#[derive(Clone, Copy)]
enum Lane {
    Tasks,
    Unsettled,
}

/// The run queue of a fabric.
#[derive(Debug)]
pub(crate) struct RunQueue {
    queued: Mutex<Queued>,
    /// The number of queued items of all kinds.
    count: AtomicUsize,
}

impl RunQueue {
    const EMPTY: Queued =
        Queued { tasks: VecDeque::new(), unsettled: Vec::new(), sources: Vec::new(), settlers: 0 };

    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Self { queued: Mutex::new(Self::EMPTY), count: AtomicUsize::new(0) }
    }

    /// Like the function above. Loom's primitives have no `const fn new`.
    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Self { queued: Mutex::new(Self::EMPTY), count: AtomicUsize::new(0) }
    }

    fn lock(&self) -> Held<MutexGuard<'_, Queued>> {
        locked_in_models(&self.queued)
    }

    fn count(&self, queued: &Queued) {
        let count = queued.tasks.len() + queued.unsettled.len() + queued.sources.len();
        self.count.store(count, Ordering::Release);
    }

    /// Reserves space for another object that may [leave](Self::add_unsettled) work to settle.
    pub(crate) fn reserve(&self) {
        let queued = &mut *self.lock();
        queued.settlers += 1;
        let left = queued.settlers.saturating_sub(queued.unsettled.len());
        queued.unsettled.reserve(left);
    }

    pub(crate) fn unreserve(&self) {
        self.lock().settlers -= 1;
    }

    /// Adds work to settle that is not in the queue yet. The caller may hold any lock.
    pub(crate) fn add_unsettled(&self, work: Arc<dyn Settle>) {
        let mut queued = self.lock();
        queued.unsettled.push(work);
        self.count(&queued);
    }

    /// Removes work that has been settled.
    pub(crate) fn remove_settled(&self, work: *const ()) {
        let mut queued = self.lock();
        let found =
            queued.unsettled.iter().position(|other| Arc::as_ptr(other).cast::<()>() == work);
        if let Some(n) = found {
            let settled = queued.unsettled.swap_remove(n);
            self.count(&queued);
            drop(queued);
            // Dropped only now, because this may be the last reference and its destructor takes the lock.
            drop(settled);
        }
    }

    /// Queues a source whose events will be reported to the program. The source is not in the queue yet.
    pub(crate) fn queue_source(&self, source: &'static dyn EventSource) {
        let mut queued = self.lock();
        queued.sources.push(source);
        self.count(&queued);
    }

    fn push(&self, task: Weak<dyn Task>) {
        let mut queued = self.lock();
        queued.tasks.push_back(task);
        self.count(&queued);
    }

    /// Executes a limited number of turns, and settles all work that was left. The caller holds no lock.
    #[inline]
    pub(crate) fn run(&self) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.run_all();
        }
    }

    #[cold]
    fn run_all(&self) {
        stalls::here();
        match self.only_lane() {
            Some(Lane::Tasks) => {
                self.give_turns();
                if self.count.load(Ordering::Acquire) == 0 {
                    return;
                }
            }
            Some(Lane::Unsettled) => return self.settle(),
            None => {
                self.settle_what_leaves_work();
                self.give_turns();
            }
        }
        self.settle_what_leaves_work();
        self.settle();
        self.emit_events();
    }

    fn only_lane(&self) -> Option<Lane> {
        let queued = self.lock();
        let leaves_work = queued.unsettled.iter().any(|work| work.leaves_work());
        if leaves_work || !queued.sources.is_empty() {
            return None;
        }
        match (queued.tasks.len(), queued.unsettled.len()) {
            (_, 0) => Some(Lane::Tasks),
            (0, _) => Some(Lane::Unsettled),
            _ => None,
        }
    }

    /// Executes turns. If tasks are still queued when this returns, sets a timer for them.
    fn give_turns(&self) {
        for _ in 0..TURNS {
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
            let mut queued = self.lock();
            let Some(next) = queued.tasks.pop_front() else { return };
            self.count(&queued);
            drop(queued);
            let Some(task) = next.upgrade() else { continue };
            stalls::here();
            task.entry().mark_dequeued();
            stalls::here();
            if Arc::clone(&task).run() {
                task.entry().queue();
            }
        }
        let first = self.lock().tasks.iter().find_map(Weak::upgrade);
        if let Some(first) = first {
            first.entry().wake();
        }
    }

    fn settle_what_leaves_work(&self) {
        loop {
            let queued = self.lock();
            let work = queued.unsettled.iter().find(|work| work.leaves_work()).map(Arc::clone);
            drop(queued);
            let Some(work) = work else { return };
            work.settle();
        }
    }

    fn settle(&self) {
        // Goes from last to first, because the last item replaces a forgotten one. Work that others leave in the
        // meantime is settled by them.
        let count = self.lock().unsettled.len();
        for n in (0..count).rev() {
            let work = self.lock().unsettled.get(n).map(Arc::clone);
            if let Some(work) = work {
                work.settle();
            }
        }
    }

    fn emit_events(&self) {
        let mut queued = self.lock();
        let sources = std::mem::take(&mut queued.sources);
        self.count(&queued);
        drop(queued);
        if !sources.is_empty() {
            emitters::emit(&sources);
        }
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;
    use crate::engine::events::EventQueue;

    static FABRIC: Fabric = Fabric::new();

    /// Reports an event and queues a task, as an overflowing completion queue does.
    #[derive(Debug)]
    struct Overflow {
        events: Arc<EventQueue<u32>>,
        task: Arc<Turns>,
    }

    impl Settle for Overflow {
        fn settle(&self) {
            self.events.push(1);
            self.task.entry.queue();
            FABRIC.run_queue.remove_settled(std::ptr::from_ref(self).cast());
        }

        fn leaves_work(&self) -> bool {
            true
        }
    }

    /// A task that counts its turns.
    #[derive(Debug)]
    pub(crate) struct Turns {
        pub(crate) entry: Entry,
        pub(crate) count: AtomicU32,
    }

    impl Turns {
        pub(crate) fn new(fabric: &'static Fabric) -> Arc<Self> {
            Arc::new_cyclic(|own: &Weak<Self>| Self {
                entry: Entry::new(fabric, own.clone()),
                count: AtomicU32::new(0),
            })
        }
    }

    impl Task for Turns {
        fn entry(&self) -> &Entry {
            &self.entry
        }

        fn run(self: Arc<Self>) -> bool {
            self.count.fetch_add(1, Ordering::Relaxed);
            false
        }
    }

    #[test]
    fn the_work_of_an_overflow_is_done_in_the_same_run() {
        let events = EventQueue::new(&FABRIC).unwrap();
        let task = Turns::new(&FABRIC);
        FABRIC.run_queue.reserve();
        let overflow = Overflow { events: Arc::clone(&events), task: Arc::clone(&task) };
        FABRIC.run_queue.add_unsettled(Arc::new(overflow));
        FABRIC.run_queue.run();
        assert_eq!(task.count.load(Ordering::Relaxed), 1, "the task has had no turn");
        assert_eq!(Arc::strong_count(&events), 1, "its file is not readable yet");
        assert_eq!(FABRIC.run_queue.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn work_is_queued_until_it_is_settled() {
        static FABRIC: Fabric = Fabric::new();
        let queues = [(); 3].map(|()| EventQueue::new(&FABRIC).unwrap());
        let queued = || queues.each_ref().map(|queue| Arc::strong_count(queue) > 1);
        queues.iter().for_each(|queue| queue.push(1_u32));
        assert_eq!(queued(), [true; 3]);
        queues[1].settle();
        assert_eq!(queued(), [true, false, true], "others were forgotten, too");
        FABRIC.run_queue.run();
        assert_eq!(queued(), [false; 3]);
        assert_eq!(FABRIC.run_queue.count.load(Ordering::Relaxed), 0);
    }
}
