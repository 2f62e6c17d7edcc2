//! Models of whole queue pairs and regions, with calls that race in every order of two threads.

mod windows;

use std::sync::Arc;

use loom::thread;
use rdma_types::{AccessFlags, QpAttributes, QpState, WcStatus};

use crate::device::Device;
use crate::device::subnet::Subnet;
use crate::engine::completion::CompletionQueue;
use crate::engine::completion::work_completion::Side;
use crate::engine::events::report::Reporter;
use crate::engine::operation::{Opcode, Operation};
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::capacity::{Capacity, Init};
use crate::engine::queue_pair::service::Service;
use crate::engine::queue_pair::settings::Settings;
use crate::engine::receive_queue::shared::SharedReceiveQueue;
use crate::engine::requester::post::post_each;
use crate::engine::requester::request::{Payload, Request};
use crate::engine::requester::side::Peer;
use crate::engine::station::Owner;
use crate::engine::turn::{STRETCH_BYTES, Turn};
use crate::fabric::random::Seed;
use crate::fabric::timers::model::ServedBy;
use crate::limits::Limits;
use crate::link::Link;
use crate::memory::protection::{ProtectionDomain, Registration};
use crate::memory::sge::Sge;
use crate::schedule::Schedule;
use crate::sync::{Ordering, locked};

mod events;
pub(crate) mod file;
mod groups;
mod packets;
mod shared;
mod turns;
mod unreliable;

/// The maximum number of bytes of one request that a turn copies, or that a post copies before it yields the lock.
const TURN: usize = STRETCH_BYTES as usize;

/// Two queue pairs, each in its own protection domain; `a` sends to `b`.
struct Model {
    a: Arc<QueuePair>,
    b: Arc<QueuePair>,
}

impl Model {
    /// Creates the queue pairs and connects them without `modify`. This way, the model checker does not also explore
    /// the steps of connecting or the list of devices.
    fn new() -> Self {
        Self::on(device())
    }

    fn on(device: &'static Device) -> Self {
        let [a, b] = [(); 2].map(|()| queue_pair(device, None));
        let model = Self { a, b };
        model.connect();
        model
    }

    /// Connects the queue pairs after they were created or reset.
    fn connect(&self) {
        connect(&self.a, &self.b);
    }

    fn end(self) {
        self.a.destroy();
        self.b.destroy();
    }
}

fn device() -> &'static Device {
    device_of(Subnet::of_model(), Schedule::Immediate)
}

