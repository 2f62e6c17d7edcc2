//! Work that a thread leaves until it holds no lock, of several kinds. The first of them gave this
//! file its name: the queue pairs of a completion queue that overflowed go to error, which takes
//! their locks. The files of events become readable and captures get their packets, by a system call. Queue pairs
//! and inboxes with packets get their turns, and a program is informed of packets that were
//! dropped.

use std::sync::{Arc, Weak};

use crate::fabric::stalls;
use crate::fabric::tellers::{self, Tells};
use crate::fabric::turns::{self, Driven, Place, Row};
use crate::sync::{
    AtomicUsize, Held, Mutex, MutexGuard, Ordering, locked_for_calls, locked_in_models,
};

/// Something that a thread which holds locks has left to be done.
pub(crate) trait Settle: Send + Sync + std::fmt::Debug {
    /// Does it. When this returns all is done that was left when it was called, by this thread or another.
    /// The caller holds no lock.
    fn settle(&self);
}

#[derive(Debug)]
struct Due {
    /// Completion queues that overflowed.
    failed: Vec<Arc<dyn Settle>>,
    /// Event queues, each once, until its file is readable; and captures, until their packets are in the file.
    events: Vec<Arc<dyn Settle>>,
    /// Who has packets to send or to take.
    turns: Row,
    /// Who has to tell of packets that did not get through.
    notices: Vec<&'static dyn Tells>,
    /// One while a completion queue of `failed` was taken, and is not settled yet.
    settling: usize,
    /// How many queues of each kind there are: there is space for them all, so that noting one does
    /// not allocate.
    completion_queues: usize,
    event_queues: usize,
}

impl Due {
    const NOTHING: Self = Self {
        failed: Vec::new(),
        events: Vec::new(),
        turns: Row::new(),
        notices: Vec::new(),
        settling: 0,
        completion_queues: 0,
        event_queues: 0,
    };
}

/// What is due alone most often.
#[derive(Clone, Copy)]
enum Kind {
    Turns,
    Events,
}

/// All that is to be done, in the fabric.
#[derive(Debug)]
pub(crate) struct Unsettled {
    due: Mutex<Due>,
    /// How many are noted.
    count: AtomicUsize,
    /// Held by who settles completion queues: others wait until what it took is settled. It comes before all
    /// locks of the engine.
    alone: Mutex<()>,
}

