//! The part of streams and messages that blocking and asynchronous drivers share.
//!
//! The protocol is in `rdma-message`. A driver has the queue pair and the memory ([`Requests`]), and a lock around them
//! and a [`StreamState`] or a [`Mailbox`]. The asynchronous one copies and posts the frames of a stream's writes without its
//! lock. A driver passes the wakers of its tasks, or none if its threads wait otherwise.

mod body;
mod bytes;
mod error;
mod lender;
mod mailbox;
mod operations;
mod options;
mod sending;
mod shortage;
mod slots;
mod source;
mod tasks;
mod window;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use rdma_mem::Buffer;
use rdma_message::frame::{CloseReason, Frame, Remote};
use rdma_message::{ConnectionError, Incoming, Operation, Output};
use tracing::field::display;

use crate::error::peer::PeerAddress;

pub use body::Body;
pub use bytes::{Arrived, StreamFrame, StreamState, WriteCursor, chunk_bytes};
pub use error::MessageError;
pub use lender::{LeaseRequests, Lender};
pub use mailbox::{Begun, Content, Mailbox, Received, Start};
pub use operations::Ticket;
pub use options::{
    Options, check_depths, check_limits, depths_of, limits_of, linger_of, message_limits,
};
pub use shortage::{RETRY, Shortage};
pub use slots::Slots;
pub use source::{Copied, LongCopy};
pub use tasks::Waiting;
pub use window::Window;

/// The requests of a connection, and the memory of its free slots.
pub trait Requests {
    /// Returns the memory of the free slots.
    fn slots(&mut self) -> &mut Slots;

    /// Posts a receive into the memory of a slot, or sets it again if that fails.
    fn receive(&mut self, slot: u32, buffer: Buffer);

    /// Posts the SEND of the first `length` bytes of a slot's memory, or sets it again if that fails. `closing` is the
    /// reason if this is a close frame.
    fn send(&mut self, slot: u32, buffer: Buffer, length: usize, closing: Option<CloseReason>);

    /// Makes the session end. Requests that have completed are still processed.
    fn fail(&mut self);

    /// Posts a receive into the memory of a slot.
    fn post_receive(&mut self, slot: u32) {
        if let Some(buffer) = self.slots().take_receive(slot) {
            self.receive(slot, buffer);
        }
    }

    /// Posts the SEND of a frame. `fill` writes the bytes after the header, and returns their number.
    fn post_send(&mut self, slot: u32, header: &[u8], fill: impl FnOnce(&mut [u8]) -> usize) {
        let closing = Frame::close_reason(header);
        if let Some((buffer, length)) = self.slots().fill(slot, header, fill) {
            self.send(slot, buffer, length, closing);
        }
    }
}

/// The requests of a connection for messages, with the memory of long messages.
pub trait LongRequests: Requests {
    /// Returns memory of the pool, if it has some now. Otherwise the pool grows for later messages, if it can.
    fn stage(&mut self, length: usize) -> Option<Buffer>;

    /// Reads a message of the peer, and then calls [`Mailbox::fetched`].
    fn fetch(&mut self, message: Incoming, source: Remote, length: u32);

    /// Makes memory readable by the peer, and then calls [`Mailbox::lent`].
    fn lend(&mut self, operation: Operation, buffer: Buffer) -> Lent;

    /// Ends the lease of an operation, if there is one.
    fn end_lease(&mut self, operation: Operation);

    /// Frees memory when the session is not locked.
    fn free(&mut self, memory: Buffer);
}

/// The outcome of a request to lend.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums)] // a driver returns each
pub enum Lent {
    /// The bind is posted.
    Begun,
    /// A window will be free later. [`Mailbox::lend`] is then called.
    Later(Buffer),
    /// The memory cannot be lent.
    Refused(Buffer),
}

/// The protocol of a session, with what has arrived and the tasks that wait for it.
pub trait Protocol<R>: fmt::Debug + Send + 'static {
    /// Processes the frame in the memory of a receive slot.
    fn received(&mut self, slot: u32, frame: &[u8]);

    /// Processes the completion of a SEND.
    fn sent(&mut self, slot: u32);

    /// Returns the next instruction or event.
    fn poll_output(&mut self) -> Option<Output>;

    /// Executes an instruction, or notes an event. Adds the wakers of the tasks to wake to `woken`.
    fn act(&mut self, output: Output, requests: &mut R, woken: &mut Vec<Waker>);

    /// Ends the protocol, because the queue pair has been destroyed.
    fn lost(&mut self, requests: &mut R);

    /// Returns whether the next completion of a receive, and of a SEND, must be processed although no task calls the
    /// session.
    fn awaits(&self) -> (bool, bool);

    /// Removes a handle of the program. Returns true if it was the last one.
    fn leave(&mut self) -> bool;

    /// Registers a waker for the end, unless the connection has ended.
    fn await_end(&mut self, waker: &mut Option<Waker>);

    /// Returns the reason of the end, once. The inner `None` means that nothing of either end is missing.
    fn end(&mut self) -> &mut End;
}