fn device_of(subnet: &'static Subnet, schedule: Schedule) -> &'static Device {
    let limits = Limits { max_mr: 3, max_mw: 1, ..Limits::default() };
    let (name, seed) = ("model".into(), Seed::new(1));
    let device = Device::new(subnet, name, Link::Ethernet, Vec::new(), limits, schedule, &seed);
    Box::leak(Box::new(device))
}

/// Creates a queue pair in a new protection domain.
fn queue_pair(device: &'static Device, shared: Option<&Arc<SharedReceiveQueue>>) -> Arc<QueuePair> {
    queue_pair_of(Service::ReliableConnection, device, shared)
}

fn queue_pair_of(
    service: Service,
    device: &'static Device,
    shared: Option<&Arc<SharedReceiveQueue>>,
) -> Arc<QueuePair> {
    let capacity = Capacity { send_wr: 3, receive_wr: 2, send_sge: 2, receive_sge: 2, inline: 0 };
    let pd = ProtectionDomain::new(&device.memory);
    let queue = || Arc::new(CompletionQueue::new(device.fabric, 3, None).unwrap());
    let reporter = Reporter::silent();
    let init = Init { service, capacity, signal_all: false };
    QueuePair::create(device, &pd, &queue(), &queue(), shared, init, reporter).unwrap()
}

/// Makes both queue pairs ready, so that `a` can send to `b`.
fn connect(a: &Arc<QueuePair>, b: &Arc<QueuePair>) {
    for queue_pair in [a, b] {
        let ready = QpState::RTS;
        locked(&queue_pair.attributes).settings.state = ready;
        queue_pair.send.lock().state = ready;
        queue_pair.receive.lock().state = ready;
        queue_pair.responder.lock().state = ready;
    }
    let origin = {
        let requester = &mut a.send.lock().requester;
        (requester.peer, requester.rnr_retries) = (Peer::Direct(Arc::clone(b)), 7);
        requester.origin.number
    };
    let mut responder = b.responder.lock();
    (responder.verified, responder.access) = (origin, AccessFlags::REMOTE_WRITE.bits());
}

/// Registered memory of the model.
struct Memory {
    bytes: Vec<u8>,
    registration: Registration,
}

const FREED: u8 = 0xee;

impl Memory {
    fn new(pd: &ProtectionDomain, byte: u8) -> Self {
        Self::of_length(4, pd, byte)
    }

    fn of_length(length: usize, pd: &ProtectionDomain, byte: u8) -> Self {
        let mut bytes = vec![byte; length];
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        let access = AccessFlags::LOCAL_WRITE.bits()
            | AccessFlags::REMOTE_WRITE.bits()
            | AccessFlags::MW_BIND.bits();
        let registration = pd.register(address, length as u64, address, access).unwrap();
        Self { bytes, registration }
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr().addr() as u64
    }

    fn sge(&self) -> Sge {
        let length = u32::try_from(self.bytes.len()).unwrap();
        Sge { addr: self.address(), length, lkey: self.registration.key }
    }

    /// Deregisters the memory, then overwrites it as an allocator might. The device must neither read nor change the
    /// new bytes.
    fn free(&mut self, pd: &ProtectionDomain) {
        pd.deregister(self.registration).unwrap();
        self.bytes.fill(FREED);
    }

    fn is_free(&self) -> bool {
        self.bytes.iter().all(|&byte| byte == FREED)
    }
}

fn post(queue_pair: &Arc<QueuePair>, wr_id: u64, sges: &[Sge], write_to: Option<Sge>) {
    let mut list = Some(Ok(work(wr_id, sges, write_to)));
    post_each(queue_pair, || list.take()).unwrap();
}

fn work(wr_id: u64, sges: &[Sge], write_to: Option<Sge>) -> (Request, Payload<'_>) {
    let opcode = if write_to.is_some() { Opcode::Write } else { Opcode::Send };
    let sink = write_to.unwrap_or_default();
    let (remote_address, rkey) = (sink.addr, sink.lkey);
    let operation = Operation { opcode, remote_address, rkey, ..Operation::EMPTY };
    let request = Request { wr_id, signaled: true, operation, ..Request::EMPTY };
    (request, Payload::keyed(sges))
}

fn polled(queue: &CompletionQueue) -> Vec<(u64, WcStatus)> {
    let mut got = Vec::new();
    queue.poll(8, |_, completion, _| got.push((completion.wr_id, completion.status))).unwrap();
    got
}

/// A receive request is posted just before the sender starts to wait, or while it does so. The send succeeds, whichever
/// thread executes it.
#[test]
fn loom_a_waiting_sender_is_woken() {
    loom::model(|| {
        let model = Model::new();
        let sender = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || {
                post(&a, 1, &[], None);
                post(&a, 2, &[], None);
            })
        };
        model.b.post_receive(11, &[], &mut Turn::new()).unwrap();
        model.b.post_receive(12, &[], &mut Turn::new()).unwrap();
        sender.join().unwrap();
        let done = WcStatus::SUCCESS;
        assert_eq!(polled(&model.a.send_cq), [(1, done), (2, done)]);
        assert_eq!(polled(&model.b.receive_cq), [(11, done), (12, done)]);
        model.end();
    });
}

/// A region is deregistered while a peer writes to it. Once the deregistration has returned, no byte of the memory
/// changes.
#[test]
fn loom_no_write_after_deregistration() {
    loom::model(|| {
        let model = Model::new();
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
        let status = polled(&model.a.send_cq)[0].1;
        assert!([WcStatus::SUCCESS, WcStatus::REM_ACCESS_ERR].contains(&status));
        model.end();
    });
}

/// A region is deregistered while the sender reads it. No byte that is written to the memory afterwards arrives at the
/// peer.
#[test]
fn loom_no_read_after_deregistration() {
    loom::model(|| {
        let model = Model::new();
        let (mut source, second) = (Memory::new(&model.a.pd, 1), Memory::new(&model.a.pd, 2));
        let mut bytes = vec![0_u8; 8];
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        let write = AccessFlags::LOCAL_WRITE.bits() | AccessFlags::REMOTE_WRITE.bits();
        let sink = model.b.pd.register(address, 8, address, write);
        let to = Sge { addr: address, length: 8, lkey: sink.unwrap().key };
        let from = [source.sge(), second.sge()];
        let sender = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || post(&a, 1, &from, Some(to)))
        };
        source.free(&model.a.pd);
        sender.join().unwrap();
        assert!([[0; 8], [1, 1, 1, 1, 2, 2, 2, 2]].contains(&bytes[..].try_into().unwrap()));
        model.end();
    });
}

