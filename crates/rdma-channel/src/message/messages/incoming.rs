//! Messages that have arrived.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::sync::Arc;

#[cfg(feature = "serde")]
use rdma_connect::messaging::report_malformed;
use rdma_connect::messaging::{Body, Content, Mailbox, MessageError, Start};
#[cfg(feature = "serde")]
use rdma_connect::{ValueError, ValueExt as _};
use rdma_mem::{Buffer, Error};
use rdma_message::SendError;
use rdma_message::frame::CallId;
#[cfg(feature = "serde")]
use serde::de::DeserializeOwned;

use super::run;
use crate::message::session::Session;

/// A message, a request or a reply of the peer. Dereferences to its bytes.
///
/// Dropping a request refuses it: the peer's call fails with [`OperationError::Refused`](crate::message::OperationError).
pub struct Message {
    session: Arc<Session<Mailbox>>,
    body: Body,
    /// The ID of a request that has not been answered.
    request: Option<CallId>,
}

impl Message {
    pub(super) const fn new(
        session: Arc<Session<Mailbox>>,
        body: Body,
        request: Option<CallId>,
    ) -> Self {
        Self { session, body, request }
    }

    /// Returns true if the peer waits for a reply.
    #[must_use]
    pub const fn is_request(&self) -> bool {
        self.request.is_some()
    }

    /// Replies to a request. Returns when the peer's device has received the reply.
    ///
    /// If the time limit expires before anything was sent, the request is refused. Afterwards, the reply is sent
    /// completely.
    ///
    /// # Errors
    /// [`MessageError::NotSent`] if the peer has cancelled the call or dropped its `Messages`, or if this is no request.
    /// Also if the reply is longer than the peer accepts; the request is then refused. [`MessageError::Operation`] or
    /// [`MessageError::Ended`] if the connection has ended.
    pub fn reply(mut self, bytes: &[u8]) -> Result<(), MessageError> {
        let Some(request) = self.request else { return Err(SendError::NotOpenRequest.into()) };
        let session = Arc::clone(&self.session);
        // From the start on, the operation replaces the request.
        let started = || self.request = None;
        run(&session, Start::Reply(request), Content::Bytes(bytes), started).map(drop)
    }

    /// Returns the memory of the message. A long message that the peer has lent lies in its own buffer, so nothing is
    /// copied. A message that has arrived in frames may be copied to a buffer of the connection's pool.
    ///
    /// If the message is a request that was not answered, it is refused. This waits for no peer, so it has no time limit.
    ///
    /// # Errors
    /// Same errors as [`BufferPool::allocate`](rdma_mem::BufferPool::allocate), if the message has to be copied.
    pub fn into_buffer(mut self) -> Result<Buffer, Error> {
        match mem::take(&mut self.body).into_buffer() {
            Ok(buffer) => return Ok(buffer),
            Err(body) => self.body = body,
        }
        let mut buffer = self.session.pool().allocate(self.len())?;
        buffer.copy_from_slice(&self);
        Ok(buffer)
    }

    /// Decodes a value that was encoded with [`Messages::send_value`](crate::message::Messages::send_value). If that
    /// fails, the connection continues. A warning of `tracing` then names the peer, and
    /// [`malformed_values`](crate::message::malformed_values) counts it.
    ///
    /// # Errors
    /// [`ValueError::Malformed`] if the bytes are not a value of this type, or the value exceeds the limits of time and
    /// memory for its length.
    #[cfg(feature = "serde")]
    pub fn value<T: DeserializeOwned>(&self) -> Result<T, ValueError> {
        (**self).value().inspect_err(|error| {
            report_malformed(error, self.len(), self.session.peer());
        })
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.body.bytes()
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if !self.session.is_of_this_process() {
            // A forked child owns none of this.
            let _ = ManuallyDrop::new(mem::take(&mut self.body));
            return;
        }
        if let Some(request) = self.request.take() {
            self.session.with(|state| state.protocol.refuse(request));
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_request() { "request" } else { "message" };
        write!(f, "Message({kind}, {} bytes)", self.len())
    }
}
