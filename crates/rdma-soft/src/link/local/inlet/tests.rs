//! Tests of messages that the other process has composed.
#![allow(clippy::unwrap_used)] // A failing helper fails its test.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc;
use std::thread;

use rdma_proto::Burst;
use rdma_proto::wire::{Bth, Headers, Opcode, Operation};
use rdma_types::{QpState, Qpn};
use rustix::net::{SendFlags, send};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::program::in_own_process;

use super::super::head::{AFTER_GAP, HEAD, MOST, SINGLE_HEAD, encode, encode_single};
use super::super::listener::GuestId;
use super::super::shared::{GAP, RingSender};
use super::super::tests::{World, connection};
use super::*;
use crate::address::{Address, Path};
use crate::device::arrivals::tests::queue_pair;
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::service::Service;
use crate::engine::responder;
use crate::engine::turn::Turn;
use crate::engine::wire::in_ring::InRing;
use crate::engine::wire::letter::Letter;
use crate::engine::wire::single::Single;
use crate::engine::wire::{Outlet, Route};
use crate::fabric::Polled as _;
use crate::link::memory::BURSTS;
use crate::memory::copy::Reach;
use crate::sync::Lock;

/// A connection whose other end has written messages of [`MOST`] bursts until the ring was full.
struct Written {
    inlet: Arc<Inlet>,
    receiver: Arc<QueuePair>,
    messages: usize,
    _far: OwnedFd,
}

/// Returns a burst for the queue pair with this number: an empty SEND with this PSN.
fn burst(device: &Device, number: u32, psn: u32) -> [u8; HEAD] {
    burst_of(device, Operation::SendOnly, number, psn)
}

fn burst_of(device: &Device, operation: Operation, number: u32, psn: u32) -> [u8; HEAD] {
    let opcode = Opcode::reliable(operation);
    let header = Headers::new(Bth::new(opcode, Qpn::masked(number), Psn::masked(psn)));
    let letter = Letter::new(path_within(device), Burst::single(header, 0), None, Box::default());
    let letter = letter.with_word(Some(key()));
    encode(device, &letter).unwrap()
}

fn path_within(device: &Device) -> Path {
    let address = Address::Gid(device.identity.gids[0]);
    Path { local: address, remote: address }
}

/// Returns both ends of a ring, and the other end of the connection.
fn inlet(world: &'static World) -> (Arc<Inlet>, RingSender, OwnedFd) {
    let (sender, file) = RingSender::new().unwrap();
    let (inlet, far) = inlet_without_ring(world, None);
    inlet.ring.set(RingReceiver::open(file.as_fd()).unwrap()).unwrap();
    (inlet, sender, far)
}

/// Returns the receiving end of a connection, and the other end.
fn inlet_without_ring(world: &'static World, giver: Option<Giver>) -> (Arc<Inlet>, OwnedFd) {
    let (device, driver) = world.get();
    let (near, far) = connection();
    let guest = Guest::of(GuestId::User(0)).unwrap();
    let new = |token| Inlet::new(driver, device, guest, near, token, giver);
    (driver.add(new).unwrap(), far)
}

impl Written {
    /// The first burst of each message is for the number of a receiver xor `first`, the others are for the receiver.
    fn new(world: &'static World, first: u32) -> Self {
        let (device, _) = world.get();
        let receiver = queue_pair(device, Service::ReliableConnection);
        let [first, other] =
            [receiver.qpn ^ first, receiver.qpn].map(|number| burst(device, number, 0));
        let (inlet, sender, far) = inlet(world);
        let parts: Vec<&[u8]> = std::iter::once(&first[..]).chain([&other[..]; MOST - 1]).collect();
        let write = || sender.write(parts.iter().copied(), 0).unwrap().map(drop);
        let messages = std::iter::from_fn(write).count();
        Self { inlet, receiver, messages, _far: far }
    }
}

