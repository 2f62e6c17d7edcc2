//! The memory of a connection.

use std::mem;

use rdma_mem::Buffer;
use rdma_message::Options as Limits;

/// A buffer for each slot. Each slot has its own, because a program may keep what has arrived.
///
/// After the connection has ended, a program may keep a message or a chunk for any time, and with it the session. So the
/// slots then have no memory.
#[derive(Debug)]
pub struct Slots {
    receives: Vec<Option<Buffer>>,
    sends: Vec<Option<Buffer>>,
    is_closed: bool,
    /// The memory to free when the session is not locked.
    unused: Vec<Buffer>,
}

impl Slots {
    /// The alignment of the buffers: the size of a cache line, so that slots share none.
    pub const ALIGNMENT: usize = 64;

    /// Creates the slots from the buffers of [`lengths`](Self::lengths), in their order.
    #[must_use]
    pub fn new(limits: &Limits, buffers: impl IntoIterator<Item = Buffer>) -> Self {
        let mut buffers = buffers.into_iter().map(Some);
        let receives = buffers.by_ref().take(limits.receive_slots() as usize).collect();
        Self { receives, sends: buffers.collect(), is_closed: false, unused: Vec::new() }
    }

    /// Returns the lengths of the buffers.
    pub fn lengths(limits: &Limits) -> impl Iterator<Item = usize> + Send + use<> {
        let each = |bytes: u32, count: u32| (0..count).map(move |_| bytes as usize);
        let receives = each(limits.receive_bytes, limits.receive_slots());
        receives.chain(each(limits.send_bytes, limits.sends))
    }

    /// Returns the number of receive slots.
    #[must_use]
    pub fn receives(&self) -> u32 {
        u32::try_from(self.receives.len()).unwrap_or(u32::MAX)
    }

    /// Returns the number of send slots.
    #[must_use]
    pub const fn sends(&self) -> usize {
        self.sends.len()
    }

    /// Takes the memory of a receive slot that is not posted.
    pub fn take_receive(&mut self, slot: u32) -> Option<Buffer> {
        self.receives.get_mut(slot as usize)?.take()
    }

    /// Sets the memory of a receive slot that is not posted. After [`close`](Self::close), the memory is unused.
    pub fn set_receive(&mut self, slot: u32, buffer: Buffer) {
        if self.is_closed {
            self.unused.push(buffer);
        } else if let Some(free) = self.receives.get_mut(slot as usize) {
            *free = Some(buffer);
        }
    }

    /// Takes the memory of a send slot that is not posted.
    pub(super) fn take_send(&mut self, slot: u32) -> Option<Buffer> {
        self.sends.get_mut(slot as usize)?.take()
    }

    /// Sets the memory of a send slot that is not posted. After [`close`](Self::close), the memory is unused.
    pub fn set_send(&mut self, slot: u32, buffer: Option<Buffer>) {
        if self.is_closed {
            self.unused.extend(buffer);
        } else if let Some(free) = self.sends.get_mut(slot as usize) {
            *free = buffer;
        }
    }

    /// Takes the memory out of all slots that are not posted, because the connection has ended. It is unused from now
    /// on. So is memory that is set later: that of a chunk which the program still has, or of a frame that was not posted.
    pub fn close(&mut self) {
        self.is_closed = true;
        let slots = self.receives.iter_mut().chain(&mut self.sends);
        self.unused.extend(slots.filter_map(Option::take));
    }

    /// Returns the unused memory, for the caller to free when the session is not locked.
    pub fn take_unused(&mut self) -> Vec<Buffer> {
        mem::take(&mut self.unused)
    }

    /// Takes the memory of a send slot that is not posted, and writes a frame to it. `fill` writes the bytes after the
    /// header, and returns their number. Returns the memory with the length of the frame.
    pub(super) fn fill(
        &mut self,
        slot: u32,
        header: &[u8],
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Option<(Buffer, usize)> {
        let mut buffer = self.take_send(slot)?;
        let length = write_frame(&mut buffer, header, fill);
        Some((buffer, length))
    }
}

/// Writes a frame to the memory of a send slot, which has room for each header. Returns the length of the frame.
pub(super) fn write_frame(
    buffer: &mut [u8],
    header: &[u8],
    fill: impl FnOnce(&mut [u8]) -> usize,
) -> usize {
    let (head, rest) = buffer.split_at_mut(header.len());
    head.copy_from_slice(header);
    header.len() + fill(rest)
}
