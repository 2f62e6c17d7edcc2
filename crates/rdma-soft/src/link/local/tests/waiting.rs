//! Tests data that waits for a process that does not read. The test itself reads the ring, and sets the clock.

use std::thread;
use std::time::Duration;

use rdma_proto::{Datagrams, Destination, MessageEnd};
use rdma_types::{Mtu, Psn, Qpn};
use test_support::system_calls::refuse_pages;

use super::super::neighbor::AGAIN;
use super::*;
use crate::device::arrivals::tests::queue_pair;
use crate::engine::completion::work_completion::Source;
use crate::engine::queue_pair::service::Service;
use crate::engine::wire::in_ring::InRing;
use crate::engine::wire::letter::Datagram;
use crate::engine::wire::{Carrier, Outgoing, Outlet, Route, transmit};

/// The length of each datagram.
const LENGTH: usize = 1024;
/// The size of a datagram in a message.
const SIZE: usize = head::HEAD + LENGTH;
/// A number of datagrams. The ring has space for about half of them.
const MANY: usize = 900;

/// Returns the headers of a SEND.
fn header() -> Headers {
    let opcode = Opcode::reliable(Operation::SendOnly);
    Headers::new(Bth::new(opcode, Qpn::masked(5), Psn::masked(9)))
}

struct Scene {
    device: &'static Device,
    neighbor: Arc<Neighbor>,
    ring: RingReceiver,
    _far: OwnedFd,
}

impl Scene {
    fn new(world: &'static World) -> Self {
        let (device, driver) = world.get_with(Subnet::with_set_clock);
        let (neighbor, far, ring) = neighbor(device, driver);
        Self { device, neighbor, ring, _far: far }
    }

    fn path(&self) -> Path {
        let local = Address::Gid(self.device.identity.gids[0]);
        Path { local, remote: local }
    }

    fn sender(&self) -> Weak<Neighbor> {
        Arc::downgrade(&self.neighbor)
    }

    /// Sends a datagram. Returns true if there was space.
    fn send_datagram(&self) -> bool {
        let Some(buffer) = self.neighbor.datagram_buffer(self.sender(), LENGTH) else {
            return false;
        };
        let to = Destination { qpn: Qpn::masked(5), qkey: 0, p_key: Bth::DEFAULT_P_KEY };
        let length = LENGTH.try_into().unwrap();
        let end = MessageEnd { length, immediate: None, invalidate: None, solicited: false };
        let burst = Datagrams::new(Qpn::masked(1), Mtu::MTU4096, Psn::masked(0)).send(&to, &end);
        let source = Source { qpn: 1, lid: 0, service_level: 0, path_bits: 0 };
        let datagram = Datagram { source, header: None, group: None };
        let letter = Letter::new(self.path(), burst.unwrap(), Some(datagram), buffer);
        Arc::clone(&self.neighbor).send(letter);
        true
    }

    /// Sends an empty SEND on a connection.
    fn send_on_connection(&self) {
        self.send_burst(|header| Burst::single(header, 0));
    }

    /// Sends a burst that needs a quarter of the ring.
    fn send_much_on_connection(&self) {
        self.send_burst(|header| Burst {
            header,
            last: Some(Last::of(&header)),
            segment: 4096,
            segments: 15,
            length: 60 << 10,
        });
    }

    fn send_burst(&self, burst: impl FnOnce(Headers) -> Burst) {
        let burst = burst(header());
        let letter = |buffer| Letter::new(self.path(), burst, None, buffer);
        let mut is_sent = false;
        let mut fill = |buffer, in_ring: Option<InRing>| {
            is_sent = in_ring.is_some_and(|in_ring| burst.length as usize <= in_ring.size());
            if is_sent { Ok(letter(buffer)) } else { Err(buffer) }
        };
        self.neighbor.send_in_place(&mut fill);
        if !is_sent {
            let buffer = self.neighbor.buffer(self.sender()).unwrap();
            Arc::clone(&self.neighbor).send(letter(buffer));
        }
    }

    /// Reads a message, and lets the device write as much as then fits.
    fn read(&self) -> Option<usize> {
        self.device.fabric.run_queue.run();
        let length = self.read_alone()?;
        self.neighbor.entry.queue();
        Some(length)
    }

    fn read_alone(&self) -> Option<usize> {
        let mut bytes = vec![0; 100_000];
        Some(take(&self.ring, &mut [0; GAP as usize], &mut bytes).unwrap()?.0.length)
    }

