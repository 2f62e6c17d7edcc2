//! The clients that have joined.

use std::collections::HashMap;
use std::mem;
use std::time::{Duration, Instant};

use rdma_connect::{
    CloseReason, Operation, PeerAddress, PeerId, RefusedWork, TransportError, Until,
};
use rdma_qp::{PostError, Qpn};

use super::event::LeftReason;
use super::queues::PeerQueuePair;
use crate::ledger::watch::end_of;
use crate::rendezvous::files::Added;

/// The table of clients. It has at most as many places as clients are allowed.
#[derive(Debug, Default)]
pub(super) struct Peers {
    places: Vec<PeerEntry>,
    free: Vec<usize>,
    by_qpn: HashMap<Qpn, usize>,
    /// The clients that have connected by rdma_cm.
    #[cfg(feature = "cm")]
    by_id: HashMap<rdma_cm::IdToken, usize>,
    /// The places of clients whose connections are being ended.
    leaving: Vec<usize>,
    most: u32,
}

/// A place in the table of clients. It is occupied from when a client joins until the program has received the client's
/// `Left`.
#[derive(Debug, Default)]
struct PeerEntry {
    generation: u32,
    /// `None` if the place is free, or if its client's connection has ended.
    peer: Option<Peer>,
}

/// The connection that shows whether a client is gone.
#[derive(Debug)]
pub(super) enum Tie {
    Stream(Added),
    #[cfg(feature = "cm")]
    Cm(rdma_cm::ConnectionId),
}

impl Tie {
    /// Sends this end's farewell, unless this is a forked child. A connection by rdma_cm sends it when it is dropped.
    fn send_farewell(&self) {
        match self {
            Self::Stream(stream) => stream.send_farewell(),
            #[cfg(feature = "cm")]
            Self::Cm(_) => {}
        }
    }
}

/// A client and its connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) end: PeerQueuePair,
    pub(super) address: Option<PeerAddress>,
    /// The connection that is watched until it is dropped.
    tie: Option<Tie>,
    /// The number of sends that the device holds.
    pub(super) outstanding: u32,
    /// The time from which the next completion of a send is awaited: the last completion or, if no sends were
    /// outstanding then, the next post. `None` if no sends are outstanding.
    since: Option<Instant>,
    /// Whether a send was refused because too many were outstanding.
    wants_room: bool,
    /// The reason for ending the connection, and the time at which it is ended even if sends are still outstanding.
    pub(super) leaving: Option<(LeftReason, Until)>,
}

impl Peer {
    pub(super) fn new(end: PeerQueuePair, tie: Tie) -> Self {
        let address = end.qp.peer().map(PeerAddress::from);
        Self {
            end,
            address,
            tie: Some(tie),
            outstanding: 0,
            since: None,
            wants_room: false,
            leaving: None,
        }
    }

    /// Counts a send that was posted.
    pub(super) fn sent(&mut self) {
        self.outstanding += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    /// Counts a send as completed. Returns true if another send was refused earlier because too many were outstanding.
    pub(super) fn done(&mut self) -> bool {
        debug_assert!(self.outstanding > 0, "it was counted when it was posted");
        self.outstanding = self.outstanding.saturating_sub(1);
        self.since = (self.outstanding > 0).then(Instant::now);
        mem::take(&mut self.wants_room)
    }

    /// Returns the error for a send that was not posted.
    pub(super) fn refused(&self, error: PostError) -> TransportError {
        RefusedWork::new(Operation::Send, self.address, error).into()
    }

    /// Returns why the client's stream ended.
    pub(super) fn gone(&self, limit: Duration) -> CloseReason {
        match &self.tie {
            Some(Tie::Stream(stream)) => end_of(stream.stream(), true, limit).0,
            _ => CloseReason::Died,
        }
    }

    /// Returns true if the client's connection can be ended now.
    fn has_ended(&self) -> bool {
        let Some((_, until)) = &self.leaving else { return false };
        self.outstanding == 0 || until.is_over(Instant::now())
    }

    /// Returns the time until this client needs attention. `timeout` is the time limit of a send.
    fn next_end(&self, timeout: Duration) -> Duration {
        match (&self.leaving, self.since) {
            (Some((_, until)), _) => until.left(Instant::now()),
            (None, Some(since)) => timeout.saturating_sub(since.elapsed()),
            (None, None) => Duration::MAX,
        }
    }
}

impl Peers {
    pub(super) fn new(most: u32) -> Self {
        Self { most, ..Self::default() }
    }

    /// Returns true if there is a place for another client.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.places.len() < self.most as usize
    }

    /// Returns the ID of the next client. There must be room for it.
    pub(super) fn next_id(&mut self) -> PeerId {
        if self.free.is_empty() {
            self.free.push(self.places.len());
            self.places.push(PeerEntry::default());
        }
        let index = self.free.last().copied().unwrap_or_default();
        PeerId::new(index, self.place(index).generation)
    }

    /// Puts a client into the place that `next_id` has returned.
    pub(super) fn join(&mut self, peer: Peer) {
        if let Some(index) = self.free.pop() {
            self.by_qpn.insert(peer.end.qp.qpn(), index);
            #[cfg(feature = "cm")]
            if let Some(Tie::Cm(id)) = &peer.tie {
                self.by_id.insert(id.id(), index);
            }
            self.place(index).peer = Some(peer);
        }
    }

    /// Skips the next ID, because the queue pair that uses it may not be destroyed yet.
    pub(super) fn skip(&mut self, id: PeerId) {
        let place = self.place(id.index());
        place.generation = place.generation.wrapping_add(1);
    }

