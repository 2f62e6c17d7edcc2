//! The completion queue: a ring whose entries say themselves that they are filled.
//!
//! Producers and pollers have a lock each, and neither touches the other's lines: a poller learns of a
//! completion from its entry, and a producer asks for the pollers' head only where the queue looks
//! full. An empty poll takes no lock.

use std::collections::BTreeMap;
use std::ops::Bound;
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

/// A queue pair that completes here.
pub(crate) trait User: Send + Sync + std::fmt::Debug {
    /// The queue has lost a completion, of this queue pair or another one: moves it to the error state.
    fn completion_is_lost(&self);
}

/// The completion queue overflowed: a completion was lost, and it is in error for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overflowed;

/// Completions are numbered from 0 as they come; those that are dropped give their numbers back.
#[derive(Debug, Default)]
pub(super) struct Producers {
    /// How many completions may be there.
    pub(super) capacity: u64,
    /// The number of the next completion.
    pub(super) tail: u64,
    /// Where the pollers' head was when it was last asked for.
    pub(super) head: u64,
    armed: Armed,
    /// A completion was lost, since the queue was last [settled](Settle).
    lost: bool,
    /// The queue stands in the run queue.
    left: bool,
}

/// Which completion the next event is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Armed {
    #[default]
    No,
    Solicited,
    Any,
}

/// A completion queue's events: where they go, and what names the queue there.
#[derive(Debug)]
pub(crate) struct Notifier {
    pub(crate) channel: Arc<EventQueue<Handle>>,
    pub(crate) handle: OnceLock<Handle>,
}

#[derive(Debug, Default)]
pub(super) struct Pollers {
    /// The number of the oldest completion, changed under the lock.
    pub(super) head: AtomicU64,
    pub(super) seats: Lock<Seats>,
    /// How many polls found nothing, one after the other, while a timer was set.
    in_vain: AtomicU32,
    /// The time of the first timer when the last of them looked at the clock.
    deadline_seen: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) fabric: &'static Fabric,
    /// The process whose polls drive the fabric. Threads of the parent may have held any lock when a child was forked.
    made_by: Process,
    deferred: Option<&'static Deferred>,
    /// With at least as many entries as the capacity, which is watched apart.
    pub(super) rings: Rings,
    overflowed: AtomicU32,
    /// Held by the thread that moves users to error: others wait until it has. It comes before all locks of the engine.
    settling: Mutex<()>,
    pub(super) producers: Line<Lock<Producers>>,
    /// Who has this lock and that of the producers has this one first.
    pub(super) pollers: Line<Pollers>,
    /// The queue pairs that go to error if this queue overflows.
    users: std::sync::Mutex<BTreeMap<u64, Weak<dyn User>>>,
    /// Each completion is stamped with the time at which it came.
    timestamps: bool,
    /// Without a completion channel there is nobody to notify.
    notifier: Option<Notifier>,
    /// Where the overflow is reported.
    reporter: Reporter,
}

impl CompletionQueue {
    /// A queue for `capacity` completions; polling it drives the deferred work of its device.
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

    /// Adds those who are informed of its events.
    pub(crate) fn with_events(mut self, notifier: Option<Notifier>, reporter: Reporter) -> Self {
        (self.notifier, self.reporter) = (notifier, reporter);
        self
    }

    /// Sets whether it keeps the time at which each completion comes.
    pub(crate) fn with_timestamps(mut self, timestamps: bool) -> Self {
        self.timestamps = timestamps;
        self
    }

    /// A poll is a moment at which a deferred schedule may execute something.
    #[inline]
    pub(crate) fn step_deferred(&self) {
        if let Some(deferred) = self.deferred
            && self.made_by.is_current()
        {
            deferred.step();
        }
    }

    /// Lets completions of `counters`' queue pair in.
    pub(crate) fn attach(&self, counters: &Arc<Reclaimed>) -> Seat {
        self.pollers.seats.lock().take(counters)
    }

    /// Removes the queue pair and the completions it still has here.
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

