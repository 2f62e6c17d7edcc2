//! One completion in the memory of a queue.

use rdma_types::{WcOpcode, WcStatus};

use crate::engine::completion::work_completion::{Completion, Side, Source};
use crate::fabric::clock::{Clock, Time};
use crate::sync::{AtomicU64, Ordering};

/// A queue pair's place in a completion queue, fixed while the queue pair is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seat(pub(super) u32);

/// Marks the completion of a receive request. This is the bit above the completion's flags, which use the lowest four
/// bits.
const OF_RECEIVE: u32 = 0x10;

/// A slot for one completion. As on hardware, the slot itself shows whether it is filled, so only one cache line moves
/// from the producer's core to the poller's.
///
/// The fields are atomics, because a poller may read them while they are written. Once an acquire load shows that the
/// entry is filled, the poller owns the entry until the next write. The writes are relaxed, so they cost nothing extra.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct CompletionEntry {
    /// One more than the number of the completion held here, or that number itself once the completion was dropped. So
    /// while the queue's head is at this entry and the entry is empty, this is at most the head.
    filled: AtomicU64,
    wr_id: AtomicU64,
    status_opcode: AtomicU64,
    length_imm: AtomicU64,
    qpn_vendor: AtomicU64,
    upto_seat: AtomicU64,
    flags_source: AtomicU64,
    /// The time of arrival, if the queue records it.
    timestamp: AtomicU64,
}

impl CompletionEntry {
    /// Returns true if the entry holds completion `number`.
    #[inline(always)]
    pub(super) fn holds(&self, number: u64) -> bool {
        self.filled.load(Ordering::Acquire) == number + 1
    }

    /// Returns true if the entry is empty for a queue whose head is `number`. If the head has advanced since it was
    /// read, the entry may be filled again, and this returns false.
    #[inline(always)]
    pub(super) fn is_behind(&self, number: u64) -> bool {
        self.filled.load(Ordering::Acquire) <= number
    }

    #[inline(always)]
    pub(super) fn put(&self, seat: Seat, completion: &Completion) {
        let c = completion;
        let of_receive = if c.side == Side::Receive { OF_RECEIVE } else { 0 };
        self.wr_id.store(c.wr_id, Ordering::Relaxed);
        self.status_opcode.store(pair(c.status.raw(), c.opcode.raw()), Ordering::Relaxed);
        self.length_imm.store(pair(c.byte_len, c.imm), Ordering::Relaxed);
        self.qpn_vendor.store(pair(c.qpn, c.vendor_err), Ordering::Relaxed);
        self.upto_seat.store(pair(c.upto, seat.0), Ordering::Relaxed);
        let flags = u64::from(of_receive | c.flags);
        self.flags_source.store(flags | pack(c.source), Ordering::Relaxed);
    }

    /// Publishes completion `number`.
    #[inline(always)]
    pub(super) fn publish(&self, number: u64) {
        self.filled.store(number + 1, Ordering::Release);
    }

    /// Returns the completion. The caller has checked that the entry [holds](Self::holds) it.
    #[inline(always)]
    pub(super) fn read(&self) -> (Seat, Completion) {
        let (status, opcode) = halves(&self.status_opcode);
        let (byte_len, imm) = halves(&self.length_imm);
        let (qpn, vendor_err) = halves(&self.qpn_vendor);
        let (upto, seat) = halves(&self.upto_seat);
        let flags = self.flags_source.load(Ordering::Relaxed);
        let completion = Completion {
            wr_id: self.wr_id.load(Ordering::Relaxed),
            status: WcStatus::from_raw(status),
            opcode: WcOpcode::from_raw(opcode),
            byte_len,
            imm,
            flags: (flags & 0xf) as u32,
            qpn,
            vendor_err,
            source: unpack(flags),
            // Only pushing a completion uses this flag.
            solicited: false,
            side: if flags & u64::from(OF_RECEIVE) != 0 { Side::Receive } else { Side::Send },
            upto,
        };
        (Seat(seat), completion)
    }

    /// Records the time, before the completion is published.
    #[cold]
    pub(super) fn stamp(&self, clock: &Clock) {
        self.timestamp.store(clock.now().nanoseconds(), Ordering::Relaxed);
    }

    pub(super) fn copy_timestamp(&self, from: &Self) {
        self.timestamp.store(from.timestamp.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Drops the completion in this entry, if any. Then a lookup of `number` or a later number finds the entry empty,
    /// and a lookup of an earlier number takes the lock.
    pub(super) fn drop_number(&self, number: u64) {
        self.filled.store(number, Ordering::Relaxed);
    }
}

/// The arrival time of a completion. It can be read only while the completion can.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timestamp<'a>(pub(super) &'a CompletionEntry);

impl Timestamp<'_> {
    /// Returns the arrival time, which is meaningless unless the queue records it.
    pub(crate) fn time(self) -> Time {
        Time::from_nanoseconds(self.0.timestamp.load(Ordering::Relaxed))
    }
}

/// Packs the source into a word, leaving the lowest five bits free.
#[inline(always)]
fn pack(source: Source) -> u64 {
    u64::from(source.qpn & 0x07ff_ffff) << 5
        | u64::from(source.lid) << 32
        | u64::from(source.service_level) << 48
        | u64::from(source.path_bits) << 56
}

#[inline(always)]
fn unpack(word: u64) -> Source {
    Source {
        qpn: ((word & 0xffff_ffff) as u32) >> 5,
        lid: (word >> 32 & 0xffff) as u16,
        service_level: (word >> 48 & 0xff) as u8,
        path_bits: (word >> 56 & 0xff) as u8,
    }
}

#[inline(always)]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[inline(always)]
fn halves(word: &AtomicU64) -> (u32, u32) {
    let word = word.load(Ordering::Relaxed);
    ((word & 0xffff_ffff) as u32, (word >> 32) as u32)
}