    /// Reads everything. Returns the numbers of datagrams and of bursts of connections.
    fn read_all(&self) -> (usize, usize) {
        let (mut datagrams, mut others) = (0, 0);
        while let Some(length) = self.read() {
            datagrams += length / SIZE;
            others += length % SIZE / head::HEAD;
        }
        (datagrams, others)
    }

    fn advance(&self, duration: Duration) {
        let subnet = self.device.fabric;
        subnet.clock.advance_to(subnet.clock.now() + duration);
        subnet.expire_due_timers();
    }

    fn stalled(&self) -> u64 {
        self.device.tally.counters().stalled
    }
}

/// A burst is written in a turn if the ring has no pages for it yet. Others do not overtake it.
#[test]
fn a_burst_is_written_at_once_unless_it_or_others_wait() {
    static WORLD: World = World::new();
    let scene = Scene::new(&WORLD);
    scene.send_on_connection();
    assert_eq!(scene.read_alone(), Some(head::HEAD));
    scene.send_much_on_connection();
    scene.send_on_connection();
    assert_eq!(scene.read_alone(), None);
    assert_eq!(scene.read(), Some(2 * head::HEAD + (60 << 10)));
    assert_eq!(scene.read(), None);
}

/// The first burst of a turn is written at once. After a short one, the others of the turn wait, to share a message. After a
/// long one, they do not wait.
#[test]
fn short_bursts_of_a_turn_share_a_message() {
    static WORLD: World = World::new();
    let scene = Scene::new(&WORLD);
    let own = queue_pair(scene.device, Service::ReliableConnection);
    let carrier: Arc<dyn Carrier> = Arc::<Neighbor>::clone(&scene.neighbor);
    let route = Route { path: scene.path(), outlet: Outlet::Carrier(carrier) };
    let messages = || std::iter::from_fn(|| scene.read_alone()).collect::<Vec<_>>();
    for (length, at_once, later) in [
        (8, vec![head::HEAD + 8], vec![2 * (head::HEAD + 8)]),
        (1024, vec![head::HEAD + 1024; 3], vec![]),
    ] {
        let mut left = 3;
        let more = transmit(&own, (&route, None), Mtu::MTU1024, |_, _| {
            left -= 1;
            Some(Outgoing { burst: Burst::single(header(), length), placed: 0, more: left > 0 })
        });
        assert!(!more);
        assert_eq!(messages(), at_once);
        scene.device.fabric.run_queue.run();
        assert_eq!(messages(), later);
    }
    own.destroy();
}

#[test]
fn datagrams_wait_for_a_process_that_reads_late() {
    static WORLD: World = World::new();
    let scene = Scene::new(&WORLD);
    assert!((0..MANY).all(|_| scene.send_datagram()));
    assert_eq!(scene.read_all(), (MANY, 0));
    assert_eq!(scene.stalled(), 0);
}

/// A mebibyte of datagrams can wait, in addition to those in the ring.
#[test]
fn datagrams_without_space_are_refused_until_there_is_some() {
    static WORLD: World = World::new();
    let scene = Scene::new(&WORLD);
    let mut sent = 0;
    loop {
        scene.device.fabric.run_queue.run();
        if !scene.send_datagram() {
            break;
        }
        sent += 1;
    }
    let most = (queues::DATAGRAM_BYTES + CAPACITY as usize) / SIZE;
    assert!((queues::DATAGRAM_BYTES / SIZE..=most).contains(&sent), "{sent}");
    assert_eq!(scene.read_all(), (sent, 0));
    assert!(scene.send_datagram());
}

/// The message of the connection overtakes the datagrams, instead of waiting for all of them.
#[test]
fn a_connection_passes_the_datagrams_that_wait() {
    static WORLD: World = World::new();
    let scene = Scene::new(&WORLD);
    assert!((0..MANY).all(|_| scene.send_datagram()));
    scene.device.fabric.run_queue.run();
    scene.send_on_connection();
    let mut before = 0;
    loop {
        let length = scene.read().unwrap();
        before += length / SIZE;
        if !length.is_multiple_of(SIZE) {
            break;
        }
    }
    assert!(before < MANY * 2 / 3, "{before} datagrams were read before it");
    assert_eq!(scene.read_all(), (MANY - before, 0));
}

#[test]
fn datagrams_are_lost_after_a_second_and_packets_of_connections_are_not() {
    static WORLD: World = World::new();
    let scene = Scene::new(&WORLD);
    assert!((0..MANY).all(|_| scene.send_datagram()));
    (0..10).for_each(|_| scene.send_on_connection());
    scene.device.fabric.run_queue.run();
    scene.advance(Duration::from_millis(999));
    assert_eq!(scene.stalled(), 0);
    scene.advance(Duration::from_millis(2));
    let lost = scene.stalled();
    assert!(lost > 200, "{lost}");
    // The packets of connections wait indefinitely.
    scene.advance(Duration::from_secs(3600));
    let (datagrams, others) = scene.read_all();
    assert_eq!((datagrams as u64 + lost, others), (MANY as u64, 10));
}

