//! Resizing completion queues (man `ibv_resize_cq`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rdma_sys::Errno;
use test_support::rig::Size;
use test_support::rig::connect::{Knobs, Side, expect_traffic, pair, pair_with};
use test_support::rig::post::Wr;

use super::extended_polls::{take, to_extended};
use crate::case::cases;
use crate::device::Device;

cases![
    a_queue_grows_and_keeps_its_completions,
    a_queue_shrinks_and_keeps_its_completions,
    a_queue_does_not_shrink_below_what_is_in_it,
    queues_are_not_resized_above_the_devices_room,
    queues_are_not_resized_to_nothing,
    an_extended_queue_is_resized_between_two_batches,
    a_queue_is_resized_while_it_is_filled_and_polled,
];

const REFUSED: i32 = Errno::EINVAL.raw();

/// Skips the case if the device cannot resize queues.
fn needs_resize(device: &Device) {
    let context = device.open();
    let errno = context.cq(4).try_resize(8);
    let lacks = [Errno::EOPNOTSUPP.raw(), Errno::ENOSYS.raw()].contains(&errno);
    device.needs(!lacks, "the device does not resize completion queues");
}

/// Returns two connected sides. A has eight unpolled send completions.
fn with_eight_completions(device: &Device) -> (Side, Side) {
    let (a, b) = pair_with(device, &Size::default(), &Knobs::default());
    for n in 0..8 {
        b.qp.post_receive(n, &[]);
        a.qp.post(&Wr::send(n, &[]));
        b.receive_cq.expect_success(n);
    }
    // B's message arrives after its acknowledgements, so A's sends have completed.
    a.qp.post_receive(8, &[]);
    b.qp.post(&Wr::send(8, &[]));
    a.receive_cq.expect_success(8);
    b.send_cq.expect_success(8);
    (a, b)
}

fn a_queue_grows_and_keeps_its_completions(device: &Device) {
    needs_resize(device);
    let (a, b) = with_eight_completions(device);
    a.send_cq.expect_success(0);
    let before = a.send_cq.entries();
    assert_eq!(a.send_cq.try_resize(before + 1), 0);
    assert!(a.send_cq.entries() > before);
    for n in 1..8 {
        a.send_cq.expect_success(n);
    }
    expect_traffic(&a, &b);
}

fn a_queue_does_not_shrink_below_what_is_in_it(device: &Device) {
    needs_resize(device);
    let (a, _b) = with_eight_completions(device);
    assert_eq!(a.send_cq.try_resize(2), REFUSED);
    for n in 0..8 {
        a.send_cq.expect_success(n);
    }
}

fn queues_are_not_resized_above_the_devices_room(device: &Device) {
    needs_resize(device);
    let context = device.open();
    let most = context.query_device().max_cqe;
    let cq = context.cq(4);
    let before = cq.entries();
    for room in [most + 1, i32::MAX] {
        assert_eq!((cq.try_resize(room), cq.entries()), (REFUSED, before), "{room}");
    }
}

fn a_queue_shrinks_and_keeps_its_completions(device: &Device) {
    needs_resize(device);
    let (a, b) = with_eight_completions(device);
    assert_eq!(a.send_cq.try_resize(8), 0);
    assert!(a.send_cq.entries() >= 8);
    for n in 0..8 {
        a.send_cq.expect_success(n);
    }
    expect_traffic(&a, &b);
}

fn queues_are_not_resized_to_nothing(device: &Device) {
    needs_resize(device);
    let context = device.open();
    let cq = context.cq(4);
    let before = cq.entries();
    for room in [0, -1, i32::MIN] {
        assert_eq!((cq.try_resize(room), cq.entries()), (REFUSED, before), "{room}");
    }
}

fn an_extended_queue_is_resized_between_two_batches(device: &Device) {
    let (a, b) = to_extended(device);
    needs_resize(device);
    let mut next = 0;
    for entries in [256, 100, 300] {
        let wr_ids = next..next + 6;
        for wr_id in wr_ids.clone() {
            b.qp.post_receive(wr_id, &[]);
            a.qp.post(&Wr::send(wr_id, &[]));
            a.send_cq.expect_success(wr_id);
        }
        let cq = &b.receive_cq;
        cq.start_at_next();
        assert_eq!(cq.at().0, next);
        cq.end();
        assert_eq!(cq.try_resize(entries), 0);
        assert!(cq.entries() >= entries);
        take(cq, next + 1..wr_ids.end);
        next = wr_ids.end;
    }
}

fn a_queue_is_resized_while_it_is_filled_and_polled(device: &Device) {
    needs_resize(device);
    let (a, b) = pair(device);
    let rounds = if device.is_software() { 3000 } else { 100 };
    let (done, resized) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let resizer = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                for entries in [64, 300, 128, 33] {
                    // At most two requests are outstanding, so each of these sizes suffices.
                    assert_eq!(a.send_cq.try_resize(entries), 0);
                    assert_eq!(b.receive_cq.try_resize(entries), 0);
                    resized.store(true, Ordering::Release);
                }
            }
        });
        // A panic is caught, because otherwise the other thread would not stop.
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut n = 0;
            // On a busy machine, the other thread may begin only after all rounds.
            while n < rounds || !(resized.load(Ordering::Acquire) || resizer.is_finished()) {
                for n in [2 * n, 2 * n + 1] {
                    b.qp.post_receive(n, &[]);
                    a.qp.post(&Wr::send(n, &[]));
                }
                for n in [2 * n, 2 * n + 1] {
                    a.send_cq.expect_success(n);
                    b.receive_cq.expect_success(n);
                }
                n += 1;
            }
        }));
        done.store(true, Ordering::Release);
        resizer.join().unwrap();
        result.unwrap();
    });
}