    fn place(&mut self, index: usize) -> &mut PeerEntry {
        &mut self.places[index]
    }

    /// Returns the ID of the current, past or next client at an index.
    fn id(&self, index: usize) -> Option<PeerId> {
        let generation = self.places.get(index)?.generation;
        Some(PeerId::new(index, generation))
    }

    /// Returns true if the program has not received the client's `Left` yet.
    pub(super) fn has(&self, id: PeerId) -> bool {
        self.id(id.index()) == Some(id)
    }

    /// Returns the client with this ID, unless it has left.
    pub(super) fn get(&mut self, id: PeerId) -> Option<&mut Peer> {
        if self.has(id) { self.place(id.index()).peer.as_mut() } else { None }
    }

    /// Returns the client with this ID, if another send to it can be posted. `None` if the send would be lost because
    /// the client is leaving.
    ///
    /// # Errors
    /// Returns an error if too many sends to the client are outstanding, or if the program has received its `Left`.
    pub(super) fn may_send(
        &mut self,
        id: PeerId,
        most: u32,
    ) -> Result<Option<&mut Peer>, TransportError> {
        if !self.has(id) {
            return Err(TransportError::PeerLeft(id));
        }
        match self.get(id) {
            None | Some(Peer { leaving: Some(_), .. }) => Ok(None),
            Some(peer) if peer.outstanding >= most => {
                peer.wants_room = true;
                Err(TransportError::WouldBlock)
            }
            peer => Ok(peer),
        }
    }

    /// Returns the number of clients that have not left.
    pub(super) fn len(&self) -> usize {
        self.places.iter().filter(|place| place.peer.is_some()).count()
    }

    /// Returns the ID of the client at an index, unless it has left.
    pub(super) fn at(&self, index: usize) -> Option<PeerId> {
        self.places.get(index)?.peer.as_ref().and_then(|_| self.id(index))
    }

    /// Returns the ID of the client with this queue pair.
    pub(super) fn of(&self, qpn: Qpn) -> Option<PeerId> {
        self.by_qpn.get(&qpn).and_then(|&index| self.id(index))
    }

    /// Returns the client with this connection by rdma_cm.
    #[cfg(feature = "cm")]
    pub(super) fn with(&self, id: rdma_cm::IdToken) -> Option<PeerId> {
        self.by_id.get(&id).and_then(|&index| self.at(index))
    }

    /// Begins to end a connection. `flush` is the time for flushing outstanding sends.
    pub(super) fn leave(&mut self, id: PeerId, reason: LeftReason, flush: Duration) {
        let Some(peer) = self.get(id).filter(|peer| peer.leaving.is_none()) else { return };
        if let (LeftReason::Disconnected, Some(tie)) = (&reason, &peer.tie) {
            tie.send_farewell();
        }
        peer.leaving = Some((reason, Until::after(Instant::now(), flush)));
        let tie = peer.tie.take();
        // If this fails, nothing is flushed, and the queue pair is destroyed when the time expires.
        let _ = peer.end.qp.to_error();
        self.leaving.push(id.index());
        #[cfg(feature = "cm")]
        if let Some(Tie::Cm(id)) = &tie {
            self.by_id.remove(&id.id());
        }
        drop(tie);
    }

    /// Returns a client whose connection can be ended now, if any.
    pub(super) fn ended(&self) -> Option<PeerId> {
        let peer = |index: usize| self.places.get(index)?.peer.as_ref();
        let ended = |&&index: &&usize| peer(index).is_some_and(Peer::has_ended);
        self.leaving.iter().find(ended).and_then(|&index| self.id(index))
    }

    /// Returns a client with outstanding sends, if none of them has completed within this time.
    pub(super) fn stalled(&self, timeout: Duration) -> Option<PeerId> {
        let stalled = |peer: &Peer| peer.leaving.is_none() && peer.next_end(timeout).is_zero();
        let of = |place: &PeerEntry| place.peer.as_ref().is_some_and(stalled);
        self.id(self.places.iter().position(of)?)
    }

    /// Returns the time until any client needs attention.
    pub(super) fn next_end(&self, timeout: Duration) -> Duration {
        let peers = self.places.iter().filter_map(|place| place.peer.as_ref());
        peers.map(|peer| peer.next_end(timeout)).min().unwrap_or(Duration::MAX)
    }

    /// Takes out a client whose connection has ended. Its place stays occupied.
    pub(super) fn take(&mut self, id: PeerId) -> Option<Peer> {
        self.leaving.retain(|&index| index != id.index());
        self.place(id.index()).peer.take()
    }

    /// Forgets a queue pair that was destroyed and will have no further completions.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        self.by_qpn.remove(&qpn);
    }

    /// Frees the place of a client after the program has received its `Left`.
    pub(super) fn free(&mut self, id: PeerId) {
        let place = self.place(id.index());
        place.generation = place.generation.wrapping_add(1);
        self.free.push(id.index());
    }

    /// Takes out all clients, because the server is being dropped.
    pub(super) fn take_all(&mut self) -> Vec<(PeerId, Peer)> {
        let id = |index, place: &PeerEntry| PeerId::new(index, place.generation);
        let peers = self.places.iter().filter_map(|place| place.peer.as_ref());
        peers.filter_map(|peer| peer.tie.as_ref()).for_each(Tie::send_farewell);
        let peers = (0..).zip(&mut self.places);
        peers.filter_map(|(index, place)| Some((id(index, place), place.peer.take()?))).collect()
    }
}
