//! What a requester needs: a queue of requests.

use rdma_types::WcStatus;

use crate::operation::{End, Start};

/// A request as its requester sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "queues make it")]
pub enum Request {
    /// For the peer.
    Remote {
        /// What it does. Its length is not looked at.
        start: Start,
        /// Its length, and what goes with it. That of an atomic is 8.
        end: End,
        /// It waits until all READs and atomics before it are done (IBTA section 10.8.3.3).
        fence: bool,
    },
    /// For this end: the binding of a window, or the invalidation of a key. It is executed when all
    /// before it is done, and nothing behind it is sent before that.
    Local,
    /// One that cannot be executed: it is not sent, and fails with that status when all before it is done.
    Invalid(WcStatus),
}

/// A send queue. Requests have numbers that run freely: after `u32::MAX` comes 0.
///
/// A request stays as it is until [`done`](Self::done) or [`failed`](Self::failed) names it, which
/// happens in the order of the numbers, and once. All calls come from within calls of the requester.
pub trait Work {
    /// The number behind the last request that may be sent. It grows with each post; a queue that drains
    /// (SQD) keeps it at [`begun`](crate::requester::Requester::begun).
    fn admitted(&self) -> u32;

    /// The request with that number, which is before `admitted`.
    fn request(&self, n: u32) -> Request;

    /// Fills `out` with the payload of a SEND or a WRITE, from `at` bytes behind its first. It is asked
    /// for again when packets have to be sent again.
    ///
    /// # Errors
    ///
    /// The status that the request then fails with.
    fn gather(&mut self, n: u32, at: u32, out: &mut [u8]) -> Result<(), WcStatus>;

    /// Takes what a READ brought, from `at` bytes behind its first; or what an atomic found, 8 bytes in
    /// the order of this machine.
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

    /// The request is done.
    fn done(&mut self, n: u32);

    /// The request failed, and its requester has stopped: those behind it are to be flushed.
    fn failed(&mut self, n: u32, status: WcStatus);
}
