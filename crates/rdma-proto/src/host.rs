//! The interface through which a responder executes requests.

use crate::datagram::{Delivered, Source};
use crate::operation::{End, Nak, Start, Stop};

/// Executes a peer's requests: the owner of the memory that the requests access.
///
/// The calls for each message are, in this order: `begin`; then `place` for each packet with payload, `fetch` as space
/// for the response becomes free, or `atomic`; and `finish` for a SEND or a WRITE. Do not keep an address from one call
/// to the next: the memory may have been deregistered in between.
///
/// An error ends a message. After [`Stop::NotReady`] and [`Stop::Drop`], the failed call is repeated with the same
/// arguments when the packet arrives again, which it does on a reliable connection.
pub trait Host {
    /// Begins a message. A SEND consumes a receive. For other requests, checks the whole range and whether the peer has
    /// the right to use it. An empty range needs no key (IBTA section 9.7.4.1.5, C9-88).
    ///
    /// # Errors
    ///
    /// Any [`Stop`].
    fn begin(&mut self, start: &Start) -> Result<(), Stop>;

    /// Writes payload of a SEND or a WRITE to its place, `at` bytes after the start of the message.
    ///
    /// # Errors
    ///
    /// Any [`Stop`].
    fn place(&mut self, start: &Start, at: u32, payload: &[u8]) -> Result<(), Stop>;

    /// Fills `out` with data for a READ, starting `at` bytes after the start of its range. Also called for a duplicate
    /// request, which is executed again (IBTA section 9.7.4.1).
    ///
    /// # Errors
    ///
    /// Any [`Stop`].
    fn fetch(&mut self, start: &Start, at: u32, out: &mut [u8]) -> Result<(), Stop>;

    /// Executes an atomic and returns the previous value. Never called for a duplicate: the responder keeps the answer
    /// (IBTA section 9.7.4.1).
    ///
    /// # Errors
    ///
    /// Any [`Stop`].
    fn atomic(&mut self, start: &Start) -> Result<u64, Stop>;

    /// Consumes the receive of a WRITE with immediate. Called when the last packet has arrived, before its payload is
    /// written.
    ///
    /// # Errors
    ///
    /// Any [`Stop`].
    fn take_receive(&mut self, start: &Start) -> Result<(), Stop>;

    /// Completes a SEND or a WRITE that has arrived completely, and its receive, if it consumed one. A SEND with a key
    /// that cannot be invalidated was nevertheless delivered, and returns `Ok`.
    ///
    /// # Errors
    ///
    /// Any [`Stop`].
    fn finish(&mut self, start: &Start, end: &End) -> Result<(), Stop>;

    /// Abandons the message that has begun; its receive stays posted for the next one. Only for unreliable connections
    /// (IBTA chapter 9, unreliable connections).
    fn abandon(&mut self);

    /// Puts the queue pair into the error state: a request was refused, by the host or because it is invalid itself.
    fn fail(&mut self, nak: Nak);

    /// Delivers a datagram with the right Q_Key. Called once per member for a multicast datagram.
    fn datagram(&mut self, from: &Source, end: &End, payload: &[u8]) -> Delivered;
}
