//! Many threads at once: several post and poll, and queue pairs exchange messages, fail under load,
//! and are created and destroyed.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rdma_sys::{Errno, ibv_wc, ibv_wc_status as Status};
use test_support::rig::connect::{Knobs, Side, pair};
use test_support::rig::post::Wr;
use test_support::rig::scene::{BYTES, Scene};
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Mr, Qp, Size, until};

use crate::case::cases;
use crate::device::Device;

cases![
    each_request_completes_to_one_of_many_polling_threads,
    many_threads_post_to_one_queue_pair_and_each_ones_order_is_kept,
    many_threads_post_receives_to_one_queue_pair_and_each_is_used_once,
    threads_with_queue_pairs_of_their_own_do_not_disturb_each_other,
    two_queue_pairs_send_to_each_other_at_once,
    destroyed_queue_pair_is_not_written_through_any_more,
    queue_pair_in_error_is_not_written_through_any_more,
    queue_pair_in_reset_is_not_written_through_any_more,
    many_queue_pairs_come_and_go_while_others_work,
];

/// Returns the number of rounds: `many` on the software device, and a tenth of that on other
/// devices, where each round takes milliseconds.
fn count(device: &Device, many: u64) -> u64 {
    if device.is_software() { many } else { many / 10 }
}

/// Posts a request as soon as there is a free slot.
fn post_when_there_is_room(qp: &Qp, wr: &Wr) {
    until("room", || match Errno::from_raw(qp.try_post(wr)) {
        Errno::ENOMEM => false,
        errno => errno.raw() == 0 || panic!("{errno}"),
    });
}

/// Posts `count` writes.
fn post_all(qp: &Qp, from: &Mr, to: &Mr, count: u64) {
    for n in 0..count {
        post_when_there_is_room(qp, &Wr::write(n, &[from.sge(0, 8)], to, 0));
    }
}

fn each_request_completes_to_one_of_many_polling_threads(device: &Device) {
    let requests = count(device, 2000);
    let Scene { a, b: _b, at_a, at_b } = Scene::new(device);
    let seen: Vec<AtomicU64> = (0..requests).map(|_| AtomicU64::new(0)).collect();
    let (found, posted) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                until("all completions", || {
                    for wc in a.send_cq.try_poll::<3>().unwrap() {
                        assert_eq!(wc.status, Status::IBV_WC_SUCCESS);
                        seen[wc.wr_id as usize].fetch_add(1, Ordering::Relaxed);
                        found.fetch_add(1, Ordering::Relaxed);
                    }
                    posted.load(Ordering::Acquire) && found.load(Ordering::Relaxed) >= requests
                });
            });
        }
        post_all(&a.qp, &at_a, &at_b, requests);
        posted.store(true, Ordering::Release);
    });
    assert!(seen.iter().all(|times| times.load(Ordering::Relaxed) == 1));
    assert!(a.send_cq.is_empty());
}

/// Counts the completions of several posting threads, and checks that the requests of each thread
/// complete in order.
struct Order {
    next: [u64; 4],
}

impl Order {
    fn take(&mut self, wc: &ibv_wc) {
        assert_eq!(wc.status, Status::IBV_WC_SUCCESS);
        let (poster, n) = ((wc.wr_id >> 32) as usize, wc.wr_id & 0xffff_ffff);
        assert_eq!(n, self.next[poster], "poster {poster}");
        self.next[poster] += 1;
    }
}

fn many_threads_post_to_one_queue_pair_and_each_ones_order_is_kept(device: &Device) {
    let each = count(device, 500);
    let (a, b) = pair(device);
    let source = a.pd.register_filled((0..=255).collect(), 0);
    let sink = b.pd.register(256, LOCAL_WRITE);
    for n in 0..64u64 {
        b.qp.post_receive(n, &[sink.sge(4 * n as usize, 4)]);
    }
    std::thread::scope(|scope| {
        for poster in 0..4 {
            let (qp, source) = (&a.qp, &source);
            scope.spawn(move || {
                for n in 0..each {
                    let sges = [source.sge(n as usize % 253, 4)];
                    post_when_there_is_room(qp, &Wr::send(poster << 32 | n, &sges));
                }
            });
        }
        let (mut order, mut received) = (Order { next: [0; 4] }, 0u64);
        until("all completions", || {
            a.send_cq.try_poll::<16>().unwrap().iter().for_each(|wc| order.take(wc));
            for wc in b.receive_cq.try_poll::<16>().unwrap() {
                assert_eq!((wc.wr_id, wc.status), (received % 64, Status::IBV_WC_SUCCESS));
                let place = 4 * wc.wr_id as usize;
                let message = &sink.bytes()[place..place + 4];
                assert!(message.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{message:?}");
                b.qp.post_receive(wc.wr_id, &[sink.sge(place, 4)]);
                received += 1;
            }
            received == 4 * each && order.next == [each; 4]
        });
    });
    assert!(a.send_cq.is_empty() && b.receive_cq.is_empty());
}

fn many_threads_post_receives_to_one_queue_pair_and_each_is_used_once(device: &Device) {
    const POSTERS: u64 = 4;
    let (a, b) = pair(device);
    for _ in 0..count(device, 50).max(2) {
        std::thread::scope(|scope| {
            for poster in 0..POSTERS {
                let qp = &b.qp;
                scope.spawn(move || (0..10).for_each(|n| qp.post_receive(10 * poster + n, &[])));
            }
        });
        let mut order = [0; POSTERS as usize];
        for n in 0..10 * POSTERS {
            a.qp.post(&Wr::send(n, &[]));
            a.send_cq.expect_success(n);
            let wr_id = b.receive_cq.next().wr_id;
            let next = &mut order[wr_id as usize / 10];
            assert_eq!(wr_id % 10, *next, "a poster's requests are used in its order");
            *next += 1;
        }
        assert_eq!(order, [10; POSTERS as usize]);
    }
}

fn threads_with_queue_pairs_of_their_own_do_not_disturb_each_other(device: &Device) {
    let requests = count(device, 500);
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            let sides = pair(device);
            scope.spawn(move || {
                let (a, b) = sides;
                let source = a.pd.register_filled(vec![thread; 64], 0);
                let sink = b.pd.register(64, ALL_ACCESS);
                for n in 0..requests {
                    a.qp.post(&Wr::write(n, &[source.sge(0, 64)], &sink, 0));
                    a.send_cq.expect_success(n);
                    sink.assert_filled(thread);
                    sink.fill(0);
                }
            });
        }
    });
}

