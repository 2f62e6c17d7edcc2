//! The completion queue: a ring whose entries themselves show whether they are filled.
//!
//! Producers and pollers have separate locks, on separate cache lines. A poller finds a completion by looking at its
//! entry. A producer reads the pollers' head only when the queue looks full. An empty poll takes neither lock.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};

use rdma_types::{AsyncEventKind, WcStatus};

use crate::abi::fork::Process;
use crate::engine::Refusal;
use crate::engine::completion::entry::{Seat, Timestamp};
use crate::engine::completion::reclaimed::Reclaimed;
use crate::engine::completion::rings::Rings;
use crate::engine::completion::seats::Seats;
use crate::engine::completion::work_completion::Completion;
use crate::engine::events::EventQueue;
use crate::engine::events::report::{Handle, Reporter};
use crate::fabric::Fabric;
use crate::fabric::deferred::Deferred;
use crate::fabric::run_queue::Settle;
use crate::sync::{
    AtomicU32, AtomicU64, Guard, Line, Lock, Mutex, Ordering, locked, locked_for_calls,
};

/// A queue pair whose requests complete in this queue.
pub(crate) trait User: Send + Sync + std::fmt::Debug {
    /// Moves this queue pair to error, because the queue has lost a completion of this or another queue pair.
    fn completion_is_lost(&self);
}

/// The completion queue overflowed: a completion was lost, and the queue is in error permanently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overflowed;

/// The producers' state. Completions are numbered from 0 as they arrive. The numbers of dropped completions are reused.
#[derive(Debug, Default)]
pub(super) struct Producers {
    /// The maximum number of completions in the queue.
    pub(super) capacity: u64,
    /// The number of the next completion.
    pub(super) tail: u64,
    /// The value of the pollers' head when a producer last read it.
    pub(super) head: u64,
    armed: Armed,
    /// Whether a completion was lost since the queue last [settled](Settle).
    lost: bool,
    /// Whether the queue is in the run queue.
    is_queued: bool,
}

/// The kind of completion that triggers the requested event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Armed {
    #[default]
    No,
    Solicited,
    Any,
}

/// The destination of a completion queue's events: the channel, and the name that the queue has there.
#[derive(Debug)]
pub(crate) struct Notifier {
    pub(crate) channel: Arc<EventQueue<Handle>>,
    pub(crate) handle: OnceLock<Handle>,
}

#[derive(Debug, Default)]
pub(super) struct Pollers {
    /// The number of the oldest completion, changed only under the lock.
    pub(super) head: AtomicU64,
    pub(super) seats: Lock<Seats>,
    /// The number of consecutive empty polls while a timer was set.
    empty_polls: AtomicU32,
    /// The time of the first timer, as seen by the empty poll that last looked at the clock.
    deadline_seen: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) fabric: &'static Fabric,
    /// The process whose polls drive the fabric. Polls in a forked child do not, because a thread of the parent may
    /// have held any lock.
    made_by: Process,
    deferred: Option<&'static Deferred>,
    /// The current ring has at least as many entries as the capacity, which is checked separately.
    pub(super) rings: Rings,
    overflowed: AtomicU32,
    /// Held by the thread that moves users to error; other threads wait until it is done. This lock comes before all
    /// engine locks.
    settling: Mutex<()>,
    pub(super) producers: Line<Lock<Producers>>,
    /// A thread that takes this lock and the producers' lock takes this one first.
    pub(super) pollers: Line<Pollers>,
    /// The queue pairs that move to error if this queue overflows.
    users: std::sync::Mutex<BTreeMap<u64, Weak<dyn User>>>,
    /// Whether each completion is stamped with its time of arrival.
    timestamps: bool,
    /// The destination of notifications; `None` if the queue has no completion channel.
    notifier: Option<Notifier>,
    /// Reports an overflow.
    reporter: Reporter,
}

impl CompletionQueue {
    /// Creates a queue for `capacity` completions. Polling it drives the deferred work of its device.
    pub(crate) fn new(
        fabric: &'static Fabric,
        capacity: u32,
        deferred: Option<&'static Deferred>,
    ) -> Result<Self, Refusal> {
        let rings = Rings::new(capacity)?;
        let producers = Producers { capacity: capacity.into(), ..Producers::default() };
        fabric.run_queue.reserve();
        Ok(Self {
            fabric,
            made_by: Process::current(),
            deferred,
            rings,
            overflowed: AtomicU32::default(),
            settling: Mutex::new(()),
            producers: Line(Lock::new(producers)),
            pollers: Line::default(),
            users: std::sync::Mutex::default(),
            timestamps: false,
            notifier: None,
            reporter: Reporter::silent(),
        })
    }

