//! Packets: where they arrive, and how a queue pair sends its own.
//!
//! What packets mean is decided by `rdma_proto`; the sides of a queue pair are its [`Work`](rdma_proto::Work)
//! and its [`Host`](rdma_proto::Host).

use std::sync::{Arc, Weak};

use rdma_proto::wire::{Bth, Service as WireService};
use rdma_proto::{Burst, Connection};
use rdma_types::{Mtu, Psn, Qpn};

use crate::address::Path;
use crate::device::Device;
use crate::device::notices::{Reason, Whose};
#[cfg(not(loom))]
use crate::device::subnet::Subnet;
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::aftermath::Aftermath;
use crate::engine::queue_pair::service::Service;
use crate::engine::responder::wire::Answers;
use crate::engine::wire::letter::{Datagram, ExecutedWords, Letter};
use crate::engine::wire::word::WordKey;
use crate::fabric::clock::Time;
use crate::fabric::turns::{Driven, Place};
use crate::link::memory::Inbox;

/// After how many packets the turn of a queue pair is over, and that of a device. The last run of packets is whole.
pub(crate) const TURN: u32 = 16;

/// How many turns of answers may leave before a completion that waits for them: as much as a ring between processes
/// holds.
const ANSWERS: u32 = 4;

/// The partition of the port, of which it is a full member.
const P_KEY: u16 = Bth::DEFAULT_P_KEY;

/// What carries packets out of this process: to another process of the host, or to other hosts.
pub(crate) trait Carrier: Send + Sync + std::fmt::Debug {
    /// Whether what they go to has ended, so that nothing arrives there any more.
    fn has_ended(&self) -> bool;

    /// When it ends, this one gets a turn; at once if it has.
    fn add_user(&self, user: Weak<dyn Driven>);

    /// A buffer for the payload of one burst, which is to be [sent](Self::send) or [given back](Self::give_back). If
    /// there is no space the sender gets another turn when there is.
    fn buffer(&self, sender: Weak<dyn Driven>) -> Option<Box<[u8]>>;

    /// The same for a datagram of so many bytes.
    fn datagram_buffer(&self, sender: Weak<dyn Driven>, _length: usize) -> Option<Box<[u8]>> {
        self.buffer(sender)
    }

    fn give_back(self: Arc<Self>, buffer: Box<[u8]>);

    /// Whether a datagram is lost for which there is no space, so that one process that takes nothing keeps none to others
    /// waiting.
    fn loses_datagrams(&self) -> bool;

    /// Whether all that is sent arrives, as long as what it goes to has not ended. If so it can be [asked](Self::ask).
    fn loses_nothing(&self) -> bool {
        false
    }

    /// Has it asked whether all is executed that was sent before, and calls the sender when it is. Says by what number the
    /// answer is known.
    fn ask(self: Arc<Self>, sender: Weak<dyn Driven>) -> u32;

    fn has_answered(&self, question: u32) -> bool;

    /// Whether it has neither taken nor answered anything for as long as the device waits for that.
    fn is_silent(&self) -> bool;

    /// Whether it carries [void refusals](Letter::void).
    fn carries_void(&self) -> bool;

    /// Sends a letter, whose payload is in such a buffer.
    fn send(self: Arc<Self>, letter: Letter);

    /// Sends at once what waits, as far as the link takes it. The caller holds no lock but the receive side of a device.
    fn flush(self: Arc<Self>);

    /// A word by which a connection learns how far its requests are executed, without an answer for each: it gets a turn
    /// when the word changes. `None` if there is none to be had.
    fn claim_word(&self, user: Weak<dyn Driven>) -> Option<WordKey> {
        let _ = user;
        None
    }

    /// The connection needs its word no more.
    fn release_word(&self, word: WordKey) {
        let _ = word;
    }

    /// The packet that is expected next, as the word says; `None` if it says nothing.
    fn expected(&self, word: WordKey) -> Option<Psn> {
        let _ = word;
        None
    }
}

/// A word that a connection has claimed.
#[derive(Debug)]
pub(crate) struct Word {
    carrier: Arc<dyn Carrier>,
    pub(crate) key: WordKey,
}

