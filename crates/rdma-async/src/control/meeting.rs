//! A queue pair that both ends of a control connection make.

use rdma_connect::ConnectError;
use rdma_qp::{QueuePairBuilder, QueuePairEndpoint};

use super::frame::Frame;
use super::shared::{Lane, MOST_STRANGERS, Shared};

/// A queue pair that is being made with the other end. Dropped, the other end is told that it will not be.
pub(super) struct Meeting<'s> {
    shared: &'s Shared,
    number: u32,
    /// There is a connection, which is to have the queue pair.
    is_here: bool,
    /// What was said last of it.
    epoch: Option<u32>,
    /// What may be lent to, and is not there yet.
    entered: Option<u32>,
}

/// What the other end has done about it.
pub(super) enum Met<T> {
    Yes(T),
    /// It has given up, and may begin again.
    Withdrawn,
}

impl<'s> Meeting<'s> {
    /// For a connection that is here, or is not.
    ///
    /// # Errors
    /// [`ConnectError::NoControl`], [`ConnectError::NumberTaken`], and [`ConnectError::Busy`] if this end makes as many
    /// already as the other one remembers.
    pub(super) fn begin(
        shared: &'s Shared,
        number: u32,
        is_here: bool,
    ) -> Result<Self, ConnectError> {
        if !shared.talks {
            return Err(ConnectError::NoControl);
        }
        let mut state = shared.state();
        let meeting = state.lanes.values().filter(|lane| lane.is_meeting).count();
        if shared.is_client && meeting >= MOST_STRANGERS {
            let why = format!(
                "this end makes {MOST_STRANGERS} queue pairs by the control connection already: wait for some"
            );
            return Err(ConnectError::Busy(why.into()));
        }
        let lane = state.lanes.entry(number).or_default();
        if lane.is_meeting || lane.here.is_some() != is_here {
            return Err(ConnectError::NumberTaken { number });
        }
        (lane.is_meeting, lane.ready) = (true, None);
        Ok(Self { shared, number, is_here, epoch: None, entered: None })
    }

    /// The client's first part.
    pub(super) fn offer(&mut self, endpoint: QueuePairEndpoint) -> u32 {
        let mut state = self.shared.state();
        state.newest += 1;
        let epoch = state.newest;
        // Under the same lock: the server hears them in this order.
        self.shared.send(self.number, epoch, &Frame::Offer(Box::new(endpoint)));
        drop(state);
        self.epoch = Some(epoch);
        epoch
    }

    pub(super) fn send(&mut self, epoch: u32, frame: &Frame) {
        self.epoch = Some(epoch);
        self.shared.send(self.number, epoch, frame);
    }

    /// What the server answers.
    pub(super) async fn answered(
        &self,
        epoch: u32,
    ) -> Result<Met<QueuePairEndpoint>, ConnectError> {
        let look = |lane: &mut Lane| {
            if let Some((_, endpoint)) = lane.endpoint.take_if(|(answered, _)| *answered == epoch) {
                return Some(Met::Yes(*endpoint));
            }
            (lane.withdrawn >= Some(epoch)).then_some(Met::Withdrawn)
        };
        self.shared.until(self.number, look).await
    }

    /// Whether the other end has given up.
    pub(super) fn is_withdrawn(&self, epoch: u32) -> bool {
        let state = self.shared.state();
        state.lanes.get(&self.number).is_some_and(|lane| lane.withdrawn >= Some(epoch))
    }

    /// What the client offers.
    pub(super) async fn offered(&mut self) -> Result<(u32, QueuePairEndpoint), ConnectError> {
        let look = |lane: &mut Lane| lane.endpoint.take();
        let (epoch, endpoint) = self.shared.until(self.number, look).await?;
        // Whatever becomes of it, the client is told.
        self.epoch = Some(epoch);
        Ok((epoch, *endpoint))
    }

    /// Whether the client is ready.
    pub(super) async fn ready(&self, epoch: u32) -> Result<Met<()>, ConnectError> {
        let look = |lane: &mut Lane| {
            if lane.ready == Some(epoch) {
                return Some(Met::Yes(()));
            }
            let is_newer = lane.endpoint.as_ref().is_some_and(|(offered, _)| *offered > epoch);
            (lane.withdrawn >= Some(epoch) || is_newer).then_some(Met::Withdrawn)
        };
        self.shared.until(self.number, look).await
    }

    /// The other end may lend something to the queue pair from now on.
    pub(super) fn enter(&mut self, epoch: u32, qp: &QueuePairBuilder<'static>) {
        self.shared.leases.enter(self.number, epoch, qp.pd(), qp.granted());
        self.entered = Some(epoch);
    }

    /// It was withdrawn by the other end.
    pub(super) fn forget(&mut self) {
        self.epoch = None;
        self.take_back();
    }

    /// Nothing can be lent to a queue pair that will not be.
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

    /// The queue pair is there.
    pub(super) fn done(mut self, epoch: u32) {
        if self.shared.is_client {
            self.send(epoch, &Frame::Ready);
        }
        (self.epoch, self.entered) = (None, None);
    }
}

impl Drop for Meeting<'_> {
    fn drop(&mut self) {
        if !self.shared.is_of_this_process() {
            return;
        }
        self.take_back();
        let mut state = self.shared.state();
        if let Some(lane) = state.lanes.get_mut(&self.number) {
            lane.is_meeting = false;
            if self.shared.is_client {
                lane.endpoint = None;
            }
        }
        state.forget_unknown(self.number);
        // Under the same lock: the server hears of it before it hears of one more.
        if let Some(epoch) = self.epoch {
            self.shared.send(self.number, epoch, &Frame::Ended);
        }
        drop(state);
    }
}
