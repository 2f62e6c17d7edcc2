//! The part that messages and streams share: slots, credit, the hello, and the end.

mod slots;

use alloc::collections::VecDeque;

use crate::counters::Counters;
use crate::credit::{Allowance, Grant};
use crate::error::{ConnectionError, SendError};
use crate::frame::{Body, CloseReason, Frame, Hello, Limits, Mode};
use crate::options::{MIN_SLOT_BYTES, Options, RESERVED_SENDS};
use crate::output::{Chunk, Output, Payload, Transmit};

use slots::SendSlots;
pub(crate) use slots::Use;

/// A data frame that arrived, and was judged as far as the frame alone allows.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) body: Body,
    /// The payload. Its length may be 0.
    pub(crate) chunk: Chunk,
}

/// The state of the frames with data of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    None,
    /// The last frame is to be sent, after all others with data.
    Wanted,
    /// The last frame, or an earlier one, has not completed.
    Sent,
    /// The peer's device has received all frames.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The peer's hello is missing.
    Opening,
    Open,
    /// A close frame is to be sent.
    Closing(CloseReason),
    /// The close frame has not completed.
    Closed,
    /// The driver is to disconnect.
    Disconnecting,
    /// The driver is disconnecting.
    Disconnected,
    Ended,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) options: Options,
    mode: Mode,
    phase: Phase,
    pub(crate) error: Option<ConnectionError>,
    hello_sent: bool,
    peer: Option<Hello>,
    /// The receives to post, each with whether this grants the peer a receive.
    reposts: VecDeque<(u32, bool)>,
    sends: SendSlots,
    /// Whether the driver has not posted the last frame of a write. The queue pair must send frames in
    /// the order of their headers.
    pub(crate) is_unposted: bool,
    /// The number of frames with data that have not completed.
    data_in_flight: u32,
    pub(crate) finish: Finish,
    /// Whether the peer reports that it has received everything.
    pub(crate) peer_has_all: bool,
    receives: Grant,
    pub(crate) bytes: Grant,
    allowed_receives: Allowance,
    allowed_bytes: Allowance,
    /// Whether a credit frame of this end is not acknowledged.
    credit_in_flight: bool,
    /// Whether a credit frame of the peer is to be acknowledged.
    owes_acknowledgement: bool,
    /// The number of the peer's offers that are over, and the number in the last frame.
    pub(crate) fetched: u32,
    pub(crate) stated_fetched: u32,
    /// The number of offers of this end, and those that are over.
    offered: u32,
    peer_fetched: u32,
    /// Whether the program no longer reads, and whether the peer knows it.
    pub(crate) stops: bool,
    stated_stops: bool,
    pub(crate) peer_stops: bool,
    pub(crate) peer_finished: bool,
    pub(crate) counters: Counters,
}

impl Link {
    pub(crate) fn new(options: &Options, mode: Mode) -> Self {
        Self {
            options: *options,
            mode,
            phase: Phase::Opening,
            error: None,
            hello_sent: false,
            peer: None,
            reposts: VecDeque::new(),
            sends: SendSlots::new(options.sends),
            is_unposted: false,
            data_in_flight: 0,
            finish: Finish::None,
            peer_has_all: false,
            receives: Grant::new(options.receives),
            bytes: Grant::new(options.window_bytes),
            allowed_receives: Allowance::default(),
            allowed_bytes: Allowance::default(),
            credit_in_flight: false,
            owes_acknowledgement: false,
            fetched: 0,
            stated_fetched: 0,
            offered: 0,
            peer_fetched: 0,
            stops: false,
            stated_stops: false,
            peer_stops: false,
            peer_finished: false,
            counters: Counters::default(),
        }
    }

