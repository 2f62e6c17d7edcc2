use std::sync::{Mutex, OnceLock};

use super::shared::SharedReceiveQueue;
use super::*;
use crate::device::Device;
use crate::device::subnet::Subnet;
use crate::engine::events::report::Reporter;
use crate::fabric::random::Seed;
use crate::limits::Limits;
use crate::link::Link;
use crate::memory::protection::ProtectionDomain;
use crate::schedule::Schedule;

fn sges(count: u32) -> Vec<Sge> {
    (0..count)
        .map(|n| Sge { addr: u64::MAX - u64::from(n), length: u32::MAX - n, lkey: n + 1 })
        .collect()
}

fn values(sges: &[Sge]) -> Vec<(u64, u32, u32)> {
    sges.iter().map(|sge| (sge.addr, sge.length, sge.lkey)).collect()
}

/// A receive queue, with the parts that a queue pair keeps outside it.
struct Whole {
    queue: ReceiveQueue,
    slots: ReceiveSlots,
    head: u64,
    out: Vec<Sge>,
}

impl Whole {
    fn new(max_wr: u32, max_sge: u32) -> Self {
        let slots = ReceiveSlots::new(max_wr, max_sge).unwrap();
        Self { queue: ReceiveQueue::new(), slots, head: 0, out: Vec::new() }
    }

    fn push(&mut self, wr_id: u64, sges: &[Sge]) {
        self.queue.push(&self.slots, wr_id, sges);
    }

    fn take(&mut self) -> Option<Receive> {
        self.slots.take(&mut self.head, &mut self.out)
    }
}

#[test]
fn requests_come_out_in_order_with_all_their_elements() {
    for (max_wr, max_sge) in [(1, 1), (2, 2), (3, 5), (7, 3)] {
        let mut whole = Whole::new(max_wr, max_sge);
        let mut number = 0;
        for round in 0..40 {
            let count = |n: u32| (round + n) % (max_sge + 1);
            for n in 0..max_wr {
                whole.push((round * 10 + n).into(), &sges(count(n)));
            }
            for n in 0..max_wr {
                let wr_id = (round * 10 + n).into();
                assert_eq!(whole.take(), Some(Receive { wr_id, index: number }));
                assert_eq!(values(&whole.out), values(&sges(count(n))));
                number += 1;
            }
            assert_eq!(whole.take(), None);
            assert_eq!(whole.queue.posted(), number);
        }
    }
}

#[test]
fn bypassed_requests_are_never_taken() {
    let mut whole = Whole::new(3, 1);
    for round in 0..20 {
        whole.push(round, &[]);
        whole.push(round + 100, &sges(1));
        assert_eq!(whole.take().unwrap().wr_id, round);
        assert_eq!(whole.take().unwrap().wr_id, round + 100);
        // In the error state, more requests can bypass the queue than it has slots.
        for n in 0..10 {
            let posted = whole.queue.posted();
            assert_eq!(whole.queue.bypass(n), Receive { wr_id: n, index: posted });
            assert_eq!(whole.take(), None);
        }
        // This is what a reset does.
        whole.head = whole.queue.next;
        assert_eq!(whole.take(), None);
    }
}

#[test]
fn requests_that_a_reset_dropped_are_gone() {
    let mut whole = Whole::new(4, 1);
    for round in 0..20 {
        for n in 0..4 {
            whole.push(n, &[]);
        }
        for n in 0..round % 4 {
            assert_eq!(whole.take().unwrap().wr_id, n);
        }
        whole.head = whole.queue.next;
        assert_eq!(whole.take(), None);
        whole.push(round + 10, &[]);
        assert_eq!(whole.take().unwrap().wr_id, round + 10);
        assert_eq!(whole.take(), None);
    }
}

/// A requester that records its number when it is informed, and takes a request if it is in this process.
#[derive(Debug)]
struct Sender {
    number: u64,
    queue: Arc<SharedReceiveQueue>,
    informed: Arc<Mutex<Vec<u64>>>,
    is_far: bool,
}

impl Waiter for Sender {
    fn receiver_is_ready(self: Arc<Self>, _turn: &mut Turn) -> bool {
        self.informed.lock().unwrap().push(self.number);
        if !self.is_far {
            assert!(self.queue.take(&mut 0, &mut Vec::new(), None).is_some());
        }
        self.is_far
    }

    fn receiver_has_gone(&self) {}
}

/// If all waiting senders in other processes were notified, all except one would find the request already taken.
#[test]
fn a_shared_receive_wakes_one_sender_of_other_processes() {
    static SUBNET: Subnet = Subnet::new();
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let (limits, schedule, seed) = (Limits::default(), Schedule::Immediate, Seed::new(1));
    let device = DEVICE.get_or_init(|| {
        Device::new(&SUBNET, "d".into(), Link::Ethernet, Vec::new(), limits, schedule, &seed)
    });
    let pd = ProtectionDomain::new(&device.memory);
    let queue = SharedReceiveQueue::new(&SUBNET, &pd, 8, 1, Reporter::silent()).unwrap();
    let informed = Arc::default();
    let senders: Vec<Arc<Sender>> = [true, true, false, true, false]
        .into_iter()
        .zip(1..)
        .map(|(is_far, number)| {
            let (queue, informed) = (Arc::clone(&queue), Arc::clone(&informed));
            Arc::new(Sender { number, queue, informed, is_far })
        })
        .collect();
    for sender in &senders {
        let waiter: Weak<dyn Waiter> = Arc::<Sender>::downgrade(sender);
        let waits = Waits { waiter, is_far: sender.is_far };
        assert_eq!(queue.take(&mut 0, &mut Vec::new(), Some((sender.number, waits))), None);
    }
    let post = || {
        queue.post(0, &[], &mut Turn::new()).unwrap();
        std::mem::take(&mut *informed.lock().unwrap())
    };
    // Senders in this process take requests even if senders in other processes were notified of them, because those
    // senders have not taken them yet.
    assert_eq!(post(), [1, 3]);
    assert_eq!(post(), [2, 5]);
    assert_eq!(post(), [4]);
    assert_eq!(post(), []);
}
