//! What a responder needs: somebody to execute requests.

use crate::datagram::{Delivered, Source};
use crate::operation::{End, Nak, Start, Stop};

/// Executes what a peer asks for: the owner of the memory that requests are about.
///
/// For each message come, in this order, `begin`; `place` for each packet that has payload, or
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
