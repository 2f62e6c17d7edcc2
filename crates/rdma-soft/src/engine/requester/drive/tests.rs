//! Budgets: how long a turn is, when the remaining work continues, and which threads get the locks in between. No
//! thread serves the timers of these fabrics, so turns are executed only when a test does so.

use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use rdma_types::{AccessFlags, QpState};

use super::*;
use crate::device::Device;
use crate::device::subnet::Subnet;
use crate::engine::completion::CompletionQueue;
use crate::engine::events::report::Reporter;
use crate::engine::operation::{Opcode, Operation};
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::capacity::{Capacity, Init};
use crate::engine::queue_pair::service::Service;
use crate::engine::requester::post::post_each;
use crate::engine::requester::request::{Payload, Request};
use crate::engine::requester::side::Peer;
use crate::fabric::random::Seed;
use crate::limits::Limits;
use crate::link::Link;
use crate::memory::protection::{ProtectionDomain, Registration};
use crate::memory::sge::Sge;
use crate::schedule::Schedule;
use crate::sync::while_one_waits;

/// The devices, each in a separate fabric. They are never freed, and are kept in a static so that a leak checker finds
/// them.
static DEVICES: OnceLock<Mutex<Vec<&'static Device>>> = OnceLock::new();

fn device(schedule: Schedule) -> &'static Device {
    let subnet: &'static Subnet = Box::leak(Box::new(Subnet::new()));
    subnet.serve_by_polls_alone();
    let (limits, seed) = (Limits::default(), Seed::new(1));
    let device =
        Device::new(subnet, "d".into(), Link::Ethernet, Vec::new(), limits, schedule, &seed);
    let device: &'static Device = Box::leak(Box::new(device));
    DEVICES.get_or_init(Mutex::default).lock().unwrap().push(device);
    device
}

/// Two queue pairs that are connected without `modify`, and memory in the domain of each.
struct Pair {
    a: Arc<QueuePair>,
    b: Arc<QueuePair>,
    source: Memory,
    sink: Memory,
}

struct Memory {
    bytes: Vec<u8>,
    registration: Registration,
}

impl Memory {
    fn new(owner: &QueuePair, length: usize) -> Self {
        let mut bytes = vec![0; length];
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        let access = AccessFlags::LOCAL_WRITE.bits() | AccessFlags::REMOTE_WRITE.bits();
        let registration = owner.pd.register(address, length as u64, address, access).unwrap();
        Self { bytes, registration }
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr().addr() as u64
    }
}

fn queue_pair(device: &'static Device) -> Arc<QueuePair> {
    let capacity = Capacity { send_wr: 64, receive_wr: 1, send_sge: 1, receive_sge: 1, inline: 0 };
    let init = Init { service: Service::ReliableConnection, capacity, signal_all: false };
    let pd = ProtectionDomain::new(&device.memory);
    let queue = || Arc::new(CompletionQueue::new(device.fabric, 64, None).unwrap());
    QueuePair::create(device, &pd, &queue(), &queue(), None, init, Reporter::silent()).unwrap()
}

impl Pair {
    fn new(schedule: Schedule, length: usize) -> Self {
        let device = device(schedule);
        let [a, b] = [(); 2].map(|()| queue_pair(device));
        for end in [&a, &b] {
            end.send.lock().state = QpState::RTS;
            end.responder.lock().state = QpState::RTS;
        }
        let origin = {
            let requester = &mut a.send.lock().requester;
            requester.peer = Peer::Direct(Arc::clone(&b));
            requester.origin.number
        };
        {
            let mut responder = b.responder.lock();
            (responder.verified, responder.access) = (origin, AccessFlags::REMOTE_WRITE.bits());
        }
        let (source, sink) = (Memory::new(&a, length), Memory::new(&b, length));
        Self { a, b, source, sink }
    }

    /// Returns a write of the first `length` bytes.
    fn write(&self, length: u32) -> (Request, Sge) {
        let operation = Operation {
            opcode: Opcode::Write,
            remote_address: self.sink.address(),
            rkey: self.sink.registration.key,
            ..Operation::EMPTY
        };
        let lkey = self.source.registration.key;
        (Request { operation, ..Request::EMPTY }, Sge { addr: self.source.address(), length, lkey })
    }

    /// Queues `count` writes, and executes nothing.
    fn queue(&self, count: u32, length: u32) {
        let (request, sge) = self.write(length);
        let mut send = self.a.send.lock();
        (0..count).for_each(|_| send.push(&request, Payload::keyed(&[sge])));
    }

    /// Leaves the queue to turns, and executes these one after the other as polls do. Returns the number of requests
    /// left after each turn.
    fn left_by_turns(&self) -> Vec<usize> {
        self.a.send.lock().leave_rest(&self.a);
        let turn = |_: &usize| {
            self.a.device.fabric.expire_due_timers();
            Some(self.a.send.lock().queue.len())
        };
        let first = turn(&0);
        std::iter::successors(first, |left| if *left == 0 { None } else { turn(left) }).collect()
    }

    fn end(self) {
        for (owner, memory) in [(&self.a, &self.source), (&self.b, &self.sink)] {
            owner.pd.deregister(memory.registration).unwrap();
        }
        self.a.destroy();
        self.b.destroy();
    }
}