/// Each message begins with a burst for an inbox that has space. Its other bursts are for another inbox. No thread
/// executes them, so messages are read only until that inbox is full.
#[test]
fn the_later_bursts_of_messages_do_not_overfill_an_inbox() {
    static WORLD: World = World::new();
    let Written { inlet, receiver, messages, _far } = Written::new(&WORLD, 1);
    let inbox = |number| receiver.device.inbox(number);
    assert!(!Arc::ptr_eq(inbox(receiver.qpn ^ 1), inbox(receiver.qpn)));
    let reading = &mut *inlet.reading();
    let mut read = 0;
    let end = loop {
        match inlet.read(reading) {
            RingRead::Message => read += 1,
            end => break end,
        }
    };
    assert!(matches!(end, RingRead::NoRoom), "{read} of {messages} messages, {end:?}");
    let bursts = read * (MOST - 1);
    assert!((BURSTS..BURSTS + MOST).contains(&bursts), "{bursts} bursts");
    receiver.destroy();
}

/// An inbox that is full, because packets of an earlier message wait there, does not end the call. The call executes
/// them.
#[test]
fn everything_that_has_arrived_is_read_before_an_end_is_handled() {
    static WORLD: World = World::new();
    let Written { inlet, receiver, messages, _far } = Written::new(&WORLD, 0);
    assert!(messages * MOST > 2 * BURSTS);
    assert!(inlet.handle_one(&mut inlet.reading()));
    Arc::clone(&inlet).read_all();
    assert!(!inlet.has_message() && !inlet.waits.load(Ordering::Relaxed));
    let executed = receiver.device.tally.counters().wrong_state;
    assert_eq!(executed, (messages * MOST) as u64);
    receiver.destroy();
}

/// A queue pair that is connected to a queue pair of another process, and the ring from that process.
struct Connected {
    inlet: Arc<Inlet>,
    receiver: Arc<QueuePair>,
    sender: RingSender,
    _far: OwnedFd,
}

/// The key of the word for the progress of the sender.
fn key() -> WordKey {
    WordKey::new(7, 0)
}

impl Connected {
    fn new(world: &'static World) -> Self {
        let (device, _) = world.get();
        let receiver = queue_pair(device, Service::ReliableConnection);
        {
            let responder = &mut *receiver.responder.lock();
            (responder.state, responder.path) = (QpState::RTS, Some(path_within(device)));
            let route = Route { path: path_within(device), outlet: Outlet::Nowhere };
            let wire = responder::wire::Wire::new(receiver.service, responder, 10, route);
            responder.wire = Some(Box::new(wire));
        }
        receiver.receive.lock().state = QpState::RTS;
        let (inlet, sender, _far) = inlet(world);
        Self { inlet, receiver, sender, _far }
    }

    fn post_receive(&self, wr_id: u64) {
        self.receiver.post_receive(wr_id, &[], &mut Turn::new()).unwrap();
    }

    /// Writes a SEND without data in the short form.
    fn write_single(&self, psn: u32) {
        assert!(self.write_single_if_space(psn));
    }

    fn write_single_if_space(&self, psn: u32) -> bool {
        let path = path_within(self.receiver.device);
        let (to, psn) = (Qpn::masked(self.receiver.qpn), Psn::masked(psn));
        let (immediate, solicited, length) = (None, false, 0);
        let single = Single { path, to, psn, word: key(), immediate, solicited, length };
        let head = encode_single(self.receiver.device, &single).unwrap();
        self.sender.write_single(&head, &[], 0).unwrap().is_some()
    }

    /// Writes the same SEND as a packet.
    fn write_packet(&self, psn: u32) {
        self.write_packets(&[psn]);
    }

    /// Writes such packets in one message.
    fn write_packets(&self, psns: &[u32]) {
        let head = |&psn| burst(self.receiver.device, self.receiver.qpn, psn);
        let heads: Vec<_> = psns.iter().map(head).collect();
        self.sender.write(heads.iter().map(|head| &head[..]), 0).unwrap().unwrap();
    }

    fn read(&self) {
        let read = self.inlet.read(&mut self.inlet.reading());
        assert!(matches!(read, RingRead::Message), "{read:?}");
    }

    /// Returns the new completions, and the PSN that the sender sees.
    fn completed(&self) -> (Vec<u64>, Option<u32>) {
        let mut found = Vec::new();
        self.receiver.receive_cq.poll(4, |_, completion, _| found.push(completion.wr_id)).unwrap();
        (found, self.sender.executed().unwrap().expected(key()).map(Psn::get))
    }

