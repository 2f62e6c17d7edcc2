//! Control calls from many threads, and objects that are destroyed while others use them.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rdma_sys::{Errno, ibv_wc_status as Status, ibv_wr_opcode};
use test_support::rig::connect::{Knobs, Side, connect, endpoint, pair};
use test_support::rig::datagram;
use test_support::rig::post::Wr;
use test_support::rig::scene::{AT_A, BYTES, Scene};
use test_support::rig::transition::UD;
use test_support::rig::{ALL_ACCESS, Context, LOCAL_WRITE, Mr, Pd, Qp, Size, until};

use crate::case::cases;
use crate::device::Device;

cases![
    contexts_are_opened_and_closed_by_many_threads,
    objects_of_one_context_are_made_and_destroyed_by_many_threads,
    regions_of_many_threads_have_keys_of_their_own,
    queue_pairs_of_many_threads_have_numbers_of_their_own,
    an_object_serves_every_thread_whoever_made_it,
    regions_come_and_go_while_others_are_written,
    address_handles_come_and_go_while_others_are_used,
    a_state_is_queried_while_requests_complete,
    deregistered_memory_is_not_written_by_peers_any_more,
    deregistered_memory_is_not_sent_from_any_more,
    every_accepted_request_completes_once_when_the_queue_pair_fails_under_load,
];

/// Returns the number of rounds: `many` on the software device, and a tenth of that on other
/// devices, where each round takes milliseconds.
fn rounds(device: &Device, many: u64) -> u64 {
    if device.is_software() { many } else { many.div_ceil(10) }
}

const THREADS: u8 = 4;

/// Runs `act` in [`THREADS`] threads at once. Each gets its number, counted from 1.
fn in_threads(act: impl Fn(u8) + Sync) {
    thread::scope(|scope| {
        for n in 1..=THREADS {
            let act = &act;
            scope.spawn(move || act(n));
        }
    });
}

fn contexts_are_opened_and_closed_by_many_threads(device: &Device) {
    let (name, rounds): (&str, _) = (device, rounds(device, 30));
    in_threads(|byte| {
        for _ in 0..rounds {
            let (a, b) = pair(name);
            let from = a.pd.register_filled(vec![byte; 8], LOCAL_WRITE);
            let to = b.pd.register(8, ALL_ACCESS);
            a.qp.post(&Wr::write(1, &[from.sge(0, 8)], &to, 0));
            a.send_cq.expect_success(1);
            to.assert_filled(byte);
        }
    });
}

/// Writes between two new queue pairs in this domain, from newly registered memory.
fn write_with_new_objects(context: &Context, pd: &Pd, byte: u8) {
    let cq = context.cq(16);
    let [a, b] = [(); 2].map(|()| pd.qp(&cq, &cq, &Size::default()));
    let (at_a, at_b) = (endpoint(context, &a), endpoint(context, &b));
    connect(&a, &at_a, &at_b, &Knobs::default());
    connect(&b, &at_b, &at_a, &Knobs::default());
    let from = pd.register_filled(vec![byte; 8], LOCAL_WRITE);
    let to = pd.register(8, ALL_ACCESS);
    a.post(&Wr::write(byte.into(), &[from.sge(0, 8)], &to, 0));
    cq.expect_success(byte.into());
    to.assert_filled(byte);
}

fn objects_of_one_context_are_made_and_destroyed_by_many_threads(device: &Device) {
    let context = device.open();
    let (pd, rounds) = (context.pd(), rounds(device, 30));
    in_threads(|byte| {
        for _ in 0..rounds {
            write_with_new_objects(&context, &pd, byte);
            drop(context.pd());
        }
    });
}

/// Names, such as keys, that threads currently hold. No name may be held twice at the same time.
#[derive(Default)]
struct Held(Mutex<BTreeSet<u32>>);

impl Held {
    #[track_caller]
    fn take(&self, name: u32) {
        assert!(self.0.lock().unwrap().insert(name), "{name:#x} exists twice");
    }

    fn give_back(&self, name: u32) {
        self.0.lock().unwrap().remove(&name);
    }
}

