//! The connections of a manager, found by ID, peer, queue pair and time.

use alloc::collections::{BTreeMap, BTreeSet};

use rdma_types::Qpn;

use super::address::{Address, CommId};
use super::connection::Connection;
use super::service::ServiceId;
use crate::time::Time;

/// The connections and queries, with an index for each way to find them. All changes go through
/// [`change`](Self::change), which keeps the indexes up to date.
#[derive(Debug)]
pub(super) struct Table {
    entries: BTreeMap<CommId, Connection>,
    /// By whether it is a query, the peer, and the peer's ID.
    by_peer: BTreeMap<(bool, Address, CommId), CommId>,
    by_remote_qp: BTreeMap<(Address, Qpn), CommId>,
    by_local_qp: BTreeMap<Qpn, CommId>,
    deadlines: BTreeSet<(Time, CommId)>,
    /// The number of half-open connections of each service that has any.
    half_open: BTreeMap<ServiceId, u32>,
    most: u32,
    ids: Ids,
}

/// Creates communication IDs.
#[derive(Debug)]
struct Ids {
    slot: u16,
    secret: u32,
    next: u32,
}

/// The bits of an ID below the slot.
const ID_BITS: u32 = 20;
const ID_MASK: u32 = 0x000f_ffff;

impl Ids {
    /// Returns an ID that has not been used for a long time, unless almost all are in use.
    fn next(&mut self) -> CommId {
        self.next = self.next.wrapping_add(1);
        let number = (self.next ^ self.secret) & ID_MASK;
        CommId::new(u32::from(self.slot) << ID_BITS | number)
    }
}

