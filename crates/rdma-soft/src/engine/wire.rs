//! Packets: how they arrive at a queue pair, and how it sends them.
//!
//! `rdma_proto` decides what packets mean. The two sides of a queue pair are its [`Work`](rdma_proto::Work) and its
//! [`Host`](rdma_proto::Host).

use std::sync::{Arc, Weak};

use rdma_proto::wire::Bth;
use rdma_proto::{Burst, Connection};
use rdma_types::{Mtu, Psn, Qpn};

use crate::address::Path;
use crate::engine::adapter::Adapter;
use crate::engine::adapter::notices::{Endpoints, Reason};
use crate::engine::station::Station;
use crate::engine::wire::grant::Grant;
use crate::engine::wire::in_ring::InRing;
use crate::engine::wire::letter::Letter;
use crate::engine::wire::single::Single;
use crate::engine::wire::word::WordKey;
use crate::fabric::clock::Time;
use crate::fabric::run_queue::Task;
use crate::memory::copy::Segment;

/// The number of packets after which a queue pair's or a device's turn ends. A run of packets that has begun is never
/// cut short, so a turn can exceed this.
pub(crate) const TURN: u32 = 16;

/// Creates a letter whose payload is in a buffer, or in the memory that the buffer represents. Returns the buffer if there
/// is nothing to send.
pub(crate) type Fill<'a> = dyn FnMut(Box<[u8]>, Option<InRing>) -> Result<Letter, Box<[u8]>> + 'a;

/// Carries packets out of this process, to another process on this host or to other hosts.
pub(crate) trait Carrier: Send + Sync + std::fmt::Debug {
    /// Returns true if the far end has ended, so that nothing arrives there any longer.
    fn has_ended(&self) -> bool;

    /// Gives this task a turn when the far end ends, or immediately if it has already ended.
    fn add_user(&self, user: Weak<dyn Task>);

    /// Returns a buffer for the payload of one burst, to be [sent](Self::send) or [returned](Self::give_back). If there
    /// is no space, returns `None`, and the sender gets another turn when space becomes available.
    fn buffer(&self, sender: Weak<dyn Task>) -> Option<Box<[u8]>>;

    /// Like [`buffer`](Self::buffer), for a datagram of `_length` bytes.
    fn datagram_buffer(&self, sender: Weak<dyn Task>, _length: usize) -> Option<Box<[u8]>> {
        self.buffer(sender)
    }

    fn give_back(self: Arc<Self>, buffer: Box<[u8]>);

    /// Returns true if datagrams are lost when there is no space for them. On such a carrier, a process that stops
    /// receiving does not delay datagrams to other processes.
    fn loses_datagrams(&self) -> bool;

    /// Returns true if everything sent arrives, unless the far end ends. Such a carrier can be [queried](Self::ask).
    fn is_lossless(&self) -> bool {
        false
    }

    /// Asks the far end to answer when it has executed everything sent so far, and gives the sender a turn then.
    /// Returns the number of the question.
    fn ask(self: Arc<Self>, sender: Weak<dyn Task>) -> u32;

    fn has_answered(&self, question: u32) -> bool;

    /// Returns true if the far end has neither received nor answered anything for longer than the device tolerates.
    fn is_silent(&self) -> bool;

    /// Returns true if the carrier supports [void refusals](Letter::void).
    fn carries_void(&self) -> bool;

    /// Sends a burst whose payload `fill` writes directly to the memory from which the far end reads it, if nothing waits
    /// and there is space. Otherwise returns false without calling `fill`. `fill` receives a buffer that represents that
    /// memory, and returns it if there is nothing to send.
    fn send_in_place(&self, fill: &mut Fill<'_>) -> bool {
        let _ = fill;
        false
    }

    /// Sends a letter whose payload is in a buffer of this carrier.
    fn send(self: Arc<Self>, letter: Letter);

    /// Sends a message of one packet, with its data, if nothing waits and there is space. Otherwise returns false, and
    /// the caller sends the message as a packet.
    fn send_single(&self, single: &Single, data: &[Segment]) -> bool {
        let _ = (single, data);
        false
    }

