//! A hostile receiver: a process that does anything with the ring and the connection over which another one sends to
//! it.

use std::iter;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rdma_soft::{Builder, Peers, SoftDevice};
use rdma_sys::{ibv_qp_type, ibv_wc_status as Status};
use test_support::rig::connect::{Endpoint, Knobs, Side, connect};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Mr, Size, until};

use crate::local_link::hostile::{Random, name_at};
use crate::local_link::ring::{Accepted, CAPACITY, Over, Word, is_closed, listen_at, say};
use crate::two_processes::near::Near;

const LENGTH: usize = 100_000;
const DEVICE_NAME: &str = "local-receiver";
/// The key of the word of the first connection to a process.
const FIRST_KEY: u32 = 1024;

/// A queue pair of this process, and the process that it is connected to.
struct Pair {
    /// Dropped before its domain.
    memory: Mr,
    side: Side,
    /// The number of posted requests that have not failed yet.
    posted: usize,
    _listener: OwnedFd,
}

impl Pair {
    fn new() -> (Self, Accepted) {
        // The time limit is short, since these receivers never answer.
        static DEVICE: LazyLock<SoftDevice> = LazyLock::new(|| {
            let limit = Duration::from_millis(100);
            Builder::new(DEVICE_NAME).peers(Peers::SameUser).peer_limit(limit).install().unwrap()
        });
        // From the middle on: others look for free slots from the end. No slot is reused: the device may not have
        // noticed yet that its previous peer has ended.
        static NEXT: AtomicU32 = AtomicU32::new(0x400);
        let slots = iter::repeat_with(|| {
            let slot = NEXT.fetch_add(1, Ordering::Relaxed);
            (slot, listen_at(&name_at(DEVICE_NAME, slot)))
        });
        let free = slots.take(0xb00).find(|(_, listener)| listener.is_ok());
        let (slot, listener) = free.unwrap();
        let listener = listener.unwrap();
        let side = Side::new(DEVICE.name(), &Size::default(), 64);
        let memory = side.pd.register(LENGTH, ALL_ACCESS);
        let far = Endpoint { qpn: slot << 12 | 5, ..side.endpoint() };
        let knobs = Knobs { timeout: 10, retries: 2, ..Knobs::default() };
        connect(&side.qp, &side.endpoint(), &far, &knobs);
        let accepted = Accepted::at(&listener).unwrap();
        (Self { side, memory, posted: 0, _listener: listener }, accepted)
    }

    /// Posts more than the ring can hold.
    fn post(&mut self) {
        for _ in 0..4 {
            self.side.qp.post(&Wr::send(1, &[self.memory.sge(0, LENGTH)]));
            self.posted += 1;
        }
    }

    /// Expects all requests to fail because the receiver never answers.
    fn expect_end(self) {
        self.side.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        for _ in 1..self.posted {
            self.side.send_cq.expect(1, Status::IBV_WC_WR_FLUSH_ERR);
        }
    }
}

