//! The interface through which a requester reads its queue.

use rdma_types::WcStatus;

use crate::operation::{End, Start};

/// A request, in the form that its requester reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "queues construct it")]
pub enum Request {
    /// A request to the peer.
    Remote {
        /// The kind and the remote memory. The length is ignored.
        start: Start,
        /// The length and the properties of the last packet. The length of an atomic is 8.
        end: End,
        /// Whether it waits until all READs and atomics before it have completed (IBTA section 10.8.3.3).
        fence: bool,
    },
    /// A local request: the binding of a window, or the invalidation of a key. It is executed when all requests before
    /// it have completed, and no later request is sent before that.
    Local,
    /// A request that cannot be executed: it is not sent, and fails with this status when all before it have completed.
    Invalid(WcStatus),
}

/// A send queue. The numbers of requests run freely: after `u32::MAX` comes 0.
///
/// A request must not change until [`done`](Self::done) or [`failed`](Self::failed) is called with its number. That
/// happens once per request, in the order of the numbers. All calls are made from within calls of the requester.
pub trait Work {
    /// The number after the last request that may be sent. It grows with each post; a queue that drains (SQD) keeps it
    /// at [`begun`](crate::requester::Requester::begun).
    fn admitted(&self) -> u32;

    /// Returns the request with this number, which is before `admitted`.
    fn request(&self, n: u32) -> Request;

    /// Fills `out` with payload of a SEND or a WRITE, from offset `at` on. Called again when packets must be sent
    /// again.
    ///
    /// # Errors
    ///
    /// The status that the request then fails with.
    fn gather(&mut self, n: u32, at: u32, out: &mut [u8]) -> Result<(), WcStatus>;

    /// Stores data of a READ at offset `at`, or the result of an atomic: 8 bytes in the byte order of this machine.
    ///
    /// # Errors
    ///
    /// The status that the request then fails with.
    fn deliver(&mut self, n: u32, at: u32, payload: &[u8]) -> Result<(), WcStatus>;

    /// Executes a [`Request::Local`].
    ///
    /// # Errors
    ///
    /// The status that the request then fails with.
    fn execute_local(&mut self, n: u32) -> Result<(), WcStatus>;

    /// Completes the request successfully.
    fn done(&mut self, n: u32);

    /// Fails the request. Its requester has stopped, so later requests have to be flushed.
    fn failed(&mut self, n: u32, status: WcStatus);
}
