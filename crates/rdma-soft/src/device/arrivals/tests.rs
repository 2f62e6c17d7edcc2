//! Tests of the packets that a turn sends, the packets that a queue pair drops, and the order of acknowledgements and
//! completions.
#![allow(clippy::unwrap_used)] // A failing helper fails its test.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{OnceLock, Weak};

use rdma_proto::wire::{Aeth, Bth, CreditCount, Headers, Opcode, Operation, Syndrome};
use rdma_proto::{Datagrams, Destination, MessageEnd};
use rdma_types::{AsyncEventKind, Gid, Mtu, Psn, QpAttributes, QpState, WcStatus};

use super::*;
use crate::address::{Address, Group};
use crate::device::subnet::Subnet;
use crate::engine::completion::CompletionQueue;
use crate::engine::completion::work_completion::Source;
use crate::engine::events::report::Reporter;
use crate::engine::queue_pair::capacity::{Capacity, Init};
use crate::engine::queue_pair::membership;
use crate::engine::queue_pair::settings::Settings;
use crate::engine::requester::post::post_each;
use crate::engine::requester::request::{Payload, Request};
use crate::engine::responder::wire::Continuation;
use crate::engine::turn::Turn;
use crate::engine::wire::letter::Datagram;
use crate::engine::wire::word::WordKey;
use crate::engine::wire::{Carrier, Mailbox as _, Outgoing, Outlet, Route, transmit};
use crate::engine::{requester, responder};
use crate::fabric::random::Seed;
use crate::fabric::run_queue::Task;
use crate::limits::Limits;
use crate::link::Link;
use crate::memory::protection::ProtectionDomain;
use crate::schedule::Schedule;
use crate::sync::locked;

const PATH: Path = Path { local: Address::Lid(1), remote: Address::Lid(1) };

