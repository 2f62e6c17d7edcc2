//! What several packets bring, placed at once: a host looks up keys and copies for all of them as for one.

use crate::wire::Operation;
use crate::{Burst, Delivered, End, Host, Nak, Source, Start, Stop};

/// A host as the packets of a run see it: what the first of them places is what all bring, and the others find it there.
/// If that cannot be placed, the message ends at the first one.
pub(super) struct Run<'a, H: ?Sized> {
    host: &'a mut H,
    /// The payload from the present packet on.
    rest: &'a [u8],
    /// It is all of one message, one packet behind the other.
    is_one: bool,
    /// How many bytes of it are there already.
    placed: usize,
}

impl<'a, H: Host + ?Sized> Run<'a, H> {
    pub(super) fn new(burst: &Burst, payload: &'a [u8], host: &'a mut H) -> Self {
        use Operation as Op;
        // What may follow these is what a run has behind its first packet.
        let is_one = matches!(
            burst.header.bth.opcode.operation(),
            Op::SendFirst | Op::SendMiddle | Op::RdmaWriteFirst | Op::RdmaWriteMiddle
        );
        Self { host, rest: payload, is_one, placed: 0 }
    }

    /// The present packet, which had this payload, is done.
    pub(super) fn next(&mut self, payload: &[u8]) {
        self.rest = self.rest.get(payload.len()..).unwrap_or_default();
        self.placed = self.placed.saturating_sub(payload.len());
    }
}

impl<H: Host + ?Sized> Host for Run<'_, H> {
    fn begin(&mut self, start: &Start) -> Result<(), Stop> {
        self.host.begin(start)
    }

    fn place(&mut self, start: &Start, at: u32, payload: &[u8]) -> Result<(), Stop> {
        if self.placed >= payload.len() {
            return Ok(());
        }
        let fits = start.length.map_or(usize::MAX, |length| length.saturating_sub(at) as usize);
        let all = self.rest.get(..self.rest.len().min(fits)).unwrap_or_default();
        if !self.is_one || all.len() < payload.len() {
            return self.host.place(start, at, payload);
        }
        self.host.place(start, at, all)?;
        self.placed = all.len();
        Ok(())
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
