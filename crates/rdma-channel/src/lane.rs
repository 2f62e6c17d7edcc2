//! A queue pair with the places for its requests.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::iter;
use std::ops::Range;

use rdma_qp::QueuePair;

use crate::CloseReason;
use crate::table::{At, Table};

/// What the queues of a lane were asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// How many requests the send queue holds.
    pub(crate) sends: u32,
    /// How many receives there can be.
    pub(crate) receives: u32,
    /// Each request of the send queue makes a completion, whatever it says.
    pub(crate) signals_all: bool,
}

/// The slots of one queue, in a ring.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The slot for the next request. The dead one, if there is more to look at than whether it is free: the lane
    /// is closed, or has silent requests.
    cursor: Cell<At>,
    /// The slot for the next request, while the cursor is at the dead one.
    parked: Cell<At>,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Ring {
    /// So many slots of the table from `first` on, one behind the other.
    fn new(table: &Table, first: u32, count: u32) -> Self {
        let last = first + count.saturating_sub(1);
        for index in first..last {
            table.link(index as usize, index as usize + 1);
        }
        let next = if count == 0 {
            table.at(0)
        } else {
            table.link(last as usize, first as usize);
            table.at(first as usize)
        };
        Self { cursor: Cell::new(next), parked: Cell::new(next), first, count }
    }

    #[inline(always)]
    pub(crate) const fn cursor(&self) -> At {
        self.cursor.get()
    }

    /// Puts another slot at the cursor, where a free one has been taken.
    #[inline(always)]
    pub(crate) fn advance(&self, next: At) {
        self.cursor.set(next);
    }

    pub(crate) const fn slots(&self) -> Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }
}

/// One queue pair of a table.
#[derive(Debug)]
pub(crate) struct Lane {
    /// `None` when it had to be destroyed: then the cursors are at the dead slot.
    qp: Option<QueuePair>,
    pub(crate) send: Ring,
    pub(crate) receive: Ring,
    /// The id of the last request of the send queue, if that is silent; else 0.
    pub(crate) silent: Cell<u64>,
    /// How many silent requests are at the end of the send queue.
    pub(crate) run: Cell<u32>,
    /// How many would be too many there.
    too_many: u32,
    pub(crate) closed: Cell<Option<CloseReason>>,
    /// The slot that no request is ever in.
    dead: At,
}

impl Lane {
    /// A queue pair whose requests have these slots of the table, from which on, and how many: to send, and behind
    /// them to receive.
    pub(crate) fn new(qp: Option<QueuePair>, table: &Table, first: u32, asked: Asked) -> Self {
        let Asked { sends, receives, signals_all } = asked;
        let lane = Self {
            qp,
            send: Ring::new(table, first, sends),
            receive: Ring::new(table, first + sends, receives),
            silent: Cell::new(0),
            run: Cell::new(0),
            // One request is signaled in each half of the queue.
            too_many: if signals_all { 1 } else { sends / 2 },
            closed: Cell::new(None),
            dead: table.at(0),
        };
        if lane.qp.is_none() {
            lane.park(&lane.send);
            lane.park(&lane.receive);
        }
        lane
    }

    /// If it is not destroyed.
    pub(crate) const fn qp(&self) -> Option<&QueuePair> {
        self.qp.as_ref()
    }

    /// The queue pair, which is there.
    ///
    /// # Safety
    /// One of its cursors is at a free slot.
    #[inline(always)]
    pub(crate) const unsafe fn open_qp(&self) -> &QueuePair {
        // SAFETY: SAFETY.md F23: without it the cursors would be at the dead slot, which is not free.
        unsafe { self.qp.as_ref().unwrap_unchecked() }
    }

    /// Takes it out, to destroy it.
    pub(crate) fn take_qp(&mut self) -> Option<QueuePair> {
        self.park(&self.send);
        self.park(&self.receive);
        self.qp.take()
    }

    /// Puts back what could not be destroyed.
    pub(crate) fn put_back(&mut self, qp: QueuePair) {
        self.qp = Some(qp);
        self.unpark(&self.receive);
        if self.silent.get() == 0 {
            self.unpark(&self.send);
        }
    }

    /// Takes no more requests. The first reason stays.
    #[cold]
    pub(crate) fn close(&self, reason: CloseReason) {
        if self.closed.get().is_none() {
            self.closed.set(Some(reason));
        }
        self.park(&self.send);
        self.park(&self.receive);
    }