impl Table {
    pub(super) fn new(slot: u16, secret: u32, most: u32) -> Self {
        Self {
            entries: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            by_remote_qp: BTreeMap::new(),
            by_local_qp: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            half_open: BTreeMap::new(),
            // One number is never an ID, and one more must be free for the search to end.
            most: most.min(ID_MASK.saturating_sub(1)),
            ids: Ids { slot: slot & 0x0fff, secret, next: 0 },
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the greatest possible number of connections.
    pub(super) const fn most(&self) -> u32 {
        self.most
    }

    /// Returns an unused ID, or `None` if the table is full.
    pub(super) fn unused_id(&mut self) -> Option<CommId> {
        let has_room = u32::try_from(self.len()).is_ok_and(|len| len < self.most);
        has_room.then(|| {
            loop {
                let id = self.ids.next();
                if id != CommId::NONE && !self.entries.contains_key(&id) {
                    return id;
                }
            }
        })
    }

    pub(super) fn add(&mut self, id: CommId, connection: Connection) {
        self.index(id, &connection);
        self.entries.insert(id, connection);
    }

    pub(super) fn get(&self, id: CommId) -> Option<&Connection> {
        self.entries.get(&id)
    }

    /// Changes a connection. Returns the function's result, or `None` if no connection has the ID.
    pub(super) fn change<T>(
        &mut self,
        id: CommId,
        change: impl FnOnce(&mut Connection) -> T,
    ) -> Option<T> {
        let mut connection = self.remove(id)?;
        let result = change(&mut connection);
        self.add(id, connection);
        Some(result)
    }

    pub(super) fn remove(&mut self, id: CommId) -> Option<Connection> {
        let connection = self.entries.remove(&id)?;
        if let Some(remote_id) = connection.remote_id {
            self.by_peer.remove(&(connection.state.is_query(), connection.peer, remote_id));
        }
        if let Some(qpn) = connection.remote_qpn {
            self.by_remote_qp.remove(&(connection.peer, qpn));
        }
        if let Some(qpn) = connection.local_qpn {
            self.by_local_qp.remove(&qpn);
        }
        if let Some(deadline) = connection.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if connection.is_half_open() {
            let count = self.half_open(connection.service_id).saturating_sub(1);
            if count == 0 {
                self.half_open.remove(&connection.service_id);
            } else {
                self.half_open.insert(connection.service_id, count);
            }
        }
        Some(connection)
    }

    fn index(&mut self, id: CommId, connection: &Connection) {
        if let Some(remote_id) = connection.remote_id {
            self.by_peer.insert((connection.state.is_query(), connection.peer, remote_id), id);
        }
        if let Some(qpn) = connection.remote_qpn {
            self.by_remote_qp.insert((connection.peer, qpn), id);
        }
        if let Some(qpn) = connection.local_qpn {
            self.by_local_qp.insert(qpn, id);
        }
        if let Some(deadline) = connection.deadline {
            self.deadlines.insert((deadline, id));
        }
        if connection.is_half_open() {
            let count = self.half_open(connection.service_id).saturating_add(1);
            self.half_open.insert(connection.service_id, count);
        }
    }

    /// Finds the connection to which the peer gave this ID.
    pub(super) fn by_peer(&self, peer: Address, remote_id: CommId) -> Option<CommId> {
        self.by_peer.get(&(false, peer, remote_id)).copied()
    }

    /// Finds the peer's query with this ID.
    pub(super) fn query_by_peer(&self, peer: Address, request_id: CommId) -> Option<CommId> {
        self.by_peer.get(&(true, peer, request_id)).copied()
    }

    pub(super) fn by_remote_qp(&self, peer: Address, qpn: Qpn) -> Option<CommId> {
        self.by_remote_qp.get(&(peer, qpn)).copied()
    }

    pub(super) fn by_local_qp(&self, qpn: Qpn) -> Option<CommId> {
        self.by_local_qp.get(&qpn).copied()
    }

    /// Returns the number of half-open connections and unanswered queries of a service.
    pub(super) fn half_open(&self, service_id: ServiceId) -> u32 {
        self.half_open.get(&service_id).copied().unwrap_or(0)
    }

    /// Returns the earliest deadline, with its connection.
    pub(super) fn first(&self) -> Option<(Time, CommId)> {
        self.deadlines.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use rdma_types::{Gid, Lid};

    use super::*;
    use crate::cm::connection::{State, Timing};
    use crate::cm::wire::Timeout;

    fn connection(n: u32) -> Connection {
        let peer = Address::Gid(Gid::from_bytes([5; 16]));
        let timing = Timing::new(Timeout::default(), Timeout::default(), 0, Timeout::LONGEST);
        let mut connection = Connection::new(State::ReqReceived, peer, ServiceId::new(1), timing);
        connection.remote_id = Some(CommId::new(n));
        connection.remote_qpn = Some(Qpn::masked(n));
        connection
    }

    #[test]
    fn each_index_follows_the_changes() {
        let mut table = Table::new(1, 0, 10);
        let [first, second] = [1, 2].map(|n| {
            let id = table.unused_id().unwrap();
            table.add(id, connection(n));
            id
        });
        let peer = connection(0).peer;
        assert_eq!(table.half_open(ServiceId::new(1)), 2);
        assert_eq!(table.by_remote_qp(peer, Qpn::masked(2)), Some(second));
        let changed = table.change(first, |connection| {
            connection.state = State::Established;
            connection.local_qpn = Some(Qpn::masked(7));
            connection.deadline = Some(Time::from_nanos(5));
        });
        assert_eq!(changed, Some(()));
        assert_eq!(table.half_open(ServiceId::new(1)), 1);
        assert_eq!(table.by_local_qp(Qpn::masked(7)), Some(first));
        assert_eq!(table.first(), Some((Time::from_nanos(5), first)));
        assert_eq!(table.by_peer(peer, CommId::new(1)), Some(first));
        assert_eq!(table.query_by_peer(peer, CommId::new(1)), None);
        assert_eq!(table.by_peer(Address::Lid(Lid::new(1)), CommId::new(1)), None);

        assert!(table.remove(first).is_some() && table.remove(second).is_some());
        assert!(table.remove(first).is_none() && table.change(second, |_| ()).is_none());
        let Table { entries, by_peer, by_remote_qp, by_local_qp, deadlines, half_open, .. } = table;
        assert!(entries.is_empty() && by_peer.is_empty() && by_remote_qp.is_empty());
        assert!(by_local_qp.is_empty() && deadlines.is_empty() && half_open.is_empty());
    }

    #[test]
    fn ids_have_the_slot_and_are_neither_none_nor_in_use() {
        // The secret makes one of the first IDs `CommId::NONE`, if the slot is 0.
        let mut table = Table::new(0, 3, u32::MAX);
        let mut ids = BTreeSet::new();
        for n in 0..10 {
            let id = table.unused_id().unwrap();
            assert!(id != CommId::NONE && ids.insert(id));
            table.add(id, connection(n));
        }
        assert_eq!(table.most(), ID_MASK - 1);
        // All numbers were used once, and the search begins again.
        table.ids.next = 0;
        assert!(ids.insert(table.unused_id().unwrap()));
        assert_eq!(Table::new(0xfabc, 3, 1).unused_id().unwrap().slot(), 0xabc);
        assert_eq!(Table::new(0, 3, 0).unused_id(), None);
    }
}