impl Word {
    pub(crate) fn claim(carrier: &Arc<dyn Carrier>, user: Weak<dyn Driven>) -> Option<Self> {
        let key = carrier.claim_word(user)?;
        Some(Self { carrier: Arc::clone(carrier), key })
    }

    /// The packet that the peer expects next, if that is known by now.
    pub(crate) fn expected(&self) -> Option<Psn> {
        self.carrier.expected(self.key)
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        self.carrier.release_word(self.key);
    }
}

/// Where packets go.
#[derive(Debug, Clone)]
pub(crate) enum Outlet {
    /// They leave the device, and arrive nowhere.
    Nowhere,
    /// To a device of this process.
    Inbox(&'static Arc<Inbox>),
    /// Out of this process.
    Carrier(Arc<dyn Carrier>),
}

impl Outlet {
    /// Whether nothing arrives.
    pub(crate) fn is_nowhere(&self) -> bool {
        matches!(self, Self::Nowhere) || self.has_ended()
    }

    /// Whether what was there has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Carrier(carrier) if carrier.has_ended())
    }

    /// Whether all that is sent arrives at another process of this host, as long as that has not ended.
    pub(crate) fn loses_nothing(&self) -> bool {
        matches!(self, Self::Carrier(carrier) if carrier.loses_nothing())
    }

    /// Whether it leads to other hosts.
    pub(crate) fn is_network(&self) -> bool {
        matches!(self, Self::Carrier(carrier) if !carrier.loses_nothing())
    }

    /// Whether a datagram is lost for which there is no space.
    pub(crate) fn loses_datagrams(&self) -> bool {
        matches!(self, Self::Carrier(carrier) if carrier.loses_datagrams())
    }

    /// What carries packets out of this process.
    pub(crate) fn carrier(&self) -> Option<&Arc<dyn Carrier>> {
        match self {
            Self::Carrier(carrier) => Some(carrier),
            _ => None,
        }
    }

    /// Whether it carries [void refusals](Letter::void).
    pub(crate) fn carries_void(&self) -> bool {
        matches!(self, Self::Carrier(carrier) if carrier.carries_void())
    }

    /// A buffer for the payload of one burst, which is to be [sent](Self::send) or [given back](Self::give_back). If
    /// there is no space the sender gets another turn when there is.
    pub(crate) fn buffer<D: Driven + 'static>(&self, sender: &Arc<D>) -> Option<Box<[u8]>> {
        match self {
            Self::Nowhere => None,
            Self::Inbox(inbox) => inbox.buffer(sender),
            Self::Carrier(carrier) => carrier.buffer(Arc::<D>::downgrade(sender)),
        }
    }

    /// The same for a datagram of so many bytes.
    pub(crate) fn datagram_buffer<D: Driven + 'static>(
        &self,
        sender: &Arc<D>,
        length: u64,
    ) -> Option<Box<[u8]>> {
        match self {
            Self::Carrier(carrier) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                carrier.datagram_buffer(Arc::<D>::downgrade(sender), length)
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

    /// The payload of the burst is at the beginning of the buffer.
    pub(crate) fn send(
        &self,
        from: &'static Device,
        path: Path,
        burst: Burst,
        datagram: Option<Datagram>,
        word: Option<WordKey>,
        payload: Box<[u8]>,
    ) {
        match self {
            Self::Nowhere => drop(payload),
            Self::Inbox(inbox) => inbox.send(from, path, burst, datagram, payload),
            Self::Carrier(carrier) => {
                let letter = Letter::new(path, burst, datagram, payload).with_word(word);
                Arc::clone(carrier).send(letter);
            }
        }
    }
}

/// Where the packets of a connection go.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) path: Path,
    pub(crate) outlet: Outlet,
}

impl Route {
    /// What an event says of packets of a connection that takes this route.
    pub(super) fn whose(&self, own: &QueuePair, peer_qpn: u32) -> Whose {
        let peer_qpn = Some(peer_qpn);
        Whose { qpn: own.qpn, peer_qpn, address: Some(self.path.remote) }
    }
}