    /// Sets the destinations of the queue's events.
    pub(crate) fn with_events(mut self, notifier: Option<Notifier>, reporter: Reporter) -> Self {
        (self.notifier, self.reporter) = (notifier, reporter);
        self
    }

    /// Sets whether the queue records the time at which each completion arrives.
    pub(crate) fn with_timestamps(mut self, timestamps: bool) -> Self {
        self.timestamps = timestamps;
        self
    }

    /// Lets a deferred schedule execute some requests. Called by polls.
    #[inline]
    pub(crate) fn step_deferred(&self) {
        if let Some(deferred) = self.deferred
            && self.made_by.is_current()
        {
            deferred.step();
        }
    }

    /// Attaches the queue pair of `counters`, so that the queue accepts its completions.
    pub(crate) fn attach(&self, counters: &Arc<Reclaimed>) -> Seat {
        self.pollers.seats.lock().take(counters)
    }

    /// Removes a queue pair and its remaining completions.
    pub(crate) fn detach(&self, seat: Seat) {
        let mut seats = self.pollers.seats.lock();
        self.drop_completions(seat);
        seats.free(seat);
    }

    /// Drops the completions of a queue pair that was reset.
    pub(crate) fn purge(&self, seat: Seat) {
        let _pollers = self.pollers.seats.lock();
        self.drop_completions(seat);
    }

    /// Drops one queue pair's completions and closes the gaps, under both locks. The caller holds the pollers' lock.
    fn drop_completions(&self, seat: Seat) {
        let mut producers = self.producers.lock();
        let head = self.pollers.head.load(Ordering::Relaxed);
        let ring = self.rings.current();
        let mut kept = head;
        for number in head..producers.tail {
            let (of, completion) = ring.entry(number).read();
            if of != seat {
                ring.entry(kept).copy_timestamp(ring.entry(number));
                ring.entry(kept).put(of, &completion);
                ring.entry(kept).publish(kept);
                kept += 1;
            }
        }
        // The tail is cleared last, because the kept completions must never look absent to a lock-free poll.
        for number in kept..producers.tail {
            ring.entry(number).drop_number(number);
        }
        producers.tail = kept;
    }

    /// Adds a completion. If the queue overflows, the completion is lost and the queue is in error. In either case, the
    /// caller [settles](Fabric::run_queue) once it holds no lock.
    #[inline(always)]
    pub(crate) fn push(self: &Arc<Self>, seat: Seat, completion: Completion) {
        let mut producers = self.producers.lock();
        if !self.has_room(&mut producers) || self.is_overflowed() {
            return self.overflow(&mut producers);
        }
        let number = producers.tail;
        producers.tail += 1;
        let entry = self.rings.current().entry(number);
        entry.put(seat, &completion);
        if self.timestamps {
            entry.stamp(&self.fabric.clock);
        }
        entry.publish(number);
        if producers.armed != Armed::No {
            let failed = completion.status != WcStatus::SUCCESS;
            self.disarm(producers, completion.solicited || failed);
        }
    }

    /// Sends the requested event, if the completion matches the request.
    #[cold]
    fn disarm(&self, mut producers: Guard<'_, Producers>, solicited: bool) {
        if producers.armed == Armed::Any || solicited {
            self.set_armed(&mut producers, Armed::No);
            drop(producers);
            self.send_event();
        }
    }

    fn send_event(&self) {
        if let Some((notifier, handle)) = self.named_notifier() {
            notifier.channel.push(handle);
        }
    }

    fn named_notifier(&self) -> Option<(&Notifier, Handle)> {
        let notifier = self.notifier.as_ref()?;
        Some((notifier, *notifier.handle.get()?))
    }