    /// Sends waiting letters immediately, as far as the link accepts them. The caller holds no lock except the receive
    /// side of an inbox.
    fn flush(self: Arc<Self>);

    /// Claims a word in which the far end shows how many of a connection's requests are executed, so that they need no
    /// separate answers. The user gets a turn when the word changes. Returns `None` if no word is available.
    fn claim_word(&self, user: Weak<dyn Task>) -> Option<WordKey> {
        let _ = user;
        None
    }

    /// Releases a connection's word.
    fn release_word(&self, word: WordKey) {
        let _ = word;
    }

    /// Shows the far end whether the connection's requests are retried without limit while the receiver is not ready.
    fn set_patient(&self, word: WordKey, is_patient: bool) {
        let _ = (word, is_patient);
    }

    /// Counts a connection that starts or stops waiting for its word. While any waits, it gets a turn soon after its
    /// word changes. Otherwise it may get the turn only when the program polls, or arms a completion queue.
    fn count_waiting(&self, is_one_more: bool) {
        let _ = is_one_more;
    }

    /// Returns a number that changes when grants arrive or become invalid.
    fn granted(&self) -> u32 {
        0
    }

    /// Returns the grants of the connection with this word.
    fn grants(&self, word: WordKey) -> Vec<Arc<dyn Grant>> {
        let _ = word;
        Vec::new()
    }

    /// Begins a visit of the connection with this word to memory of the far end.
    fn begin_visit(&self, word: WordKey) {
        let _ = word;
    }

    /// Ends the visit.
    fn end_visit(&self, word: WordKey) {
        let _ = word;
    }

    /// Returns the number of the packet that is expected next according to the word, or `None` if the word holds
    /// nothing.
    fn expected(&self, word: WordKey) -> Option<Psn> {
        let _ = word;
        None
    }
}

/// An inbox of a device in this process, as its senders use it.
pub(crate) trait Mailbox: Send + Sync + std::fmt::Debug {
    /// Returns a buffer for the payload of one burst, to be [sent](Self::send) or [returned](Self::give_back). If there
    /// is no space, returns `None`, and the sender gets another turn when space becomes available.
    fn buffer(&self, sender: Weak<dyn Task>) -> Option<Box<[u8]>>;

    /// Returns true if there is space, for a sender that sends to several inboxes. If not, the sender gets another turn
    /// when space becomes available.
    fn has_room(&self, sender: Weak<dyn Task>) -> bool;

    /// Returns a buffer like [`buffer`](Self::buffer), for a sender that has [found space](Self::has_room). Succeeds
    /// even if other senders have taken the space since, so that the letter reaches all inboxes or none.
    fn buffer_at_once(&self) -> Box<[u8]>;

    fn give_back(&self, buffer: Box<[u8]>);

    /// Sends a letter from a device. Its payload is in a buffer of this inbox.
    fn send(&'static self, from: &'static Adapter, letter: Letter);

    /// Receives a packet that was sent to this inbox.
    fn arrive(&self, letter: Letter);
}

/// A word that a connection has claimed.
#[derive(Debug)]
pub(crate) struct Word {
    carrier: Arc<dyn Carrier>,
    pub(crate) key: WordKey,
    /// Whether the connection waits for the word.
    is_awaited: bool,
}

impl Word {
    pub(crate) fn claim(carrier: &Arc<dyn Carrier>, user: Weak<dyn Task>) -> Option<Self> {
        let key = carrier.claim_word(user)?;
        Some(Self { carrier: Arc::clone(carrier), key, is_awaited: false })
    }

    /// Records whether the connection [waits](Carrier::count_waiting) for the word. Returns true if it starts to wait.
    /// The caller then checks the word again.
    pub(crate) fn set_awaited(&mut self, is_awaited: bool) -> bool {
        let is_changed = std::mem::replace(&mut self.is_awaited, is_awaited) != is_awaited;
        if is_changed {
            self.carrier.count_waiting(is_awaited);
        }
        is_changed && is_awaited
    }