    /// Returns true if data may be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open && self.hello_sent
    }

    /// Returns the peer's hello if operations may start.
    pub(crate) fn opened(&self) -> Result<Hello, SendError> {
        match (self.phase, self.peer) {
            (Phase::Opening, _) => Err(SendError::NotOpen),
            (Phase::Open, Some(peer)) if self.hello_sent => Ok(peer),
            (Phase::Open, _) => Err(SendError::NotOpen),
            _ => Err(SendError::Ended),
        }
    }

    /// Returns the peer's hello if this end may send further data.
    pub(crate) fn may_send(&self) -> Result<Hello, SendError> {
        let peer = self.opened()?;
        if self.finish != Finish::None {
            return Err(SendError::Finished);
        }
        if self.peer_stops {
            return Err(SendError::PeerFinished);
        }
        Ok(peer)
    }

    /// Returns the event that operations may start, if they may now, and might not before.
    pub(crate) fn opened_since(&self, was_open: bool) -> Option<Output> {
        let hello = if was_open { None } else { self.opened().ok() };
        hello.map(Output::Opened)
    }

    /// Receives a frame. Returns a data frame, and handles all others.
    pub(crate) fn receive(
        &mut self,
        slot: u32,
        bytes: &[u8],
    ) -> Result<Option<Arrival>, ConnectionError> {
        match self.phase {
            Phase::Opening | Phase::Open => {}
            Phase::Closing(_) | Phase::Closed => {
                // The peer ends the connection too, and may not receive the close frame.
                if let Ok((Frame { body: Body::Close(_), .. }, _)) = Frame::decode(bytes) {
                    self.phase = Phase::Disconnecting;
                }
                return Ok(None);
            }
            _ => return Ok(None),
        }
        self.counters.received_frames = self.counters.received_frames.wrapping_add(1);
        let (frame, start) = Frame::decode(bytes).map_err(ConnectionError::Frame)?;
        if matches!(frame.body, Body::Hello(_)) != (self.phase == Phase::Opening) {
            return Err(ConnectionError::Hello);
        }
        self.apply(&frame)?;
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let (cost, start) = (number(bytes.len()), number(start));
        if frame.body.is_data() {
            if !self.receives.arrive(1) {
                return Err(ConnectionError::Receives);
            }
            let credit = self.bytes.remaining();
            if !self.bytes.arrive(cost) {
                return Err(ConnectionError::Bytes { frame: cost, credit });
            }
            if self.peer_finished {
                return Err(ConnectionError::Finished);
            }
            let chunk = Chunk { slot, start, len: cost.saturating_sub(start), cost };
            return Ok(Some(Arrival { body: frame.body, chunk }));
        }
        match frame.body {
            Body::Hello(hello) => self.open(hello)?,
            Body::Close(CloseReason::FINISHED) if self.has_finished() => {
                self.peer_has_all = true;
                self.reposts.clear();
                self.phase = Phase::Disconnecting;
                return Ok(None);
            }
            Body::Close(reason) => return Err(ConnectionError::PeerClosed(reason)),
            Body::Acknowledge if !frame.acknowledges => return Err(ConnectionError::Control),
            // The peer sends the next credit frame after the acknowledgement of this one.
            Body::Credit if self.owes_acknowledgement => return Err(ConnectionError::Control),
            Body::Credit => self.owes_acknowledgement = true,
            _ => {}
        }
        self.reposts.push_back((slot, false));
        Ok(None)
    }

    /// Applies the flags and limits of a frame.
    fn apply(&mut self, frame: &Frame) -> Result<(), ConnectionError> {
        if frame.acknowledges {
            if !self.credit_in_flight {
                return Err(ConnectionError::Control);
            }
            self.credit_in_flight = false;
        }
        self.peer_stops |= frame.stops;
        self.allowed_receives.limit(frame.limits.receives)?;
        self.allowed_bytes.limit(frame.limits.bytes)?;
        let reported = frame.limits.fetched;
        if reported.wrapping_sub(self.peer_fetched) > self.offered.wrapping_sub(self.peer_fetched) {
            return Err(ConnectionError::Fetched { reported, offered: self.offered });
        }
        self.peer_fetched = reported;
        Ok(())
    }

    /// Returns true if both ends have sent their last frame with data.
    fn has_finished(&self) -> bool {
        self.peer_finished && matches!(self.finish, Finish::Sent | Finish::Done)
    }

    fn open(&mut self, hello: Hello) -> Result<(), ConnectionError> {
        if hello.mode != self.mode {
            return Err(ConnectionError::Mode(hello.mode));
        }
        if hello.receive_bytes < MIN_SLOT_BYTES {
            return Err(ConnectionError::ReceiveBytes(hello.receive_bytes));
        }
        self.peer = Some(hello);
        self.phase = Phase::Open;
        Ok(())
    }

    /// Returns the number of this end's offers that the peer reports as over.
    pub(crate) const fn peer_fetched(&self) -> u32 {
        self.peer_fetched
    }

    /// Returns the length of the longest frame with data.
    pub(crate) fn max_frame(&self) -> u32 {
        self.peer.map_or(0, |peer| peer.receive_bytes.min(self.options.send_bytes))
    }

    /// Returns true if a data frame with a payload of this length can be sent now.
    pub(crate) fn can_send(&self, body: Body, payload: u32) -> bool {
        let length = body.header_bytes().saturating_add(payload);
        self.is_open()
            && self.sends.free() > RESERVED_SENDS
            && self.allowed_receives.available() > 0
            && self.allowed_bytes.available() >= length
    }

    /// Sends a data frame, which [`can_send`](Self::can_send) has admitted.
    pub(crate) fn send(&mut self, body: Body, payload: Payload, by: Use) -> Option<Transmit> {
        let transmit = self.post(body, payload, by)?;
        let len = match payload {
            Payload::Empty => 0,
            Payload::Message { len, .. } | Payload::Stream { len } => len,
        };
        self.data_in_flight = self.data_in_flight.saturating_add(1);
        self.allowed_receives.take(1);
        self.allowed_bytes.take(body.header_bytes().saturating_add(len));
        if matches!(body, Body::Offer { .. }) {
            self.offered = self.offered.wrapping_add(1);
        }
        Some(transmit)
    }

    /// Takes a send slot and builds a frame with the current limits.
    fn post(&mut self, body: Body, payload: Payload, by: Use) -> Option<Transmit> {
        let slot = self.sends.take(by)?;
        let limits = Limits {
            receives: self.receives.state(),
            bytes: self.bytes.state(),
            fetched: self.fetched,
        };
        self.stated_fetched = self.fetched;
        self.stated_stops = self.stops;
        // The peer sends its next credit frame after the acknowledgement, so the receive for it is
        // posted before.
        let acknowledges = self.owes_acknowledgement && self.reposts.is_empty();
        self.owes_acknowledgement &= !acknowledges;
        let frame = Frame { acknowledges, stops: self.stops, limits, body };
        self.counters.sent_frames = self.counters.sent_frames.wrapping_add(1);
        Some(Transmit { slot, header: frame.encode(), payload, begins: None })
    }

    /// Frees a send slot. Returns its use.
    pub(crate) fn sent(&mut self, slot: u32) -> Option<Use> {
        let by = self.sends.release(slot)?;
        match by {
            Use::Control => {}
            Use::Close if self.phase == Phase::Closed => self.phase = Phase::Disconnecting,
            Use::Close => {}
            Use::Data | Use::Operation(_) => {
                self.data_in_flight = self.data_in_flight.saturating_sub(1);
            }
        }
        Some(by)
    }

    /// Releases the receive slot of a data frame, but not its bytes.
    pub(crate) fn release_slot(&mut self, slot: u32) {
        if matches!(self.phase, Phase::Opening | Phase::Open) {
            self.reposts.push_back((slot, true));
        }
    }

    /// Returns true if receives are to be posted.
    pub(crate) fn has_reposts(&self) -> bool {
        !self.reposts.is_empty()
    }

    /// Returns the outputs that precede all others: receives to post, the hello, and the end.
    pub(crate) fn poll_first(&mut self) -> Option<Output> {
        if let Some((slot, grants)) = self.reposts.pop_front() {
            // The credit exists from now on, after the receive is posted.
            if grants {
                self.receives.release(1);
            }
            return Some(Output::PostReceive(slot));
        }
        match self.phase {
            Phase::Opening | Phase::Open if !self.hello_sent => {
                let hello = self.options.hello(self.mode);
                let transmit = self.post(Body::Hello(hello), Payload::Empty, Use::Control)?;
                self.hello_sent = true;
                Some(Output::Send(transmit))
            }
            Phase::Closing(reason) if !self.is_unposted => {
                let transmit = self.post(Body::Close(reason), Payload::Empty, Use::Close)?;
                self.phase = Phase::Closed;
                Some(Output::Send(transmit))
            }
            Phase::Disconnecting => {
                self.phase = Phase::Disconnected;
                Some(Output::Disconnect(self.error))
            }
            _ => None,
        }
    }

    /// Returns a credit frame or an acknowledgement if one is due, after all data frames.
    #[inline]
    pub(crate) fn poll_control(&mut self) -> Option<Output> {
        let is_credit_due = self.is_credit_due();
        if !is_credit_due && !self.owes_acknowledgement {
            return None;
        }
        // One slot stays free for a close frame.
        if !self.is_open() || self.sends.free() <= 1 {
            return None;
        }
        if is_credit_due {
            let transmit = self.post(Body::Credit, Payload::Empty, Use::Control)?;
            self.credit_in_flight = true;
            self.counters.credit_frames = self.counters.credit_frames.wrapping_add(1);
            return Some(Output::Send(transmit));
        }
        self.post(Body::Acknowledge, Payload::Empty, Use::Control).map(Output::Send)
    }

    fn is_credit_due(&self) -> bool {
        let wants_data = !self.peer_finished
            && (self.receives.is_due(1) || self.bytes.is_due(self.options.receive_bytes));
        // A peer that has finished writes nothing that could be stopped.
        let has_stopped = self.stops && !self.stated_stops && !self.peer_finished;
        let has_news = self.fetched != self.stated_fetched || has_stopped;
        !self.credit_in_flight && (wants_data || has_news)
    }

    /// Returns true once, when the peer has received all frames with data up to the last.
    pub(crate) fn flush(&mut self) -> bool {
        let is_new = self.finish == Finish::Sent
            && (self.data_in_flight == 0 || self.peer_has_all)
            && !self.has_ended();
        if is_new {
            self.finish = Finish::Done;
        }
        is_new
    }

    /// Ends the connection because of an error.
    pub(crate) fn fail(&mut self, error: ConnectionError) {
        if !matches!(self.phase, Phase::Opening | Phase::Open) {
            return;
        }
        self.error = Some(error);
        self.reposts.clear();
        self.phase = match error.close_reason() {
            Some(reason) if self.hello_sent => Phase::Closing(reason),
            _ => Phase::Disconnecting,
        };
    }

    /// Ends the connection after both ends have finished. The close frame proves to the peer that
    /// its last frames have arrived: their completions may be lost when this end disconnects.
    pub(crate) fn close(&mut self) {
        if self.is_open() {
            self.reposts.clear();
            self.phase = Phase::Closing(CloseReason::FINISHED);
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Records that the queue pair is in the error state and that all requests are flushed. Returns
    /// the last output. `is_clean` reports whether nothing of either end is missing.
    pub(crate) fn end(&mut self, is_clean: bool) -> Output {
        if self.error.is_none() && !is_clean {
            self.error = Some(ConnectionError::Lost);
        }
        self.reposts.clear();
        self.phase = Phase::Ended;
        Output::Ended(self.error)
    }
}

#[cfg(test)]
impl Link {
    /// Counts everything that wraps from this number, as after a long conversation.
    pub(crate) fn start_at(&mut self, number: u32) {
        self.receives.start_at(number);
        self.bytes.start_at(number);
        self.allowed_receives.start_at(number);
        self.allowed_bytes.start_at(number);
        (self.fetched, self.stated_fetched) = (number, number);
        (self.offered, self.peer_fetched) = (number, number);
    }
}
