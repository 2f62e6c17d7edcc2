//! Completion queues: a ring under one lock, and a count that an empty poll reads without it.

use std::sync::{Arc, Weak};

use rdma_sys::{ibv_wc_opcode, ibv_wc_status};

use crate::engine::queue_pair::QueuePair;
use crate::overflow;
use crate::schedule::Deferred;
use crate::sync::{AtomicU32, Line, Lock, Ordering, locked};

/// One completion as the device writes it. What the specification leaves undefined is filled with
/// junk where it is turned into an `ibv_wc`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) wr_id: u64,
    pub(crate) status: ibv_wc_status,
    pub(crate) opcode: ibv_wc_opcode,
    pub(crate) byte_len: u32,
    /// Network order; only with `with_imm`.
    pub(crate) imm: u32,
    pub(crate) with_imm: bool,
    pub(crate) qpn: u32,
    pub(crate) vendor_err: u32,
    /// The queue whose slots this completion gives back, and up to which of its requests.
    pub(crate) side: Side,
    pub(crate) upto: u32,
}

impl Completion {
    const EMPTY: Self = Self {
        wr_id: 0,
        status: ibv_wc_status::IBV_WC_GENERAL_ERR,
        opcode: ibv_wc_opcode::IBV_WC_SEND,
        byte_len: 0,
        imm: 0,
        with_imm: false,
        qpn: 0,
        vendor_err: 0,
        side: Side::Send,
        upto: 0,
    };
}

/// Which of a queue pair's two queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Receive,
}

/// How many requests of each queue have been given back by polled completions (free-running).
///
/// As on hardware, a slot is free again when its completion, or a later one of the same queue, was
/// polled, not when the request was executed.
#[derive(Debug, Default)]
pub(crate) struct Reclaimed {
    send: Line<AtomicU32>,
    receive: Line<AtomicU32>,
}

impl Reclaimed {
    #[inline]
    pub(crate) fn of(&self, side: Side) -> &AtomicU32 {
        match side {
            Side::Send => &self.send,
            Side::Receive => &self.receive,
        }
    }
}

/// A queue pair's place in a completion queue, fixed while it is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seat(u32);

/// One cache line, since producer and consumer are on different cores.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Entry {
    completion: Completion,
    seat: Seat,
}

impl Entry {
    const EMPTY: Self = Self { completion: Completion::EMPTY, seat: Seat(u32::MAX) };
}

/// Small, so that it is on the same cache line as its lock.
#[derive(Debug)]
struct Ring {
    entries: Box<[Entry]>,
    head: u32,
    len: u32,
    seats: Box<Seats>,
}

/// The attached queue pairs' counters; a queue pair that uses the queue for both sides sits twice.
#[derive(Debug, Default)]
struct Seats {
    counters: Vec<Option<Arc<Reclaimed>>>,
    free: Vec<u32>,
}

impl Ring {
    /// The number of entries, which is not 0.
    #[inline]
    fn size(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// The place of the `offset`th entry behind the head; `offset` is at most the size.
    #[inline]
    fn place(&self, offset: u32) -> usize {
        let (place, size) = (self.head + offset, self.size());
        (if place >= size { place - size } else { place }) as usize
    }
}

/// The completion queue overflowed: a completion was lost, and it is in error for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overflowed;

#[derive(Debug)]
pub(crate) struct CompletionQueue {
    deferred: Option<&'static Deferred>,
    /// On its own lines: an empty poll must not slow a producer down.
    ready: Line<AtomicU32>,
    overflowed: Line<AtomicU32>,
    ring: Line<Lock<Ring>>,
    /// Those who go to error with this queue.
    users: std::sync::Mutex<Vec<Weak<QueuePair>>>,
}

impl CompletionQueue {
    /// A queue for `capacity` completions; polling it drives the deferred work of its device.
    pub(crate) fn new(capacity: u32, deferred: Option<&'static Deferred>) -> Self {
        let entries = vec![Entry::EMPTY; capacity as usize].into_boxed_slice();
        let ring = Ring { entries, head: 0, len: 0, seats: Box::default() };
        Self {
            deferred,
            ready: Line::default(),
            overflowed: Line::default(),
            ring: Line(Lock::new(ring)),
            users: std::sync::Mutex::default(),
        }
    }

    /// A poll is a moment at which a deferred schedule may execute something.
    #[inline]
    pub(crate) fn step_deferred(&self) {
        if let Some(deferred) = self.deferred {
            deferred.step();
        }
    }

