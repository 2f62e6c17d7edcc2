//! What programs send inline, and the device does not take inline.

use rdma_connect::{Operation, TransportError};
use rdma_mem::SharedElement;

use super::copies::{Copies, CopyOfCall};
use super::queues::{Connection, index};
use super::{Ledger, SlotWait};

impl Ledger {
    /// Registers the places, if so many bytes were asked for, and a queue pair has been given fewer.
    ///
    /// # Errors
    /// If they cannot be registered.
    pub(crate) fn provide_copies(&mut self, asked: u32, given: u32) -> Result<(), rdma_mem::Error> {
        if given < asked && self.copies.is_none() {
            let places = self.queues.slots().len();
            self.copies = Some(Copies::new(&self.pd, places, asked as usize)?);
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
        self.copies.as_ref().filter(|copies| length > inline && length <= copies.each())
    }

    /// Copies the bytes of a blocking call of a channel, which has posted nothing else. `None` if they can be inline, or are
    /// too many: then the post fails.
    ///
    /// # Errors
    /// If this is a forked child.
    #[cold]
    pub(crate) fn copy_of_call(&self, bytes: &[u8]) -> Result<Option<CopyOfCall>, TransportError> {
        let Some(copies) = self.copies_for(self.only(), bytes.len()) else {
            return Ok(None);
        };
        self.check_process()?;
        Ok(Some(copies.put_for_call(bytes)))
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