#[test]
fn garbage_of_a_receiver_ends_at_most_its_own_connection() {
    type Kind = (&'static str, fn(&mut Accepted));
    let kinds: &[Kind] = &[
        ("nothing", |_| {}),
        ("a head beyond the tail", |from| from.ring.set(Word::Head, CAPACITY * 3)),
        ("a head beyond the tail by one", |from| {
            from.ring.set(Word::Head, from.ring.get(Word::Tail) + 1);
        }),
        ("a head that goes back", |from| from.ring.set(Word::Head, 64_u32.wrapping_neg())),
        ("a head ahead by half of the range", |from| from.ring.set(Word::Head, 1 << 31)),
        ("a head within a message", |from| from.ring.set(Word::Head, 65)),
        ("the receiver claims to poll", |from| from.ring.set(Word::Looks, 1)),
        ("the receiver claims to be notified", |from| from.ring.set(Word::Looks, 2)),
        ("garbage in the polling word", |from| from.ring.set(Word::Looks, u32::MAX)),
        ("no sender waits", |from| from.ring.set(Word::Waits, 0)),
        ("garbage in the waiting word", |from| from.ring.set(Word::Waits, u32::MAX)),
        ("an answer without a request", |from| from.ring.set(Word::Answered, 1)),
        ("an answer of garbage", |from| from.ring.set(Word::Answered, u32::MAX)),
        ("garbage in place of a request", |from| from.ring.set(Word::Asked, 0xdead_beef)),
        ("garbage in place of the tail", |from| from.ring.set(Word::Tail, 0xdead_beef)),
        ("holes", |from| from.ring.punch()),
        ("garbage in place of the executed count", |from| from.ring.fill_executed(0xa5)),
        ("an executed count for an unknown connection", |from| from.ring.say_executed(0, 8)),
        ("more executed than was sent", |from| {
            (0..200).for_each(|ahead| from.ring.say_executed(FIRST_KEY, 1 << 20 | ahead));
        }),
        ("two bytes", |from| assert!(say(&from.socket, &[0; 2], &[]))),
        ("many bytes", |from| assert!((0..100).all(|_| say(&from.socket, &[7; 4096], &[])))),
        // The kernel may refuse this.
        ("a file", |from| {
            say(&from.socket, &[0], &[from.ring.0.as_fd()]);
        }),
        ("no bytes", |from| assert!(say(&from.socket, &[], &[]))),
        ("the end", |from| {
            use rustix::net::{Shutdown, shutdown};
            shutdown(&from.socket, Shutdown::Both).unwrap();
        }),
    ];
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    for (kind, act) in kinds {
        println!("{kind}");
        for when in 0..3 {
            let (mut pair, mut from) = Pair::new();
            // Before anything arrives, after it has arrived, and again when the ring is full.
            if when == 0 {
                act(&mut from);
            }
            pair.post();
            if when > 0 {
                until("a message", || from.ring.get(Word::Tail) != 0);
                act(&mut from);
            }
            if when == 2 {
                from.tell();
                act(&mut from);
                from.tell();
            }
            near.message(3000, None);
            pair.expect_end();
        }
    }
    near.all_of_it();
    near.peer.end();
}

/// The garbage is written without end, while messages arrive.
#[test]
fn a_receiver_that_writes_garbage_continuously_harms_no_other() {
    type Kind = fn(&mut Accepted, &mut Random);
    let kinds: [Kind; 5] = [
        |from, _| from.tell(),
        |from, _| assert!(say(&from.socket, &[0; 100], &[]) || is_closed(&from.socket)),
        |from, random| {
            let words = [Word::Head, Word::Looks, Word::Waits, Word::Tail];
            let word = words[random.below(4) as usize];
            // Valid values too.
            let value = [random.next() as u32, random.below(4) as u32 * 64];
            from.ring.set(word, value[random.below(2) as usize]);
        },
        |from, random| {
            from.ring.fill_executed(random.next() as u8);
            from.ring.say_executed(FIRST_KEY + 1024, random.next() as u32);
            from.tell();
        },
        |from, random| {
            while matches!(from.read(), Ok(Some(_))) && random.below(8) != 0 {}
            from.ring.set(Word::Waits, random.below(2) as u32);
            from.free();
        },
    ];
    let mut near = Near::new(ibv_qp_type::IBV_QPT_RC);
    for act in kinds {
        let (mut pair, mut from) = Pair::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let garbage = scope.spawn(|| {
                let mut random = Random(0x9e37_79b9_7f4a_7c15);
                while !done.load(Ordering::Relaxed) {
                    act(&mut from, &mut random);
                }
            });
            let over = Over(&done);
            pair.post();
            near.all_of_it();
            pair.expect_end();
            near.all_of_it();
            drop(over);
            garbage.join().unwrap();
        });
    }
    near.peer.end();
}
