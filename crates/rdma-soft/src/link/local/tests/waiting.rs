//! What waits for a process that does not read: here the test reads, and sets the clock.

use std::time::Duration;

use rdma_proto::{Datagrams, Destination, End};
use rdma_types::{Mtu, Psn, Qpn};

use super::*;
use crate::engine::completion::work_completion::Source;
use crate::link::memory::Datagram;

/// How long each datagram is.
const LENGTH: usize = 1024;
/// What it takes in a message.
const SIZE: usize = head::HEAD + LENGTH;

struct Scene {
    device: &'static Device,
    neighbor: Arc<Neighbor>,
    ring: Receiver,
    _far: OwnedFd,
}

impl Scene {
    fn new(world: &'static World) -> Self {
        let (device, driver) = world.get_with(Fabric::with_set_clock);
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

    /// Sends a datagram. Says whether there was space.
    fn send_datagram(&self) -> bool {
        let Some(buffer) = self.neighbor.datagram_buffer(self.sender(), LENGTH) else {
            return false;
        };
        let to = Destination { qpn: Qpn::masked(5), qkey: 0, p_key: Bth::DEFAULT_P_KEY };
        let length = LENGTH.try_into().unwrap();
        let end = End { length, immediate: None, invalidate: None, solicited: false };
        let burst = Datagrams::new(Qpn::masked(1), Mtu::MTU4096, Psn::masked(0)).send(&to, &end);
        let source = Source { qpn: 1, lid: 0, service_level: 0, path_bits: 0 };
        let datagram = Datagram { source, header: None, group: None };
        let letter = Letter::new(self.path(), burst.unwrap(), Some(datagram), buffer);
        Arc::clone(&self.neighbor).send(letter);
        true
    }

    /// Sends an empty SEND of a connection.
    fn send_on_connection(&self) {
        let opcode = Opcode::reliable(Operation::SendOnly);
        let header = Headers::new(Bth::new(opcode, Qpn::masked(5), Psn::masked(9)));
        let buffer = self.neighbor.buffer(self.sender()).unwrap();
        let letter = Letter::new(self.path(), Burst::single(header, 0), None, buffer);
        Arc::clone(&self.neighbor).send(letter);
    }

    /// Reads a message, and has the device write what it has space for then.
    fn read(&self) -> Option<usize> {
        self.device.fabric.unsettled.settle();
        let mut bytes = vec![0; 100_000];
        let message = self.ring.read(&mut [], &mut bytes).unwrap()?;
        self.device.fabric.unsettled.note_turn(&self.neighbor);
        Some(message.length)
    }

    /// How many datagrams come, and how many bursts of connections.
    fn read_all(&self) -> (usize, usize) {
        let (mut datagrams, mut others) = (0, 0);
        while let Some(length) = self.read() {
            datagrams += length / SIZE;
            others += length % SIZE / head::HEAD;
        }
        (datagrams, others)
    }

    fn go_on(&self, duration: Duration) {
        let fabric = self.device.fabric;
        fabric.clock.go_on_to(fabric.clock.now() + duration);
        fabric.ring_due_alarms();
    }

    fn stalled(&self) -> u64 {
        self.device.tally.counters().stalled
    }
}

#[test]
fn datagrams_wait_for_a_process_that_reads_late() {
    static WORLD: World = World::new();
    let scene = Scene::new(&WORLD);
    assert!((0..500).all(|_| scene.send_datagram()));
    assert_eq!(scene.read_all(), (500, 0));
    assert_eq!(scene.stalled(), 0);
}

/// More than a mebibyte, beside what the ring has.
#[test]
fn datagrams_without_space_are_refused_until_there_is_some() {
    static WORLD: World = World::new();
    let scene = Scene::new(&WORLD);
    let mut sent = 0;
    loop {
        scene.device.fabric.unsettled.settle();
        if !scene.send_datagram() {
            break;
        }
        sent += 1;
    }
    let most = (outbox::DATAGRAM_BYTES + CAPACITY as usize) / SIZE;
    assert!((outbox::DATAGRAM_BYTES / SIZE..=most).contains(&sent), "{sent}");
    assert_eq!(scene.read_all(), (sent, 0));
    assert!(scene.send_datagram());
}

/// They do not stand in its way, nor does it wait for all of them.
#[test]
fn a_connection_passes_the_datagrams_that_wait() {
    static WORLD: World = World::new();
    let scene = Scene::new(&WORLD);
    assert!((0..500).all(|_| scene.send_datagram()));
    scene.device.fabric.unsettled.settle();
    scene.send_on_connection();
    let mut before = 0;
    loop {
        let length = scene.read().unwrap();
        before += length / SIZE;
        if !length.is_multiple_of(SIZE) {
            break;
        }
    }
    assert!(before < 300, "{before} of 500 datagrams were read before it");
    assert_eq!(scene.read_all(), (500 - before, 0));
}

#[test]
fn datagrams_that_wait_for_a_second_are_lost_and_what_connections_send_is_not() {
    static WORLD: World = World::new();
    let scene = Scene::new(&WORLD);
    assert!((0..500).all(|_| scene.send_datagram()));
    (0..10).for_each(|_| scene.send_on_connection());
    scene.device.fabric.unsettled.settle();
    scene.go_on(Duration::from_millis(999));
    assert_eq!(scene.stalled(), 0);
    scene.go_on(Duration::from_millis(2));
    let lost = scene.stalled();
    assert!(lost > 200, "{lost}");
    // For as long as it takes.
    scene.go_on(Duration::from_secs(3600));
    let (datagrams, others) = scene.read_all();
    assert_eq!((datagrams as u64 + lost, others), (500, 10));
}
