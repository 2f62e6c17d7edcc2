//! Memory that this end has lent.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rdma_connect::LeaseEnd;
use tokio::sync::oneshot;

use super::table::Leases;
use crate::region::memory::Region;
use crate::region::reserve::ReserveError;

/// Memory that is [lent](crate::Connection::lend) to the peer. Awaiting this returns the memory when the peer has
/// returned it, its time is up, or its queue pair has ended. `&mut lease` can be awaited in `select!` and then again.
///
/// If this is dropped, the lease continues until one of these events, and the memory is then freed. A lease of a
/// [part](crate::Connection::lend_part) returns the common memory.
#[must_use = "awaiting it returns the memory"]
pub struct Lease<M = Region> {
    pub(super) leases: Arc<Leases>,
    pub(super) number: u32,
    pub(super) lease: u32,
    pub(super) ended: oneshot::Receiver<Result<EndedLease<M>, ReserveError>>,
}

/// Memory whose lease has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct EndedLease<M = Region> {
    /// The memory, with what the peer wrote into it. It is exclusive again, unless it is common memory.
    pub region: M,
    /// The reason why the lease ended.
    pub end: LeaseEnd,
    /// Whether the peer called [`hand_over`](crate::RemoteRegion::hand_over). Otherwise it dropped the memory, perhaps
    /// after a failure, or the lease ended first.
    pub is_handed_over: bool,
}

impl<M> Lease<M> {
    /// Ends the lease now and notifies the peer. Await the lease to get the memory. A request that the peer posts
    /// before it is notified may arrive after the memory was closed. It then fails, and ends the connection.
    pub fn revoke(&self) {
        self.leases.revoke(self.number, self.lease);
    }
}

/// Returns the memory, except with [`ReserveError::NotRevoked`] and [`ReserveError::RuntimeEnded`].
impl<M> Future for Lease<M> {
    type Output = Result<EndedLease<M>, ReserveError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = ready!(Pin::new(&mut self.ended).poll(cx));
        // The runtime dropped the sender when it ended, and the memory with it.
        Poll::Ready(ended.unwrap_or(Err(ReserveError::RuntimeEnded)))
    }
}

impl<M> fmt::Debug for Lease<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.lease).finish()
    }
}
