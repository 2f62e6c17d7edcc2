//! Registered places for what programs send inline, on devices that take less inline data than was asked for.

use std::sync::Arc;

use rdma_mem::{AccessFlags, GatherList, SharedElement, SharedRegion};

use super::queues::{Connection, index};
use super::{Ledger, SlotWait};
use crate::operation::Operation;
use crate::transport_error::TransportError;

/// A place for each slot, and the dead slot's for calls. A place is free when its slot is: not before its request has completed.
#[derive(Debug)]
pub(super) struct Copies {
    region: Arc<SharedRegion>,
    /// How many bytes a place has.
    each: usize,
}

/// The bytes of a blocking call, which has nothing else in the dead slot's place.
#[derive(Debug)]
pub(crate) struct CopyOfCall {
    region: Arc<SharedRegion>,
    length: usize,
}

impl Ledger {
    /// Registers the places, if so many bytes were asked for, and a queue pair has been given fewer.
    ///
    /// # Errors
    /// If they cannot be registered.
    pub(crate) fn provide_copies(&mut self, asked: u32, given: u32) -> Result<(), rdma_mem::Error> {
        if given < asked && self.copies.is_none() {
            let each = asked as usize;
            let length = self.queues.slots().len().saturating_mul(each);
            let region = self.pd.allocate_shared_region(length, AccessFlags::new())?;
            self.copies = Some(Copies { region: Arc::new(region), each });
        }
        Ok(())
    }

    /// Whether there are places.
    #[inline(always)]
    pub(crate) const fn has_copies(&self) -> bool {
        self.copies.is_some()
    }

    /// The places, if so many bytes go by one of them and not inline.
    fn copies_for(&self, connection: &Connection, length: usize) -> Option<&Copies> {
        let inline = connection.qp()?.capabilities().max_inline_data as usize;
        self.copies.as_ref().filter(|copies| length > inline && length <= copies.each)
    }

    /// Copies the bytes of a blocking call to a peer, which has posted nothing else. `None` if they can be inline, or are too
    /// many: then the post says so.
    ///
    /// # Errors
    /// If there is no such peer, or this is a forked child.
    #[cold]
    pub(crate) fn copy_of_call(
        &self,
        peer: usize,
        bytes: &[u8],
    ) -> Result<Option<CopyOfCall>, TransportError> {
        let Some(copies) = self.copies_for(self.connection(peer)?, bytes.len()) else {
            return Ok(None);
        };
        self.check_process()?;
        copies.put(0, bytes);
        Ok(Some(CopyOfCall { region: Arc::clone(&copies.region), length: bytes.len() }))
    }

    /// Waits for a free slot of the send queue, and copies the bytes to its place. The next post takes that slot. `None` as for
    /// [`copy_of_call`](Self::copy_of_call).
    ///
    /// # Errors
    /// If there is no free slot, or this is a forked child.
    #[cold]
    pub(crate) fn copy_for_slot<'l>(
        &'l self,
        connection: &'l Connection,
        operation: Operation,
        bytes: &[u8],
    ) -> Result<Option<SharedElement<'l>>, TransportError> {
        let Some(copies) = self.copies_for(connection, bytes.len()) else { return Ok(None) };
        self.check_process()?;
        let (slot, _) =
            self.wait_for_slot(connection, &connection.send, operation, SlotWait::Usual)?;
        Ok(Some(copies.put(index(slot.id()), bytes)))
    }
}

#[allow(clippy::expect_used)] // a slot's index is below their number
impl Copies {
    fn put(&self, place: usize, bytes: &[u8]) -> SharedElement<'_> {
        let start = place * self.each;
        self.region.write(start, bytes).expect("a place for each slot");
        self.region.element(start..start + bytes.len()).expect("a place for each slot")
    }
}

#[allow(clippy::expect_used)] // it was written there
impl CopyOfCall {
    /// What the call sends.
    pub(crate) fn list(&self) -> GatherList<'_, 1> {
        GatherList::from([self.region.element(0..self.length).expect("as long as was written")])
    }
}
