//! Two streams of bytes, one in each direction.

use alloc::collections::VecDeque;

use crate::counters::Counters;
use crate::error::{ConnectionError, SendError};
use crate::frame::{Body, Mode};
use crate::link::{Finish, Link, Use};
use crate::options::{Options, OptionsError};
use crate::output::{Chunk, Output, Payload, Transmit};

/// One end of a connection that carries a stream in each direction.
///
/// The driver reports events, and after each of them polls [`poll_output`](Self::poll_output) until
/// it returns `None`.
///
/// - **Writing.** [`write`](Self::write) accepts bytes only if it can send them, so accepted bytes
///   are always posted. Until [`posted`](Self::posted), no other frame is sent, so a driver can copy
///   and post them without its lock. [`finish`](Self::finish) sends the end of the stream.
/// - **Reading.** Each [`Output::Data`] has the next bytes. The driver releases the chunks in any
///   order. A slot is posted again when its own chunk is released.
/// - **Half-close.** Each direction finishes on its own. [`stop`](Self::stop) reports to the peer
///   that this end has stopped reading. Later bytes are discarded.
/// - **Errors.** After [`Output::Ended`] with an error, a reader must not report a clean end, unless
///   [`Output::PeerFinished`] came before.
#[derive(Debug)]
pub struct Stream {
    link: Link,
    events: VecDeque<Output>,
    /// The length of the write that could not be sent.
    blocked: Option<u32>,
    stop_reported: bool,
}

impl Stream {
    /// Creates an end. [`Options::receive_slots`] receives must be posted before the connection is
    /// established.
    ///
    /// # Errors
    ///
    /// Fails if a limit is outside its range.
    pub fn new(options: &Options) -> Result<Self, OptionsError> {
        options.check()?;
        Ok(Self {
            link: Link::new(options, Mode::Stream),
            events: VecDeque::new(),
            blocked: None,
            stop_reported: false,
        })
    }

    /// Processes a frame that was received in a slot.
    pub fn received(&mut self, slot: u32, bytes: &[u8]) {
        let was_open = self.link.is_open();
        let result = self.link.receive(slot, bytes).and_then(|arrival| match arrival {
            Some(arrival) => self.arrive(arrival.body, arrival.chunk),
            None => Ok(()),
        });
        if let Err(error) = result {
            self.link.fail(error);
        } else if self.link.peer_stops && !core::mem::replace(&mut self.stop_reported, true) {
            self.events.push_back(Output::PeerStopped);
        }
        self.events.extend(self.link.opened_since(was_open));
    }

    fn arrive(&mut self, body: Body, chunk: Chunk) -> Result<(), ConnectionError> {
        match body {
            Body::Data if self.link.stops => self.release(chunk),
            Body::Data => self.events.push_back(Output::Data(chunk)),
            Body::Finish => {
                self.release(chunk);
                self.link.peer_finished = true;
                self.events.push_back(Output::PeerFinished);
            }
            _ => return Err(ConnectionError::Unexpected),
        }
        Ok(())
    }

    /// Releases bytes of the stream, in any order. Their slot and their credit are used again.
    pub fn release(&mut self, chunk: Chunk) {
        let Chunk { slot, cost, .. } = chunk;
        self.link.bytes.release(cost);
        self.link.release_slot(slot);
    }

    /// Processes the completion of a SEND.
    pub fn sent(&mut self, slot: u32) {
        self.link.sent(slot);
    }

    /// Accepts the first of `wanted` bytes. The driver posts the SEND, and then calls
    /// [`posted`](Self::posted). Meanwhile it may call all methods except `write` and `finish`.
    /// Returns `None` if no bytes can be sent now; [`Output::Writable`] follows.
    ///
    /// # Errors
    ///
    /// Fails if the stream is not open, has finished or ended, or if the peer no longer reads.
    pub fn write(&mut self, wanted: usize) -> Result<Option<Transmit>, SendError> {
        self.link.may_send()?;
        let len = u32::try_from(wanted).unwrap_or(u32::MAX).min(self.max_data());
        if len == 0 {
            return Ok(None);
        }
        if !self.link.can_send(Body::Data, len) {
            self.blocked = Some(len);
            return Ok(None);
        }
        self.blocked = None;
        let transmit = self.link.send(Body::Data, Payload::Stream { len }, Use::Data);
        self.link.is_unposted = transmit.is_some();
        Ok(transmit)
    }

    /// Records that the SEND of the last [`write`](Self::write) is posted, or cannot be posted.
    pub const fn posted(&mut self) {
        self.link.is_unposted = false;
    }

    /// Returns the number of bytes that a frame can carry.
    fn max_data(&self) -> u32 {
        self.link.max_frame().saturating_sub(Body::Data.header_bytes())
    }

    /// Ends this end's stream. [`Output::Flushed`] follows when the peer's device has received all
    /// of it.
    pub fn finish(&mut self) {
        if self.link.finish == Finish::None {
            self.link.finish = Finish::Wanted;
            self.blocked = None;
        }
    }

    /// Stops reading. The peer's bytes are discarded from now on; chunks that were delivered stay
    /// valid until they are released.
    pub fn stop(&mut self) {
        self.link.stops = true;
    }

    /// Resets both directions.
    pub fn abort(&mut self) {
        self.link.fail(ConnectionError::Aborted);
    }

    /// Ends the connection: the queue pair is in the error state, and no request is pending.
    pub fn lost(&mut self) {
        if self.link.has_ended() {
            return;
        }
        if self.link.flush() {
            self.events.push_back(Output::Flushed);
        }
        let is_clean = self.link.peer_finished && self.link.finish == Finish::Done;
        self.events.push_back(self.link.end(is_clean));
    }

    /// Returns the next instruction or event.
    pub fn poll_output(&mut self) -> Option<Output> {
        let was_open = self.link.is_open();
        if let Some(output) = self.link.poll_first() {
            self.events.extend(self.link.opened_since(was_open));
            return Some(output);
        }
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if self.link.is_unposted {
            return None;
        }
        if self.link.finish == Finish::Wanted && self.link.can_send(Body::Finish, 0) {
            self.link.finish = Finish::Sent;
            return self.link.send(Body::Finish, Payload::Empty, Use::Data).map(Output::Send);
        }
        if self.blocked.is_some_and(|len| self.link.can_send(Body::Data, len)) {
            self.blocked = None;
            return Some(Output::Writable);
        }
        if let Some(output) = self.link.poll_control() {
            return Some(output);
        }
        if self.link.flush() {
            return Some(Output::Flushed);
        }
        if self.link.finish == Finish::Done && self.link.peer_finished {
            self.link.close();
            return self.link.poll_first();
        }
        None
    }

    /// Returns the error that ends the connection, as soon as this end knows it.
    #[must_use]
    pub const fn error(&self) -> Option<ConnectionError> {
        self.link.error
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.link.counters
    }
}