fn regions_of_many_threads_have_keys_of_their_own(device: &Device) {
    let context = device.open();
    let (pd, held) = (context.pd(), Held::default());
    let rounds = rounds(device, 50);
    in_threads(|byte| {
        for _ in 0..rounds {
            let regions = [(); 4].map(|()| pd.register_filled(vec![byte; 64], ALL_ACCESS));
            for region in regions.each_ref() {
                held.take(region.key());
            }
            for region in regions {
                held.give_back(region.key());
                assert_eq!(region.deregister(), [byte; 64]);
            }
        }
    });
}

fn queue_pairs_of_many_threads_have_numbers_of_their_own(device: &Device) {
    let context = device.open();
    let (pd, cq, held) = (context.pd(), context.cq(16), Held::default());
    let rounds = rounds(device, 50);
    in_threads(|_| {
        for _ in 0..rounds {
            let qps = [(); 4].map(|()| pd.qp(&cq, &cq, &Size::default()));
            for qp in &qps {
                held.take(qp.number());
            }
            for qp in qps {
                held.give_back(qp.number());
            }
        }
    });
}

fn an_object_serves_every_thread_whoever_made_it(device: &Device) {
    let name: &str = device;
    let (a, b) = thread::scope(|scope| scope.spawn(|| pair(name)).join().unwrap());
    let from = thread::scope(|scope| {
        scope.spawn(|| a.pd.register_filled(vec![5; 64], LOCAL_WRITE)).join().unwrap()
    });
    let to = b.pd.register(64, LOCAL_WRITE);
    for n in 0..3 {
        thread::scope(|scope| {
            scope.spawn(|| b.qp.post_receive(n, &[to.sge(0, 64)]));
        });
        thread::scope(|scope| {
            scope.spawn(|| b.receive_cq.expect_success(n));
            scope.spawn(|| a.qp.post(&Wr::send(n, &[from.sge(0, 64)])));
            scope.spawn(|| a.send_cq.expect_success(n));
        });
        to.assert_filled(5);
        to.fill(0);
    }
    thread::scope(|scope| {
        scope.spawn(move || drop((from, a)));
        scope.spawn(move || drop((to, b)));
    });
}

/// Runs `works` to completion while another thread calls `comes_and_goes` repeatedly.
fn beside(works: impl FnOnce(), comes_and_goes: impl Fn() + Sync) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                comes_and_goes();
            }
        });
        // A panic is caught, because otherwise the other thread would not stop.
        let result = catch_unwind(AssertUnwindSafe(works));
        done.store(true, Ordering::Release);
        result.unwrap();
    });
}

/// Posts `rounds` writes one after the other, and checks that each one arrives.
fn write_again_and_again(rounds: u64, a: &Side, from: &Mr, to: &Mr) {
    for n in 0..rounds {
        from.fill(u8::try_from(n % 255).unwrap() + 1);
        a.qp.post(&Wr::write(n, &[from.sge(0, 64)], to, 0));
        a.send_cq.expect_success(n);
        assert_eq!(to.bytes(), from.bytes());
    }
}

fn regions_come_and_go_while_others_are_written(device: &Device) {
    let (a, b) = pair(device);
    let from = a.pd.register(64, LOCAL_WRITE);
    let to = b.pd.register(64, ALL_ACCESS);
    let comes_and_goes = || {
        let others = [&a.pd, &b.pd].map(|pd| pd.register_filled(vec![7; 64], ALL_ACCESS));
        for other in others {
            assert_eq!(other.deregister(), [7; 64]);
        }
    };
    let rounds = rounds(device, 500);
    beside(|| write_again_and_again(rounds, &a, &from, &to), comes_and_goes);
}

fn address_handles_come_and_go_while_others_are_used(device: &Device) {
    device.needs_type(UD);
    let (a, b) = (datagram::side(device), datagram::side(device));
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let ah = a.pd.ah_to(&at_a, &at_b);
    let to = b.pd.register(datagram::HEADER, LOCAL_WRITE);
    let rounds = rounds(device, 300);
    let works = || {
        for n in 0..rounds {
            b.qp.post_receive(n, &[to.sge(0, datagram::HEADER)]);
            a.qp.post(&Wr::send(n, &[]).to(&ah, b.qp.number(), datagram::QKEY));
            a.send_cq.expect_success(n);
            b.receive_cq.expect_success(n);
        }
    };
    let name = ah.0.addr();
    beside(works, || assert_ne!(a.pd.ah_to(&at_a, &at_b).0.addr(), name));
}