impl Unsettled {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        let due = Mutex::new(Due::NOTHING);
        Self { due, count: AtomicUsize::new(0), alone: Mutex::new(()) }
    }

    /// As above; the primitives of loom have no `const fn new`.
    #[cfg(loom)]
    pub(super) fn new() -> Self {
        let due = Mutex::new(Due::NOTHING);
        Self { due, count: AtomicUsize::new(0), alone: Mutex::new(()) }
    }

    fn lock(&self) -> Held<MutexGuard<'_, Due>> {
        locked_in_models(&self.due)
    }

    fn count(&self, due: &Due) {
        let queues = due.failed.len() + due.events.len() + due.settling;
        let count = queues + due.turns.len() + due.notices.len();
        self.count.store(count, Ordering::Release);
    }

    /// Makes space for one more completion queue.
    pub(crate) fn reserve(&self) {
        let due = &mut *self.lock();
        due.completion_queues += 1;
        due.failed.reserve(due.completion_queues - due.failed.len().min(due.completion_queues));
    }

    pub(crate) fn unreserve(&self) {
        self.lock().completion_queues -= 1;
    }

    /// Makes space for one more event queue.
    pub(crate) fn reserve_events(&self) {
        let due = &mut *self.lock();
        due.event_queues += 1;
        due.events.reserve(due.event_queues - due.events.len().min(due.event_queues));
    }

    pub(crate) fn unreserve_events(&self) {
        self.lock().event_queues -= 1;
    }

    /// Notes that a queue lost a completion.
    pub(crate) fn note(&self, queue: Arc<dyn Settle>) {
        let mut due = self.lock();
        if !due.failed.iter().any(|other| std::ptr::addr_eq(&raw const **other, &raw const *queue))
        {
            due.failed.push(queue);
        }
        self.count(&due);
    }

    /// Notes that the file of a queue is not readable for its events yet, or packets of a capture are not in its file; it is not noted
    /// yet.
    pub(crate) fn note_events(&self, queue: Arc<dyn Settle>) {
        let mut due = self.lock();
        due.events.push(queue);
        self.count(&due);
    }

    /// Has somebody get a turn who has packets to send or to take. Any lock may be held.
    pub(crate) fn note_turn<D: Driven + 'static>(&self, driven: &Arc<D>) {
        self.note_turn_at(driven.place(), || Arc::<D>::downgrade(driven));
    }

    /// Like [`note_turn`](Self::note_turn), for a trait object.
    pub(crate) fn note_turn_of(&self, driven: &Arc<dyn Driven>) {
        self.note_turn_at(driven.place(), || Arc::downgrade(driven));
    }

    /// Like [`note_turn`](Self::note_turn), by a place. `driven` is called only if that is free.
    pub(crate) fn note_turn_at(&self, place: &Place, driven: impl FnOnce() -> Weak<dyn Driven>) {
        if place.take() {
            let mut due = self.lock();
            due.turns.push(driven());
            self.count(&due);
        }
    }

    /// Notes that events are due.
    pub(crate) fn note_notices(&self, one: &'static dyn Tells) {
        let mut due = self.lock();
        due.notices.push(one);
        self.count(&due);
    }

    /// Forgets a queue whose file is readable if there are events, or a capture.
    pub(crate) fn forget_events(&self, queue: *const ()) {
        let mut due = self.lock();
        if let Some(n) =
            due.events.iter().position(|other| Arc::as_ptr(other).cast::<()>() == queue)
        {
            let forgotten = due.events.swap_remove(n);
            self.count(&due);
            drop(due);
            drop(forgotten);
        }
    }

    /// Gives turns to those who have packets to send or to take, as many as one thread has time for, moves the
    /// queue pairs of every queue that overflowed to error, and has the file of each event readable, and each packet of a capture in its file. The caller holds no lock.
    #[inline]
    pub(crate) fn settle(&self) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.settle_all();
        }
    }

    #[cold]
    fn settle_all(&self) {
        stalls::here();
        // Most often all that is due is of one kind.
        match self.only_kind() {
            Some(Kind::Turns) => {
                self.give_turns();
                if self.count.load(Ordering::Acquire) == 0 {
                    return;
                }
            }
            Some(Kind::Events) => return self.settle_events(),
            None => {}
        }
        self.settle_failed();
        self.give_turns();
        self.settle_failed();
        self.settle_events();
        self.tell();
    }

    /// Of what kind all is that is due, if it is one of these.
    fn only_kind(&self) -> Option<Kind> {
        let due = self.lock();
        if !due.failed.is_empty() || due.settling != 0 || !due.notices.is_empty() {
            return None;
        }
        match (due.turns.len(), due.events.len()) {
            (_, 0) => Some(Kind::Turns),
            (0, _) => Some(Kind::Events),
            _ => None,
        }
    }

    fn settle_events(&self) {
        // Downwards, since who is forgotten is replaced by the last; what others add meanwhile is theirs.
        let count = self.lock().events.len();
        for n in (0..count).rev() {
            let queue = self.lock().events.get(n).map(Arc::clone);
            if let Some(queue) = queue {
                queue.settle();
            }
        }
    }

    fn tell(&self) {
        let mut due = self.lock();
        let who = std::mem::take(&mut due.notices);
        self.count(&due);
        drop(due);
        if !who.is_empty() {
            tellers::tell(&who);
        }
    }

    fn settle_failed(&self) {
        let due = self.lock();
        let nothing = due.failed.is_empty() && due.settling == 0;
        drop(due);
        if nothing {
            return;
        }
        // Nothing that is done under it settles.
        let _alone = locked_for_calls(&self.alone);
        loop {
            let mut due = self.lock();
            let queue = due.failed.pop();
            due.settling = usize::from(queue.is_some());
            self.count(&due);
            drop(due);
            let Some(queue) = queue else { break };
            queue.settle();
        }
    }

    /// What is left when this returns is called for by an alarm.
    fn give_turns(&self) {
        for _ in 0..turns::AT_ONCE {
            let mut due = self.lock();
            let Some(next) = due.turns.pop() else { return };
            self.count(&due);
            drop(due);
            let Some(driven) = next.upgrade() else { continue };
            stalls::here();
            driven.place().give_back();
            stalls::here();
            if Arc::clone(&driven).take_turn() {
                self.note_turn_of(&driven);
            }
        }
        let first = self.lock().turns.first();
        if let Some(first) = first {
            first.call();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    use crate::engine::events::EventQueue;
    use crate::fabric::Fabric;

    /// Whose file is readable is kept no longer, and nobody else is forgotten.
    #[test]
    fn a_queue_is_noted_until_its_file_is_readable() {
        static FABRIC: Fabric = Fabric::new();
        let queues = [(); 3].map(|()| EventQueue::new(&FABRIC).unwrap());
        let noted = || queues.each_ref().map(|queue| Arc::strong_count(queue) > 1);
        queues.iter().for_each(|queue| queue.push(1_u32));
        assert_eq!(noted(), [true; 3]);
        queues[1].settle();
        assert_eq!(noted(), [true, false, true]);
        FABRIC.unsettled.settle();
        assert_eq!(noted(), [false; 3]);
        assert_eq!(FABRIC.unsettled.count.load(Ordering::Relaxed), 0);
    }

    /// Settles when it is let, and says when it has begun and when it is done.
    #[derive(Debug)]
    struct Slow {
        begun: Barrier,
        go_on: Barrier,
        done: AtomicBool,
    }

    impl Settle for Slow {
        fn settle(&self) {
            self.begun.wait();
            self.go_on.wait();
            self.done.store(true, Ordering::Release);
        }
    }

    /// Another thread has begun with what this one has left: it is done when this one has settled.
    #[test]
    fn what_another_thread_settles_is_waited_for() {
        static FABRIC: Fabric = Fabric::new();
        let (begun, go_on) = (Barrier::new(2), Barrier::new(2));
        let slow = Arc::new(Slow { begun, go_on, done: AtomicBool::new(false) });
        FABRIC.unsettled.reserve();
        FABRIC.unsettled.note(Arc::clone(&slow) as Arc<dyn Settle>);
        let other = thread::spawn(|| FABRIC.unsettled.settle());
        slow.begun.wait();
        assert_ne!(FABRIC.unsettled.count.load(Ordering::Relaxed), 0, "who settles now goes on");
        let this = thread::spawn({
            let slow = Arc::clone(&slow);
            move || {
                FABRIC.unsettled.settle();
                slow.done.load(Ordering::Acquire)
            }
        });
        slow.go_on.wait();
        assert!(this.join().unwrap(), "it went on before what it had left was done");
        other.join().unwrap();
    }
}