#[test]
fn a_turn_is_limited_in_requests() {
    let pair = Pair::new(Schedule::Immediate, 8);
    pair.queue(40, 0);
    assert_eq!(pair.left_by_turns(), [24, 8, 0]);
    pair.end();
}

#[test]
fn a_turn_is_limited_in_bytes() {
    let pair = Pair::new(Schedule::Immediate, 64 << 10);
    pair.queue(3, 64 << 10);
    assert_eq!(pair.left_by_turns(), [2, 1, 0]);
    // Several shorter requests with the same number of bytes in total.
    pair.queue(4, 16 << 10);
    pair.queue(1, 8);
    assert_eq!(pair.left_by_turns(), [1, 0]);
    pair.end();
}

/// The test checks the deadline, not the time at which a thread serves it.
#[test]
fn the_rest_of_a_turn_goes_on_within_a_millisecond() {
    for schedule in [Schedule::Immediate, Schedule::Deferred { seed: 3 }] {
        let pair = Pair::new(schedule, 8);
        let subnet = pair.a.device.subnet;
        pair.queue(40, 0);
        assert_eq!(subnet.timers.next(), None);
        pair.a.send.lock().leave_rest(&pair.a);
        let latest = subnet.clock.now() + Duration::from_millis(1);
        let set = subnet.timers.next();
        assert!(set.is_some_and(|at| at <= latest), "{set:?} of {latest:?}, {schedule:?}");
        pair.end();
    }
}

const STRETCH: u32 = 1 << 20;

/// Lets a thread wait for one of the pair's locks until it sleeps, then releases the lock and executes two stretches.
/// Returns true if the thread got the lock between the stretches. Unless the lock is yielded to it, the thread hardly
/// ever finds the lock free. There are several tries, because the thread may not get a core in time; in an emulator, it
/// may never get one.
fn is_let_in(
    waits_for_peer: bool,
    between: impl Fn(&Pair) -> bool + Sync,
    execute: impl Fn(&Pair),
) -> bool {
    if test_support::program::is_emulated() {
        return true;
    }
    (0..20).any(|_| {
        let pair = Pair::new(Schedule::Immediate, STRETCH as usize);
        let take = || match waits_for_peer {
            true => (None, Some(pair.b.responder.lock())),
            false => (Some(pair.a.send.lock()), None),
        };
        let let_in = while_one_waits(
            || between(&pair),
            take,
            |guards| {
                *guards = (None, None);
                execute(&pair);
            },
        );
        assert!(pair.a.send.lock().queue.is_empty());
        pair.end();
        let_in
    })
}

/// Returns true if one stretch was executed.
fn behind_one(pair: &Pair) -> bool {
    pair.b.responder.lock().psn.get() == STRETCH >> 10
}

fn run_two(pair: &Pair) {
    pair.queue(2, STRETCH);
    run_posted(&pair.a, 2);
}

fn post_two(pair: &Pair) {
    let (request, sge) = pair.write(STRETCH);
    let sges = [sge];
    let mut left = 2;
    let next = || {
        left -= 1;
        (left >= 0).then(|| Ok((request, Payload::keyed(&sges))))
    };
    post_each(&pair.a, next).unwrap();
}

#[test]
fn a_long_copy_yields_to_waiters_for_its_queue() {
    assert!(is_let_in(false, |pair| pair.a.send.lock().queue.len() == 1, run_two));
}

#[test]
fn a_long_copy_yields_to_waiters_for_its_peer() {
    assert!(is_let_in(true, behind_one, run_two));
}

#[test]
fn a_long_list_yields_to_waiters_for_its_queue() {
    assert!(is_let_in(false, |pair| pair.a.send.lock().posted == 1, post_two));
}

#[test]
fn a_long_list_yields_to_waiters_for_its_peer() {
    assert!(is_let_in(true, behind_one, post_two));
}

fn release_two(pair: &Pair) {
    pair.queue(2, STRETCH);
    assert_eq!(release(&pair.a, 2), 2);
}

#[test]
fn a_long_release_yields_to_waiters_for_its_queue() {
    assert!(is_let_in(false, |pair| pair.a.send.lock().queue.len() == 1, release_two));
}

#[test]
fn a_long_release_yields_to_waiters_for_its_peer() {
    assert!(is_let_in(true, behind_one, release_two));
}

/// A thread that reads the counters waits until a queue pair is free. It does not delay threads that create or destroy
/// another queue pair.
#[test]
fn waiting_for_a_counter_does_not_block_the_device() {
    let pair = Pair::new(Schedule::Immediate, 8);
    let device = pair.a.device;
    let counters = while_one_waits(
        || device.tally.counters(),
        || pair.a.send.lock(),
        |_| {
            let (sender, receiver) = mpsc::channel();
            thread::spawn(move || {
                queue_pair(device).destroy();
                sender.send(()).unwrap();
            });
            receiver.recv_timeout(Duration::from_secs(10)).expect("the other one waits");
        },
    );
    assert_eq!(counters.sent_pkts, 0);
    pair.end();
}
