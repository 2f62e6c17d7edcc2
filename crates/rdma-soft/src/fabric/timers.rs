//! Deadlines: one timer for each [`Task`], such as a queue pair, a shared receive queue or the end of a link. A poll
//! that finds its completion queue empty handles expired timers. For programs that do not poll, a thread handles them.
//! The thread exists while a timer is set. It lingers after the last timer, so that occasional RNR waits do not start a
//! new thread each time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::{PoisonError, TryLockError, Weak};
use std::time::Duration;

use crate::abi::fork::Process;
use crate::fabric::Fabric;
use crate::fabric::clock::Time;
use crate::fabric::poll_backoff::PollBackoff;
#[cfg(test)]
use crate::fabric::run_queue::Entry;
use crate::fabric::run_queue::Task;
use crate::fabric::stalls;
#[cfg(not(loom))]
use crate::fabric::thread;
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, locked_for_calls};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(loom)]
pub(crate) mod model;
#[cfg(all(test, not(loom)))]
mod tests;

/// The value of `earliest` if no timer is set but polls must look at a link.
const LINK_ONLY: u64 = u64::MAX - 1;

const LINGER: Duration = Duration::from_secs(5);
/// The maximum number of timers that one poll expires.
const MOST_EXPIRED: u32 = 4;

/// All timers of a fabric.
#[derive(Debug)]
pub(crate) struct Timers {
    /// The time of the earliest timer, in nanoseconds. This is the only value that an empty poll reads. Written under
    /// the schedule's lock.
    earliest: AtomicU64,
    schedule: Mutex<Schedule>,
    changed: Condvar,
    /// Whether time is virtual. If so, each empty poll handles timers, and no thread does.
    in_virtual_time: bool,
    /// Whether each empty poll also checks a link.
    polls_look: std::sync::atomic::AtomicBool,
    /// Whether the thread currently leaves all timers to polls.
    yields_to_polls: std::sync::atomic::AtomicBool,
    #[cfg(loom)]
    model: model::Model,
}

#[derive(Debug)]
struct Schedule {
    timers: Vec<Option<Deadline>>,
    free: Vec<usize>,
    /// The times of the timers, with their places. Also contains outdated times, whose timers have since been set to an
    /// earlier time or dropped.
    queue: BinaryHeap<Reverse<(Time, usize)>>,
    /// The process whose thread handles timers. A forked child has no such thread.
    served_by: Option<Process>,
    /// The time at which the thread will check the timers by itself. Setting a timer to an earlier time wakes the
    /// thread. [`Time::AT_ONCE`] while the thread needs no wake-up: it is running, or it leaves the timers to polls.
    looks_by: Time,
    #[cfg(loom)]
    shared: model::Shared,
}

#[derive(Debug)]
struct Deadline {
    owner: Weak<dyn Task>,
    at: Option<Time>,
}

/// One timer of a fabric, identified by its place in the schedule.
#[derive(Debug)]
pub(crate) struct Timer {
    pub(super) fabric: &'static Fabric,
    place: usize,
}

impl Timer {
    pub(crate) fn new(fabric: &'static Fabric, owner: Weak<dyn Task>) -> Self {
        Self { fabric, place: fabric.timers.lock().add(owner) }
    }

    /// Makes the timer's owner [expire](Task::expire) at `at`, or earlier if the timer is already set to an earlier
    /// time.
    pub(crate) fn set(&self, at: Time) {
        #[cfg(loom)]
        if !self.fabric.timers.model.has_timers() {
            return;
        }
        let fabric = self.fabric;
        // Queued after all timers that are already due, so that a timer that is set again and again does not delay
        // others.
        let at = if at == Time::AT_ONCE { fabric.clock.now() } else { at };
        let mut schedule = fabric.timers.lock();
        if !schedule.set(self.place, at) {
            return;
        }
        fabric.timers.publish(&schedule);
        if fabric.timers.in_virtual_time {
            return;
        }
        if schedule.served_by.is_some_and(Process::is_current) {
            let is_first = at < schedule.looks_by;
            drop(schedule);
            if is_first {
                fabric.timers.changed.notify_one();
            }
        } else if fabric.start_thread().is_ok() {
            schedule.served_by = Some(Process::current());
        }
        // Without a thread, the timer expires at a poll. Setting the next timer tries to start a thread again.
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.fabric.timers.lock().remove(self.place);
    }
}

