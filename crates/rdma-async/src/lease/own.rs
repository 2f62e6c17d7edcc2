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

/// Memory that is [lent](crate::Connection::lend) to the peer: await it to have the memory back, when the peer has given it
/// back, its time is over, or its queue pair has ended. `&mut lease` can be awaited in `select!`, and again.
///
/// Dropped, the lease goes on until then, and the memory is freed.
/// Of a [part](crate::Connection::lend_part) of common memory, that memory comes back.
#[must_use = "the memory comes back from it"]
pub struct Lease<M = Region> {
    pub(super) leases: Arc<Leases>,
    pub(super) number: u32,
    pub(super) lease: u32,
    pub(super) ended: oneshot::Receiver<Result<EndedLease<M>, ReserveError>>,
}

/// Memory that is back from the peer.
#[derive(Debug)]
#[non_exhaustive]
pub struct EndedLease<M = Region> {
    /// The memory, with what the peer has written: exclusively again, if it was not a part of common memory.
    pub region: M,
    /// Why the lease has ended.
    pub end: LeaseEnd,
    /// Whether the peer has said by [`hand_over`](crate::RemoteRegion::hand_over) that it is done. Otherwise it has dropped the memory, also
    /// by a failure, or the lease has ended before.
    pub is_handed_over: bool,
}

impl<M> Lease<M> {
    /// Takes the memory back now: await the lease for it. The peer is told, and what it has posted before it hears of that fails,
    /// and ends the connection.
    pub fn revoke(&self) {
        self.leases.revoke(self.number, self.lease);
    }
}

/// The memory, or [`ReserveError::NotRevoked`] and [`ReserveError::RuntimeEnded`] without it.
impl<M> Future for Lease<M> {
    type Output = Result<EndedLease<M>, ReserveError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = ready!(Pin::new(&mut self.ended).poll(cx));
        // Who was to close it was dropped with the runtime, and the memory with that.
        Poll::Ready(ended.unwrap_or(Err(ReserveError::RuntimeEnded)))
    }
}

impl<M> fmt::Debug for Lease<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.lease).finish()
    }
}