    /// Returns true if the connection [waits](Self::set_awaited) for the word.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// Shows the peer whether the requests are retried without limit while the receiver is not ready. The peer may then
    /// keep a packet that found no receive request, and execute it when one is posted.
    pub(crate) fn set_patient(&self, is_patient: bool) {
        self.carrier.set_patient(self.key, is_patient);
    }

    /// Runs `work` within a visit to memory of the peer's process.
    pub(crate) fn visit<R>(&self, work: impl FnOnce() -> R) -> R {
        self.carrier.begin_visit(self.key);
        let result = work();
        self.carrier.end_visit(self.key);
        result
    }

    /// Returns the carrier to the peer's process.
    pub(crate) fn carrier(&self) -> &dyn Carrier {
        &*self.carrier
    }

    /// Returns the number of the packet that the peer expects next, if that is known yet.
    pub(crate) fn expected(&self) -> Option<Psn> {
        self.carrier.expected(self.key)
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        self.set_awaited(false);
        self.carrier.release_word(self.key);
    }
}

/// The destination of packets.
#[derive(Debug, Clone)]
pub(crate) enum Outlet {
    /// Packets leave the device, but arrive nowhere.
    Nowhere,
    /// A device of this process.
    Inbox(&'static dyn Mailbox),
    /// A carrier that takes packets out of this process.
    Carrier(Arc<dyn Carrier>),
}

impl Outlet {
    /// Returns true if nothing sent here arrives.
    pub(crate) fn is_nowhere(&self) -> bool {
        matches!(self, Self::Nowhere) || self.has_ended()
    }

    /// Returns true if the far end has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Carrier(carrier) if carrier.has_ended())
    }

    /// Returns true if everything sent arrives at another process of this host, unless that process ends.
    pub(crate) fn is_lossless(&self) -> bool {
        matches!(self, Self::Carrier(carrier) if carrier.is_lossless())
    }

    /// Returns true if packets go to other hosts.
    pub(crate) fn is_network(&self) -> bool {
        matches!(self, Self::Carrier(carrier) if !carrier.is_lossless())
    }

    /// Returns true if datagrams are lost when there is no space for them.
    pub(crate) fn loses_datagrams(&self) -> bool {
        matches!(self, Self::Carrier(carrier) if carrier.loses_datagrams())
    }

    /// Returns the carrier that takes packets out of this process, if any.
    pub(crate) fn carrier(&self) -> Option<&Arc<dyn Carrier>> {
        match self {
            Self::Carrier(carrier) => Some(carrier),
            _ => None,
        }
    }

    /// Returns true if the outlet supports [void refusals](Letter::void).
    pub(crate) fn carries_void(&self) -> bool {
        matches!(self, Self::Carrier(carrier) if carrier.carries_void())
    }

    /// Returns a buffer for the payload of one burst, to be [sent](Self::send) or [returned](Self::give_back). If there
    /// is no space, returns `None`, and the sender gets another turn when space becomes available.
    pub(crate) fn buffer(&self, sender: Weak<dyn Task>) -> Option<Box<[u8]>> {
        match self {
            Self::Nowhere => None,
            Self::Inbox(inbox) => inbox.buffer(sender),
            Self::Carrier(carrier) => carrier.buffer(sender),
        }
    }

    /// Like [`buffer`](Self::buffer), for a datagram of `length` bytes.
    pub(crate) fn datagram_buffer(&self, sender: Weak<dyn Task>, length: u64) -> Option<Box<[u8]>> {
        match self {
            Self::Carrier(carrier) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                carrier.datagram_buffer(sender, length)
            }
            _ => self.buffer(sender),
        }
    }

    pub(crate) fn give_back(&self, buffer: Box<[u8]>) {
        match self {
            Self::Nowhere => drop(buffer),
            Self::Inbox(inbox) => inbox.give_back(buffer),
            Self::Carrier(carrier) => Arc::clone(carrier).give_back(buffer),
        }
    }

    /// Sends a letter from a device. Its payload is in a buffer of this outlet.
    pub(crate) fn send(&self, from: &'static Adapter, letter: Letter) {
        match self {
            Self::Nowhere => drop(letter),
            Self::Inbox(inbox) => inbox.send(from, letter),
            Self::Carrier(carrier) => Arc::clone(carrier).send(letter),
        }
    }
}