/// What packets of a connection say of it.
pub(crate) fn connection(peer_qpn: u32, mtu_log2: u32) -> Connection {
    let code = u8::try_from(mtu_log2.saturating_sub(7)).unwrap_or(u8::MAX);
    // The MTU was checked when it was set.
    let mtu = Mtu::from_code(code).unwrap_or(Mtu::MTU1024);
    Connection::new(Qpn::masked(peer_qpn), mtu)
}

/// The time of the fabric as the protocol counts it.
pub(crate) fn time(now: Time) -> rdma_proto::Time {
    rdma_proto::Time::from_nanos(now.nanoseconds())
}

/// Sends what `next` fills buffers with, which also says whether it may have more, until there is nothing, the link has no
/// space or the turn is over. Says whether there may be more.
pub(super) fn transmit(
    own: &Arc<QueuePair>,
    (route, word): (&Route, Option<WordKey>),
    mtu: Mtu,
    mut next: impl FnMut(&mut [u8]) -> Option<(Burst, bool)>,
) -> bool {
    let mut left = TURN;
    // No run of packets is longer than a turn, and none is cut off at its end: each is a message or a system call.
    let room = |buffer: &[u8]| buffer.len().min(TURN as usize * mtu.bytes() as usize);
    let up = own.device.port_is_up();
    let tap = own.device.tap.as_ref().filter(|_| up);
    let lost = |reason, burst: &Burst| {
        let whose = route.whose(own, burst.header.bth.destination.get());
        own.device.drop_packets(reason, burst.segments, whose);
    };
    let outlet = &route.outlet;
    if outlet.is_nowhere() {
        // The packets leave this device and arrive nowhere.
        let mut nowhere = [0; 4096];
        while left > 0 {
            let room = room(&nowhere);
            let Some((burst, _)) = next(&mut nowhere[..room]) else { return false };
            left = left.saturating_sub(burst.segments.into());
            lost(Reason::NoRoute, &burst);
            if let Some(tap) = tap {
                tap.sent(&route.path, &burst, None, &nowhere);
            }
        }
        return true;
    }
    while left > 0 {
        let Some(mut buffer) = outlet.buffer(own) else { return false };
        let room = room(&buffer);
        let Some((burst, more)) = next(&mut buffer[..room]) else {
            outlet.give_back(buffer);
            return false;
        };
        left = left.saturating_sub(burst.segments.into());
        if let Some(tap) = tap {
            tap.sent(&route.path, &burst, None, &buffer);
        }
        if up {
            outlet.send(own.device, route.path, burst, None, word, buffer);
        } else {
            lost(Reason::PortDown, &burst);
            outlet.give_back(buffer);
        }
        if !more {
            return false;
        }
    }
    true
}

/// Tells the requester that a refusal is void. Says whether the link had space for that; if not there is another turn.
pub(super) fn send_void(own: &Arc<QueuePair>, route: &Route, refusal: Burst) -> bool {
    let Outlet::Carrier(carrier) = &route.outlet else { return true };
    if !own.device.port_is_up() || carrier.has_ended() {
        return true;
    }
    let Some(buffer) = route.outlet.buffer(own) else { return false };
    Arc::clone(carrier).send(Letter::void(route.path, refusal, buffer));
    true
}

/// Why one side of a queue pair, connected by that path, does not take packets, if so.
pub(super) fn why_not_taken(listens: bool, path: Option<Path>, letter: &Letter) -> Option<Reason> {
    match path {
        Some(path) if listens => (!letter.path.is_reverse_of(&path)).then_some(Reason::WrongSource),
        // A queue pair that was connected before its peer's device was installed uses no packets.
        _ => Some(Reason::WrongState),
    }
}

/// Counts packets that are dropped, and has them told of. Responses that come after their queue pair has ended are
/// only counted, since that is how connections end.
pub(super) fn drop_packets(
    device: &'static Device,
    letter: &Letter,
    reason: Reason,
    peer_qpn: Option<u32>,
) {
    drop_burst(device, &letter.path, &letter.burst, reason, peer_qpn);
}

fn drop_burst(
    device: &'static Device,
    path: &Path,
    burst: &Burst,
    reason: Reason,
    peer_qpn: Option<u32>,
) {
    let Bth { opcode, destination, .. } = burst.header.bth;
    let segments = burst.segments;
    let at_end = matches!(reason, Reason::UnknownQp | Reason::WrongState);
    if at_end && opcode.operation().is_response() {
        return reason.count(&device.tally.rare, segments.into());
    }
    let whose = Whose { qpn: destination.get(), peer_qpn, address: Some(path.local) };
    device.drop_packets(reason, segments, whose);
}

