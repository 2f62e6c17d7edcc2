//! Packets: their senders and receivers get turns. An object that is destroyed while packets arrive is not touched
//! afterwards.

use rdma_proto::Burst;
use rdma_proto::wire::{Bth, Deth, Headers, Opcode as Kind, Operation as Part, Service as Of};
use rdma_types::{Psn, Qpn};

use super::*;
use crate::address::{Address, Path};
use crate::engine::completion::work_completion::Source;
use crate::engine::wire::letter::{Datagram, Letter};
use crate::engine::wire::{Mailbox, Outlet, Route};
use crate::engine::{requester, responder};
use crate::fabric::run_queue::{Entry, TURNS, Task};
use crate::link::memory::BURSTS;
use crate::sync::AtomicU32;

const DONE: WcStatus = WcStatus::SUCCESS;

/// The path from the device of the models to itself.
const PATH: Path = Path { local: Address::Lid(1), remote: Address::Lid(1) };

/// Explores every order of two threads with at most three preemptions. Without this limit there would be too many
/// orders, because the threads check the remaining work under a lock again and again.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A task that does each part of its work in one turn.
#[derive(Debug)]
struct Worker {
    entry: Entry,
    /// The parts to do, each left by a different thread.
    parts: [AtomicU32; 2],
    /// The number of further turns that it requests.
    more: AtomicU32,
}

impl Worker {
    fn new(subnet: &'static Subnet, more: u32) -> Arc<Self> {
        Arc::new_cyclic(|weak: &std::sync::Weak<Self>| Self {
            entry: Entry::new(subnet, weak.clone()),
            parts: [(); 2].map(|()| AtomicU32::new(0)),
            more: AtomicU32::new(more),
        })
    }
}

impl Task for Worker {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn run(self: Arc<Self>) -> bool {
        for part in &self.parts {
            // Only the run queue orders this load after the store of the thread that has left the work.
            if part.load(Ordering::Relaxed) == 1 {
                part.store(0, Ordering::Relaxed);
            }
        }
        let less = |more: u32| more.checked_sub(1);
        self.more.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// Two threads leave work, and each then does the work that is left. If one leaves work during a turn that the other
/// executes, that turn does the work, or there is another turn.
#[test]
fn loom_work_left_for_a_turn_is_not_forgotten() {
    explore(|| {
        let subnet = Subnet::of_model();
        let worker = Worker::new(subnet, 0);
        let leave = |worker: &Arc<Worker>, n: usize| {
            worker.parts[n].store(1, Ordering::Relaxed);
            worker.entry().queue();
            subnet.run_queue.run();
        };
        let other = {
            let worker = Arc::clone(&worker);
            thread::spawn(move || leave(&worker, 1))
        };
        leave(&worker, 0);
        other.join().unwrap();
        let left = worker.parts.each_ref().map(|part| part.load(Ordering::Relaxed));
        assert_eq!(left, [0, 0]);
    });
}

/// The task needs more turns than one run of the queue executes, and even more than two runs do. The timer thread
/// executes the rest, and is always notified of it.
#[test]
fn loom_more_turns_than_a_thread_gives_are_called_for() {
    explore(|| {
        let subnet = Subnet::of_model_with(ServedBy::PollsAndThread);
        let worker = Worker::new(subnet, 2 * TURNS);
        worker.entry().queue();
        subnet.run_queue.run();
        subnet.wait_until_idle();
        assert_eq!(worker.more.load(Ordering::Relaxed), 0);
        subnet.let_time_pass();
        subnet.thread_ends();
    });
}

/// A task that sends a packet.
#[derive(Debug)]
struct Sender {
    inbox: &'static dyn Mailbox,
    entry: Entry,
    sent: AtomicU32,
}

impl Sender {
    fn new(subnet: &'static Subnet, inbox: &'static dyn Mailbox) -> Arc<Self> {
        let sent = AtomicU32::new(0);
        Arc::new_cyclic(|own: &std::sync::Weak<Self>| {
            let entry = Entry::new(subnet, own.clone());
            Self { inbox, entry, sent }
        })
    }