fn a_state_is_queried_while_requests_complete(device: &Device) {
    let (a, b) = pair(device);
    let from = a.pd.register(64, LOCAL_WRITE);
    let to = b.pd.register(64, ALL_ACCESS);
    let query = || {
        a.qp.assert_ready();
        b.qp.assert_ready();
    };
    let rounds = rounds(device, 500);
    beside(|| write_again_and_again(rounds, &a, &from, &to), query);
}

/// Writes from A until a write fails, while another thread runs `end`. Returns the status of the
/// failed write and the result of `end`.
fn write_until<T: Send>(a: &Side, wr: &Wr, end: impl FnOnce() -> T + Send) -> (Status, T) {
    let works = AtomicBool::new(false);
    thread::scope(|scope| {
        let ender = scope.spawn(|| {
            until("the first write", || works.load(Ordering::Relaxed));
            end()
        });
        let failure = loop {
            a.qp.post(wr);
            match a.send_cq.next().status {
                Status::IBV_WC_SUCCESS => works.store(true, Ordering::Relaxed),
                status => break status,
            }
        };
        (failure, ender.join().unwrap())
    })
}

/// Returns a write of the whole region. The request does not borrow the regions, so they can be
/// deregistered.
fn write(from: &Mr, to: &Mr) -> Wr {
    let wr = Wr::new(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[from.sge(0, BYTES)]);
    wr.remote(to.address(), to.key())
}

fn deregistered_memory_is_not_written_by_peers_any_more(device: &Device) {
    for _ in 0..rounds(device, 20) {
        let Scene { a, b, at_a, at_b } = Scene::new(device);
        let wr = write(&at_a, &at_b);
        let (failure, memory) = write_until(&a, &wr, || {
            let mut memory = at_b.deregister();
            memory.fill(0);
            memory
        });
        assert_eq!(failure, Status::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(memory, [0; BYTES]);
        b.qp.wait_for_error();
    }
}

fn deregistered_memory_is_not_sent_from_any_more(device: &Device) {
    for _ in 0..rounds(device, 20) {
        let Scene { a, b, at_a, at_b } = Scene::new(device);
        let wr = write(&at_a, &at_b);
        // The status is ignored, because cases without concurrency check it.
        let (_, memory) = write_until(&a, &wr, || {
            let mut memory = at_a.deregister();
            memory.fill(0xee);
            memory
        });
        // The writes that succeeded read the old bytes.
        at_b.assert_filled(AT_A);
        b.qp.assert_ready();
        drop(memory);
    }
}

/// Posts `count` writes. Waits for a free slot whenever the queue is full.
fn post_all(qp: &Qp, from: &Mr, to: &Mr, count: u64) {
    for n in 0..count {
        let wr = Wr::write(n, &[from.sge(0, 8)], to, 0);
        until("room", || match Errno::from_raw(qp.try_post(&wr)) {
            Errno::ENOMEM => false,
            errno => errno.raw() == 0 || panic!("{errno}"),
        });
    }
}

fn every_accepted_request_completes_once_when_the_queue_pair_fails_under_load(device: &Device) {
    let requests = rounds(device, 500);
    for _ in 0..rounds(device, 20) {
        let Scene { a, b: _b, at_a, at_b } = Scene::new(device);
        let (mut next, mut flushed, mut ended) = (0, false, false);
        thread::scope(|scope| {
            scope.spawn(|| post_all(&a.qp, &at_a, &at_b, requests));
            until("all completions", || {
                if next >= requests / 3 && !std::mem::replace(&mut ended, true) {
                    a.qp.to_error();
                }
                for wc in a.send_cq.try_poll::<4>().unwrap() {
                    assert_eq!(wc.wr_id, next, "in order, each once");
                    next += 1;
                    flushed |= wc.status == Status::IBV_WC_WR_FLUSH_ERR;
                    assert_eq!(flushed, wc.status == Status::IBV_WC_WR_FLUSH_ERR);
                }
                next == requests
            });
        });
        assert!(a.send_cq.is_empty());
    }
}