/// Whether packets are for a queue pair that is not there, so that they take no space in the inbox: those to a group
/// are for all of its members, and others for one queue pair. They are counted.
#[cfg(not(loom))]
pub(crate) fn is_for_nobody(
    device: &'static Device,
    path: &Path,
    burst: &Burst,
    to_group: bool,
) -> bool {
    let number = burst.header.bth.destination;
    let for_many = number == Qpn::MULTICAST;
    let nobody = for_many != to_group || !for_many && device.queue_pair(number.get()).is_none();
    if nobody {
        let source = burst.header.deth.map(|deth| deth.source.get());
        drop_burst(device, path, burst, Reason::UnknownQp, source);
    }
    nobody
}

/// Whether the port hears who shows that P_Key: both are members of one partition, and not both limited ones (IBTA
/// volume 1, 10.9.3).
const fn is_of_partition(p_key: u16) -> bool {
    const FULL: u16 = 0x8000;
    (p_key ^ P_KEY) & !FULL == 0 && (p_key | P_KEY) & FULL != 0
}

/// What packets leave to be done when the turn of their inbox is over, before its receive side is free.
#[derive(Debug, Default)]
pub(crate) struct Afterwards {
    /// Queue pairs whose completions are held back until what they owe has left.
    held: [Option<Arc<QueuePair>>; TURN as usize],
    /// Where words were stored that the peer's process may have to be told of.
    words: Option<Arc<dyn ExecutedWords>>,
}

impl Afterwards {
    fn hold(&mut self, own: Arc<QueuePair>) {
        if self.held.iter().map_while(Option::as_ref).any(|held| Arc::ptr_eq(held, &own)) {
            return;
        }
        match self.held.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(own),
            // A turn has no more packets than that.
            None => own.responder.lock().publish(&own),
        }
    }

    fn announce(&mut self, words: &Arc<dyn ExecutedWords>) {
        let last = self.words.get_or_insert_with(|| Arc::clone(words));
        if !Arc::ptr_eq(last, words) {
            std::mem::replace(last, Arc::clone(words)).announce();
        }
    }

    /// The caller holds the receive side, and no other lock.
    #[inline]
    pub(crate) fn settle(&self) {
        if let Some(words) = &self.words {
            words.announce();
        }
        if self.held[0].is_some() {
            self.answer();
        }
    }

    /// Nothing that was taken is unacknowledged when the program sees that it came, as far as the link takes what is owed.
    fn answer(&self) {
        let held = || self.held.iter().map_while(Option::as_ref);
        held().for_each(|own| own.answer());
        for own in held() {
            let carrier = own.responder.lock().carrier();
            if let Some(carrier) = carrier {
                carrier.flush();
            }
        }
        held().for_each(|own| own.responder.lock().has_answered(own));
    }
}

/// Executes packets that have arrived at a device. Those for nobody are not answered. The caller holds its receive side.
pub(crate) fn receive(device: &'static Device, letter: &Letter, afterwards: &mut Afterwards) {
    let bth = &letter.burst.header.bth;
    let source = letter.burst.header.deth.map(|deth| deth.source.get());
    if !device.port_is_up() {
        return drop_packets(device, letter, Reason::PortDown, source);
    }
    if !is_of_partition(bth.p_key) {
        return drop_packets(device, letter, Reason::WrongPartition, source);
    }
    if bth.destination == Qpn::MULTICAST {
        return receive_for_many(device, letter);
    }
    let Some(own) = device.queue_pair(bth.destination.get()) else {
        return drop_packets(device, letter, Reason::UnknownQp, source);
    };
    let mut aftermath = Aftermath::default();
    let service = match bth.opcode.service() {
        WireService::Rc => Service::ReliableConnection,
        WireService::Uc => Service::UnreliableConnection,
        _ => Service::UnreliableDatagram,
    };
    if own.service != service {
        return drop_packets(device, letter, Reason::WrongService, source);
    }
    let answers = if service == Service::UnreliableDatagram {
        receive_datagram(&own, letter, &mut aftermath);
        Answers::Never
    } else if bth.opcode.operation().is_response() {
        match own.send.lock().receive_responses(&own, letter, &mut aftermath) {
            true => Answers::Now,
            false => Answers::Never,
        }
    } else {
        own.responder.lock().receive_requests(&own, letter, &mut aftermath)
    };
    aftermath.flush(&own);
    if let Some(words) = &letter.words {
        afterwards.announce(words);
    }
    match answers {
        Answers::Never => {}
        Answers::Now => own.device.fabric.unsettled.note_turn(&own),
        Answers::First => afterwards.hold(own),
    }
}

