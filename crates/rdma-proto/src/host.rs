//! What a responder needs: somebody to execute requests.

use crate::burst::Burst;
use crate::connection::Connection;
use crate::datagram::{Delivered, Source};
use crate::operation::MAX_MESSAGE_BYTES;
use crate::wire::Operation;
use crate::{End, Nak, Start, Stop};

/// Executes what a peer asks for: the owner of the memory that requests are about.
///
/// For each message come, in this order, `begin`; `place` for each packet that has payload, or for several at once, or
/// `fetch` as there is space for the response, or `atomic`; and `finish` for a SEND or a WRITE. No
/// address that was found in one call may be used in the next, since the memory may have been taken
/// away in between.
///
/// An error ends a message. After [`Stop::NotReady`] and [`Stop::Drop`] the call that failed will come
/// again if the connection is reliable, with what the same packet says.
pub trait Host {
    /// A message begins: a SEND takes its receive; the whole range of others is checked, and whether the
    /// peer may use it so. No bytes need no key (IBTA section 9.7.4.1.5, C9-88).
    ///
    /// # Errors
    ///
    /// Any [`Stop`].
    fn begin(&mut self, start: &Start) -> Result<(), Stop>;

    /// Puts payload of a SEND or a WRITE where it belongs, `at` bytes behind the message's first.
    ///
    /// # Errors
    ///
    /// Any [`Stop`].
    fn place(&mut self, start: &Start, at: u32, payload: &[u8]) -> Result<(), Stop>;

    /// Fills `out` with what a READ asks for, from `at` bytes behind the first one. Also for a duplicate
    /// request, which is executed again (IBTA section 9.7.4.1).
    ///
    /// # Errors
    ///
    /// Any [`Stop`].
    fn fetch(&mut self, start: &Start, at: u32, out: &mut [u8]) -> Result<(), Stop>;

    /// Executes an atomic, and returns what was there before. Never for a duplicate: the responder kept
    /// the answer (IBTA section 9.7.4.1).
    ///
    /// # Errors
    ///
    /// Any [`Stop`].
    fn atomic(&mut self, start: &Start) -> Result<u64, Stop>;

    /// The last packet of a WRITE with immediate has come: the WRITE takes its receive, before the payload of
    /// that packet is put anywhere.
    ///
    /// # Errors
    ///
    /// Any [`Stop`].
    fn take_receive(&mut self, start: &Start) -> Result<(), Stop>;

    /// All of a SEND or a WRITE is there: its receive completes, if it took one. A SEND whose key cannot be invalidated was nevertheless delivered, and returns `Ok`.
    ///
    /// # Errors
    ///
    /// Any [`Stop`].
    fn finish(&mut self, start: &Start, end: &End) -> Result<(), Stop>;

    /// The message that has begun will not end, and its receive stays for the next one: of unreliable
    /// connections (IBTA chapter 9, unreliable connections).
    fn abandon(&mut self);

    /// A request was refused, by the host or because it is wrong in itself: the queue pair is in error.
    fn fail(&mut self, nak: Nak);

    /// A datagram came whose Q_Key is right. A multicast one comes once for each member.
    fn datagram(&mut self, from: &Source, end: &End, payload: &[u8]) -> Delivered;
}

/// A host as the packets of a run see it. What the first of them places is what all bring but the last: headers of those
/// in between follow from the first, and cannot be wrong. The others find it there.
pub(crate) struct Run<'a, H: ?Sized> {
    host: &'a mut H,
    /// The payload from the present packet on, up to the last one.
    rest: &'a [u8],
    /// How many bytes of it are there already.
    placed: usize,
}

impl<'a, H: Host + ?Sized> Run<'a, H> {
    pub(crate) fn new(
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
        let bytes =
            if goes_on && are_full { before_last.saturating_mul(burst.segment.into()) } else { 0 };
        Self { host, rest: payload.get(..bytes).unwrap_or_default(), placed: 0 }
    }

    /// Of one packet, which has the host for itself.
    pub(crate) const fn single(host: &'a mut H) -> Self {
        Self { host, rest: &[], placed: 0 }
    }

    /// The present packet, which had this payload, is done.
    pub(crate) fn next(&mut self, payload: &[u8]) {
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
    #[inline(always)]
    fn begin(&mut self, start: &Start) -> Result<(), Stop> {
        self.host.begin(start)
    }

    #[inline(always)]
    fn place(&mut self, start: &Start, at: u32, payload: &[u8]) -> Result<(), Stop> {
        if self.rest.is_empty() {
            return self.host.place(start, at, payload);
        }
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

    #[inline(always)]
    fn take_receive(&mut self, start: &Start) -> Result<(), Stop> {
        self.host.take_receive(start)
    }

    #[inline(always)]
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
