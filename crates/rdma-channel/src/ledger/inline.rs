//! Inline data that a device cannot send inline.

use rdma_connect::{Operation, TransportError};
use rdma_mem::SharedElement;

use super::copies::{CallCopy, Copies};
use super::queues::{Connection, index};
use super::{Ledger, SlotWait};

impl Ledger {
    /// Registers the buffers if the queue pairs support fewer bytes of inline data (`given`) than the program requested
    /// (`asked`).
    ///
    /// # Errors
    /// Returns an error if the memory cannot be registered.
    pub(crate) fn provide_copies(&mut self, asked: u32, given: u32) -> Result<(), rdma_mem::Error> {
        if given < asked && self.copies.is_none() {
            let places = self.queues.slots().len();
            self.copies = Some(Copies::new(&self.pd, places, asked as usize)?);
        }
        Ok(())
    }

    /// Returns true if the buffers have been registered.
    #[inline(always)]
    pub(crate) const fn has_copies(&self) -> bool {
        self.copies.is_some()
    }

    /// Returns the buffers if `length` bytes do not fit inline and therefore need one.
    fn copies_for(&self, connection: &Connection, length: usize) -> Option<&Copies> {
        let inline = connection.qp()?.capabilities().max_inline_data as usize;
        self.copies.as_ref().filter(|copies| length > inline && length <= copies.each())
    }

    /// Copies the bytes of a channel's blocking call to the dead slot's buffer. Returns `None` if the bytes fit inline.
    /// Also returns `None` if there are more bytes than a buffer holds; in that case, the post fails.
    ///
    /// # Errors
    /// Returns an error if this process is a forked child.
    #[cold]
    pub(crate) fn call_copy(&self, bytes: &[u8]) -> Result<Option<CallCopy>, TransportError> {
        let Some(copies) = self.copies_for(self.only(), bytes.len()) else {
            return Ok(None);
        };
        self.check_process()?;
        Ok(Some(copies.put_for_call(bytes)))
    }

    /// Waits for a free slot of the send queue, and copies the bytes to the slot's buffer. The next post uses that
    /// slot. Returns `None` if a copy is not needed or not possible, like [`call_copy`](Self::call_copy).
    ///
    /// # Errors
    /// Returns an error if no slot becomes free in time, or if this process is a forked child.
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
