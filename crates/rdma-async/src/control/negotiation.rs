//! The negotiation of a queue pair between the two ends of a control connection.

use rdma_connect::ConnectError;
use rdma_qp::{QueuePairBuilder, QueuePairEndpoint};

use super::frame::Frame;
use super::shared::{Lane, MOST_STRANGERS, Shared};

/// A queue pair that is being negotiated with the other end. Dropping this notifies the other end that the negotiation
/// has failed.
pub(super) struct Negotiation<'s> {
    shared: &'s Shared,
    number: u32,
    /// Whether the queue pair is for an existing connection.
    is_here: bool,
    /// The epoch of the current offer, if there is one. If the negotiation fails, the other end is notified with this
    /// epoch.
    epoch: Option<u32>,
    /// The epoch of a queue pair to which the peer may already lend memory, although it is not connected at both ends
    /// yet.
    entered: Option<u32>,
}

/// The reaction of the other end.
pub(super) enum Reaction<T> {
    Yes(T),
    /// The other end has given up, and may start again.
    Withdrawn,
}

impl<'s> Negotiation<'s> {
    /// Starts a negotiation, for an existing connection or a new one.
    ///
    /// # Errors
    /// [`ConnectError::NoControl`], [`ConnectError::NumberTaken`], and [`ConnectError::Busy`] if this end is the client
    /// and already has as many negotiations as the server remembers.
    pub(super) fn begin(
        shared: &'s Shared,
        number: u32,
        is_here: bool,
    ) -> Result<Self, ConnectError> {
        if !shared.talks {
            return Err(ConnectError::NoControl);
        }
        let mut state = shared.state();
        let negotiating = state.lanes.values().filter(|lane| lane.is_negotiating).count();
        if shared.is_client && negotiating >= MOST_STRANGERS {
            let why = format!(
                "this end is already creating {MOST_STRANGERS} queue pairs over the control \
                 connection: wait for some of them"
            );
            return Err(ConnectError::Busy(why.into()));
        }
        let lane = state.lanes.entry(number).or_default();
        if lane.is_negotiating || lane.here.is_some() != is_here {
            return Err(ConnectError::NumberTaken { number });
        }
        (lane.is_negotiating, lane.ready) = (true, None);
        Ok(Self { shared, number, is_here, epoch: None, entered: None })
    }

    /// Sends the client's offer. Returns its epoch.
    pub(super) fn offer(&mut self, endpoint: QueuePairEndpoint) -> u32 {
        let mut state = self.shared.state();
        state.newest += 1;
        let epoch = state.newest;
        // Sent under the same lock, so that the server receives epochs in order.
        self.shared.send(self.number, epoch, &Frame::Offer(Box::new(endpoint)));
        drop(state);
        self.epoch = Some(epoch);
        epoch
    }

    pub(super) fn send(&mut self, epoch: u32, frame: &Frame) {
        self.epoch = Some(epoch);
        self.shared.send(self.number, epoch, frame);
    }

    /// Waits for the server's answer.
    pub(super) async fn answered(
        &self,
        epoch: u32,
    ) -> Result<Reaction<QueuePairEndpoint>, ConnectError> {
        let look = |lane: &mut Lane| {
            if let Some((_, endpoint)) = lane.endpoint.take_if(|(answered, _)| *answered == epoch) {
                return Some(Reaction::Yes(*endpoint));
            }
            (lane.withdrawn >= Some(epoch)).then_some(Reaction::Withdrawn)
        };
        self.shared.until(self.number, look).await
    }

    /// Returns true if the other end has given up on this epoch.
    pub(super) fn is_withdrawn(&self, epoch: u32) -> bool {
        let state = self.shared.state();
        state.lanes.get(&self.number).is_some_and(|lane| lane.withdrawn >= Some(epoch))
    }

    /// Waits for the client's offer.
    pub(super) async fn offered(&mut self) -> Result<(u32, QueuePairEndpoint), ConnectError> {
        let look = |lane: &mut Lane| lane.endpoint.take();
        let (epoch, endpoint) = self.shared.until(self.number, look).await?;
        // From now on, the client is notified if the negotiation fails.
        self.epoch = Some(epoch);
        Ok((epoch, *endpoint))
    }

    /// Waits until the client is ready.
    pub(super) async fn ready(&self, epoch: u32) -> Result<Reaction<()>, ConnectError> {
        let look = |lane: &mut Lane| {
            if lane.ready == Some(epoch) {
                return Some(Reaction::Yes(()));
            }
            let is_newer = lane.endpoint.as_ref().is_some_and(|(offered, _)| *offered > epoch);
            (lane.withdrawn >= Some(epoch) || is_newer).then_some(Reaction::Withdrawn)
        };
        self.shared.until(self.number, look).await
    }

    /// Allows the other end to lend memory to the queue pair from now on.
    pub(super) fn enter(&mut self, epoch: u32, qp: &QueuePairBuilder<'static>) {
        self.shared.leases.enter(self.number, epoch, qp.pd(), qp.granted());
        self.entered = Some(epoch);
    }

    /// Forgets the offer after the other end has given up on it.
    pub(super) fn forget(&mut self) {
        self.epoch = None;
        self.take_back();
    }

    /// Ends the leases of a queue pair that will not be connected.
    fn take_back(&mut self) {
        if let Some(epoch) = self.entered.take() {
            let leases = &self.shared.leases;
            if self.is_here {
                leases.end_of(self.number, epoch);
            } else {
                leases.leave(self.number);
            }
        }
    }

    /// Completes the negotiation once the queue pair is connected.
    pub(super) fn done(mut self, epoch: u32) {
        if self.shared.is_client {
            self.send(epoch, &Frame::Ready);
        }
        (self.epoch, self.entered) = (None, None);
    }
}

impl Drop for Negotiation<'_> {
    fn drop(&mut self) {
        if !self.shared.is_of_this_process() {
            return;
        }
        self.take_back();
        let mut state = self.shared.state();
        if let Some(lane) = state.lanes.get_mut(&self.number) {
            lane.is_negotiating = false;
            if self.shared.is_client {
                lane.endpoint = None;
            }
        }
        state.forget_unknown(self.number);
        // Sent under the same lock, so that the server receives this frame before the next offer.
        if let Some(epoch) = self.epoch {
            self.shared.send(self.number, epoch, &Frame::Ended);
        }
        drop(state);
    }
}
