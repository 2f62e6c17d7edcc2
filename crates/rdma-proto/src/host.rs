//! The interface through which a responder executes requests.

use crate::datagram::{Delivered, Source};
use crate::operation::{MessageEnd, MessageStart, Nak, Stop};

/// Executes a peer's requests. A host owns the memory that the requests access.
///
/// For each message, `begin` is called first. It is followed by `place` for each packet with a
/// payload, by `fetch` whenever there is space for more of the response, or by `atomic`. A SEND or
/// a WRITE ends with `finish`. An implementation must not keep an address from one call to the
/// next, because the memory may be deregistered in between.
///
/// On an unreliable connection, an error ends the message, and `abandon` is called. On a reliable
/// connection, [`Stop::Nak`] ends the connection. After [`Stop::NotReady`] or [`Stop::Drop`], the
/// packet arrives again, and all calls for it are repeated with the same arguments. This does not
/// hold for `fetch`: every error of `fetch` is a NAK ([`Nak::RemoteOperational`] for `NotReady` and
/// `Drop`).
pub trait Host {
    /// Begins a message. Consumes a receive for a SEND. For other requests, checks the whole range
    /// and the peer's rights to it. An empty range needs no key (IBTA section 9.7.4.1.5, C9-88).
    ///
    /// # Errors
    ///
    /// May return any [`Stop`].
    fn begin(&mut self, start: &MessageStart) -> Result<(), Stop>;

    /// Writes the payload of a SEND or a WRITE, `at` bytes after the start of the message.
    ///
    /// # Errors
    ///
    /// May return any [`Stop`].
    fn place(&mut self, start: &MessageStart, at: u32, payload: &[u8]) -> Result<(), Stop>;

    /// Fills `out` with data for a READ, from `at` bytes after the start of its range. It is also
    /// called for a duplicate request, because READs are executed again (IBTA section 9.7.4.1).
    ///
    /// # Errors
    ///
    /// May return any [`Stop`].
    fn fetch(&mut self, start: &MessageStart, at: u32, out: &mut [u8]) -> Result<(), Stop>;

    /// Executes an atomic and returns the previous value. It is never called for a duplicate,
    /// because the responder keeps the answer (IBTA section 9.7.4.1).
    ///
    /// # Errors
    ///
    /// May return any [`Stop`].
    fn atomic(&mut self, start: &MessageStart) -> Result<u64, Stop>;

    /// Consumes a receive for a WRITE with immediate. It is called when the last packet arrives,
    /// before its payload is written.
    ///
    /// # Errors
    ///
    /// May return any [`Stop`].
    fn take_receive(&mut self, start: &MessageStart) -> Result<(), Stop>;

    /// Completes a SEND or a WRITE that has arrived completely, and the receive that it consumed,
    /// if any. If the key that a SEND names cannot be invalidated, returns `Ok` anyway, because the
    /// SEND was delivered.
    ///
    /// # Errors
    ///
    /// May return any [`Stop`].
    fn finish(&mut self, start: &MessageStart, end: &MessageEnd) -> Result<(), Stop>;

    /// Abandons the current message. Its receive stays posted for the next message. This is called
    /// only for unreliable connections (IBTA chapter 9, unreliable connections).
    fn abandon(&mut self);

    /// Moves the queue pair to the error state, because the host refused a request or a request is
    /// invalid.
    fn fail(&mut self, nak: Nak);

    /// Delivers a datagram whose Q_Key matches. A multicast datagram is delivered once per member.
    fn datagram(&mut self, from: &Source, end: &MessageEnd, payload: &[u8]) -> Delivered;
}