    /// Reads a message while another thread holds a lock of the receiver.
    fn read_beside<T>(&self, lock: &Lock<T>) {
        thread::scope(|scope| {
            let (sender, read) = mpsc::channel();
            let held = lock.lock();
            scope.spawn(move || {
                self.read();
                sender.send(()).unwrap();
            });
            let has_read = read.recv_timeout(Duration::from_secs(60));
            drop(held);
            assert_eq!(has_read, Ok(()));
        });
    }

    fn run(&self) {
        self.receiver.device.fabric.run_queue.run();
    }
}

#[test]
fn a_ring_full_of_the_shortest_messages_is_read_before_an_end_is_handled() {
    static WORLD: World = World::new();
    let all = Connected::new(&WORLD);
    let mut messages = 0;
    while all.write_single_if_space(messages) {
        messages += 1;
    }
    assert_eq!(messages, CAPACITY / ALIGN);
    Arc::clone(&all.inlet).read_all();
    assert!(!all.inlet.has_message());
    all.receiver.destroy();
}

/// No thread runs turns here, so packets wait.
#[test]
fn a_message_of_one_packet_is_executed_at_once_unless_packets_wait() {
    static WORLD: World = World::new();
    let all = Connected::new(&WORLD);
    (0..2).for_each(|n| all.post_receive(n));
    all.write_single(0);
    all.read();
    assert_eq!(all.completed(), (vec![], None), "the first message is a packet, for its event");
    all.run();
    assert_eq!(all.completed(), (vec![0], Some(1)));
    all.write_single(1);
    all.read();
    assert_eq!(all.completed(), (vec![1], Some(2)));
    (2..4).for_each(|n| all.post_receive(n));
    all.write_packets(&[2, 2]);
    all.write_single(3);
    (0..2).for_each(|_| all.read());
    assert_eq!(all.completed(), (vec![], Some(2)), "it follows the packets");
    all.run();
    assert_eq!(all.completed(), (vec![2, 3], Some(4)));
    all.receiver.destroy();
}

/// No thread runs turns here, so packets wait.
#[test]
fn a_packet_is_executed_at_once_unless_packets_wait() {
    static WORLD: World = World::new();
    let all = Connected::new(&WORLD);
    (0..2).for_each(|n| all.post_receive(n));
    all.write_packet(0);
    all.read();
    assert_eq!(all.completed(), (vec![0], Some(1)));
    all.post_receive(2);
    all.write_packets(&[1, 1]);
    all.write_packet(2);
    (0..2).for_each(|_| all.read());
    assert_eq!(all.completed(), (vec![], Some(1)), "it follows the packets");
    all.run();
    assert_eq!(all.completed(), (vec![1, 2], Some(3)));
    all.receiver.destroy();
}

#[test]
fn a_message_of_one_packet_is_refused_and_dropped_like_a_packet() {
    static WORLD: World = World::new();
    let all = Connected::new(&WORLD);
    let counters = || all.receiver.device.tally.counters();
    all.post_receive(0);
    for psn in 0..2 {
        all.write_single(psn);
        all.read();
        all.run();
    }
    assert_eq!((all.completed(), counters().send_rnr_err), ((vec![0], Some(1)), 1));
    // The sender sends it again, but not in order.
    all.post_receive(1);
    for psn in [2, 0] {
        all.write_single(psn);
        all.read();
        all.run();
    }
    let counted = counters();
    assert_eq!((counted.out_of_seq_request, counted.duplicate_request), (1, 1));
    all.write_single(1);
    all.read();
    all.run();
    assert_eq!(all.completed(), (vec![1], Some(2)));
    Arc::clone(&all.receiver).destroy();
    all.write_single(2);
    all.read();
    assert_eq!(counters().unknown_qp, 1);
}

