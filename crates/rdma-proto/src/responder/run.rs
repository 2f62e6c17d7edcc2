//! What several packets bring, placed at once: a host looks up keys and copies for all of them as for one.

use crate::operation::MAX_MESSAGE_BYTES;
use crate::wire::Operation;
use crate::{Burst, Connection, Delivered, End, Host, Nak, Source, Start, Stop};

/// A host as the packets of a run see it. What the first of them places is what all bring but the last: headers of those
/// in between follow from the first, and cannot be wrong. The others find it there.
pub(super) struct Run<'a, H: ?Sized> {
    host: &'a mut H,
    /// The payload from the present packet on, up to the last one.
    rest: &'a [u8],
    /// How many bytes of it are there already.
    placed: usize,
}

impl<'a, H: Host + ?Sized> Run<'a, H> {
    pub(super) fn new(
        connection: &Connection,
        burst: &Burst,
        payload: &'a [u8],
        host: &'a mut H,
    ) -> Self {
        use Operation as Op;
        let goes_on = matches!(
            burst.header.bth.opcode.operation(),
            Op::SendFirst | Op::SendMiddle | Op::RdmaWriteFirst | Op::RdmaWriteMiddle
        );
        let are_full = u32::from(burst.segment) == connection.mtu.bytes();
        let before_last = usize::from(burst.segments.saturating_sub(1));
        let bytes = if goes_on && are_full { before_last * usize::from(burst.segment) } else { 0 };
        Self { host, rest: payload.get(..bytes).unwrap_or_default(), placed: 0 }
    }

    /// The present packet, which had this payload, is done.
    pub(super) fn next(&mut self, payload: &[u8]) {
        self.rest = self.rest.get(payload.len()..).unwrap_or_default();
        self.placed = self.placed.saturating_sub(payload.len());
    }

    /// Whether a message is longer than what was there before and what all of them bring.
    fn goes_on(&self, start: &Start, at: u32) -> bool {
        let length = start.length.unwrap_or(MAX_MESSAGE_BYTES);
        length.checked_sub(at).is_some_and(|left| (left as usize) > self.rest.len())
    }
}

impl<H: Host + ?Sized> Host for Run<'_, H> {
    fn begin(&mut self, start: &Start) -> Result<(), Stop> {
        self.host.begin(start)
    }

    fn place(&mut self, start: &Start, at: u32, payload: &[u8]) -> Result<(), Stop> {
        if !payload.is_empty() && self.placed >= payload.len() {
            return Ok(());
        }
        if self.rest.len() > payload.len()
            && self.goes_on(start, at)
            && self.host.place(start, at, self.rest).is_ok()
        {
            self.placed = self.rest.len();
            return Ok(());
        }
        // If it cannot all be placed, some may.
        self.rest = &[];
        self.host.place(start, at, payload)
    }

    fn fetch(&mut self, start: &Start, at: u32, out: &mut [u8]) -> Result<(), Stop> {
        self.host.fetch(start, at, out)
    }

    fn atomic(&mut self, start: &Start) -> Result<u64, Stop> {
        self.host.atomic(start)
    }

    fn take_receive(&mut self, start: &Start) -> Result<(), Stop> {
        self.host.take_receive(start)
    }

    fn finish(&mut self, start: &Start, end: &End) -> Result<(), Stop> {
        self.host.finish(start, end)
    }

    fn abandon(&mut self) {
        self.host.abandon();
    }

    fn fail(&mut self, nak: Nak) {
        self.host.fail(nak);
    }

    fn datagram(&mut self, from: &Source, end: &End, payload: &[u8]) -> Delivered {
        self.host.datagram(from, end, payload)
    }
}
