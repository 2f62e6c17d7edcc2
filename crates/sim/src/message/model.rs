//! The messages and bytes that must arrive, the results that operations may have, and the trace of
//! what happened.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_async::message::{ConnectionError, MessageError, OperationError, SendError};
use rdma_soft::Network;

use super::script::Script;
use crate::memory;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Message,
    /// A message whose operation ends before it has arrived.
    Post,
    Request,
    Reply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The operation has no result.
    Pending,
    /// The message was accepted. It arrives unless the connection is lost.
    Posted,
    /// The peer's device has the message.
    Sent,
    /// The peer's device has the message, and all messages before it.
    Flushed,
    /// The operation was cancelled or has failed. The message arrives or not.
    Unknown,
}

/// A message or a request that has not arrived.
#[derive(Debug)]
struct Sent {
    number: u64,
    length: usize,
    is_request: bool,
    /// Whether it began before all later ones.
    is_ordered: bool,
    fate: Fate,
}

/// The actions of an end, and the messages that its peer must receive.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// The messages that the peer has not received, in the order in which they began.
    sent: VecDeque<Sent>,
    pub(crate) has_finished: bool,
    pub(crate) has_left: bool,
    /// The limit of the peer.
    longest: usize,
    /// Whether it has received all messages of the peer.
    has_all: bool,
    /// Whether a message was sent, so the connection is open.
    is_open: bool,
    /// Whether an operation has reported that the connection was lost.
    is_lost: bool,
    /// Whether `finish` or `shutdown` has succeeded.
    is_flushed: bool,
    /// The operations without a result, and the requests among them. Those that were cancelled or posted count.
    live: [u32; 2],
    /// The bytes that a stream has accepted, and that the peer has read.
    pub(crate) written: u64,
    pub(crate) read: u64,
}

/// The state of the model.
#[derive(Debug)]
pub(crate) struct Model {
    network: Arc<Network>,
    ends: Vec<End>,
    /// The connections that may fail.
    broken: HashSet<usize>,
    /// The connections with a hostile end.
    hostile: HashSet<usize>,
    /// The number and the length of the reply to each request that was answered.
    replies: HashMap<u64, (u64, usize)>,
    /// The requests that may get no reply, because it was not sent.
    refused: HashSet<u64>,
    /// The calls that may be cancelled.
    cancelled: HashSet<u64>,
    /// The operations that have begun after an earlier one has reported that the connection was lost.
    late: HashSet<u64>,
    numbered: u64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) stream_bytes: u64,
    /// The first difference from the model.
    wrong: Option<String>,
    trace: DefaultHasher,
}

/// The model, which all tasks of a run share.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Mutex<Model>>);

