//! The most recent READs and atomics: their responses, and the answers to duplicates.

use alloc::boxed::Box;
use alloc::vec;

use rdma_types::Psn;

use crate::connection::Connection;
use crate::operation::MessageStart;
use crate::segmentation::Remainder;

/// An executed READ or atomic (IBTA chapter 9, responder resources).
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub(super) start: MessageStart,
    /// The request's position among all accepted PSNs.
    pub(super) number: u64,
    pub(super) psn: Psn,
    /// The number of packets in the response.
    pub(super) packets: u32,
    /// The MSN after the request.
    pub(super) msn: u32,
    /// The value that an atomic found in memory.
    pub(super) original: u64,
    /// The index of the packet with which the response begins, as last requested.
    pub(super) first: u32,
    /// The index of the next packet to send.
    pub(super) next: u32,
    /// Whether the request was answered before and is being answered again.
    pub(super) repeats: bool,
}

impl Resource {
    pub(super) const fn owes(&self) -> bool {
        self.next < self.packets
    }

    /// Returns true if the next packet is the first one of the response, as last requested.
    pub(super) const fn begins(&self) -> bool {
        self.next == self.first
    }

    /// Returns the PSN of the next packet.
    pub(super) fn next_psn(&self) -> Psn {
        self.psn.wrapping_add(self.next)
    }

    /// Returns the unsent part of a READ response. Its first and last packets have an AETH.
    pub(super) fn remainder(&self, connection: &Connection) -> Remainder {
        let length = self.start.length.unwrap_or_default();
        Remainder {
            bytes: length.saturating_sub(self.offset(connection)),
            packets: self.packets.saturating_sub(self.next),
            alone: self.begins(),
            extra: 4,
        }
    }

    /// Returns the offset of the next packet in the response, in bytes.
    pub(super) fn offset(&self, connection: &Connection) -> u32 {
        connection.offset(self.next)
    }
}

/// A ring with one slot for each READ or atomic that the peer may have in flight
/// (`max_dest_rd_atomic`).
#[derive(Debug)]
pub(super) struct Resources {
    ring: Box<[Option<Resource>]>,
    /// The slot for the next entry. Until then, it holds the oldest entry.
    newest: usize,
    /// The number of entries that owe a response.
    owing: u32,
}

impl Resources {
    pub(super) fn new(count: u8) -> Self {
        Self { ring: vec![None; count.into()].into(), newest: 0, owing: 0 }
    }

    /// Returns true if there is a slot for another entry. If the oldest entry still owes its first
    /// answer, the requester has too many requests in flight. An entry that only repeats its answer
    /// gives up its slot. A requester that sends a new request already has that answer, so the
    /// repeated request was merely late.
    pub(super) fn has_room(&self) -> bool {
        let owes = |oldest: Resource| oldest.owes() && !oldest.repeats;
        self.ring.get(self.newest).is_some_and(|oldest| !oldest.is_some_and(owes))
    }

    /// Adds an entry, replacing the oldest one.
    pub(super) fn push(&mut self, resource: Resource) {
        if let Some(place) = self.ring.get_mut(self.newest) {
            let owed = place.replace(resource).is_some_and(|oldest| oldest.owes());
            self.owing = self.owing.wrapping_add(u32::from(!owed));
            self.newest = self.newest.wrapping_add(1);
            if self.newest == self.ring.len() {
                self.newest = 0;
            }
        }
    }

    pub(super) const fn owes_nothing(&self) -> bool {
        self.owing == 0
    }

    /// Returns the oldest entry that owes a response.
    pub(super) fn owing(&mut self) -> Option<&mut Resource> {
        if self.owing == 0 {
            return None;
        }
        let (young, old) = self.ring.split_at_mut_checked(self.newest)?;
        old.iter_mut().chain(young).flatten().find(|resource| resource.owes())
    }

    /// Counts an entry as answered. Its whole response has been sent or given up.
    pub(super) fn answered(&mut self) {
        self.owing = self.owing.saturating_sub(1);
    }

    /// Drops the oldest response that is owed.
    pub(super) fn give_up(&mut self) {
        if let Some(resource) = self.owing() {
            resource.next = resource.packets;
            self.answered();
        }
    }

    /// Removes all entries, and with them the responses that are owed.
    pub(super) fn forget(&mut self) {
        self.ring.fill(None);
        self.owing = 0;
    }

    /// Finds the entry whose response contains the packet with this number, and the packet's index
    /// in that response. A PSN would be ambiguous, because PSNs repeat after 2^24 packets.
    pub(super) fn find(&self, number: u64) -> Option<(usize, u32)> {
        self.ring.iter().enumerate().find_map(|(at, resource)| {
            let resource = resource.as_ref()?;
            let packet = u32::try_from(number.checked_sub(resource.number)?).ok()?;
            (packet < resource.packets).then_some((at, packet))
        })
    }

    pub(super) fn get(&self, at: usize) -> Option<&Resource> {
        self.ring.get(at)?.as_ref()
    }

    /// Restarts this entry's response at packet `first`, even if a part of it is still owed.
    pub(super) fn answer_again(&mut self, at: usize, first: u32) {
        if let Some(Some(resource)) = self.ring.get_mut(at) {
            if !resource.owes() {
                self.owing = self.owing.wrapping_add(1);
                resource.repeats = true;
            }
            (resource.first, resource.next) = (first, first);
        }
    }
}