/// Sends `count` numbered messages to the peer, receives as many, and returns when both sides are
/// done.
fn converse(own: &Side, count: u64, done: &AtomicU32) {
    let source = own.pd.register_filled((0..=255).collect(), 0);
    let sink = own.pd.register(32, LOCAL_WRITE);
    let place = |n: u64| sink.sge(n as usize % 32, 1);
    let (mut sent, mut completed, mut received) = (0, 0, 0);
    for n in 0..32 {
        own.qp.post_receive(n, &[place(n)]);
    }
    until("the conversation", || {
        while sent < count && sent - completed < 32 {
            let byte = source.sge(sent as usize % 256, 1);
            own.qp.post(&Wr::send(sent, &[byte]));
            sent += 1;
        }
        for wc in own.send_cq.try_poll::<8>().unwrap() {
            assert_eq!((wc.wr_id, wc.status), (completed, Status::IBV_WC_SUCCESS));
            completed += 1;
        }
        for wc in own.receive_cq.try_poll::<8>().unwrap() {
            assert_eq!((wc.wr_id, wc.status), (received, Status::IBV_WC_SUCCESS));
            assert_eq!(u64::from(sink.bytes()[received as usize % 32]), received % 256);
            own.qp.post_receive(received + 32, &[place(received)]);
            received += 1;
        }
        completed == count && received == count
    });
    // Wait for the peer first: once a queue pair is in error, it need not acknowledge the messages
    // it receives.
    done.fetch_add(1, Ordering::Relaxed);
    until("both are done", || done.load(Ordering::Relaxed) == 2);
    // Receives that use this function's memory are still posted. They are flushed before the memory
    // is deregistered.
    own.qp.to_error();
    own.receive_cq.expect_flushed(count..count + 32);
}

fn two_queue_pairs_send_to_each_other_at_once(device: &Device) {
    let messages = count(device, 1000);
    let (a, b) = pair(device);
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| converse(&a, messages, &done));
        scope.spawn(|| converse(&b, messages, &done));
    });
}

/// Writes from A to B's memory until a write fails, while another thread runs `end`.
fn write_until(device: &Device, end: impl Fn(&mut Qp) + Sync) {
    // Over a network, the peer might only be busy, so each failure takes several seconds to detect.
    let rounds = if device.has_network() { 1 } else { count(device, 10) };
    for _ in 0..rounds {
        let knobs = Knobs { timeout: 12, retries: 6, ..Knobs::default() };
        let Scene { a, mut b, at_a, at_b } = Scene::with(device, &Size::default(), &knobs);
        let works = AtomicBool::new(false);
        let failure = std::thread::scope(|scope| {
            scope.spawn(|| {
                until("the first write", || works.load(Ordering::Relaxed));
                end(&mut b.qp);
                at_b.fill(0);
            });
            let wr = Wr::write(1, &[at_a.sge(0, BYTES)], &at_b, 0);
            loop {
                a.qp.post(&wr);
                match a.send_cq.next().status {
                    Status::IBV_WC_SUCCESS => works.store(true, Ordering::Relaxed),
                    status => break status,
                }
            }
        });
        assert_eq!(failure, Status::IBV_WC_RETRY_EXC_ERR);
        at_b.assert_filled(0);
    }
}

fn destroyed_queue_pair_is_not_written_through_any_more(device: &Device) {
    write_until(device, Qp::destroy);
}

fn queue_pair_in_error_is_not_written_through_any_more(device: &Device) {
    write_until(device, |qp| qp.to_error());
}

fn queue_pair_in_reset_is_not_written_through_any_more(device: &Device) {
    write_until(device, |qp| qp.to_reset());
}

fn many_queue_pairs_come_and_go_while_others_work(device: &Device) {
    let messages = count(device, 1000);
    let (a, b) = pair(device);
    let done = &AtomicU32::new(0);
    std::thread::scope(|scope| {
        let workers = [&a, &b].map(|side| scope.spawn(move || converse(side, messages, done)));
        let busy = || workers.iter().any(|worker| !worker.is_finished());
        let mut rounds = 0;
        while busy() || rounds < 3 {
            let scene = Scene::new(device);
            scene.a.qp.post(&scene.requests()[0]);
            scene.a.send_cq.expect_success(1);
            rounds += 1;
        }
    });
}