    /// Moves what is kept together, under both locks; that of the pollers is held by the caller.
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
        // At the end: what is kept must at no time look empty to a poll without the lock.
        for number in kept..producers.tail {
            ring.entry(number).drop_number(number);
        }
        producers.tail = kept;
    }

    /// Adds a completion. On overflow it is lost and the queue is in error: the caller, once it
    /// holds no lock, [settles](Fabric::run_queue).
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

    /// Sends the event that was asked for, if it was for a completion such as the one that came.
    #[cold]
    fn disarm(&self, mut producers: Guard<'_, Producers>, solicited: bool) {
        if producers.armed == Armed::Any || solicited {
            producers.armed = Armed::No;
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

    /// Asks for one event: for the next completion, or the next solicited one. What is there already
    /// counts for nothing; the wider of two requests holds (man ibv_req_notify_cq).
    pub(crate) fn request_event(&self, solicited_only: bool) {
        let mut producers = self.producers.lock();
        producers.armed = match (solicited_only, producers.armed) {
            (true, Armed::No | Armed::Solicited) => Armed::Solicited,
            _ => Armed::Any,
        };
        drop(producers);
        if self.fabric.simulation.is_some() {
            self.let_time_pass();
        } else if self.fabric.timers.is_set() {
            // The program is about to sleep, most likely.
            self.fabric.poller_sleeps();
        }
    }

    /// The program is about to sleep, most likely, and in virtual time nothing comes meanwhile: what is due
    /// next comes now, and if there was something, the program does not sleep.
    #[cold]
    fn let_time_pass(&self) {
        if self.fabric.step()
            && let Some(notifier) = &self.notifier
        {
            notifier.channel.wake();
        }
    }

    /// Names the queue in its events.
    pub(crate) fn name(&self, handle: Handle) {
        if let Some(notifier) = &self.notifier {
            // Named once, when its block is made.
            let _ = notifier.handle.set(handle);
        }
        self.reporter.name(handle);
    }

    /// Removes the events that were not taken yet: the queue goes away, and nothing completes here any
    /// more.
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
        // Acquired, so that the entry was read before it is written again.
        producers.head = self.pollers.head.load(Ordering::Acquire);
        producers.tail - producers.head < producers.capacity
    }

    #[cold]
    fn overflow(self: &Arc<Self>, producers: &mut Producers) {
        // 2 once it was reported.
        self.overflowed.fetch_max(1, Ordering::AcqRel);
        // Each time: the loser may have come to this queue, or back from a reset, after the first.
        producers.lost = true;
        if !std::mem::replace(&mut producers.left, true) {
            self.fabric.run_queue.leave(Arc::<Self>::clone(self));
        }
    }

    /// Takes up to `most` completions, oldest first, hands each to `take`, which may ask when it came,
    /// and gives their slots back. After an overflow the error comes once the completions that were
    /// kept are taken.
    #[inline]
    pub(crate) fn poll(
        &self,
        most: u32,
        mut take: impl FnMut(u32, &Completion, Timestamp<'_>),
    ) -> Result<u32, Overflowed> {
        // Before the ring: with a head from after a resize the ring is from after it, too.
        let head = self.pollers.head.load(Ordering::Acquire);
        if self.rings.current().entry(head).is_behind(head) && !self.is_overflowed() {
            // What came meanwhile is for this poll.
            if !self.see_to_timers() || self.rings.current().entry(head).is_behind(head) {
                return Ok(0);
            }
        }
        self.pollers.in_vain.store(0, Ordering::Relaxed);
        let seats = match self.pollers.seats.lock_if(|| false) {
            Some(seats) => seats,
            // The check of the process stays out of the polls that find the lock free.
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
            // Before its slot is given back: whoever sees that must find room here.
            self.pollers.head.store(head, Ordering::Release);
            if let Some(counters) = seats.of(seat) {
                counters.give_back(completion.side, completion.upto);
            }
            taken += 1;
        }
        // Looked at in this order, since completions come before an overflow, but none after it.
        if taken == 0 && self.is_overflowed() && !ring.entry(head).holds(head) {
            return Err(Overflowed);
        }
        Ok(taken)
    }

    /// Waits for the lock of the pollers, unless a thread of the parent process may hold it.
    #[cold]
    #[inline(never)]
    fn wait_for_seats(&self) -> Option<Guard<'_, Seats>> {
        self.made_by.is_current().then(|| self.pollers.seats.lock())
    }

    /// A poll that found nothing sees to timers whose time has come, and to what has come. Says whether there may be
    /// something now.
    #[inline(always)]
    fn see_to_timers(&self) -> bool {
        let looks = self.fabric.timers.is_set();
        if looks {
            self.look_at_clock();
        }
        looks
    }

    /// At the first such poll, and then at each [`LOOKS_APART`]th until another timer is the first: a look at the
    /// clock takes as long as some polls.
    #[cold]
    fn look_at_clock(&self) {
        if !self.made_by.is_current() {
            return;
        }
        if self.fabric.simulation.is_some() {
            return self.fabric.pass_moment();
        }
        if let Some(link) = self.fabric.polled.get() {
            link.poll();
        }
        let Pollers { in_vain, deadline_seen, .. } = &*self.pollers;
        let timer = self.fabric.timers.first();
        let known = deadline_seen.load(Ordering::Relaxed) == timer;
        let before = if known { in_vain.load(Ordering::Relaxed) } else { 0 };
        in_vain.store(before.wrapping_add(1), Ordering::Relaxed);
        if before.is_multiple_of(LOOKS_APART) {
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
    /// A completion was lost: says so, the first time, and moves the queue pairs that complete here to
    /// error, one after the other, so that no lock is held over them.
    fn settle(&self) {
        // Nothing that is done under it runs the queue.
        let _settling = locked_for_calls(&self.settling);
        while self.has_lost() {
            self.fail_users();
        }
    }

    /// Events, and what flushed queue pairs have to send.
    fn leaves_work(&self) -> bool {
        true
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.fabric.run_queue.unreserve();
    }
}

impl CompletionQueue {
    /// Returns whether a completion was lost since it last said so; if none was, the queue leaves the run queue.
    fn has_lost(&self) -> bool {
        let mut producers = self.producers.lock();
        let lost = std::mem::take(&mut producers.lost);
        if !lost && std::mem::take(&mut producers.left) {
            self.fabric.run_queue.forget(std::ptr::from_ref(self).cast());
        }
        lost
    }

    /// Reports the overflow, the first time, and moves all users to error.
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

/// In models each poll counts.
const LOOKS_APART: u32 = if cfg!(loom) { 1 } else { 64 };