/// The route of a connection's packets.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) path: Path,
    pub(crate) outlet: Outlet,
}

impl Route {
    /// Returns the two ends of the connection that uses this route, for events about its packets.
    pub(super) fn endpoints(&self, own: &Station, peer_qpn: u32) -> Endpoints {
        let peer_qpn = Some(peer_qpn);
        Endpoints { qpn: own.qpn, peer_qpn, address: Some(self.path.remote) }
    }
}

/// Returns the protocol's view of a connection: the peer's queue pair number and the MTU.
pub(crate) fn connection(peer_qpn: u32, mtu_log2: u32) -> Connection {
    let code = u8::try_from(mtu_log2.saturating_sub(7)).unwrap_or(u8::MAX);
    // The MTU was checked when it was set.
    let mtu = Mtu::from_code(code).unwrap_or(Mtu::MTU1024);
    Connection::new(Qpn::masked(peer_qpn), mtu)
}

/// Converts a time of the fabric to a time of the protocol.
pub(crate) fn time(now: Time) -> rdma_proto::Time {
    rdma_proto::Time::from_nanos(now.nanoseconds())
}

/// A burst to send.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) burst: Burst,
    /// See [`Letter::placed`].
    pub(crate) placed: u32,
    /// Whether there may be more bursts.
    pub(crate) more: bool,
}

/// Sends bursts until none are left, the link has no space or the turn is over. `next` writes their payloads to buffers, or
/// to what these represent. Returns true if the turn is over and there may be more to send.
/// If the link has no space, returns false, and the queue pair gets a turn later.
pub(crate) fn transmit(
    own: &Station,
    (route, word): (&Route, Option<WordKey>),
    mtu: Mtu,
    mut next: impl FnMut(&mut [u8], Option<InRing>) -> Option<Outgoing>,
) -> bool {
    let mut left = TURN;
    // No run of packets is longer than a turn, and none is cut off at the end of a turn, because each run costs a
    // message or a system call.
    let most = own.faults.as_ref().map_or(TURN, |faults| faults.most_segments());
    let room = |buffer: &[u8]| buffer.len().min(most as usize * mtu.bytes() as usize);
    let up = own.adapter.port_is_up();
    let tap = own.adapter.tap.as_ref().filter(|_| up);
    let lost = |reason, burst: &Burst| {
        let endpoints = route.endpoints(own, burst.header.bth.destination.get());
        own.adapter.drop_packets(reason, burst.segments, endpoints);
    };
    let outlet = &route.outlet;
    if outlet.is_nowhere() {
        // The packets leave this device but arrive nowhere.
        let mut nowhere = [0; 4096];
        while left > 0 {
            let room = room(&nowhere);
            let Some(Outgoing { burst, .. }) = next(&mut nowhere[..room], None) else {
                return false;
            };
            left = left.saturating_sub(burst.segments.into());
            lost(Reason::NoRoute, &burst);
            if let Some(tap) = tap {
                tap.sent(&route.path, &burst, None, &nowhere);
            }
        }
        return true;
    }
    // Faults and captures need the payload in a buffer.
    let mut in_place = outlet.carrier().filter(|_| up && tap.is_none() && own.faults.is_none());
    while left > 0 {
        let (mut more, mut is_short) = (false, false);
        let mut fill = |mut buffer: Box<[u8]>, in_ring: Option<InRing>| {
            let size = in_ring.map_or(buffer.len(), |in_ring| in_ring.size());
            let room = room(&buffer[..size]);
            let Some(outgoing) = next(&mut buffer[..room], in_ring) else { return Err(buffer) };
            left = left.saturating_sub(outgoing.burst.segments.into());
            more = outgoing.more;
            let operation = outgoing.burst.header.bth.opcode.operation();
            let is_whole = operation.starts_message() && operation.ends_message();
            is_short = is_whole && outgoing.burst.length < mtu.bytes();
            let mut letter = Letter::new(route.path, outgoing.burst, None, buffer).with_word(word);
            (letter.placed, letter.in_ring) = (outgoing.placed, in_ring);
            Ok(letter)
        };
        if !in_place.is_some_and(|carrier| carrier.send_in_place(&mut fill)) {
            let Some(buffer) = outlet.buffer(own.driven()) else { return false };
            match fill(buffer, None) {
                Ok(letter) => {
                    if let Some(tap) = tap {
                        tap.sent(&route.path, &letter.burst, None, letter.payload());
                    }
                    if up {
                        send(own, outlet, letter);
                    } else {
                        lost(Reason::PortDown, &letter.burst);
                        outlet.give_back(letter.into_buffer());
                    }
                }
                Err(buffer) => outlet.give_back(buffer),
            }
        }
        if !more {
            return false;
        }
        if is_short {
            // The carrier writes short messages together in its turn.
            in_place = None;
        }
    }
    true
}

