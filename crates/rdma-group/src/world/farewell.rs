//! Notices between peers about the reason that a group is closed. Rank 0 may not be able to decide on it.

use std::iter;
use std::time::Instant;

use rdma_channel::message::MessageError;

use super::peer::MOST_EARLY;
use super::ranks::{CHECK, FAREWELL, Failure};
use super::{Connections, Peer, World};
use crate::bootstrap::star::Notice;

impl World {
    /// Returns the reason in the last message of a lost rank, if that rank has closed the group.
    pub(super) fn prefer_notice(&self, connections: &Connections, failure: Failure) -> Failure {
        let Failure::Lost(rank) = failure else { return failure };
        let peer = connections.peers.get(rank).and_then(Option::as_ref);
        let until = Instant::now() + FAREWELL;
        peer.and_then(|peer| self.notice_of(peer, until)).map_or(failure, Failure::Closed)
    }

    /// Returns the reason that a peer has closed the group, if its notice arrives before this time. Other messages are
    /// discarded.
    fn notice_of(&self, peer: &Peer, until: Instant) -> Option<Notice> {
        let received = iter::from_fn(|| {
            loop {
                match peer.messages.receive() {
                    Err(MessageError::TimedOut { .. }) if Instant::now() < until => {}
                    received => return received.ok().flatten(),
                }
            }
        });
        received.take(MOST_EARLY).find_map(|message| self.ranks.noticed(&message))
    }

    /// Waits for the decision of rank 0, for a limited time. Meanwhile, a peer may close the group. Returns its notice.
    pub(super) fn await_notice(&mut self, connections: &Connections) -> Option<Notice> {
        let until = Instant::now() + self.ranks.star.decision;
        let mut peers = connections.peers.iter().flatten().cycle();
        while self.ranks.star.is_undecided() && Instant::now() < until {
            let Some(peer) = peers.next() else {
                self.ranks.star.wait(CHECK);
                continue;
            };
            // This waits for up to `CHECK`.
            if let Some(notice) = self.notice_of(peer, Instant::now()) {
                return Some(notice);
            }
        }
        None
    }

    /// Notifies all peers of the reason that the group is closed. Otherwise, they would take the end of their connections
    /// for the death of this rank.
    pub(super) fn notify(&self, connections: &Connections) {
        let Some(notice) = self.ranks.notice() else { return };
        let until = Instant::now() + FAREWELL;
        let is_late = |result| matches!(result, Err(MessageError::TimedOut { .. }));
        let (mut late, posted): (Vec<_>, Vec<_>) = connections
            .peers
            .iter()
            .flatten()
            .partition(|peer| is_late(peer.messages.post(&notice)));
        // This process may end afterwards, so the devices of the peers must have received their notices.
        let flush = |peer: &Peer| while Instant::now() < until && is_late(peer.messages.flush()) {};
        posted.into_iter().for_each(flush);
        while !late.is_empty() && Instant::now() < until {
            late.retain(|peer| {
                let is_late = Instant::now() < until && is_late(peer.messages.post(&notice));
                if !is_late {
                    flush(peer);
                }
                is_late
            });
        }
    }
}
