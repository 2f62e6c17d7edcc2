//! The interface through which a requester reads its queue.

use rdma_types::WcStatus;

use crate::operation::{MessageEnd, MessageStart};

/// A work queue element (WQE), as the requester reads it from its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "queues construct it")]
pub enum Wqe {
    /// A request to the peer.
    Remote {
        /// The kind and the remote memory. The `length` in this struct is ignored.
        start: MessageStart,
        /// The length, and the properties that the last packet carries. The length of an atomic is
        /// 8.
        end: MessageEnd,
        /// Whether the request waits until all earlier READs and atomics complete (IBTA section
        /// 10.8.3.3).
        fence: bool,
    },
    /// A local request: binding a window, or invalidating a key. It is executed once all requests
    /// before it have completed. Until then, no later request is sent.
    Local,
    /// A request that cannot be executed. It is not sent, and fails with this status once all
    /// requests before it have completed.
    Invalid(WcStatus),
}

/// A send queue. Request numbers wrap around: `u32::MAX` is followed by 0.
///
/// A request must not change until [`done`](Self::done) or [`failed`](Self::failed) is called with
/// its number. The requester calls at most one of them per request, once, in the order of the
/// numbers. After `failed`, it calls neither again. All calls come from within calls to the
/// requester.
pub trait Work {
    /// Returns the number that follows the last request that may be sent. It grows with each post.
    /// A draining queue (SQD) keeps it at [`begun`](crate::requester::Requester::begun).
    fn admitted(&self) -> u32;

    /// Returns the request with this number, which is before [`admitted`](Self::admitted).
    fn request(&self, n: u32) -> Wqe;

    /// Fills `out` with the payload of a SEND or a WRITE, starting at offset `at`. It is called
    /// again when packets must be sent again.
    ///
    /// # Errors
    ///
    /// Returns the status with which the request then fails.
    fn gather(&mut self, n: u32, at: u32, out: &mut [u8]) -> Result<(), WcStatus>;

    /// Stores a READ's data at offset `at`, or the result of an atomic: 8 bytes in this machine's
    /// byte order.
    ///
    /// # Errors
    ///
    /// Returns the status with which the request then fails.
    fn deliver(&mut self, n: u32, at: u32, payload: &[u8]) -> Result<(), WcStatus>;

    /// Executes a [`Wqe::Local`].
    ///
    /// # Errors
    ///
    /// Returns the status with which the request then fails.
    fn execute_local(&mut self, n: u32) -> Result<(), WcStatus>;

    /// Completes the request successfully.
    fn done(&mut self, n: u32);

    /// Fails the request. The requester has stopped, so later requests have to be flushed.
    fn failed(&mut self, n: u32, status: WcStatus);
}
