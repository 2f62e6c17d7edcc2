//! The state of an engine, which its mutex guards.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rdma_mem::Gid;
use rdma_proto::Time;
use rdma_proto::cm::CommId;

use super::files::{Watch, Watching};
use super::gateway::Gateway;
use super::listening::Listening;
use super::managed::Managed;
use super::peer::{self, Peer};
use crate::error::End;
use crate::happening::Happening;

#[derive(Default)]
pub(super) struct State {
    pub(super) peers: BTreeMap<u64, Peer>,
    pub(super) listeners: BTreeMap<u64, Listening>,
    /// The local addresses from which connections lead to other hosts.
    pub(super) gateways: BTreeMap<Gid, Arc<Gateway>>,
    /// The listeners and connections of the kernel's rdma_cm.
    pub(super) managed: Option<Managed>,
    /// The connections to other hosts.
    pub(super) tokens: BTreeMap<(Gid, CommId), u64>,
    pub(super) deadlines: BTreeSet<(Time, u64)>,
    /// The deadline of each connection and listener that has one.
    pub(super) deadline_of: BTreeMap<u64, Time>,
    pub(super) events: VecDeque<(u64, Happening)>,
    pub(super) closed: bool,
    /// Whether a thread waits for the files.
    pub(super) has_waiter: bool,
    /// The number of threads that wait for another thread's work.
    pub(super) sleepers: usize,
    /// Whether the program's file is readable.
    pub(super) is_readable: bool,
    /// Whether events were queued since the file was made readable. A thread that waits for an edge of the file is
    /// notified of each.
    pub(super) has_new: bool,
    /// The files that the program polls for single connections.
    pub(super) watching: Watching,
}

impl State {
    /// Queues an event.
    pub(super) fn push(&mut self, token: u64, event: Happening) {
        self.events.push_back((token, event));
        self.has_new = true;
    }

    pub(super) fn take(&mut self, wants: impl Fn(u64) -> bool) -> Option<(u64, Happening)> {
        let place = self.events.iter().position(|(of, _)| wants(*of))?;
        self.events.remove(place)
    }

    pub(super) fn place_of_end(&self, token: u64) -> Option<usize> {
        let is_end =
            |(of, event): &(u64, Happening)| *of == token && matches!(event, Happening::Ended(_));
        self.events.iter().position(is_end)
    }

    /// Returns the reason that a connection has ended.
    pub(super) fn take_end(&mut self, token: u64) -> End {
        match self.place_of_end(token).and_then(|place| self.events.remove(place)) {
            Some((_, Happening::Ended(end))) => end,
            _ => End::PeerGone,
        }
    }

    /// Returns the file that the program polls for a connection.
    pub(super) fn file(&mut self, token: u64, is_established: bool) -> Option<Arc<OwnedFd>> {
        match self.peers.get_mut(&token) {
            Some(peer) => peer.file(is_established),
            None => self.watch(token)?.0.file(is_established),
        }
    }

    /// Returns the file that the program polls for a connection without a socket, and whether the connection has ended.
    pub(super) fn watch(&mut self, token: u64) -> Option<(&mut Watch, bool)> {
        match self.peers.get_mut(&token) {
            Some(peer) => Some((&mut peer.watch, peer.stage == peer::Stage::Over)),
            None => self.managed.as_mut()?.watch(token),
        }
    }

    pub(super) fn has_request(&self, peer: u64) -> bool {
        self.events.iter().any(|(_, event)| event.is_request_of(peer))
    }

    /// Removes the communication ID of a connection that ends. Another one may have the ID next.
    pub(super) fn forget_place(&mut self, token: u64) {
        let place = self.peers.get(&token).and_then(Peer::place);
        if let Some(place) = place.filter(|place| self.tokens.get(place) == Some(&token)) {
            self.tokens.remove(&place);
        }
    }

    pub(super) fn set_deadline(&mut self, token: u64, deadline: Option<Time>) {
        let before = match deadline {
            Some(deadline) => self.deadline_of.insert(token, deadline),
            None => self.deadline_of.remove(&token),
        };
        if before != deadline {
            self.deadlines.extend(deadline.map(|deadline| (deadline, token)));
            if let Some(before) = before {
                self.deadlines.remove(&(before, token));
            }
        }
    }
}
