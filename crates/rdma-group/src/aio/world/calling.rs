//! Calls of asynchronous ranks, from their beginning to their end. A call that fails closes the group.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Instant;

use tokio::task::unconstrained;
use tokio::time::{sleep, timeout, timeout_at};

use super::{Connections, Peer, World};
use crate::bootstrap::star::Notice;
use crate::error::Error;
use crate::world::PANICKED;
use crate::world::peer::MOST_EARLY;
use crate::world::ranks::{CHECK, FAREWELL, Failure};

/// A rank that is in a collective. If its future is dropped, the group is closed.
pub(super) struct Calling<'w> {
    pub(super) world: &'w mut World,
    /// `None` once the call is over.
    pub(super) connections: Option<Box<Connections>>,
}

impl Calling<'_> {
    /// Ends the call. If it has failed, closes the group, and then ends the connections.
    pub(super) async fn end<R>(mut self, result: Result<R, Failure>) -> Result<R, Error> {
        let failure = match result {
            Ok(result) => {
                self.world.connections = self.connections.take();
                return Ok(result);
            }
            Err(failure) => failure,
        };
        let Self { world, connections: Some(connections) } = &mut self else {
            return Err(Error::Closed);
        };
        let mut failure = world.prefer_notice(connections, failure).await;
        let awaits = world.ranks.report(&failure);
        if awaits && let Some(notice) = world.await_notice(connections).await {
            failure = Failure::Closed(notice);
            world.ranks.report(&failure);
        }
        let error = world.ranks.error(failure);
        if let Some(notice) = world.ranks.notice() {
            // An error means that the time is up.
            let _ = timeout(FAREWELL, Notices::new(&notice, connections)).await;
        }
        self.connections = None;
        Err(error)
    }

    /// Returns the world and its connections for the call.
    pub(super) fn parts(&mut self) -> Result<(&mut World, &mut Connections), Error> {
        Ok((self.world, self.connections.as_mut().ok_or(Error::Closed)?))
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        if let Some(connections) = &self.connections {
            let reason = if thread::panicking() { PANICKED } else { "its call was cancelled" };
            self.world.ranks.close(reason.to_owned());
            if let Some(notice) = self.world.ranks.notice() {
                // Posts the notices to all peers that have room for them.
                let _ = pin!(Notices::new(&notice, connections))
                    .poll(&mut Context::from_waker(Waker::noop()));
            }
        }
    }
}

/// Notices to all peers of the reason that the group is closed. Otherwise, they would take the end of their connections
/// for the death of this rank. Ready when the devices of all peers have received theirs.
struct Notices<'c>(Vec<Pin<Box<dyn Future<Output = ()> + Send + 'c>>>);

impl<'c> Notices<'c> {
    fn new(notice: &'c [u8], connections: &'c Connections) -> Self {
        let notify = |peer: &'c Peer| -> Pin<Box<dyn Future<Output = ()> + Send + 'c>> {
            Box::pin(unconstrained(async {
                if peer.messages.post(notice).await.is_ok() {
                    // This process may end afterwards.
                    let _ = peer.messages.flush().await;
                }
            }))
        };
        Self(connections.peers.iter().flatten().map(notify).collect())
    }
}

impl Future for Notices<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.retain_mut(|notice| notice.as_mut().poll(cx).is_pending());
        if self.0.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl World {
    /// Returns the reason in the last message of a lost rank, if that rank has closed the group.
    async fn prefer_notice(&self, connections: &Connections, failure: Failure) -> Failure {
        let Failure::Lost(rank) = failure else { return failure };
        let Some(Some(peer)) = connections.peers.get(rank) else { return failure };
        let until = Instant::now() + FAREWELL;
        self.notice_of(peer, until).await.map_or(failure, Failure::Closed)
    }

    /// Returns the reason that a peer has closed the group, if its notice arrives before this time. Other messages are
    /// discarded.
    async fn notice_of(&self, peer: &Peer, until: Instant) -> Option<Notice> {
        for _ in 0..MOST_EARLY {
            let message = timeout_at(until.into(), unconstrained(peer.messages.receive())).await;
            let message = message.ok()?.ok()??;
            if let Some(notice) = self.ranks.noticed(&message) {
                return Some(notice);
            }
        }
        None
    }

    /// Waits for the decision of rank 0, for a limited time. Meanwhile, a peer may close the group. Returns its notice.
    async fn await_notice(&mut self, connections: &Connections) -> Option<Notice> {
        let until = Instant::now() + self.ranks.star.decision;
        while self.ranks.star.is_undecided() && Instant::now() < until {
            for peer in connections.peers.iter().flatten() {
                if let Some(notice) = self.notice_of(peer, Instant::now()).await {
                    return Some(notice);
                }
            }
            sleep(CHECK).await;
        }
        None
    }
}