impl Fabric {
    /// Expires due timers in the order of their times, at most [`MOST_EXPIRED`] of them. The caller holds no lock.
    #[cold]
    pub(crate) fn expire_due_timers(&self) {
        // Read once, so that timers set from here on are left to the next poll.
        let now = self.clock.now();
        for _ in 0..MOST_EXPIRED {
            if Time::from_nanoseconds(self.timers.first()) > now {
                return;
            }
            // The thread that holds the lock either handles the timers or is setting one.
            let mut schedule = match self.timers.schedule.try_lock() {
                Ok(schedule) => schedule,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let due = schedule.take_due(now);
            // Published even if no timer was due, because the times of dropped timers were removed.
            self.timers.publish(&schedule);
            drop(schedule);
            if let Some(owner) = due.and_then(|owner| owner.upgrade()) {
                stalls::here();
                owner.expire();
                self.run_queue.run();
            }
        }
    }

    #[cfg(not(loom))]
    fn start_thread(&'static self) -> io::Result<()> {
        thread::spawn("rdma-soft timer", thread::STACK, || self.serve_timers())
    }

    /// The main loop of the thread.
    fn serve_timers(&self) {
        let mut schedule = self.timers.lock();
        let (mut idle_since, mut backoff) = (None, PollBackoff::default());
        loop {
            let now = self.clock.now();
            let due = schedule.take_due(now);
            self.timers.publish(&schedule);
            if let Some(owner) = due {
                drop(schedule);
                // `owner` is dropped while the lock is free, because it may be the last reference, and its destructor
                // takes the lock.
                if let Some(owner) = owner.upgrade() {
                    stalls::here();
                    owner.expire();
                    self.run_queue.run();
                }
                schedule = self.timers.lock();
                idle_since = None;
                continue;
            }
            let wait = match schedule.earliest() {
                Some(at) => {
                    idle_since = None;
                    at.since(now)
                }
                None => {
                    let end = *idle_since.get_or_insert(now) + LINGER;
                    if now >= end {
                        schedule.served_by = None;
                        return;
                    }
                    end.since(now)
                }
            };
            let polls = || self.polled.get().map_or(0, |link| link.polls());
            let delay = backoff.next(polls(), false);
            let yields = !delay.is_zero();
            // A thread that backs off soon checks the timers by itself, so no timer needs to wake it.
            let wait = if yields { delay } else { wait };
            schedule.looks_by = if yields { Time::AT_ONCE } else { now + wait };
            self.timers.yields_to_polls.store(yields, Ordering::Relaxed);
            schedule = self.wait_for_change(schedule, wait);
            schedule.looks_by = Time::AT_ONCE;
            if yields && !self.timers.yields_to_polls.swap(false, Ordering::Relaxed) {
                backoff.end(polls());
            }
        }
    }

    /// Called when a thread that has polled is about to sleep. The threads of the device then take over the work that
    /// this thread's polls did.
    #[cold]
    pub(crate) fn poller_sleeps(&self) {
        if let Some(link) = self.polled.get() {
            link.poller_sleeps();
        }
        if self.timers.yields_to_polls.swap(false, Ordering::Relaxed) {
            // Ensures that the thread is already waiting.
            drop(self.timers.lock());
            self.timers.changed.notify_one();
        }
    }

    /// Waits until a timer is set to a time before `looks_by`, or until a poller is about to sleep, but for at most
    /// `most`.
    #[cfg(not(loom))]
    fn wait_for_change<'a>(
        &self,
        schedule: MutexGuard<'a, Schedule>,
        most: Duration,
    ) -> MutexGuard<'a, Schedule> {
        let waited = self.timers.changed.wait_timeout(schedule, most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Timers {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Self::of(u64::MAX, false)
    }

    /// Creates timers that expire when a simulation reaches their time.
    #[cfg(not(loom))]
    pub(super) const fn in_virtual_time() -> Self {
        Self::of(0, true)
    }

    #[cfg(not(loom))]
    const fn of(earliest: u64, in_virtual_time: bool) -> Self {
        Self {
            earliest: AtomicU64::new(earliest),
            schedule: Mutex::new(Schedule::new()),
            changed: Condvar::new(),
            in_virtual_time,
            polls_look: std::sync::atomic::AtomicBool::new(false),
            yields_to_polls: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Returns a time that is no later than the first timer's, or `None` if no timer is set.
    pub(crate) fn next(&self) -> Option<Time> {
        self.lock().earliest()
    }

    /// Returns true if a timer is set, time is virtual, or there is a link to check. Every empty poll calls this.
    #[inline(always)]
    pub(crate) fn is_set(&self) -> bool {
        self.first() != u64::MAX
    }

    /// Returns the time of the first timer in nanoseconds. If no timer is set, returns [`LINK_ONLY`] or
    /// `u64::MAX`. In virtual time, always returns 0.
    #[inline(always)]
    pub(crate) fn first(&self) -> u64 {
        self.earliest.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Schedule> {
        locked_for_calls(&self.schedule)
    }

    fn publish(&self, schedule: &Schedule) {
        if self.in_virtual_time {
            return;
        }
        let none = if self.polls_look.load(Ordering::Relaxed) { LINK_ONLY } else { u64::MAX };
        let earliest = schedule.earliest().map_or(none, Time::nanoseconds);
        self.earliest.store(earliest, Ordering::Relaxed);
    }

    /// Sets whether each empty poll checks a link even if no timer is set.
    #[cfg(not(loom))]
    pub(crate) fn set_polls_look(&self, look: bool) {
        let schedule = self.lock();
        self.polls_look.store(look, Ordering::Relaxed);
        self.publish(&schedule);
    }
}

impl Schedule {
    const fn new() -> Self {
        let queue = BinaryHeap::new();
        Self {
            timers: Vec::new(),
            free: Vec::new(),
            queue,
            served_by: None,
            looks_by: Time::AT_ONCE,
            #[cfg(loom)]
            shared: model::Shared::new(),
        }
    }

    fn add(&mut self, owner: Weak<dyn Task>) -> usize {
        let slot = Some(Deadline { owner, at: None });
        if let Some(n) = self.free.pop() {
            self.timers[n] = slot;
            return n;
        }
        self.timers.push(slot);
        let places = self.timers.len();
        // Reserved now, so that neither removing nor setting a timer ever allocates.
        self.free.reserve(places);
        self.queue.reserve((2 * places).saturating_sub(self.queue.len()));
        places - 1
    }

    fn remove(&mut self, place: usize) {
        self.timers[place] = None;
        self.free.push(place);
    }

    /// Sets a timer. Returns true if it now expires earlier than before.
    fn set(&mut self, place: usize, at: Time) -> bool {
        let Some(Some(slot)) = self.timers.get_mut(place) else { return false };
        if slot.at.is_some_and(|set| set <= at) {
            return false;
        }
        slot.at = Some(at);
        if self.queue.len() == self.queue.capacity() {
            // Each timer has at most one current time, so at least half of the queue is free once the outdated times
            // are removed.
            let timers = &self.timers;
            self.queue.retain(|&Reverse(time)| is_current(timers, time));
        }
        self.queue.push(Reverse((at, place)));
        true
    }

    /// Returns a time that is no later than the first timer's.
    fn earliest(&self) -> Option<Time> {
        self.queue.peek().map(|Reverse((at, _))| *at)
    }

    /// Clears the earliest due timer and returns its owner. A timer that is set again and again is queued after the
    /// others that are due, so it does not delay them.
    fn take_due(&mut self, now: Time) -> Option<Weak<dyn Task>> {
        while let Some(&Reverse(first)) = self.queue.peek() {
            if first.0 > now && is_current(&self.timers, first) {
                return None;
            }
            self.queue.pop();
            if is_current(&self.timers, first)
                && let Some(slot) = &mut self.timers[first.1]
            {
                slot.at = None;
                return Some(slot.owner.clone());
            }
        }
        None
    }
}

fn is_current(timers: &[Option<Deadline>], (at, place): (Time, usize)) -> bool {
    timers[place].as_ref().is_some_and(|slot| slot.at == Some(at))
}

#[cfg(all(test, not(loom)))]
impl Fabric {
    /// Prevents this fabric from starting a thread for its timers: only polls expire them.
    pub(crate) fn serve_by_polls_alone(&self) {
        self.timers.lock().served_by = Some(Process::current());
    }
}

/// An owner that no longer exists.
#[cfg(test)]
fn nobody() -> Weak<dyn Task> {
    #[derive(Debug)]
    enum Nobody {}
    impl Task for Nobody {
        fn entry(&self) -> &Entry {
            match *self {}
        }
    }
    Weak::<Nobody>::new()
}
