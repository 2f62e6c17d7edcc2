//! The messages of the peer, in the order of their arrival.

use std::collections::VecDeque;

use rdma::channel::{Scope, ScopedPendingWork};
use rdma::qp::ReceiveWorkRequest;

use super::Error;
use super::stop::Stop;

/// Posted receives for messages that consist of immediate data. A message's payload, if any, was
/// written to memory by the same RDMA write.
#[derive(Debug)]
pub(crate) struct Inbox<'scope> {
    receives: VecDeque<ScopedPendingWork<'scope>>,
}

/// A message that has arrived from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) immediate: u32,
    /// The number of bytes that the message wrote to this side's memory.
    pub(crate) bytes: usize,
}

impl<'scope> Inbox<'scope> {
    pub(crate) fn new(depth: usize) -> Self {
        Self { receives: VecDeque::with_capacity(depth) }
    }

    /// Posts a receive for one further message.
    pub(crate) fn post(&mut self, scope: &'scope Scope<'scope, '_>) -> Result<(), Error> {
        self.receives.push_back(scope.post_receive(ReceiveWorkRequest::only_immediate())?);
        Ok(())
    }

    /// Waits for the next message and returns it.
    pub(crate) fn next(&mut self, stop: &Stop<'_>) -> Result<Arrival, Error> {
        let success = stop.until(|| self.receives.front().and_then(ScopedPendingWork::poll))??;
        self.receives.pop_front();
        match (success.immediate_data(), success.scattered_bytes()) {
            (Some(immediate), Some(bytes)) => Ok(Arrival { immediate, bytes }),
            _ => Err(Error::Protocol("a message without an immediate arrived".to_owned())),
        }
    }
}