    /// Requests one event, for the next completion or the next solicited one. Completions that are already in the queue
    /// do not count. Of two requests, the wider one applies (man ibv_req_notify_cq).
    pub(crate) fn request_event(&self, solicited_only: bool) {
        let mut producers = self.producers.lock();
        let armed = match (solicited_only, producers.armed) {
            (true, Armed::No | Armed::Solicited) => Armed::Solicited,
            _ => Armed::Any,
        };
        self.set_armed(&mut producers, armed);
        drop(producers);
        if self.fabric.simulation.is_some() {
            self.step_simulation();
        } else if self.fabric.timers.is_set() && self.made_by.is_current() {
            // The program is probably about to sleep.
            self.fabric.poller_sleeps();
        }
    }

    /// Sets which completion sends an event, and counts the queues that send one for any completion.
    fn set_armed(&self, producers: &mut Producers, armed: Armed) {
        let before = std::mem::replace(&mut producers.armed, armed);
        match (before == Armed::Any, armed == Armed::Any) {
            (false, true) => drop(self.fabric.armed.fetch_add(1, Relaxed)),
            (true, false) => drop(self.fabric.armed.fetch_sub(1, Relaxed)),
            _ => {}
        }
    }

    /// Makes the next scheduled event happen: the program is probably about to sleep, and virtual time would not pass
    /// while it does. If there was an event, wakes the program.
    #[cold]
    fn step_simulation(&self) {
        if self.fabric.step_on_arming()
            && let Some(notifier) = &self.notifier
        {
            notifier.channel.wake();
        }
    }

    /// Sets the name by which events identify the queue.
    pub(crate) fn name(&self, handle: Handle) {
        if let Some(notifier) = &self.notifier {
            // This happens only once, when the queue's block is made.
            let _ = notifier.handle.set(handle);
        }
        self.reporter.name(handle);
    }

    /// Removes the events that were not taken yet. The queue is being destroyed, so nothing completes here any longer.
    pub(crate) fn withdraw_events(&self) {
        if let Some((notifier, handle)) = self.named_notifier() {
            notifier.channel.discard(|event| event == handle);
        }
        self.reporter.withdraw();
    }

    #[inline(always)]
    fn has_room(&self, producers: &mut Producers) -> bool {
        if producers.tail - producers.head < producers.capacity {
            return true;
        }
        // Acquire, so that the poller has read the entry before it is written again.
        producers.head = self.pollers.head.load(Ordering::Acquire);
        producers.tail - producers.head < producers.capacity
    }

    #[cold]
    fn overflow(self: &Arc<Self>, producers: &mut Producers) {
        // The value is 2 once the overflow was reported.
        self.overflowed.fetch_max(1, Ordering::AcqRel);
        // Set on each overflow, because the queue pair of this completion may have been attached or reset after the
        // first overflow.
        producers.lost = true;
        if !std::mem::replace(&mut producers.is_queued, true) {
            self.fabric.run_queue.add_unsettled(Arc::<Self>::clone(self));
        }
    }

    /// Polls up to `most` completions, oldest first, and releases their slots. Passes each completion to `take`, which
    /// may read its time of arrival. After an overflow, returns the error once all kept completions are polled.
    #[inline]
    pub(crate) fn poll(
        &self,
        most: u32,
        mut take: impl FnMut(u32, &Completion, Timestamp<'_>),
    ) -> Result<u32, Overflowed> {
        // Loaded before the ring: a head from after a resize implies a ring from after the resize.
        let head = self.pollers.head.load(Ordering::Acquire);
        if self.rings.current().entry(head).is_behind(head) && !self.is_overflowed() {
            // This poll must return completions that have arrived meanwhile.
            if !self.poll_timers() || self.rings.current().entry(head).is_behind(head) {
                return Ok(0);
            }
        }
        self.pollers.empty_polls.store(0, Ordering::Relaxed);
        let seats = match self.pollers.seats.lock_if(|| false) {
            Some(seats) => seats,
            // Polls that find the lock free skip the check of the process.
            None => match self.wait_for_seats() {
                Some(seats) => seats,
                None => return Ok(0),
            },
        };
        let ring = self.rings.current();
        let mut head = self.pollers.head.load(Ordering::Relaxed);
        let mut taken = 0;
        while taken < most {
            let entry = ring.entry(head);
            if !entry.holds(head) {
                break;
            }
            let (seat, completion) = entry.read();
            take(taken, &completion, Timestamp(entry));
            head += 1;
            // Stored before the slot is released, because a thread that sees the release must find space here.
            self.pollers.head.store(head, Ordering::Release);
            if let Some(counters) = seats.of(seat) {
                counters.release(completion.side, completion.upto);
            }
            taken += 1;
        }
        // Checked in this order, because completions are pushed before an overflow, but never after it.
        if taken == 0 && self.is_overflowed() && !ring.entry(head).holds(head) {
            return Err(Overflowed);
        }
        Ok(taken)
    }

    /// Waits for the pollers' lock. Returns `None` in a forked child, where a thread of the parent may hold it.
    #[cold]
    #[inline(never)]
    fn wait_for_seats(&self) -> Option<Guard<'_, Seats>> {
        self.made_by.is_current().then(|| self.pollers.seats.lock())
    }