/// Another thread polls meanwhile. It reads the messages of other processes, and leaves the later ones of this process to
/// the first thread.
#[test]
fn a_thread_that_reads_a_long_message_delays_no_other_process() {
    static WORLD: World = World::new();
    let (_, driver) = WORLD.get();
    let all = [(); 2].map(|()| Connected::new(&WORLD));
    for all in &all {
        (0..2).for_each(|n| all.post_receive(n));
        all.write_single(0);
        // The first message is notified. After that, polls look at the ring.
        send(&all._far, &[0], SendFlags::empty()).unwrap();
        while all.completed().0.is_empty() {
            driver.poll();
        }
    }
    let [long, other] = &all;
    thread::scope(|scope| {
        let (sender, read) = mpsc::channel();
        let held = long.inlet.reading();
        all.iter().for_each(|all| all.write_single(1));
        scope.spawn(move || {
            while other.completed().0.is_empty() {
                driver.poll();
            }
            while long.inlet.has_message() {
                driver.poll();
            }
            sender.send(()).unwrap();
        });
        let has_read = read.recv_timeout(Duration::from_secs(60));
        let found = (long.completed().0, long.inlet.reading.has_left_work());
        drop(held);
        assert_eq!((has_read, found), (Ok(()), (vec![], true)));
    });
    long.run();
    assert_eq!(long.completed(), (vec![1], Some(2)));
    all.into_iter().for_each(|all| all.receiver.destroy());
}

/// The process exits meanwhile. Its end would be reported again and again until it is handled.
#[test]
fn an_end_is_reported_once_while_another_thread_reads() {
    static WORLD: World = World::new();
    let (_, driver) = WORLD.get();
    let Connected { inlet, receiver, sender: _sender, _far } = Connected::new(&WORLD);
    let held = inlet.reading();
    drop(_far);
    // A poll on this thread would wait for itself if turns waited.
    let is_reported = || {
        thread::scope(|scope| {
            // Each 128th poll looks for events.
            scope.spawn(|| (0..256).for_each(|_| driver.poll())).join().unwrap();
            inlet.readable.swap(false, Ordering::Relaxed)
        })
    };
    assert_eq!([is_reported(), is_reported()], [true, false]);
    assert!(inlet.reading.has_left_work() && !inlet.closed.load(Ordering::Relaxed));
    inlet.readable.store(true, Ordering::Relaxed);
    drop(held);
    receiver.device.fabric.run_queue.run();
    assert!(inlet.closed.load(Ordering::Relaxed));
    receiver.destroy();
}

/// A thread that reads a message keeps others from reading those of the same process for other queue pairs.
#[test]
fn a_message_waits_in_the_inbox_for_a_post_of_its_receiver() {
    static WORLDS: [World; 2] = [const { World::new() }; 2];
    for (world, write) in WORLDS.iter().zip([Connected::write_single, Connected::write_packet]) {
        let all = Connected::new(world);
        (0..2).for_each(|n| all.post_receive(n));
        write(&all, 0);
        all.read();
        all.run();
        assert_eq!(all.completed(), (vec![0], Some(1)));
        write(&all, 1);
        all.read_beside(&all.receiver.send);
        assert_eq!(all.completed(), (vec![], Some(1)));
        all.run();
        assert_eq!(all.completed(), (vec![1], Some(2)));
        all.post_receive(2);
        write(&all, 2);
        all.read_beside(&all.receiver.responder);
        all.run();
        assert_eq!(all.completed(), (vec![2], Some(3)));
        all.receiver.destroy();
    }
}

/// The same for a response. Its receiver expects none, and drops it.
#[test]
fn a_response_waits_in_the_inbox_for_a_post_of_its_receiver() {
    static WORLD: World = World::new();
    let all = Connected::new(&WORLD);
    let device = all.receiver.device;
    let head = burst_of(device, Operation::RdmaReadResponseMiddle, all.receiver.qpn, 0);
    all.sender.write([&head[..]].into_iter(), 0).unwrap().unwrap();
    all.read_beside(&all.receiver.send);
    assert_eq!(device.tally.counters().wrong_state, 0);
    all.run();
    assert_eq!(device.tally.counters().wrong_state, 1);
    all.receiver.destroy();
}

/// The thread that would answer finds this message, which another thread then reads without answering.
#[test]
fn a_question_is_answered_after_another_thread_has_read_the_last_message() {
    static WORLD: World = World::new();
    let all = Connected::new(&WORLD);
    all.sender.ask(1);
    all.inlet.asked.store(1, Ordering::Relaxed);
    all.write_packet(0);
    let has_turn = all.inlet.answer();
    assert!(Arc::clone(&all.inlet).look());
    if has_turn {
        all.inlet.entry.queue();
    }
    all.run();
    assert_eq!(all.sender.answered(), 1);
    all.receiver.destroy();
}

