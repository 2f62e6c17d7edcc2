//! The READs and atomics that were executed last: their responses, and what a duplicate is answered.

use alloc::boxed::Box;
use alloc::vec;

use rdma_types::Psn;

use crate::connection::Connection;
use crate::operation::Start;
use crate::segmentation::Remainder;

/// A READ or an atomic that was executed (IBTA chapter 9, responder resources).
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub(super) start: Start,
    /// The number of the request among all PSNs that were taken, its PSN, and how many its response has.
    pub(super) number: u64,
    pub(super) psn: Psn,
    pub(super) packets: u32,
    /// The MSN after it.
    pub(super) msn: u32,
    /// What an atomic found.
    pub(super) original: u64,
    /// Of the response: the packet that began it, when it was asked for last, and the next one.
    pub(super) first: u32,
    pub(super) next: u32,
    /// It was answered, and is to be once more.
    pub(super) repeats: bool,
}

impl Resource {
    pub(super) const fn owes(&self) -> bool {
        self.next < self.packets
    }

    /// Whether the next packet is the first that was asked for.
    pub(super) const fn begins(&self) -> bool {
        self.next == self.first
    }

    /// Its PSN.
    pub(super) fn next_psn(&self) -> Psn {
        self.psn.wrapping_add(self.next)
    }

    /// What is left of the response of a READ. The first packet has an AETH, and so has the last.
    pub(super) fn remainder(&self, connection: &Connection) -> Remainder {
        let length = self.start.length.unwrap_or_default();
        Remainder {
            bytes: length.saturating_sub(self.offset(connection)),
            packets: self.packets.saturating_sub(self.next),
            alone: self.begins(),
            extra: 4,
        }
    }

    /// Where it begins in the response, in bytes.
    pub(super) fn offset(&self, connection: &Connection) -> u32 {
        connection.offset(self.next)
    }
}

/// A ring of as many as the requester may have in flight (`max_dest_rd_atomic`).
#[derive(Debug)]
pub(super) struct Resources {
    ring: Box<[Option<Resource>]>,
    /// Where the next one goes: the oldest is there.
    newest: usize,
    /// How many owe a response.
    owing: u32,
}

impl Resources {
    pub(super) fn new(count: u8) -> Self {
        Self { ring: vec![None; count.into()].into(), newest: 0, owing: 0 }
    }

    /// Whether there is a free slot for one more: not if the oldest has never been answered, so
    /// that the requester has more in flight than it may. One that is only to be answered once more
    /// frees a slot: who sends a new request has that answer, and what asked for it again was late.
    pub(super) fn has_room(&self) -> bool {
        let owes = |oldest: Resource| oldest.owes() && !oldest.repeats;
        self.ring.get(self.newest).is_some_and(|oldest| !oldest.is_some_and(owes))
    }

    /// Remembers one, instead of the oldest.
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

    /// The oldest that owes a response.
    pub(super) fn owing(&mut self) -> Option<&mut Resource> {
        if self.owing == 0 {
            return None;
        }
        let (young, old) = self.ring.split_at_mut_checked(self.newest)?;
        old.iter_mut().chain(young).flatten().find(|resource| resource.owes())
    }

    /// One more of them has answered.
    pub(super) fn answered(&mut self) {
        self.owing = self.owing.saturating_sub(1);
    }

    /// The oldest that owes a response is not answered.
    pub(super) fn give_up(&mut self) {
        if let Some(resource) = self.owing() {
            resource.next = resource.packets;
            self.answered();
        }
    }

    /// Nothing is owed any more.
    pub(super) fn forget(&mut self) {
        self.ring.fill(None);
        self.owing = 0;
    }

    /// The one whose response has the packet with that number, and which packet of it that is. The PSN alone does
    /// not say it: after 2^24 packets it is that of another request.
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

    /// Has it answer from that packet on, whatever it still owed.
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