    /// Where the slot for the next request of a ring is, if that is free.
    pub(crate) fn next(&self, ring: &Ring) -> At {
        if ring.cursor.get() == self.dead { ring.parked.get() } else { ring.cursor.get() }
    }

    /// Puts the slot that comes next behind a ring's cursor.
    pub(crate) fn advance(&self, ring: &Ring, next: At) {
        if ring.cursor.get() == self.dead {
            ring.parked.set(next);
        } else {
            ring.cursor.set(next);
        }
    }

    fn park(&self, ring: &Ring) {
        ring.parked.set(self.next(ring));
        ring.cursor.set(self.dead);
    }

    fn unpark(&self, ring: &Ring) {
        if self.qp.is_some() && self.closed.get().is_none() {
            ring.cursor.set(self.next(ring));
        }
    }

    /// Notes that a request of the send queue is silent.
    pub(crate) fn begin_silence(&self, id: u64) {
        self.silent.set(id);
        self.run.set(self.run.get() + 1);
        self.park(&self.send);
    }

    /// Notes that a request of the send queue tells of the silent ones before it.
    pub(crate) fn end_silence(&self) {
        self.silent.set(0);
        self.run.set(0);
        self.unpark(&self.send);
    }

    /// Whether behind so many silent requests another one cannot be silent.
    #[inline]
    pub(crate) const fn has_to_signal(&self, run: u32) -> bool {
        run + 1 >= self.too_many
    }
}

/// The queue pairs of a table.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// Where a channel finds its only one without asking. Without a queue pair, if there is none.
    pub(crate) first: Lane,
    others: Box<[Lane]>,
    count: usize,
}

impl Lanes {
    /// The lanes for these queue pairs.
    pub(crate) fn new(mut lanes: impl ExactSizeIterator<Item = Lane>, table: &Table) -> Self {
        let count = lanes.len();
        let first = lanes.next().unwrap_or_else(|| Lane::new(None, table, 0, Asked::default()));
        Self { first, others: lanes.collect(), count }
    }

    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(crate) fn get(&self, peer: usize) -> Option<&Lane> {
        match peer.checked_sub(1) {
            None => (self.count > 0).then_some(&self.first),
            Some(other) => self.others.get(other),
        }
    }

    pub(crate) fn get_mut(&mut self, peer: usize) -> Option<&mut Lane> {
        match peer.checked_sub(1) {
            None => (self.count > 0).then_some(&mut self.first),
            Some(other) => self.others.get_mut(other),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        iter::once(&self.first).take(self.count).chain(&self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Slot;

    #[test]
    fn rings_go_round_and_a_lane_without_a_queue_pair_has_no_slot_at_hand() {
        let table = Table::new((1..=5).map(|index| Slot::new(index, 0)));
        let asked = Asked { sends: 3, receives: 2, signals_all: false };
        let lane = Lane::new(None, &table, 1, asked);
        for (ring, first, last) in [(&lane.send, 1, 3), (&lane.receive, 4, 5)] {
            assert_eq!((ring.cursor(), lane.next(ring)), (table.at(0), table.at(first)));
            assert_eq!(table[last].next.get(), table.at(first));
            assert_eq!(table[first].next.get(), table.at(first + 1));
            lane.advance(ring, table.at(last));
            lane.unpark(ring);
            assert_eq!((ring.cursor(), lane.next(ring)), (table.at(0), table.at(last)));
        }
        lane.begin_silence(1);
        lane.end_silence();
        assert_eq!((lane.send.cursor(), lane.silent.get()), (table.at(0), 0));
    }

    #[test]
    fn a_queue_without_room_has_only_the_dead_slot() {
        let table = Table::new([]);
        let lane = Lane::new(None, &table, 1, Asked::default());
        assert_eq!((lane.next(&lane.send), lane.receive.slots()), (table.at(0), 1..1));
        assert_eq!(Lanes::new(std::iter::empty(), &table).iter().count(), 0);
    }

    #[test]
    fn half_a_queue_has_a_signaled_request_or_all_are() {
        let table = Table::new((1..=100).map(|index| Slot::new(index, 0)));
        let longest = |sends, signals_all| {
            let asked = Asked { sends, receives: 0, signals_all };
            let lane = Lane::new(None, &table, 1, asked);
            (0..).take_while(|&run| !lane.has_to_signal(run)).count()
        };
        assert_eq!([0, 1, 2, 3, 4, 5, 8].map(|sends| longest(sends, false)), [0, 0, 0, 0, 1, 1, 3]);
        assert_eq!([0, 4, 100].map(|sends| longest(sends, true)), [0; 3]);
    }
}