/// Sends a letter of this queue pair. Its payload is in a buffer of the outlet.
#[inline]
pub(super) fn send(own: &Station, outlet: &Outlet, letter: Letter) {
    match &own.faults {
        None => outlet.send(own.adapter, letter),
        Some(faults) => faults.send(own.qpn, outlet, letter),
    }
}

/// Notifies the requester that a refusal is void. If the link has no space, returns false, and there will be another
/// turn.
pub(super) fn send_void(own: &Station, route: &Route, refusal: Burst) -> bool {
    let Outlet::Carrier(carrier) = &route.outlet else { return true };
    if !own.adapter.port_is_up() || carrier.has_ended() {
        return true;
    }
    let Some(buffer) = route.outlet.buffer(own.driven()) else { return false };
    Arc::clone(carrier).send(Letter::void(route.path, refusal, buffer));
    true
}

/// Returns the reason, if any, why one side of a queue pair drops a packet. `path` is the path of the queue pair's
/// connection.
pub(super) fn why_not_taken(listens: bool, path: Option<Path>, letter: &Letter) -> Option<Reason> {
    match path {
        Some(path) if listens => (!letter.path.is_reverse_of(&path)).then_some(Reason::WrongSource),
        // A queue pair that was connected before its peer's device was installed does not use packets.
        _ => Some(Reason::WrongState),
    }
}

/// The partition of the port, in which the port is a full member.
const P_KEY: u16 = Bth::DEFAULT_P_KEY;

/// Returns true if the port accepts this P_Key. Sender and port must be members of the same partition, and at least one
/// of them must be a full member (IBTA volume 1, 10.9.3).
pub(crate) const fn is_of_partition(p_key: u16) -> bool {
    const FULL: u16 = 0x8000;
    (p_key ^ P_KEY) & !FULL == 0 && (p_key | P_KEY) & FULL != 0
}

/// Counts dropped packets, and schedules an event about them. If a response arrives after its queue pair was destroyed
/// or left the ready states, there is no event, because connections usually end like that.
pub(crate) fn drop_packets(
    adapter: &'static Adapter,
    letter: &Letter,
    reason: Reason,
    peer_qpn: Option<u32>,
) {
    drop_burst(adapter, &letter.path, &letter.burst, reason, peer_qpn);
}

pub(crate) fn drop_burst(
    adapter: &'static Adapter,
    path: &Path,
    burst: &Burst,
    reason: Reason,
    peer_qpn: Option<u32>,
) {
    let Bth { opcode, destination, .. } = burst.header.bth;
    let segments = burst.segments;
    let at_end = matches!(reason, Reason::UnknownQp | Reason::WrongState);
    if at_end && opcode.operation().is_response() {
        return reason.count(&adapter.tally.rare, segments.into());
    }
    let endpoints = Endpoints { qpn: destination.get(), peer_qpn, address: Some(path.local) };
    adapter.drop_packets(reason, segments, endpoints);
}

pub(crate) mod faults;
#[cfg_attr(loom, allow(dead_code))] // models have no grants
pub(crate) mod grant;
pub(crate) mod in_ring;
pub(crate) mod letter;
pub(crate) mod route_header;
pub(super) mod run;
#[cfg_attr(loom, allow(dead_code))] // models have one process
pub(crate) mod single;
#[cfg_attr(loom, allow(dead_code))] // models have no words
pub(crate) mod word;