/// Creates a device with its own fabric, which only this thread serves.
fn device(place: &'static OnceLock<Device>) -> &'static Device {
    let (limits, schedule, link) = (Limits::default(), Schedule::Immediate, Link::InfiniBand);
    place.get_or_init(|| {
        let subnet: &'static Subnet = Box::leak(Box::new(Subnet::new()));
        subnet.serve_by_polls_alone();
        Device::new(subnet, "d".into(), link, Vec::new(), limits, schedule, &Seed::new(1))
    })
}

pub(crate) fn queue_pair(device: &'static Device, service: Service) -> Arc<QueuePair> {
    let capacity = Capacity { send_wr: 1, receive_wr: 2, send_sge: 1, receive_sge: 1, inline: 0 };
    let init = Init { service, capacity, signal_all: false };
    let queue = || Arc::new(CompletionQueue::new(device.fabric, 4, None).unwrap());
    let pd = ProtectionDomain::new(&device.memory);
    QueuePair::create(device, &pd, &queue(), &queue(), None, init, Reporter::silent()).unwrap()
}

/// Returns an empty datagram for the queue pair with this number.
fn datagram(to: u32) -> Burst {
    let to = Destination { qpn: Qpn::masked(to), qkey: 0, p_key: Bth::DEFAULT_P_KEY };
    let end = MessageEnd { length: 0, immediate: None, invalidate: None, solicited: false };
    let mut datagrams = Datagrams::new(Qpn::masked(1), Mtu::MTU4096, Psn::masked(0));
    datagrams.send(&to, &end).unwrap()
}

/// They are dropped before the number of the queue pair is unknown, so the device does not report them.
#[test]
fn packets_that_wait_for_a_destroyed_queue_pair_are_dropped() {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = device(&DEVICE);
    let (own, other) = [(); 2].map(|()| queue_pair(device, Service::UnreliableDatagram)).into();
    let said = Datagram { source: Source::UNDEFINED, header: None, group: None };
    for receiver in [&own, &other] {
        let inbox = device.inbox(receiver.qpn);
        let buffer = inbox.buffer(Arc::<QueuePair>::downgrade(receiver)).unwrap();
        inbox.arrive(Letter::new(PATH, datagram(receiver.qpn), Some(said), buffer));
    }
    own.destroy();
    device.fabric.run_queue.run();
    let counters = device.tally.counters();
    assert_eq!((counters.unknown_qp, counters.wrong_state), (0, 1));
    other.destroy();
}

/// The sender fills each buffer with as many packets as fit. The turn nevertheless ends after 16 packets.
#[test]
fn a_turn_sends_sixteen_packets() {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = device(&DEVICE);
    let own = queue_pair(device, Service::ReliableConnection);
    for mtu in [Mtu::MTU256, Mtu::MTU1024, Mtu::MTU4096] {
        for outlet in [Outlet::Nowhere, Outlet::Inbox(&**device.inbox(9))] {
            let nowhere = outlet.is_nowhere();
            let sent = Cell::new(0);
            let more = transmit(&own, (&Route { path: PATH, outlet }, None), mtu, |room, _| {
                let segments = u16::try_from(room.len() / mtu.bytes() as usize).unwrap();
                sent.set(sent.get() + segments);
                Some(Outgoing { burst: Burst { segments, ..datagram(9) }, placed: 0, more: true })
            });
            assert_eq!((sent.get(), more), (16, true), "{mtu:?}, nowhere: {nowhere}");
        }
    }
    own.destroy();
}

/// A thread removes a datagram from the inbox. Before that thread executes the datagram, the receiver is reset and set
/// up again.
#[test]
fn packets_for_an_earlier_life_of_a_queue_pair_are_dropped() {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let own = queue_pair(device(&DEVICE), Service::UnreliableDatagram);
    earlier_packets_are_dropped(own.qpn, None, &own);
    own.destroy();
}

/// The same for a datagram to a group, which waits in another inbox.
#[test]
fn packets_to_a_group_for_an_earlier_life_of_a_member_are_dropped() {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let own = queue_pair(device(&DEVICE), Service::UnreliableDatagram);
    let group = Group { gid: Gid::from_bytes([0xff; 16]), lid: 0xc000 };
    membership::join(&own, group.gid, group.lid).unwrap();
    assert!(!Arc::ptr_eq(own.device.inbox(own.qpn), own.device.inbox(Qpn::MULTICAST.get())));
    earlier_packets_are_dropped(Qpn::MULTICAST.get(), Some(group), &own);
    own.destroy();
}

/// Tests datagrams to this number and group, which reach `own`.
fn earlier_packets_are_dropped(to: u32, group: Option<Group>, own: &Arc<QueuePair>) {
    let device = own.device;
    let said = Datagram { source: Source::UNDEFINED, header: None, group };
    let arrives = || {
        let inbox = device.inbox(to);
        let buffer = inbox.buffer(Arc::<QueuePair>::downgrade(own)).unwrap();
        inbox.arrive(Letter::new(PATH, datagram(to), Some(said), buffer));
    };
    let taken = |number| {
        let mut letter = Letter::new(PATH, datagram(to), Some(said), Box::default());
        letter.number = number;
        assert_eq!(receive(device, &letter, &mut Afterwards::default(), true), Some(()));
    };
    let counted = || {
        let counters = device.tally.counters();
        (counters.out_of_buffer, counters.wrong_state)
    };
    let becomes = |state, given| {
        let new = Settings { state, port: 1, ..Settings::default() };
        own.modify(&new, QpAttributes::STATE | given).unwrap();
    };
    arrives();
    let given = QpAttributes::PKEY_INDEX | QpAttributes::PORT | QpAttributes::QKEY;
    becomes(QpState::INIT, given);
    arrives();
    becomes(QpState::RTR, QpAttributes::empty());
    let before = counted();
    taken(1);
    assert_eq!(counted(), (before.0, before.1 + 1));
    taken(2);
    assert_eq!(counted(), (before.0 + 1, before.1 + 1));
}

/// A thread removes an acknowledgement from the inbox. Before that thread executes it, the requester is reset and set
/// up again.
#[test]
fn acknowledgements_of_an_earlier_life_are_dropped() {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = device(&DEVICE);
    let own = queue_pair(device, Service::ReliableConnection);
    let opcode = Opcode::new(WireService::Rc, Operation::Acknowledge).unwrap();
    let mut headers = Headers::new(Bth::new(opcode, Qpn::masked(own.qpn), Psn::masked(0)));
    headers.aeth = Some(Aeth { syndrome: Syndrome::Ack(CreditCount::UNLIMITED), msn: 1 });
    let letter = || Letter::new(PATH, Burst::single(headers, 0), None, Box::default());
    let inbox = device.inbox(own.qpn);
    let _ = inbox.buffer(Arc::<QueuePair>::downgrade(&own)).unwrap();
    inbox.arrive(letter());
    device.fabric.run_queue.run();
    {
        let send = &mut *own.send.lock();
        (send.state, send.requester.origin.path) = (QpState::RTS, Some(PATH));
        let route = Route { path: PATH, outlet: Outlet::Inbox(&**inbox) };
        send.wire = Some(Box::new(requester::wire::Wire::new(&*own, &send.requester, route)));
    }
    let taken = |number| {
        let before = device.tally.counters();
        let mut letter = letter();
        letter.number = number;
        assert_eq!(receive(device, &letter, &mut Afterwards::default(), true), Some(()));
        let now = device.tally.counters();
        (
            now.wrong_state - before.wrong_state,
            now.unsolicited_response - before.unsolicited_response,
        )
    };
    assert_eq!(taken(0), (1, 0));
    assert_eq!(taken(1), (0, 1));
    own.destroy();
}

/// A carrier that keeps packets until they are flushed, and then counts the program's completions.
#[derive(Debug)]
struct Waiting {
    own: Weak<QueuePair>,
    sent: AtomicU32,
    /// The numbers of packets sent and of completions at each flush.
    flushed: std::sync::Mutex<Vec<(u32, u32)>>,
    /// The PSN that the peer expects next.
    expected: AtomicU32,
    /// The number of void refusals sent.
    void: AtomicU32,
}

impl Waiting {
    fn of(own: &Arc<QueuePair>) -> Arc<Self> {
        let [sent, expected, void] = [(); 3].map(|()| AtomicU32::new(0));
        let flushed = std::sync::Mutex::default();
        Arc::new(Self { own: Arc::downgrade(own), sent, flushed, expected, void })
    }
}

impl Carrier for Waiting {
    fn has_ended(&self) -> bool {
        false
    }

    fn add_user(&self, _: Weak<dyn Task>) {}

    fn buffer(&self, _: Weak<dyn Task>) -> Option<Box<[u8]>> {
        Some(vec![0; 4096].into())
    }

    fn give_back(self: Arc<Self>, _: Box<[u8]>) {}

    fn loses_datagrams(&self) -> bool {
        false
    }

    fn ask(self: Arc<Self>, _: Weak<dyn Task>) -> u32 {
        0
    }

    fn has_answered(&self, _: u32) -> bool {
        true
    }

    fn is_silent(&self) -> bool {
        false
    }

    fn carries_void(&self) -> bool {
        true
    }

    fn send(self: Arc<Self>, letter: Letter) {
        let count = if letter.is_void { &self.void } else { &self.sent };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(self: Arc<Self>) {
        let own = self.own.upgrade().unwrap();
        let polled = own.receive_cq.poll(4, |_, _, _| {}).unwrap();
        locked(&self.flushed).push((self.sent.swap(0, Ordering::Relaxed), polled));
    }

    fn claim_word(&self, _: Weak<dyn Task>) -> Option<WordKey> {
        Some(WordKey::new(0, 0))
    }

    fn expected(&self, _: WordKey) -> Option<Psn> {
        Some(Psn::masked(self.expected.load(Ordering::Relaxed)))
    }
}

/// Makes the queue pair ready to receive, with two posted receives. It sends its answers through the outlet.
fn make_ready(own: &Arc<QueuePair>, outlet: Outlet) {
    {
        let responder = &mut *own.responder.lock();
        (responder.state, responder.path) = (QpState::RTS, Some(PATH));
        let route = Route { path: PATH, outlet };
        let wire = responder::wire::Wire::new(own.service, responder, 10, route);
        responder.wire = Some(Box::new(wire));
    }
    own.receive.lock().state = QpState::RTS;
    (0..2).for_each(|n| own.post_receive(n, &[], &mut Turn::new()).unwrap());
}

/// Lets the queue pair execute an empty SEND.
fn take_send(own: &QueuePair, psn: u32, ack_request: bool) -> Afterwards {
    let opcode = Opcode::new(WireService::Rc, Operation::SendOnly).unwrap();
    let bth = Bth::new(opcode, Qpn::masked(own.qpn), Psn::masked(psn));
    let headers = Headers::new(Bth { ack_request, ..bth });
    let mut afterwards = Afterwards::default();
    let letter = Letter::new(PATH, Burst::single(headers, 0), None, Box::default());
    assert_eq!(receive(own.device, &letter, &mut afterwards, true), Some(()));
    afterwards
}

/// The peer has stored in the word that it executed the request. This end has not read the word yet when the failing
/// packet arrives.
#[test]
fn requests_executed_by_the_peer_succeed_if_this_end_fails_later() {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = device(&DEVICE);
    let own = queue_pair(device, Service::ReliableConnection);
    let carrier = Waiting::of(&own);
    locked(&own.attributes).settings.state = QpState::RTS;
    {
        let send = &mut *own.send.lock();
        (send.state, send.requester.origin.path) = (QpState::RTS, Some(PATH));
        let outlet = Outlet::Carrier(Arc::<Waiting>::clone(&carrier));
        let route = Route { path: PATH, outlet };
        let mut wire = requester::wire::Wire::new(&*own, &send.requester, route);
        wire.claim_word(&own);
        send.wire = Some(Box::new(wire));
    }
    let request = Request { signaled: true, ..Request::EMPTY };
    let mut requests = vec![Ok((request, Payload::keyed(&[])))];
    post_each(&own, || requests.pop()).unwrap();
    carrier.expected.store(1, Ordering::Relaxed);
    let mut aftermath = Aftermath::default();
    let incarnation = own.responder.lock().incarnation;
    aftermath.responder_failed(&own, incarnation, AsyncEventKind::QP_ACCESS_ERR);
    aftermath.flush(&own);
    let mut found = Vec::new();
    own.send_cq.poll(4, |_, completion, _| found.push(completion.status)).unwrap();
    assert_eq!(found, [WcStatus::SUCCESS]);
    own.destroy();
}

/// Another thread is sending the acknowledgement of the first message when the second one arrives.
#[test]
fn a_message_is_visible_only_after_all_earlier_answers_have_left() {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = device(&DEVICE);
    let own = queue_pair(device, Service::ReliableConnection);
    let carrier = Waiting::of(&own);
    make_ready(&own, Outlet::Carrier(Arc::<Waiting>::clone(&carrier)));
    let message = |psn, ack_request| take_send(&own, psn, ack_request);
    let completions = || own.receive_cq.poll(4, |_, _, _| {}).unwrap();
    let first = message(0, true);
    Arc::clone(&own).run();
    let second = message(1, false);
    assert_eq!(completions(), 0);
    second.settle();
    assert_eq!(*locked(&carrier.flushed), [(1, 0)]);
    assert_eq!(completions(), 2);
    first.settle();
    own.destroy();
}

/// The program polls the completion before another thread runs the turn that sends the acknowledgement.
#[test]
fn a_destroyed_queue_pair_acknowledges_the_messages_its_program_has_seen() {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = device(&DEVICE);
    let own = queue_pair(device, Service::ReliableConnection);
    // The acknowledgement returns to this device, which counts it as a packet for an unknown queue pair.
    make_ready(&own, Outlet::Inbox(&**device.inbox(0)));
    take_send(&own, 0, true);
    assert_eq!(own.receive_cq.poll(4, |_, _, _| {}).unwrap(), 1);
    let before = device.tally.counters().unknown_qp;
    own.destroy();
    assert_eq!(device.tally.counters().unknown_qp, before + 1);
}

/// The words of a peer that retries without limit while this end is not ready, until it gives up.
#[derive(Debug, Default)]
struct Patient {
    has_given_up: AtomicBool,
    stored: AtomicU32,
}

impl ExecutedWords for Patient {
    fn store(&self, _: WordKey, _: Psn) {
        self.stored.fetch_add(1, Ordering::Relaxed);
    }

    fn is_patient(&self, _: WordKey) -> bool {
        !self.has_given_up.load(Ordering::Relaxed)
    }

    fn announce(&self) {}
}

/// Puts an empty SEND from a peer with these words into the inbox.
fn send(words: &Arc<Patient>, own: &QueuePair, psn: u32) {
    let opcode = Opcode::new(WireService::Rc, Operation::SendOnly).unwrap();
    let bth = Bth::new(opcode, Qpn::masked(own.qpn), Psn::masked(psn));
    let (burst, inbox) = (Burst::single(Headers::new(bth), 0), own.device.inbox(own.qpn));
    let letter = Letter::new(PATH, burst, None, inbox.buffer_at_once());
    let mut letter = letter.with_word(WordKey::of(1));
    letter.words = Some(Arc::<Patient>::clone(words));
    inbox.arrive(letter);
}

/// A packet found no receive request, and arrives again once one is posted. The next packet is dropped if it arrives in
/// between. The peer may never learn of that, because it may see the first packet executed before it reads the refusal.
/// The kept packet is then not executed, and the peer sends both again.
#[test]
fn a_kept_packet_is_executed_unless_a_later_one_was_dropped() {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = device(&DEVICE);
    let words = Arc::<Patient>::default();
    for follows in [false, true] {
        let own = queue_pair(device, Service::ReliableConnection);
        let carrier = Waiting::of(&own);
        make_ready(&own, Outlet::Carrier(Arc::<Waiting>::clone(&carrier)));
        let send = |psn| send(&words, &own, psn);
        let executed = || own.receive_cq.poll(4, |_, _, _| {}).unwrap();
        let void = || carrier.void.load(Ordering::Relaxed);
        (0..3).for_each(send);
        device.fabric.run_queue.run();
        assert_eq!((executed(), void()), (2, 0));
        if follows {
            send(3);
        }
        own.post_receive(2, &[], &mut Turn::new()).unwrap();
        assert_eq!((executed(), void()), if follows { (0, 1) } else { (1, 0) });
        (2..4).for_each(send);
        own.post_receive(3, &[], &mut Turn::new()).unwrap();
        assert_eq!(executed(), if follows { 2 } else { 1 });
        own.destroy();
    }
}

/// A thread posts a receive request and fetches the kept packet. Before the packet is executed, the peer gives up, and
/// may give its word to another connection.
#[test]
fn a_kept_packet_of_a_peer_that_has_given_up_is_not_executed() {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = device(&DEVICE);
    let words = Arc::<Patient>::default();
    let own = queue_pair(device, Service::ReliableConnection);
    make_ready(&own, Outlet::Carrier(Waiting::of(&own)));
    (0..3).for_each(|psn| send(&words, &own, psn));
    device.fabric.run_queue.run();
    let executed = || own.receive_cq.poll(4, |_, _, _| {}).unwrap();
    assert_eq!((executed(), words.stored.load(Ordering::Relaxed)), (2, 2));
    let continuation = own.responder.lock().handle_posted_receive();
    let Continuation::Packet(letter) = continuation else { panic!("{continuation:?}") };
    own.post_receive(2, &[], &mut Turn::new()).unwrap();
    words.has_given_up.store(true, Ordering::Relaxed);
    assert_eq!(receive(device, &letter, &mut Afterwards::default(), true), Some(()));
    device.fabric.run_queue.run();
    assert_eq!((executed(), words.stored.load(Ordering::Relaxed)), (0, 2));
    own.destroy();
}

/// A datagram that is longer than the MTU of the port is dropped (IBTA C9-205).
#[test]
fn a_datagram_longer_than_the_mtu_is_dropped() {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = device(&DEVICE);
    let own = queue_pair(device, Service::UnreliableDatagram);
    own.responder.lock().state = QpState::RTS;
    let come = |length: u16| {
        let burst = Burst { segment: length, length: length.into(), ..datagram(own.qpn) };
        let said = Datagram { source: Source::UNDEFINED, header: None, group: None };
        let payload = vec![0; length.into()].into_boxed_slice();
        let letter = Letter::new(PATH, burst, Some(said), payload);
        assert_eq!(receive(device, &letter, &mut Afterwards::default(), true), Some(()));
        let counters = device.tally.counters();
        (counters.out_of_buffer, counters.resp_invalid_request_errors)
    };
    assert_eq!(come(4096), (1, 0));
    assert_eq!(come(4097), (1, 1));
    own.destroy();
}