/// A queue pair is destroyed, and then the memory of its receive request is freed, in the order that verbs require. No
/// byte of the memory changes afterwards.
#[test]
fn loom_no_write_after_destruction() {
    loom::model(|| {
        let model = Model::new();
        let source = Memory::new(&model.a.pd, 1);
        // The lookup of the second region leaves time between the lookup of the first one and the write to it.
        let (mut sink, second) = (Memory::new(&model.b.pd, 0), Memory::new(&model.b.pd, 0));
        let (pd, from) = (Arc::clone(&model.b.pd), source.sge());
        model.b.post_receive(11, &[sink.sge(), second.sge()], &mut Turn::new()).unwrap();
        let sender = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || post(&a, 1, &[from], None))
        };
        let receive_cq = Arc::clone(&model.b.receive_cq);
        model.b.destroy();
        assert!(polled(&receive_cq).is_empty(), "a completion of a destroyed queue pair");
        sink.free(&pd);
        sender.join().unwrap();
        assert!(sink.is_free(), "written after it was freed");
        assert!(polled(&receive_cq).is_empty(), "a completion of a destroyed queue pair");
        model.a.destroy();
    });
}

/// A queue pair is reset while another thread polls the completions that the reset drops. Each slot is released exactly
/// once.
#[test]
fn loom_a_reset_releases_all_slots() {
    loom::model(|| {
        let model = Model::new();
        post(&model.a, 1, &[], Some(Sge::default()));
        post(&model.a, 2, &[], Some(Sge::default()));
        let poller = {
            let queue = Arc::clone(&model.a.send_cq);
            thread::spawn(move || {
                queue.poll(1, |_, _, _| {}).unwrap();
            })
        };
        model.a.reset(&mut locked(&model.a.attributes));
        poller.join().unwrap();
        assert!(polled(&model.a.send_cq).is_empty());
        assert_eq!(model.a.reclaimed.of(Side::Send).load(Ordering::Relaxed), 2);
        model.end();
    });
}

/// A receive request that is posted while the queue pair moves to error is flushed exactly once, whether or not it
/// entered the queue. After a reset, nothing is left of it: the next message uses the next request.
#[test]
fn loom_a_request_is_flushed_once_and_gone_after_a_reset() {
    loom::model(|| {
        let model = Model::new();
        let poster = {
            let b = Arc::clone(&model.b);
            thread::spawn(move || {
                b.post_receive(11, &[], &mut Turn::new()).unwrap();
                b.post_receive(12, &[], &mut Turn::new()).unwrap();
            })
        };
        model.b.enter_error(None, None);
        poster.join().unwrap();
        let flushed = WcStatus::WR_FLUSH_ERR;
        assert_eq!(polled(&model.b.receive_cq), [(11, flushed), (12, flushed)]);
        model.b.reset(&mut locked(&model.b.attributes));
        model.connect();
        model.b.post_receive(13, &[], &mut Turn::new()).unwrap();
        post(&model.a, 1, &[], None);
        let done = WcStatus::SUCCESS;
        assert_eq!(polled(&model.b.receive_cq), [(13, done)]);
        assert_eq!(polled(&model.a.send_cq), [(1, done)]);
        model.end();
    });
}

/// A message arrives while its receiver moves to error. Either the message uses the receive request, or the request is
/// flushed.
#[test]
fn loom_a_request_is_taken_or_flushed() {
    loom::model(|| {
        let model = Model::new();
        model.b.post_receive(11, &[], &mut Turn::new()).unwrap();
        let sender = {
            let a = Arc::clone(&model.a);
            thread::spawn(move || post(&a, 1, &[], None))
        };
        model.b.enter_error(None, None);
        sender.join().unwrap();
        let sent = polled(&model.a.send_cq) == [(1, WcStatus::SUCCESS)];
        let status = if sent { WcStatus::SUCCESS } else { WcStatus::WR_FLUSH_ERR };
        assert_eq!(polled(&model.b.receive_cq), [(11, status)]);
        model.end();
    });
}