/// One process reads nothing, and another reads everything but does not answer. After half a minute, an event reports
/// this, and after a minute, requests fail. A process that reads or answers in between gets another minute.
#[test]
fn a_process_is_silent_if_it_does_not_read_or_answer_for_a_minute() {
    static WORLDS: [World; 2] = [const { World::new() }; 2];
    for (world, takes) in WORLDS.iter().zip([false, true]) {
        let scene = Scene::new(world);
        let is_silent = || scene.neighbor.is_silent();
        let counted = || scene.device.tally.counters().silent;
        for round in 1..=2 {
            let question = if takes {
                scene.send_on_connection();
                let question = Arc::clone(&scene.neighbor).ask(scene.sender());
                assert!(scene.read().is_some());
                Some(question)
            } else {
                while scene.send_datagram() {
                    scene.device.fabric.run_queue.run();
                }
                scene.send_much_on_connection();
                scene.device.fabric.run_queue.run();
                None
            };
            scene.advance(Duration::from_secs(29));
            assert_eq!((counted(), is_silent()), (round - 1, false));
            scene.advance(Duration::from_secs(2));
            assert_eq!((counted(), is_silent()), (round, false));
            scene.advance(Duration::from_secs(28));
            assert!(!is_silent());
            if round == 2 {
                scene.advance(Duration::from_secs(2));
            }
            assert_eq!((counted(), is_silent()), (round, round == 2));
            if let Some(question) = question {
                assert!(!scene.neighbor.has_answered(question));
                scene.ring.answer(scene.ring.asked());
                assert!(scene.neighbor.has_answered(question));
                Arc::clone(&scene.neighbor).check_answer();
            } else {
                scene.read_all();
            }
            assert!(!is_silent());
            scene.advance(Duration::from_secs(3600));
            assert_eq!((counted(), is_silent()), (round, false));
        }
    }
}

/// The question is sent only after everything before it is written.
#[test]
fn a_question_waits_for_earlier_messages() {
    static WORLD: World = World::new();
    let scene = Scene::new(&WORLD);
    while scene.send_datagram() {
        scene.device.fabric.run_queue.run();
    }
    scene.send_on_connection();
    let question = Arc::clone(&scene.neighbor).ask(scene.sender());
    scene.device.fabric.run_queue.run();
    assert_eq!((question, scene.ring.asked()), (1, 0));
    while scene.ring.asked() == 0 {
        assert!(
            scene.read().unwrap().is_multiple_of(SIZE),
            "the message was read, and nothing was asked"
        );
    }
    // The connection's message is still in the ring, so it was written before the question.
    let mut left = std::iter::from_fn(|| scene.read_alone());
    assert!(left.any(|length| length % SIZE != 0), "it was asked before that message was written");
}

/// Datagrams for a process that reads nothing are lost. From then on, the process owes no sign of life.
#[test]
fn a_process_is_not_silent_for_datagrams_alone() {
    static WORLD: World = World::new();
    let scene = Scene::new(&WORLD);
    while scene.send_datagram() {
        scene.device.fabric.run_queue.run();
    }
    scene.advance(Duration::from_secs(2));
    scene.device.fabric.run_queue.run();
    scene.advance(Duration::from_secs(3600));
    assert_eq!((scene.device.tally.counters().silent, scene.neighbor.is_silent()), (0, false));
}

/// A turn that finds no memory for a message must keep the message. Otherwise, messages would be lost or arrive too
/// early.
#[test]
fn messages_wait_until_there_is_memory_for_the_ring() {
    static WORLD: World = World::new();
    let scene = Scene::new(&WORLD);
    if !grows(&ring().2) {
        return println!("skipped: {WHOLE}");
    }
    thread::scope(|threads| {
        threads.spawn(|| {
            refuse_pages();
            scene.send_on_connection();
            scene.send_much_on_connection();
            scene.send_on_connection();
            assert_eq!(scene.read(), Some(head::HEAD), "the first message has pages");
            for _ in 0..3 {
                assert_eq!(scene.read(), None);
                scene.advance(AGAIN);
            }
        });
    });
    scene.advance(AGAIN);
    assert_eq!(scene.read(), Some(2 * head::HEAD + (60 << 10)));
    assert_eq!(scene.read(), None);
}