    /// Takes all buffers of the inbox.
    fn fill(self: &Arc<Self>) -> Vec<Box<[u8]>> {
        let buffers: Vec<_> =
            std::iter::from_fn(|| self.inbox.buffer(Arc::<Self>::downgrade(self))).collect();
        assert_eq!(buffers.len(), BURSTS);
        buffers
    }
}

impl Task for Sender {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn run(self: Arc<Self>) -> bool {
        if let Some(buffer) = self.inbox.buffer(Arc::<Self>::downgrade(&self)) {
            self.sent.store(1, Ordering::Relaxed);
            self.inbox.give_back(buffer);
        }
        false
    }
}

/// Returns a datagram without data.
fn datagram(to: u32) -> Burst {
    let kind = Kind::new(Of::Ud, Part::SendOnly).unwrap();
    let mut headers = Headers::new(Bth::new(kind, Qpn::masked(to), Psn::masked(0)));
    headers.deth = Some(Deth { qkey: 0, source: Qpn::masked(1) });
    Burst::single(headers, 0)
}

const OF_LINK: Option<Datagram> =
    Some(Datagram { source: Source::UNDEFINED, header: None, group: None });

/// A sender requests a buffer while another sender releases one, either unused or with a packet that is then received.
/// The first sender gets the buffer immediately, or in another turn on either thread.
#[test]
fn loom_a_sender_without_room_gets_a_turn_when_some_is_released() {
    for unused in [true, false] {
        explore(move || {
            let device = device();
            let subnet = device.subnet;
            let [other, sender] = [(); 2].map(|()| Sender::new(subnet, &**device.inbox(1)));
            let mut buffers = other.fill();
            let looks = {
                let sender = Arc::clone(&sender);
                thread::spawn(move || {
                    sender.entry().queue();
                    subnet.run_queue.run();
                })
            };
            let buffer = buffers.pop().unwrap();
            if unused {
                device.inbox(1).give_back(buffer);
            } else {
                // No queue pair has this number.
                device.inbox(1).send(device, Letter::new(PATH, datagram(1), OF_LINK, buffer));
            }
            subnet.run_queue.run();
            looks.join().unwrap();
            assert_eq!(sender.sent.load(Ordering::Relaxed), 1);
        });
    }
}

/// Makes both sides of a queue pair ready for packets.
fn make_ready(queue_pair: &QueuePair) {
    let ready = QpState::RTS;
    locked(&queue_pair.attributes).settings.state = ready;
    queue_pair.send.lock().state = ready;
    queue_pair.receive.lock().state = ready;
    queue_pair.responder.lock().state = ready;
}

/// A queue pair is destroyed while a packet for it is received. Its memory does not change afterwards, and no packet
/// for it is executed. This holds even if another queue pair gets its number immediately.
#[test]
fn loom_no_packet_is_executed_for_a_destroyed_queue_pair() {
    explore(|| {
        let device = device();
        let service = Service::UnreliableDatagram;
        let [b, c] = [(); 2].map(|()| queue_pair_of(service, device, None));
        [&b, &c].into_iter().for_each(|queue_pair| make_ready(queue_pair));
        let mut sink = Memory::of_length(40, &b.pd, 0);
        b.post_receive(11, &[sink.sge()], &mut Turn::new()).unwrap();
        let other = Memory::of_length(40, &c.pd, 0);
        c.post_receive(12, &[other.sge()], &mut Turn::new()).unwrap();
        let buffer = device.inbox(b.qpn).buffer(Arc::<QueuePair>::downgrade(&b)).unwrap();
        device.inbox(b.qpn).send(device, Letter::new(PATH, datagram(b.qpn), OF_LINK, buffer));
        let taker = thread::spawn(|| device.fabric.run_queue.run());
        let (pd, number) = (Arc::clone(&b.pd), b.qpn);
        // The model checker does not see the table of numbers. The other thread takes the inbox's lock before it looks
        // there; that lock makes the checker try both orders.
        let inbox = device.inbox(b.qpn);
        inbox.give_back(inbox.buffer(Arc::<QueuePair>::downgrade(&b)).unwrap());
        b.destroy();
        sink.free(&pd);
        device.publish_queue_pair(number, Arc::downgrade(&c));
        device.fabric.run_queue.run();
        taker.join().unwrap();
        assert!(sink.is_free(), "written after it was freed");
        // The packet was matched before the queue pair was destroyed, or not at all.
        assert_eq!(device.tally.rare.wrong_state.get(), 0, "it has reached a reset queue pair");
        assert_eq!(c.responder.lock().receives, 0, "it has reached another queue pair");
        assert!(polled(&c.receive_cq).is_empty());
        c.destroy();
    });
}

/// A queue pair is reset and started again while a packet for it is received: its new life sees nothing of the old one.
#[test]
fn loom_a_restarted_queue_pair_receives_nothing_old() {
    explore(|| {
        let device = device();
        let b = queue_pair_of(Service::UnreliableDatagram, device, None);
        make_ready(&b);
        let buffer = device.inbox(b.qpn).buffer(Arc::<QueuePair>::downgrade(&b)).unwrap();
        device.inbox(b.qpn).send(device, Letter::new(PATH, datagram(b.qpn), OF_LINK, buffer));
        let taker = thread::spawn(|| device.fabric.run_queue.run());
        b.reset(&mut locked(&b.attributes));
        let init = Settings { state: QpState::INIT, port: 1, ..Settings::default() };
        let given = QpAttributes::STATE | QpAttributes::PKEY_INDEX | QpAttributes::PORT;
        b.modify(&init, given | QpAttributes::QKEY).unwrap();
        let rtr = Settings { state: QpState::RTR, ..init };
        b.modify(&rtr, QpAttributes::STATE).unwrap();
        let sink = Memory::of_length(40, &b.pd, 0);
        b.post_receive(11, &[sink.sge()], &mut Turn::new()).unwrap();
        device.fabric.run_queue.run();
        taker.join().unwrap();
        assert!(polled(&b.receive_cq).is_empty(), "it has reached the new life");
        b.destroy();
    });
}

/// Returns two queue pairs; `a` sends to `b` with packets.
fn by_packets(service: Service) -> Model {
    let device = device();
    let [a, b] = [(); 2].map(|()| queue_pair_of(service, device, None));
    let route = Route { path: PATH, outlet: Outlet::Inbox(&**device.inbox(b.qpn)) };
    [&a, &b].into_iter().for_each(|queue_pair| make_ready(queue_pair));
    for (from, to) in [(&a, &b), (&b, &a)] {
        let send = &mut *from.send.lock();
        (send.requester.origin.path, send.requester.peer_qpn) = (Some(PATH), to.qpn);
        send.requester.mtu_log2 = 10;
        send.wire =
            Some(Box::new(requester::wire::Wire::new(&**from, &send.requester, route.clone())));
        let responder = &mut *from.responder.lock();
        (responder.path, responder.peer_qpn) = (Some(PATH), to.qpn);
        responder.access = AccessFlags::REMOTE_WRITE.bits();
        let wire = responder::wire::Wire::new(service, responder, 10, route.clone());
        responder.wire = Some(Box::new(wire));
    }
    Model { a, b }
}

/// A region is deregistered while packets are written to it. Once the deregistration has returned, no byte of the
/// memory changes.
#[test]
fn loom_no_packet_is_written_to_a_deregistered_region() {
    explore(|| {
        let model = by_packets(Service::UnreliableConnection);
        let source = Memory::new(&model.a.pd, 1);
        let mut sink = Memory::new(&model.b.pd, 0);
        let (from, to) = (source.sge(), sink.sge());
        let sender = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || post(&a, 1, &[from], Some(to)))
        };
        sink.free(&model.b.pd);
        sender.join().unwrap();
        assert!(sink.is_free(), "written after it was freed");
        assert_eq!(polled(&model.a.send_cq), [(1, DONE)]);
        model.end();
    });
}

/// A region is deregistered while packets are built from it. No packet contains a byte that is written to the memory
/// afterwards.
#[test]
fn loom_no_packet_is_built_from_a_deregistered_region() {
    explore(|| {
        let model = by_packets(Service::UnreliableConnection);
        let mut source = Memory::new(&model.a.pd, 1);
        let sink = Memory::new(&model.b.pd, 0);
        let (from, to) = (source.sge(), sink.sge());
        let sender = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || post(&a, 1, &[from], Some(to)))
        };
        source.free(&model.a.pd);
        sender.join().unwrap();
        assert!([[0; 4], [1; 4]].contains(&sink.bytes[..].try_into().unwrap()));
        model.end();
    });
}
