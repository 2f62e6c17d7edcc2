//! Memory that this end has borrowed.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rdma_mem::{AccessFlags, RemoteMemoryRegion};

use super::borrower::Granted;
use crate::buffer::held::{Source, Target};
use crate::ledger::post::RequestSpec;
use crate::link::{Inner, Link};
use crate::operation::Op;
use crate::operation::kinds::{Atomic, Kind, Read, Write};

/// Memory of the peer that this end has [asked for](crate::Connection::borrow), or was [lent](crate::Connection::receive_lease).
///
/// Its operations are those of its connection, which lives as long as it. Before each is posted, its time is looked at, of which
/// [a margin](crate::ConnectionOptions::lease_margin) has to be left, and whether the connection still has the queue pair that
/// the memory was lent to: else it fails with [`TransportError::LeaseOver`](crate::TransportError::LeaseOver), nothing was
/// posted, and the connection goes on. The time is counted from when this end asked, by its own clock.
///
/// Clones and slices are the same lease. Dropped with the last of them and the last operation, the peer is told, and has its memory
/// back. If an operation was dropped that may not have completed, the peer has it back when its time is over.
///
/// # Examples
/// See [`borrow`](crate::Connection::borrow).
#[derive(Clone)]
#[must_use = "dropped, it goes back: memory that was asked for is freed with what was written"]
pub struct RemoteRegion {
    /// The connection, with the lease.
    leased: Arc<Inner>,
    part: RemoteMemoryRegion,
}

impl RemoteRegion {
    pub(super) fn new(inner: &Arc<Inner>, mut granted: Granted) -> Self {
        granted.awaits = false;
        let part = granted.descriptor().region();
        Self { leased: Arc::new(inner.leased(granted)), part }
    }

    /// How long it is, in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // but for slices, none is
    pub const fn len(&self) -> usize {
        self.part.length()
    }

    /// What this end may do with it.
    #[must_use]
    pub fn access(&self) -> AccessFlags {
        self.granted().access
    }

    /// How much time is left.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.granted().remaining()
    }

    /// A part of it, in bytes from its beginning; `None` if it is not so long.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let part = self.part.slice(range)?;
        Some(Self { part, ..self.clone() })
    }

    /// The memory without its time, for [`Connection::write`](crate::Connection::write) and its like: nothing is looked at
    /// before these, and the device refuses what is late.
    #[must_use]
    pub const fn remote(&self) -> RemoteMemoryRegion {
        self.part
    }

    #[allow(clippy::expect_used)] // it was made with one
    fn granted(&self) -> &Granted {
        &self.leased.lease.as_ref().expect("a lease").granted
    }

    fn op<K: Kind>(&self, memory: K::Memory, request: RequestSpec) -> Op<'static, K> {
        Op::new(Link::Owned(Arc::clone(&self.leased)), memory, request)
    }

    /// Writes into the memory, from its first byte, like [`Connection::write`](crate::Connection::write). A longer
    /// buffer is refused, and nothing is posted. To write elsewhere, write into a [`slice`](Self::slice).
    pub fn write<B: Source>(&self, from: B) -> Op<'static, Write<B>> {
        self.op(from, RequestSpec::Write(self.part, None))
    }

    /// Writes into it, and tells the peer a number, as [`Connection::write_with_imm`](crate::Connection::write_with_imm).
    pub fn write_with_imm<B: Source>(&self, from: B, immediate: u32) -> Op<'static, Write<B>> {
        self.op(from, RequestSpec::Write(self.part, Some(immediate)))
    }

    /// Reads as many bytes as the buffer has, from the first byte of the memory, like
    /// [`Connection::read`](crate::Connection::read). A longer buffer is refused, and nothing is posted. To read
    /// elsewhere, read from a [`slice`](Self::slice).
    pub fn read<B: Target>(&self, into: B) -> Op<'static, Read<B>> {
        self.op(into, RequestSpec::Read(self.part))
    }

    /// Puts `swap` into its first 8 bytes, if these are `compare`, and gives what they were.
    pub fn compare_and_swap(&self, compare: u64, swap: u64) -> Op<'static, Atomic> {
        self.op((), RequestSpec::CompareAndSwap(self.part, compare, swap))
    }

    /// Adds to its first 8 bytes, and gives what they were. It wraps.
    pub fn fetch_add(&self, add: u64) -> Op<'static, Atomic> {
        self.op((), RequestSpec::FetchAdd(self.part, add))
    }

    /// Hands the memory, with what this end has written, to the program of the peer.
    /// [`receive_region`](crate::Connection::receive_region) returns it there or, if that program had lent it, its
    /// [`Lease`](crate::Lease) does, [which says so](crate::EndedLease::is_handed_over). This end does not learn whether it has
    /// arrived. The peer is notified when the last clone and the last operation are dropped; nothing more is posted
    /// from now on.
    ///
    /// Memory that arrives there after its time is over, or after the queue pair has ended, is not received. So call
    /// [`disconnect`](crate::Connection::disconnect) after this, rather than just dropping the connection. If an
    /// operation was dropped that may not have completed, the peer's program does not receive borrowed memory.
    #[doc(alias = "send_remote_mr")]
    pub fn hand_over(self) {
        self.granted().hand_over();
    }
}

impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteRegion")
            .field("part", &self.part)
            .field("granted", self.granted())
            .finish()
    }
}