    /// Lets completions of `counters`' queue pair in.
    pub(crate) fn attach(&self, counters: &Arc<Reclaimed>) -> Seat {
        let seats = &mut self.ring.lock().seats;
        let counters = Some(Arc::clone(counters));
        if let Some(seat) = seats.free.pop() {
            seats.counters[seat as usize] = counters;
            return Seat(seat);
        }
        seats.counters.push(counters);
        // Detaching then never allocates.
        let count = seats.counters.len();
        seats.free.reserve(count);
        Seat(u32::try_from(count - 1).unwrap_or(u32::MAX))
    }

    /// Removes the queue pair and the completions it still has here.
    pub(crate) fn detach(&self, seat: Seat) {
        let mut ring = self.ring.lock();
        self.purge_locked(&mut ring, seat);
        ring.seats.counters[seat.0 as usize] = None;
        ring.seats.free.push(seat.0);
    }

    /// Drops the completions of a queue pair that was reset.
    pub(crate) fn purge(&self, seat: Seat) {
        let mut ring = self.ring.lock();
        self.purge_locked(&mut ring, seat);
    }

    fn purge_locked(&self, ring: &mut Ring, seat: Seat) {
        let mut kept = 0;
        for offset in 0..ring.len {
            let entry = ring.entries[ring.place(offset)];
            if entry.seat != seat {
                let place = ring.place(kept);
                ring.entries[place] = entry;
                kept += 1;
            }
        }
        ring.len = kept;
        self.ready.store(kept, Ordering::Release);
    }

    /// Adds a completion. On overflow it is lost and the queue is in error: the caller, once it
    /// holds no lock, [settle](overflow::settle).
    #[inline(always)]
    pub(crate) fn push(self: &Arc<Self>, seat: Seat, completion: Completion) {
        let mut ring = self.ring.lock();
        if ring.len == ring.size() || self.is_overflowed() {
            return self.overflow();
        }
        let tail = ring.place(ring.len);
        ring.entries[tail] = Entry { completion, seat };
        ring.len += 1;
        self.ready.store(ring.len, Ordering::Release);
    }

    #[cold]
    fn overflow(self: &Arc<Self>) {
        self.overflowed.store(1, Ordering::Release);
        // Each time: the loser may have come to this queue, or back from a reset, after the first.
        overflow::note(self);
    }

    /// Takes up to `most` completions, oldest first, gives their slots back, and hands each to
    /// `take`. After an overflow the error comes once the completions that were kept are taken.
    #[inline]
    pub(crate) fn poll(
        &self,
        most: u32,
        mut take: impl FnMut(u32, &Completion),
    ) -> Result<u32, Overflowed> {
        if self.ready.load(Ordering::Acquire) == 0 {
            if !self.is_overflowed() {
                return Ok(0);
            }
            // Completions may have come between the two looks; none come after an overflow.
            if self.ready.load(Ordering::Acquire) == 0 {
                return Err(Overflowed);
            }
        }
        let mut ring = self.ring.lock();
        let ring = &mut *ring;
        let taken = most.min(ring.len);
        for n in 0..taken {
            let Entry { completion, seat } = &ring.entries[ring.place(n)];
            if let Some(counters) = &ring.seats.counters[seat.0 as usize] {
                counters.of(completion.side).store(completion.upto, Ordering::Release);
            }
            take(n, completion);
        }
        ring.head = u32::try_from(ring.place(taken)).unwrap_or(0);
        ring.len -= taken;
        self.ready.store(ring.len, Ordering::Release);
        Ok(taken)
    }

    pub(crate) fn is_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire) != 0
    }

    /// The `n`th queue pair that completes here, counted from 0, for walking them without a lock
    /// held: walk downwards, since removal moves the last one into the gap.
    pub(crate) fn user(&self, n: usize) -> Option<Arc<QueuePair>> {
        locked(&self.users).get(n).and_then(Weak::upgrade)
    }

    pub(crate) fn users(&self) -> usize {
        locked(&self.users).len()
    }

    pub(crate) fn add_user(&self, user: Weak<QueuePair>) {
        locked(&self.users).push(user);
    }

    pub(crate) fn remove_user(&self, user: &Weak<QueuePair>) {
        let mut users = locked(&self.users);
        if let Some(n) = users.iter().position(|other| other.ptr_eq(user)) {
            users.swap_remove(n);
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