impl QueuePair {
    /// Has what it owes its peer leave, or the most of it. The caller holds no lock but the receive side of the device.
    fn answer(self: &Arc<Self>) {
        let mut aftermath = Aftermath::default();
        let more = (0..ANSWERS).all(|_| self.responder.lock().transmit(self, &mut aftermath));
        aftermath.flush(self);
        if more {
            self.device.fabric.unsettled.note_turn(self);
        }
    }

    /// Acknowledges what was taken, if that was not done yet. The caller holds no lock.
    pub(crate) fn answer_now(self: &Arc<Self>) {
        if self.responder.lock().owes_acknowledgement() {
            self.answer();
            self.device.fabric.unsettled.settle();
        }
    }
}

/// Has all queue pairs of a subnet acknowledge what they have taken.
#[cfg(not(loom))]
pub(crate) fn answer_all(subnet: &'static Subnet) {
    for own in subnet.devices().flat_map(Device::all_queue_pairs) {
        own.answer_now();
    }
}

/// Has the queue pairs of a device acknowledge in their next turn what they have taken. The caller holds no lock.
#[cfg(not(loom))]
pub(crate) fn answer_soon(device: &Device) {
    for own in device.all_queue_pairs() {
        if own.responder.lock().owes_acknowledgement() {
            device.fabric.unsettled.note_turn(&own);
        }
    }
}

/// Returns when all packets are executed that have arrived at the devices of a subnet. The caller holds no lock.
#[cfg(not(loom))]
pub(crate) fn execute_all(subnet: &'static Subnet) {
    let inboxes = subnet.devices().filter_map(Device::inbox_if_any);
    inboxes.for_each(Inbox::execute_all);
}

/// Delivers a datagram that is for the members of a group.
fn receive_for_many(device: &Device, letter: &Letter) {
    let is_datagram = letter.burst.header.bth.opcode.service() == WireService::Ud;
    let group = letter.datagram.and_then(|datagram| datagram.group);
    let Some(group) = group.filter(|_| is_datagram && device.port_is_up()) else { return };
    for member in device.groups.members(group) {
        let mut aftermath = Aftermath::default();
        receive_datagram(&member, letter, &mut aftermath);
        aftermath.flush(&member);
    }
}

fn receive_datagram(own: &Arc<QueuePair>, letter: &Letter, aftermath: &mut Aftermath) {
    let Some(datagram) = letter.datagram else { return };
    let dropped = own.responder.lock().receive_datagram(own, letter, datagram, aftermath);
    let Some(reason) = dropped else { return };
    let peer_qpn = letter.burst.header.deth.map(|deth| deth.source.get());
    drop_packets(own.device, letter, reason, peer_qpn);
}

impl Driven for QueuePair {
    fn place(&self) -> &Place {
        &self.place
    }

    /// Sends some of what this queue pair has to send: first what it owes its peer.
    fn take_turn(self: Arc<Self>) -> bool {
        let mut aftermath = Aftermath::default();
        let answers = self.responder.lock().transmit(&self, &mut aftermath);
        aftermath.flush(&self);
        let requests = self.send.lock().transmit(&self, &mut aftermath);
        aftermath.flush(&self);
        answers || requests
    }

    fn call(&self) {
        self.alarm.set(Time::AT_ONCE);
    }
}

pub(crate) mod letter;
pub(crate) mod route_header;
pub(super) mod run;
#[cfg(all(test, not(loom)))]
mod tests;
pub(crate) mod word;