    /// After an empty poll, runs the timers that are due, and receives arrived packets. Returns true if the queue may
    /// have completions now.
    #[inline(always)]
    fn poll_timers(&self) -> bool {
        let looks = self.fabric.timers.is_set();
        if looks {
            self.look_at_clock();
        }
        looks
    }

    /// Polls the link to other processes, if there is one. Looks at the clock on the first empty poll, on every
    /// [`POLLS_PER_LOOK`]th after it, and when another timer has become the first to expire. A look takes as long as a
    /// few polls. In virtual time, lets a moment pass instead.
    #[cold]
    fn look_at_clock(&self) {
        if !self.made_by.is_current() {
            return;
        }
        if self.fabric.simulation.is_some() {
            return self.fabric.advance_one_poll();
        }
        if let Some(link) = self.fabric.polled.get() {
            link.poll();
        }
        let Pollers { empty_polls, deadline_seen, .. } = &*self.pollers;
        let timer = self.fabric.timers.first();
        let known = deadline_seen.load(Ordering::Relaxed) == timer;
        let before = if known { empty_polls.load(Ordering::Relaxed) } else { 0 };
        empty_polls.store(before.wrapping_add(1), Ordering::Relaxed);
        if before.is_multiple_of(POLLS_PER_LOOK) {
            deadline_seen.store(timer, Ordering::Relaxed);
            self.fabric.expire_due_timers();
        }
    }

    pub(crate) fn is_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire) != 0
    }

    pub(crate) fn add_user(&self, id: u64, user: Weak<dyn User>) {
        locked(&self.users).insert(id, user);
    }

    pub(crate) fn remove_user(&self, id: u64) {
        locked(&self.users).remove(&id);
    }
}

impl Settle for CompletionQueue {
    /// Handles a lost completion: reports the first one, and moves the queue pairs that complete here to error. The
    /// queue pairs move one after another, and only `settling` is held meanwhile.
    fn settle(&self) {
        // Nothing that is done under this lock runs the run queue.
        let _settling = locked_for_calls(&self.settling);
        while self.has_lost() {
            self.fail_users();
        }
    }

    /// Settling leaves events, and packets that flushed queue pairs have to send.
    fn leaves_work(&self) -> bool {
        true
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.set_armed(&mut self.producers.lock(), Armed::No);
        self.fabric.run_queue.unreserve();
    }
}

impl CompletionQueue {
    /// Returns true if a completion was lost since the last call. Otherwise removes the queue from the run queue.
    fn has_lost(&self) -> bool {
        let mut producers = self.producers.lock();
        let lost = std::mem::take(&mut producers.lost);
        if !lost && std::mem::take(&mut producers.is_queued) {
            self.fabric.run_queue.remove_settled(std::ptr::from_ref(self).cast());
        }
        lost
    }

    /// Reports the first overflow, and moves all users to error.
    fn fail_users(&self) {
        if self.overflowed.swap(2, Ordering::AcqRel) == 1 {
            self.reporter.report(AsyncEventKind::CQ_ERR);
        }
        let behind = |id| {
            let users = locked(&self.users);
            let mut behind = users.range((Bound::Excluded(id), Bound::Unbounded));
            behind.next().map(|(&id, user)| (id, user.clone()))
        };
        let mut next = behind(0);
        while let Some((id, user)) = next {
            if let Some(user) = user.upgrade() {
                user.completion_is_lost();
            }
            next = behind(id);
        }
    }
}

/// The number of empty polls per look at the clock. In models, every poll looks.
const POLLS_PER_LOOK: u32 = if cfg!(loom) { 1 } else { 64 };