#[test]
fn data_that_wraps_around_the_end_of_the_ring_is_written_and_read() {
    let ring = || {
        let (sender, file) = RingSender::new().unwrap();
        (sender, RingReceiver::open(file.as_fd()).unwrap())
    };
    let ([(sender, receiver), (other, source)], data) = ([ring(), ring()], [0x5a_u8; 1000]);
    other.write([&data[..]].into_iter(), 0).unwrap().unwrap();
    let (source, mut out) = (source.memory_from(GAP), [0_u8; 1000]);
    let mut head = [7; SINGLE_HEAD as usize];
    head[..4].copy_from_slice(&u32::try_from(AFTER_GAP + 1000).unwrap().to_le_bytes());
    for _ in 0..600 {
        assert!(sender.write_single(&head, &source, 1000).unwrap().is_some());
        let mut found = [0; SINGLE_HEAD as usize];
        let message = receiver.next(&mut found).unwrap().unwrap();
        assert_eq!(found, head);
        let _ = Reach::Mapped.collect_bytes(&receiver.memory_from(SINGLE_HEAD), 0, &mut out);
        assert_eq!(out, data);
        receiver.remove(message).unwrap();
        out.fill(0);
    }
}

/// The system would end a process that creates a longer file (`ulimit -f`).
#[test]
fn versions_that_cannot_be_made_are_counted() {
    in_own_process("link::local::inlet::tests::versions_that_cannot_be_made_are_counted", || {
        static WORLD: World = World::new();
        let (_sender, file) = RingSender::new().unwrap();
        let giver = Giver::new(Arc::default(), Arc::default());
        let (inlet, _far) = inlet_without_ring(&WORLD, Some(giver));
        let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Fsize) };
        setrlimit(Resource::Fsize, limit).unwrap();
        assert!(inlet.set_ring(RingReceiver::open(file.as_fd()).unwrap()));
        assert_eq!(inlet.device.tally.counters().unmapped_regions, 1);
        assert_eq!(inlet.lend_version(), None);
    });
}

#[test]
fn data_is_written_to_its_place_in_the_ring_and_read_there() {
    const HEAD_BYTES: usize = 8;
    let (sender, file) = RingSender::new().unwrap();
    let receiver = RingReceiver::open(file.as_fd()).unwrap();
    let data: Vec<u8> = (0..1100_u32).map(|n| n.to_le_bytes()[0]).collect();
    let (at, buffer) = (GAP + 8, vec![0; 1100]);
    // The last messages are written after the position has passed the end of the ring.
    for _ in 0..=CAPACITY / 1100 {
        let in_ring = InRing::new(sender.memory_from(at), &buffer);
        for (part, bytes) in buffer.chunks(300).zip(data.chunks(300)) {
            Reach::Mapped.deliver_bytes(bytes, &in_ring.memory(part).unwrap(), 0).unwrap();
        }
        let written = sender.write([&[1; HEAD_BYTES][..]].into_iter(), buffer.len());
        assert!(written.unwrap().is_some());
        let mut begin = [0; GAP as usize + HEAD_BYTES];
        let message = receiver.next(&mut begin).unwrap().unwrap();
        assert_eq!((message.length, begin[GAP as usize..].to_vec()), (1108, vec![1; HEAD_BYTES]));
        let in_ring = InRing::new(receiver.memory_from(at), &buffer);
        for (from, to) in [(0, 1100), (0, 0), (1, 300), (700, 1100), (1100, 1100)] {
            let mut found = vec![0; to - from];
            let memory = in_ring.memory(&buffer[from..to]).unwrap();
            Reach::Mapped.collect_bytes(&memory, 0, &mut found).unwrap();
            assert_eq!(found, data[from..to]);
        }
        receiver.remove(message).unwrap();
    }
    // Other bytes are not in the ring, for example the result of an atomic.
    let in_ring = InRing::new(sender.memory_from(at), &buffer[8..1000]);
    for other in [&buffer[..8], &buffer[7..9], &buffer[999..1001], &buffer[1000..], &data] {
        assert_eq!(in_ring.memory(other), None);
    }
}
