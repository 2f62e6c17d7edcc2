//! Messages that have arrived.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

#[cfg(feature = "serde")]
use rdma_connect::messaging::report_malformed;
use rdma_connect::messaging::{Body, Content, MessageError, Start};
#[cfg(feature = "serde")]
use rdma_connect::{ValueError, ValueExt as _};
use rdma_mem::Buffer;
use rdma_message::frame::CallId;
#[cfg(feature = "serde")]
use serde::de::DeserializeOwned;

use super::mailbox::Mailbox;
use super::run;
use crate::buffer::pool::PoolError;
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

    /// Replies to a request. Ready when the peer's device has received the reply.
    ///
    /// If the future is dropped before anything was sent, the request is refused. Afterwards, the reply is sent
    /// completely.
    ///
    /// # Errors
    /// [`MessageError::NotSent`] if the peer has cancelled the call or dropped its `Messages`, or if this is no request.
    /// Also if the reply is longer than the peer accepts; the request is then refused. [`MessageError::Operation`] or
    /// [`MessageError::Ended`] if the connection has ended.
    pub async fn reply(mut self, bytes: &[u8]) -> Result<(), MessageError> {
        let Some(request) = self.request else {
            return Err(rdma_message::SendError::NotOpenRequest.into());
        };
        let session = Arc::clone(&self.session);
        // From the start on, the operation replaces the request.
        let started = || self.request = None;
        run::run(&session, Start::Reply(request), Content::Bytes(bytes), started).await.map(drop)
    }

    /// Returns the memory of the message. A long message that was lent lies in its own buffer, so nothing is copied. A
    /// message that has arrived in frames may be copied to a buffer of the connection's pool.
    ///
    /// If the message is a request that was not answered, it is refused. If the future is dropped, the message is lost.
    ///
    /// # Errors
    /// Same errors as [`Pool::allocate`](crate::Pool::allocate), if the message has to be copied.
    ///
    /// # Examples
    /// See [`Messages::send_buffer`](crate::message::Messages::send_buffer).
    pub async fn into_buffer(mut self) -> Result<Buffer, PoolError> {
        let body = match std::mem::take(&mut self.body).into_buffer() {
            Ok(buffer) => return Ok(buffer),
            Err(body) => body,
        };
        let pool = self.session.with(|state| state.protocol.supply().pool().clone());
        self.body = body;
        let mut buffer = pool.allocate(self.len()).await?;
        buffer.copy_from_slice(&self);
        Ok(buffer)
    }

    /// Decodes a value that was encoded with [`Messages::send_value`](crate::message::Messages::send_value). If that
    /// fails, the connection continues. A warning of `tracing` then names the peer, and
    /// [`malformed_values`](crate::message::malformed_values) counts it.
    ///
    /// # Errors
    /// Same errors as [`ValueExt::value`](crate::ValueExt::value), which also bounds time and memory.
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
            let _ = ManuallyDrop::new(std::mem::take(&mut self.body));
            return;
        }
        if let Some(request) = self.request.take() {
            self.session.with(|state| state.protocol.shared.refuse(request));
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_request() { "request" } else { "message" };
        write!(f, "Message({kind}, {} bytes)", self.len())
    }
}