/// The end of a connection.
#[derive(Debug, Default)]
pub struct End {
    /// The reason. The inner `None` means that nothing of either end is missing.
    reason: Option<Option<ConnectionError>>,
    is_reported: bool,
}

impl End {
    pub(crate) const fn set(&mut self, reason: Option<ConnectionError>) {
        self.reason = Some(reason);
    }

    /// Returns the reason. The inner `None` means that nothing of either end is missing.
    #[must_use]
    pub const fn reason(&self) -> Option<Option<ConnectionError>> {
        self.reason
    }

    /// Returns the error that ended the connection, once, for [`report`].
    pub fn take_unreported(&mut self) -> Option<ConnectionError> {
        let error = self.reason.flatten().filter(|_| !self.is_reported);
        self.is_reported |= error.is_some();
        error
    }
}

static VIOLATIONS: AtomicU64 = AtomicU64::new(0);
static LOSSES: AtomicU64 = AtomicU64::new(0);
static MALFORMED_VALUES: AtomicU64 = AtomicU64::new(0);

/// Returns the number of streams and connections for messages that have ended because their peers broke the protocol. It
/// counts all of this process, blocking and asynchronous.
///
/// The number never decreases. A warning of `tracing` for each of these connections states the error. It names the
/// peer by its address, or by its queue pair if the connection was not made by address. A peer that has a stream instead of
/// messages causes a warning, but is not counted.
///
/// # Examples
/// ```
/// // No peer has sent an invalid frame, or more than its credit.
/// assert_eq!(rdma_connect::messaging::violations(), 0);
/// ```
#[must_use]
pub fn violations() -> u64 {
    VIOLATIONS.load(Ordering::Relaxed)
}

/// Returns the number of streams and connections for messages that were lost while something of either end was missing.
/// It counts all of this process, blocking and asynchronous.
///
/// The peer has died or reset such a connection, or the device or the network has failed. The number never decreases.
/// For each of them, an event of `tracing` with the level `DEBUG` states the peer.
///
/// # Examples
/// ```
/// // No peer has died.
/// assert_eq!(rdma_connect::messaging::losses(), 0);
/// ```
#[must_use]
pub fn losses() -> u64 {
    LOSSES.load(Ordering::Relaxed)
}

/// Returns the number of calls of `Message::value` that could not decode a value. It counts all of this process, blocking
/// and asynchronous.
///
/// Their connections continue, because the program may have requested another type. The number never decreases. For
/// each of them, a warning of `tracing` states the error and the peer.
///
/// # Examples
/// ```
/// // No message had the bytes of another type.
/// assert_eq!(rdma_connect::messaging::malformed_values(), 0);
/// ```
#[must_use]
pub fn malformed_values() -> u64 {
    MALFORMED_VALUES.load(Ordering::Relaxed)
}

/// The peer of a connection, for events.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_enums)] // a driver creates each
pub enum Peer {
    /// The address of its control connection.
    Address(SocketAddr),
    /// Its queue pair, if the connection was not made by address.
    QueuePair(PeerAddress),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::QueuePair(address) => address.fmt(f),
        }
    }
}

/// Reports a message from which no value could be decoded to the subscriber of `tracing`. Counts it for
/// [`malformed_values`].
pub fn report_malformed(error: &dyn fmt::Display, length: usize, peer: Option<Peer>) {
    MALFORMED_VALUES.fetch_add(1, Ordering::Relaxed);
    let peer = peer.map(display);
    tracing::warn!(%error, length, peer, "the bytes of a message are not a value of the requested type");
}

/// Reports the end of a connection to the subscriber of `tracing`. If the ends do not match, or the peer has broken the
/// protocol, this is a warning. The latter counts for [`violations`]. A lost connection counts for [`losses`].
pub fn report(error: ConnectionError, peer: Option<Peer>) {
    let peer = peer.map(display);
    match error {
        ConnectionError::Aborted => {}
        ConnectionError::Lost | ConnectionError::PeerClosed(_) => {
            LOSSES.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%error, peer, "a stream or a connection for messages has ended");
        }
        ConnectionError::Mode(_) => {
            tracing::warn!(%error, peer, "the ends of a connection do not match");
        }
        _ => {
            VIOLATIONS.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, peer, "a peer has broken the protocol");
        }
    }
}

/// Reports a long message of the peer that waits for memory to the subscriber of `tracing`.
pub fn report_refused(error: &dyn fmt::Display, length: usize, peer: Option<Peer>) {
    let peer = peer.map(display);
    tracing::warn!(%error, length, peer, "a message waits for memory: its sender waits, too");
}

/// Registers a waker, if there is one. Moves the earlier one to `waker`, for the caller to drop without the lock.
const fn wait(waiting: &mut Option<Waker>, waker: &mut Option<Waker>) {
    if waker.is_some() {
        std::mem::swap(waiting, waker);
    }
}