impl Shared {
    pub(crate) fn new(script: &Script, network: &Arc<Network>) -> Self {
        let limits = script.settings.connections.iter().flat_map(|it| it.limits.iter().rev());
        let longest = limits.map(|limits| limits.max_message as usize);
        let connections = script.settings.connections.iter().enumerate();
        let hostile: HashSet<_> =
            connections.filter(|(_, connection)| connection.is_hostile).map(|(n, _)| n).collect();
        let mut ends: Vec<_> = longest.map(|longest| End { longest, ..End::default() }).collect();
        // A hostile end may send the end of its messages.
        hostile.iter().for_each(|n| ends[2 * n + 1].has_finished = true);
        Self(Arc::new(Mutex::new(Model {
            network: Arc::clone(network),
            ends,
            broken: hostile.clone(),
            hostile,
            replies: HashMap::new(),
            refused: HashSet::new(),
            cancelled: HashSet::new(),
            late: HashSet::new(),
            numbered: 0,
            messages: 0,
            bytes: 0,
            stream_bytes: 0,
            wrong: None,
            trace: DefaultHasher::new(),
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Model {
    pub(crate) fn end(&mut self, end: usize) -> &mut End {
        &mut self.ends[end]
    }

    /// Adds an event to the trace.
    pub(crate) fn note(&mut self, what: &(impl Hash + ?Sized)) {
        (self.network.now(), what).hash(&mut self.trace);
    }

    pub(crate) fn trace(&mut self) -> u64 {
        self.note(&self.network.packets());
        self.trace.finish()
    }

    /// Records a difference, unless there is one already.
    pub(crate) fn fail(&mut self, why: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some(why());
        }
    }

    /// Returns the first difference.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.wrong.clone().map_or(Ok(()), Err)
    }

    /// Returns a number for the bytes of a message.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbered += 1;
        self.numbered
    }

    /// Records that a connection may fail.
    pub(crate) fn break_connection(&mut self, connection: usize) {
        self.broken.insert(connection);
    }

    pub(crate) fn is_broken(&self, end: usize) -> bool {
        self.broken.contains(&(end / 2))
    }

    /// Returns true if the peer of this end, or the end itself, breaks the protocol.
    pub(crate) fn has_hostile_end(&self, end: usize) -> bool {
        self.hostile.contains(&(end / 2))
    }

    /// Returns true if the connection of an end may have ended.
    pub(crate) fn may_end(&self, end: usize) -> bool {
        let [own, peer] = [end, end ^ 1].map(|end| &self.ends[end]);
        self.is_broken(end)
            || own.has_left
            || peer.has_left
            || own.has_finished && peer.has_finished
    }

    /// Records an operation that begins, at once if an end has less operations and requests than these
    /// limits.
    pub(crate) fn begins(
        &mut self,
        end: usize,
        number: u64,
        sent: (Kind, usize),
        limits: [u32; 2],
    ) {
        self.note(&("begins", end, number, sent));
        self.late.extend(self.ends[end].is_lost.then_some(number));
        let (kind, length) = sent;
        let is_request = kind == Kind::Request;
        let own = &mut self.ends[end];
        let is_ordered = own.live[0] < limits[0] && (!is_request || own.live[1] < limits[1]);
        own.live[0] += 1;
        own.live[1] += u32::from(is_request);
        if kind != Kind::Reply {
            let fate = Fate::Pending;
            own.sent.push_back(Sent { number, length, is_request, is_ordered, fate });
        }
    }

    /// Records the reply to a request.
    pub(crate) fn replies(&mut self, request: u64, number: u64, length: usize) {
        let before = self.replies.insert(request, (number, length));
        debug_assert!(before.is_none() || request == UNKNOWN, "a request is answered once");
    }

    /// Records that a request may get no reply.
    pub(crate) fn refuses(&mut self, request: u64) {
        self.refused.insert(request);
    }

    /// Records that the future of an operation is dropped.
    pub(crate) fn cancels(&mut self, end: usize, number: u64, request: Option<u64>) {
        self.note(&("cancels", end, number));
        self.cancelled.insert(number);
        self.refused.extend(request);
        self.set_fate(end, number, Fate::Unknown);
    }

    fn set_fate(&mut self, end: usize, number: u64, fate: Fate) {
        if let Some(sent) = self.ends[end].sent.iter_mut().find(|sent| sent.number == number) {
            if sent.fate != Fate::Flushed {
                sent.fate = fate;
            }
            let length = sent.length;
            if fate != Fate::Unknown && self.ends[end ^ 1].has_all {
                self.fail(|| {
                    format!("e{end}: {number} of {length} B, {fate:?}, and did not arrive")
                });
            }
        }
    }

    /// Records a flush that begins. Returns its number, and the messages that have certainly begun. Requests end with
    /// their replies.
    pub(crate) fn flushes(&mut self, end: usize) -> (u64, Vec<u64>) {
        let number = self.number();
        self.note(&("flushes", end, number));
        let own = &self.ends[end];
        self.late.extend(own.is_lost.then_some(number));
        let has_begun = |sent: &&Sent| match sent.fate {
            Fate::Pending => own.is_open && sent.is_ordered,
            fate => fate != Fate::Unknown,
        };
        let messages = own.sent.iter().filter(|sent| !sent.is_request).filter(has_begun);
        (number, messages.map(|sent| sent.number).collect())
    }

    /// Checks the result of a flush.
    pub(crate) fn flushed(
        &mut self,
        end: usize,
        (number, begun): (u64, &[u64]),
        result: &Result<(), MessageError>,
    ) {
        self.note(&("flushed", end, number, result.as_ref().map_err(ToString::to_string)));
        match result {
            Ok(()) => {
                self.check_late(end, number);
                for &message in begun {
                    let sent = self.ends[end].sent.iter().find(|sent| sent.number == message);
                    if sent.is_some_and(|sent| sent.fate != Fate::Unknown) {
                        self.set_fate(end, message, Fate::Flushed);
                    }
                }
            }
            Err(error) => {
                self.ends[end].is_lost |= reports_loss(error);
                let is_lost = matches!(error, MessageError::Ended(ConnectionError::Lost));
                let is_excused = self.has_hostile_end(end) || is_lost && self.may_end(end);
                if !is_excused {
                    self.fail(|| format!("e{end}: flush {number} failed: {error}"));
                }
            }
        }
    }

    /// Checks that a successful operation has begun before the connection was lost.
    fn check_late(&mut self, end: usize, number: u64) {
        if self.late.contains(&number) {
            self.fail(|| {
                format!("e{end}: {number} succeeds, and began after the connection was lost")
            });
        }
    }

    /// Checks the result of `finish` or `shutdown`.
    pub(crate) fn finishes(&mut self, end: usize, result: &Result<(), impl Debug>) {
        match result {
            Ok(()) => {
                self.note(&("finishes", end));
                self.ends[end].is_flushed = true;
            }
            Err(error) => self.stops_writing(end, error),
        }
    }

    /// Removes a message that was reported as not sent, so that its arrival is a difference. Its arrival before
    /// the report is one, too, unless the message is too short to be distinguished from others.
    fn never_arrives(&mut self, end: usize, number: u64, length: usize) {
        let sent = &mut self.ends[end].sent;
        if let Some(at) = sent.iter().position(|sent| sent.number == number) {
            sent.remove(at);
        } else if length >= 8 {
            self.fail(|| format!("e{end}: {number} of {length} B is not sent, and has arrived"));
        }
    }

    /// Checks the result of an operation. A call has the bytes of the reply. `request` is the request to
    /// which a reply belongs.
    pub(crate) fn ends(
        &mut self,
        end: usize,
        number: u64,
        operation: (Kind, usize, Option<u64>),
        result: Result<Option<&[u8]>, &MessageError>,
    ) {
        let (kind, length, request) = operation;
        let own = &mut self.ends[end];
        let is_posted = kind == Kind::Post && result.is_ok();
        own.live[0] -= u32::from(!is_posted);
        own.live[1] -= u32::from(kind == Kind::Request);
        self.note(&("ends", end, number, result.err().map(ToString::to_string)));
        match result {
            Ok(reply) => {
                self.check_late(end, number);
                self.ends[end].is_open = true;
                self.set_fate(end, number, if is_posted { Fate::Posted } else { Fate::Sent });
                let Some(reply) = reply else { return };
                let right = self.replies.get(&number).is_some_and(|&(reply_number, length)| {
                    memory::bytes(reply_number, length) == reply
                });
                let length = reply.len();
                if !right && !self.has_hostile_end(end) {
                    self.fail(|| format!("e{end}: call {number} got a wrong reply of {length} B"));
                }
                self.messages += 1;
            }
            Err(error) => {
                self.ends[end].is_lost |= reports_loss(error);
                self.set_fate(end, number, Fate::Unknown);
                let is_not_sent = matches!(
                    error,
                    MessageError::NotSent(_)
                        | MessageError::Operation { error: OperationError::NotSent, .. }
                );
                if is_not_sent && kind != Kind::Reply {
                    self.never_arrives(end, number, length);
                }
                if let Some(request) = request {
                    self.refused.insert(request);
                }
                if !self.may_fail(end, (number, kind, length, request), error) {
                    self.fail(|| format!("e{end}: {kind:?} {number}, {length} B, failed: {error}"));
                }
            }
        }
    }

    fn may_fail(
        &self,
        end: usize,
        (number, kind, length, request): (u64, Kind, usize, Option<u64>),
        error: &MessageError,
    ) -> bool {
        let [own, peer] = [end, end ^ 1].map(|end| &self.ends[end]);
        let is_call = kind == Kind::Request;
        match error {
            _ if self.has_hostile_end(end) => true,
            MessageError::NotSent(SendError::TooLong { .. }) => length > own.longest,
            MessageError::NotSent(SendError::Finished) => own.has_finished,
            MessageError::NotSent(SendError::NotOpenRequest) => {
                request.is_some_and(|request| self.cancelled.contains(&request))
                    || self.may_end(end)
            }
            MessageError::NotSent(SendError::PeerFinished) => {
                is_call && peer.has_finished || peer.has_left
            }
            MessageError::Operation { error: OperationError::PeerFinished, .. } => {
                is_call && (peer.has_finished || peer.has_left)
            }
            MessageError::Operation { error: OperationError::Refused, .. } => {
                is_call && (self.refused.contains(&number) || peer.has_left)
            }
            MessageError::NotSent(SendError::Ended)
            | MessageError::Operation { .. }
            | MessageError::Ended(ConnectionError::Lost) => self.may_end(end),
            _ => false,
        }
    }

    /// Checks a message that an end has received. Returns its number.
    pub(crate) fn arrives(&mut self, end: usize, bytes: &[u8], is_request: bool) -> u64 {
        if self.has_hostile_end(end) {
            self.note(&("arrives", end, bytes));
            return UNKNOWN;
        }
        let from = &mut self.ends[end ^ 1].sent;
        let length = bytes.len();
        let is_it = |sent: &Sent| {
            let same = sent.length == length && sent.is_request == is_request;
            same && memory::bytes(sent.number, length) == bytes
        };
        let Some(at) = from.iter().position(is_it) else {
            self.fail(|| {
                format!("e{end}: {length} B arrived, and were not sent or arrived before")
            });
            return UNKNOWN;
        };
        let Some(it) = from.remove(at) else { return UNKNOWN };
        let mut overtaken = None;
        if it.is_ordered {
            // An earlier message that is missing must not arrive later.
            let mut index = 0;
            from.retain(|sent| {
                index += 1;
                let goes = index <= at && sent.is_ordered;
                if goes && sent.fate != Fate::Unknown {
                    overtaken.get_or_insert((sent.number, sent.length, sent.fate));
                }
                !goes
            });
        }
        self.note(&("arrives", end, it.number));
        (self.messages, self.bytes) = (self.messages + 1, self.bytes + length as u64);
        if let Some((number, length, fate)) = overtaken {
            let by = it.number;
            self.fail(|| {
                format!("e{end}: {number} of {length} B, {fate:?}, is missing before {by}")
            });
        }
        it.number
    }

    /// Checks the end of what an end receives.
    pub(crate) fn stops_receiving(&mut self, end: usize, result: Result<(), &MessageError>) {
        self.note(&("stops receiving", end, result.map_err(ToString::to_string)));
        let peer = &self.ends[end ^ 1];
        let is_excused = result.is_err() && self.may_end(end);
        // If this end has finished, the peer's last frame need not arrive.
        let is_excused = is_excused && (!peer.is_flushed || self.ends[end].has_finished);
        let has_finished = peer.has_finished || peer.has_left;
        if result.is_err() && !is_excused || result.is_ok() && !has_finished {
            self.fail(|| format!("e{end}: stops receiving: {result:?}"));
        }
        self.ends[end].has_all |= result.is_ok();
        self.ends[end].is_lost |= result.is_err_and(reports_loss);
        let mut rest = self.ends[end ^ 1].sent.iter();
        let first = match result {
            Ok(()) => rest.find(|sent| match sent.fate {
                // A message that is not ordered may not have begun.
                Fate::Pending => sent.is_ordered,
                fate => fate != Fate::Unknown,
            }),
            // A message that the device has is lost if an earlier one is.
            Err(_) => {
                let front = rest.clone().next();
                // A flush does not await requests.
                let mut messages = rest.take_while(|sent| !sent.is_request);
                front
                    .filter(|sent| sent.fate == Fate::Sent && sent.is_ordered)
                    .or_else(|| messages.find(|sent| sent.fate == Fate::Flushed))
            }
        };
        if let Some(Sent { number, length, fate, .. }) = first {
            let what = format!("{number} of {length} B, {fate:?}");
            self.fail(|| format!("e{end}: {what}, did not arrive before the end: {result:?}"));
        }
    }

    /// Checks bytes that a stream has read.
    pub(crate) fn reads(&mut self, end: usize, bytes: &[u8]) {
        if self.has_hostile_end(end) {
            return self.note(&("reads", end, bytes));
        }
        let peer = &mut self.ends[end ^ 1];
        let from = peer.read;
        peer.read += bytes.len() as u64;
        let (read, written) = (peer.read, peer.written);
        self.stream_bytes += bytes.len() as u64;
        self.note(&("reads", end, read));
        let mut expected = vec![0; bytes.len()];
        memory::fill(stream_of(end ^ 1), from as usize, &mut expected);
        if read > written || expected != bytes {
            self.fail(|| format!("e{end}: wrong bytes from {from} to {read} of {written}"));
        }
    }

    /// Checks the end of a stream: `Ok` is the end of the peer's stream.
    pub(crate) fn stops_reading(&mut self, end: usize, result: &std::io::Result<()>) {
        let text = result.as_ref().map_err(ToString::to_string);
        self.note(&("stops reading", end, &text));
        let peer = &self.ends[end ^ 1];
        let has_finished = peer.has_finished || peer.has_left;
        let right = match result {
            Ok(()) => has_finished && peer.read == peer.written,
            Err(_) => self.may_end(end) && !peer.is_flushed,
        };
        let (read, written) = (peer.read, peer.written);
        if !right {
            self.fail(|| format!("e{end}: stops reading after {read} of {written} B: {text:?}"));
        }
    }

    /// Checks an error of a write.
    pub(crate) fn stops_writing(&mut self, end: usize, error: &impl Debug) {
        self.note(&("stops writing", end, format!("{error:?}")));
        if !self.may_end(end) {
            self.fail(|| format!("e{end}: a write failed: {error:?}"));
        }
    }
}

/// Stands for the number of a message whose bytes are not known, such as one from a hostile end.
pub(crate) const UNKNOWN: u64 = 0;

/// Returns true if the error reports that the connection was lost.
const fn reports_loss(error: &MessageError) -> bool {
    matches!(error, MessageError::Ended(_) | MessageError::Operation { ended: Some(_), .. })
}

/// Returns the number from which the bytes of an end's stream are derived.
pub(crate) const fn stream_of(end: usize) -> u64 {
    u64::MAX - end as u64
}
