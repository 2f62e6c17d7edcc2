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

/// Memory of the peer that this end has [borrowed](crate::Connection::borrow), or that the peer has
/// [lent](crate::Connection::receive_lease).
///
/// Operations on the memory are posted on its connection, which this value keeps alive. An operation fails with
/// [`TransportError::LeaseOver`](crate::TransportError::LeaseOver) if less time is left than the
/// [margin](crate::ConnectionOptions::lease_margin), or if the peer has closed the lease. It also fails with this error
/// if this end has handed the memory over, or the connection has a new queue pair. In these cases nothing was posted,
/// and the connection continues. The time starts with this end's request, and is measured by this end's clock.
///
/// Clones and slices share the lease. Once the last of them and the last operation are dropped, the peer is notified,
/// and the memory returns to the peer. If a dropped operation may not have completed, the memory returns only when its
/// time is up.
///
/// # Examples
/// See [`borrow`](crate::Connection::borrow).
#[derive(Clone)]
#[must_use = "dropping it returns the memory: borrowed memory is freed with the bytes that were written"]
pub struct RemoteRegion {
    /// The connection, together with the lease.
    leased: Arc<Inner>,
    part: RemoteMemoryRegion,
}

impl RemoteRegion {
    pub(super) fn new(inner: &Arc<Inner>, mut granted: Granted) -> Self {
        granted.awaits = false;
        let part = granted.descriptor().region();
        Self { leased: Arc::new(inner.leased(granted)), part }
    }

    /// Returns the length, in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // only slices can be empty
    pub const fn len(&self) -> usize {
        self.part.length()
    }

    /// Returns what this end may do with the memory.
    #[must_use]
    pub fn access(&self) -> AccessFlags {
        self.granted().access
    }

    /// Returns how much time is left.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.granted().remaining()
    }

    /// Returns a part of the memory, or `None` if the range is not within it. `range` is in bytes from the start.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let part = self.part.slice(range)?;
        Some(Self { part, ..self.clone() })
    }

    /// Returns the memory without its time limit, for [`Connection::write`](crate::Connection::write) and similar
    /// operations. These do not check the time before they post; the peer's device refuses late requests.
    #[must_use]
    pub const fn remote(&self) -> RemoteMemoryRegion {
        self.part
    }

    #[allow(clippy::expect_used)] // it is created with a lease
    fn granted(&self) -> &Granted {
        &self.leased.lease.as_ref().expect("a lease").granted
    }

    fn op<K: Kind>(&self, memory: K::Memory, request: RequestSpec) -> Op<'static, K> {
        Op::new(Link::Owned(Arc::clone(&self.leased)), memory, request)
    }

    /// Writes into the memory, starting at its first byte, like [`Connection::write`](crate::Connection::write). A
    /// longer buffer is refused, and nothing is posted. To write elsewhere, write into a [`slice`](Self::slice).
    pub fn write<B: Source>(&self, from: B) -> Op<'static, Write<B>> {
        self.op(from, RequestSpec::Write(self.part, None))
    }

    /// Writes into the memory with immediate data, like
    /// [`Connection::write_with_imm`](crate::Connection::write_with_imm).
    pub fn write_with_imm<B: Source>(&self, from: B, immediate: u32) -> Op<'static, Write<B>> {
        self.op(from, RequestSpec::Write(self.part, Some(immediate)))
    }

    /// Reads from the memory into the whole buffer, starting at the first byte of the memory, like
    /// [`Connection::read`](crate::Connection::read). A longer buffer is refused, and nothing is posted. To read
    /// elsewhere, read from a [`slice`](Self::slice).
    pub fn read<B: Target>(&self, into: B) -> Op<'static, Read<B>> {
        self.op(into, RequestSpec::Read(self.part))
    }

    /// Compares the first 8 bytes with `compare`, and sets them to `swap` if they are equal. Returns the old value.
    pub fn compare_and_swap(&self, compare: u64, swap: u64) -> Op<'static, Atomic> {
        self.op((), RequestSpec::CompareAndSwap(self.part, compare, swap))
    }

    /// Adds to the first 8 bytes, wrapping, and returns the old value.
    pub fn fetch_add(&self, add: u64) -> Op<'static, Atomic> {
        self.op((), RequestSpec::FetchAdd(self.part, add))
    }

    /// Hands the memory, with what this end wrote into it, over to the peer's program. If the peer's program lent the
    /// memory, its [`Lease`](crate::Lease) returns it, with [`is_handed_over`](crate::EndedLease::is_handed_over). If
    /// this end borrowed the memory, the peer's [`receive_region`](crate::Connection::receive_region) returns it. No
    /// operation on the memory is posted from now on. The peer is notified when the last clone and the last operation
    /// are dropped. This end does not learn whether the notification arrived.
    ///
    /// The memory is not received if its time is up, or its queue pair has ended, before the notification arrives.
    /// Therefore, call [`disconnect`](crate::Connection::disconnect) afterwards instead of only dropping the
    /// connection. The peer's program also does not receive borrowed memory if an operation was dropped that may not
    /// have completed.
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
