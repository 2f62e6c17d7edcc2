//! Batches of function calls (`ibv_wr_start` … `ibv_wr_complete`): posted completely or not at all,
//! in order, and by one thread (man `ibv_wr_post`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rdma_sys::{ibv_qp_state, ibv_wc_status as Status};
use test_support::rig::batch::Scene;
use test_support::rig::connect::pair;
use test_support::rig::extended::operations;
use test_support::rig::post::Wr;
use test_support::rig::{Size, until};

use super::extended_posts::{needs_calls, scene};
use crate::case::cases;
use crate::device::Device;

cases![
    nothing_is_executed_before_the_batch_is_complete,
    a_batch_is_executed_in_the_order_of_its_calls,
    a_batch_may_fill_the_queue_again_and_again,
    batches_of_two_queue_pairs_are_built_side_by_side,
    receives_are_posted_and_completions_polled_while_a_batch_is_built,
    an_empty_batch_posts_nothing,
    an_aborted_batch_is_forgotten,
    an_aborted_mistake_is_forgotten,
    too_many_elements_fail_the_batch_and_nothing_is_posted,
    too_much_inline_data_fails_the_batch_and_nothing_is_posted,
    too_much_inline_data_in_pieces_fails_the_batch,
    more_requests_than_the_queue_has_fail_the_batch_and_nothing_is_posted,
    a_batch_for_which_the_queue_has_no_room_now_is_not_posted_in_part,
    a_batch_after_one_that_failed_is_posted,
    batches_and_lists_keep_the_order_of_posting,
    a_request_that_fails_flushes_the_rest_of_its_batch,
    a_batch_of_a_queue_pair_in_error_is_flushed_in_order,
    a_batch_of_a_queue_pair_that_is_not_ready_is_refused,
    a_batch_waits_for_its_receiver_and_later_ones_behind_it,
    another_thread_waits_for_the_end_of_a_batch,
    batches_and_lists_of_several_threads_do_not_mix,
];

/// Checks that nothing from a failed or abandoned batch was posted. To do so, posts one more
/// request, and checks that no other completes, and that only its bytes arrive at B.
#[track_caller]
fn expect_nothing_posted(scene: &Scene) {
    assert_eq!(scene.a.qp.try_call(&[scene.write(77, 56)]), 0);
    scene.a.send_cq.expect_success(77);
    assert!(scene.a.send_cq.is_empty());
    let bytes = scene.at_b.bytes();
    assert_eq!((&bytes[..56], &bytes[56..]), (&[0; 56][..], &scene.at_a.bytes()[56..]));
}

/// Makes a mistake between two correct requests of a batch. Checks that the batch fails.
#[track_caller]
fn expect_failure(scene: &Scene, mistake: impl FnOnce()) {
    scene.a.qp.start();
    scene.a.qp.build(&scene.write(1, 0));
    mistake();
    scene.a.qp.build(&scene.write(2, 8));
    assert_ne!(scene.a.qp.complete(), 0);
}

fn nothing_is_executed_before_the_batch_is_complete(device: &Device) {
    let scene = scene(device);
    let (c, d) = pair(device);
    scene.a.qp.start();
    scene.a.qp.build(&scene.write(1, 0));
    // Messages of different connections arrive in any order. The many messages on another
    // connection give a message of the incomplete batch enough time to arrive if it was sent.
    for n in 0..20 {
        d.qp.post_receive(n, &[]);
        c.qp.post(&Wr::send(n, &[]));
        c.send_cq.expect_success(n);
    }
    scene.at_b.assert_filled(0);
    assert!(scene.a.send_cq.is_empty());
    assert_eq!(scene.a.qp.complete(), 0);
    scene.a.send_cq.expect_success(1);
    assert_eq!(scene.at_b.bytes()[..8], scene.at_a.bytes()[..8]);
}

fn a_batch_is_executed_in_the_order_of_its_calls(device: &Device) {
    let scene = scene(device);
    let to_the_same = |wr_id, from| Wr::write(wr_id, &[scene.at_a.sge(from, 8)], &scene.at_b, 0);
    let read_back = Wr::read(3, &[scene.at_a.sge(32, 8)], &scene.at_b, 0);
    // A READ may return data that a later request writes, unless the later request is fenced (IBTA
    // volume 1, 10.8.3.3).
    let batch = [to_the_same(1, 8), to_the_same(2, 16), read_back, to_the_same(4, 24).fenced()];
    assert_eq!(scene.a.qp.try_call(&batch), 0);
    scene.expect_successes(1..5);
    assert_eq!(scene.at_a.bytes()[32..40], (16..24).collect::<Vec<u8>>());
    assert_eq!(scene.at_b.bytes()[..8], (24..32).collect::<Vec<u8>>());
}

fn a_batch_may_fill_the_queue_again_and_again(device: &Device) {
    needs_calls(device);
    let scene = Scene::with(device, &Size { send_wr: 8, ..Size::default() }, operations());
    for first in [0, 10, 20, 30, 40] {
        let places = (0..8).map(|n| 8 * n);
        let all: Vec<_> = (first..).zip(places).map(|(n, at)| scene.write(n, at)).collect();
        assert_eq!(scene.a.qp.try_call(&all), 0);
        scene.expect_successes(first..first + 8);
    }
    assert_eq!(scene.at_b.bytes(), scene.at_a.bytes());
}

fn batches_of_two_queue_pairs_are_built_side_by_side(device: &Device) {
    let (one, other) = (scene(device), scene(device));
    let scenes = [&one, &other];
    scenes.iter().for_each(|scene| scene.a.qp.start());
    for (n, place) in [(0, 0), (1, 8), (2, 16)] {
        one.a.qp.build(&one.write(n, place));
        other.a.qp.build(&other.write(n, 32 + place));
    }
    assert_eq!(other.a.qp.complete(), 0);
    other.expect_successes(0..3);
    one.at_b.assert_filled(0);
    assert_eq!(one.a.qp.complete(), 0);
    one.expect_successes(0..3);
    assert_eq!(one.at_b.bytes()[..24], one.at_a.bytes()[..24]);
    assert_eq!(other.at_b.bytes()[32..56], other.at_a.bytes()[32..56]);
}

fn receives_are_posted_and_completions_polled_while_a_batch_is_built(device: &Device) {
    let scene = scene(device);
    assert_eq!(scene.a.qp.try_call(&[scene.write(1, 0)]), 0);
    scene.a.qp.start();
    scene.a.qp.build(&scene.write(2, 8));
    scene.a.qp.post_receive(3, &[]);
    scene.a.send_cq.expect_success(1);
    scene.b.qp.post(&Wr::send(4, &[]));
    scene.a.receive_cq.expect_success(3);
    scene.b.send_cq.expect_success(4);
    scene.a.qp.build(&scene.write(5, 16));
    assert_eq!(scene.a.qp.complete(), 0);
    scene.a.send_cq.expect_success(2);
    scene.a.send_cq.expect_success(5);
}

fn an_empty_batch_posts_nothing(device: &Device) {
    let scene = scene(device);
    scene.a.qp.start();
    assert_eq!(scene.a.qp.complete(), 0);
    expect_nothing_posted(&scene);
}

fn an_aborted_batch_is_forgotten(device: &Device) {
    let scene = scene(device);
    for _ in 0..3 {
        scene.a.qp.start();
        (0..40).for_each(|n| scene.a.qp.build(&scene.write(n, 0)));
        scene.a.qp.abort();
    }
    expect_nothing_posted(&scene);
}

fn an_aborted_mistake_is_forgotten(device: &Device) {
    let scene = scene(device);
    let sges = vec![scene.at_a.sge(0, 1); scene.a.qp.capacity().max_send_sge as usize + 1];
    scene.a.qp.start();
    scene.a.qp.build(&Wr::write(1, &sges, &scene.at_b, 0));
    scene.a.qp.abort();
    expect_nothing_posted(&scene);
}

fn too_many_elements_fail_the_batch_and_nothing_is_posted(device: &Device) {
    let scene = scene(device);
    let sges = vec![scene.at_a.sge(0, 1); scene.a.qp.capacity().max_send_sge as usize + 1];
    expect_failure(&scene, || scene.a.qp.build(&Wr::write(1, &sges, &scene.at_b, 0)));
    expect_nothing_posted(&scene);
}

fn too_much_inline_data_fails_the_batch_and_nothing_is_posted(device: &Device) {
    let scene = scene(device);
    let bytes = vec![1; scene.a.qp.capacity().max_inline_data as usize + 1];
    expect_failure(&scene, || {
        scene.a.qp.begin(&Wr::write(1, &[], &scene.at_b, 0).inline());
        scene.a.qp.set_inline(&[&bytes]);
    });
    expect_nothing_posted(&scene);
}

fn too_much_inline_data_in_pieces_fails_the_batch(device: &Device) {
    let scene = scene(device);
    let most = scene.a.qp.capacity().max_inline_data as usize;
    let whole = vec![1; most];
    // SoftRoCE checks each piece only by itself, so it would copy several pieces beyond the end of
    // the inline space. It does refuse a single piece that is too long.
    let too_long = vec![1; most + 1];
    let pieces: [&[u8]; 2] =
        device.expected([&whole, &[1]], "wr-set-inline-data-list-length", [&[], &too_long]);
    expect_failure(&scene, || {
        scene.a.qp.begin(&Wr::write(1, &[], &scene.at_b, 0).inline());
        scene.a.qp.set_inline(&pieces);
    });
    expect_nothing_posted(&scene);
}

/// Returns writes that move no data. Only the last one is signaled.
fn empty_writes(scene: &Scene, count: u32) -> Vec<Wr> {
    let silent = Wr::write(5, &[], &scene.at_b, 0).unsignaled();
    let mut all = vec![silent; count as usize - 1];
    all.push(Wr::write(6, &[], &scene.at_b, 0));
    all
}

fn more_requests_than_the_queue_has_fail_the_batch_and_nothing_is_posted(device: &Device) {
    needs_calls(device);
    let scene = Scene::with(device, &Size { send_wr: 8, ..Size::default() }, operations());
    let mut count = scene.a.qp.capacity().max_send_wr;
    assert!(count >= 8);
    // A device may have more space than it reports.
    while scene.a.qp.try_call(&empty_writes(&scene, count)) == 0 {
        scene.a.send_cq.expect_success(6);
        count *= 2;
        assert!(count < 10_000, "the queue accepts any number of requests");
    }
    assert!(count > 8, "the requested number must fit");
    expect_nothing_posted(&scene);
}

/// Posts up to `most` messages while the peer has no receive. Returns the number that fit into the
/// queue.
fn post_waiting(scene: &Scene, most: u64) -> u64 {
    (0..most).take_while(|&n| scene.a.qp.try_call(&[Wr::send(n, &[])]) == 0).count() as u64
}

#[track_caller]
fn let_through(scene: &Scene, count: u64) {
    for n in 0..count {
        scene.b.qp.post_receive(n, &[]);
        scene.a.send_cq.expect_success(n);
    }
}

fn a_batch_for_which_the_queue_has_no_room_now_is_not_posted_in_part(device: &Device) {
    needs_calls(device);
    let scene = Scene::with(device, &Size { send_wr: 4, ..Size::default() }, operations());
    let room = post_waiting(&scene, 1000);
    assert!((4..1000).contains(&room), "{room}");
    let_through(&scene, room);
    assert_eq!(post_waiting(&scene, room - 1), room - 1);
    assert_ne!(scene.a.qp.try_call(&[scene.write(900, 0), scene.write(901, 8)]), 0);
    let_through(&scene, room - 1);
    expect_nothing_posted(&scene);
}

fn a_batch_after_one_that_failed_is_posted(device: &Device) {
    let scene = scene(device);
    let sges = vec![scene.at_a.sge(0, 1); scene.a.qp.capacity().max_send_sge as usize + 1];
    for round in 0_u8..3 {
        expect_failure(&scene, || scene.a.qp.build(&Wr::write(9, &sges, &scene.at_b, 0)));
        let place = 16 + 8 * usize::from(round);
        assert_eq!(scene.a.qp.try_call(&[scene.write(round.into(), place)]), 0);
        scene.a.send_cq.expect_success(u64::from(round));
        assert_eq!(scene.at_b.bytes()[place..place + 8], scene.at_a.bytes()[place..place + 8]);
    }
    assert_eq!(scene.at_b.bytes()[..16], [0; 16]);
}

fn batches_and_lists_keep_the_order_of_posting(device: &Device) {
    let scene = scene(device);
    let write = |wr_id| Wr::write(wr_id, &[scene.at_a.sge(0, 8)], &scene.at_b, 0);
    for first in [0, 10, 20] {
        assert_eq!(scene.a.qp.try_call(&[write(first), write(first + 1)]), 0);
        scene.a.qp.post(&write(first + 2));
        assert_eq!(scene.a.qp.try_call(&[write(first + 3)]), 0);
        assert_eq!(scene.a.qp.try_post_list(&[write(first + 4), write(first + 5)]), Ok(()));
    }
    [0, 10, 20].into_iter().for_each(|first| scene.expect_successes(first..first + 6));
}

fn a_request_that_fails_flushes_the_rest_of_its_batch(device: &Device) {
    let scene = scene(device);
    let bad = scene.write(2, 8).remote(scene.at_b.address(), scene.at_b.key() ^ 0x0010_0000);
    let batch = [scene.write(1, 0), bad, scene.write(3, 16).unsignaled(), scene.write(4, 24)];
    assert_eq!(scene.a.qp.try_call(&batch), 0);
    scene.a.send_cq.expect_success(1);
    scene.a.send_cq.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
    scene.a.send_cq.expect_flushed([3, 4]);
    scene.a.qp.wait_for_error();
    assert_eq!(scene.at_b.bytes()[8..], [0; 56]);
}

fn a_batch_of_a_queue_pair_in_error_is_flushed_in_order(device: &Device) {
    let scene = scene(device);
    scene.a.qp.to_error();
    let batch = [scene.write(1, 0), scene.write(2, 8).unsignaled(), scene.write(3, 16)];
    assert_eq!(scene.a.qp.try_call(&batch), 0);
    scene.a.send_cq.expect_flushed([1, 2, 3]);
    scene.at_b.assert_filled(0);
}

fn a_batch_of_a_queue_pair_that_is_not_ready_is_refused(device: &Device) {
    let scene = scene(device);
    scene.a.qp.to_reset();
    assert_eq!(scene.a.qp.state(), ibv_qp_state::IBV_QPS_RESET);
    assert_ne!(scene.a.qp.try_call(&[scene.write(1, 0)]), 0);
    assert!(scene.a.send_cq.is_empty());
    scene.at_b.assert_filled(0);
}

fn a_batch_waits_for_its_receiver_and_later_ones_behind_it(device: &Device) {
    let scene = scene(device);
    assert_eq!(scene.a.qp.try_call(&[Wr::send(1, &[]), Wr::send(2, &[])]), 0);
    assert_eq!(scene.a.qp.try_call(&[scene.write(3, 0)]), 0);
    scene.a.qp.post(&scene.write(4, 8));
    assert!(scene.a.send_cq.is_empty());
    (1..3).for_each(|n| scene.b.qp.post_receive(n, &[]));
    scene.expect_successes(1..5);
}

fn another_thread_waits_for_the_end_of_a_batch(device: &Device) {
    let scene = scene(device);
    let (trying, posted) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scene.a.qp.start();
        scene.a.qp.build(&scene.write(1, 0));
        scope.spawn(|| {
            trying.store(true, Ordering::SeqCst);
            assert_eq!(scene.a.qp.try_call(&[scene.write(2, 8)]), 0);
            posted.store(true, Ordering::SeqCst);
        });
        until("the other thread", || trying.load(Ordering::SeqCst));
        for _ in 0..1000 {
            thread::yield_now();
            assert!(!posted.load(Ordering::SeqCst), "two threads in one batch");
        }
        assert_eq!(scene.a.qp.complete(), 0);
    });
    scene.expect_successes(1..3);
}

fn batches_and_lists_of_several_threads_do_not_mix(device: &Device) {
    needs_calls(device);
    let size = Size { send_wr: 256, ..Size::default() };
    let scene = Scene::with(device, &size, operations());
    thread::scope(|scope| {
        for thread in 0..4 {
            let scene = &scene;
            scope.spawn(move || {
                for batch in 0..16 {
                    let first = 1000 * thread + 10 * batch;
                    let wrs = [0, 1, 2].map(|n| Wr::write(first + n, &[], &scene.at_b, 0));
                    match thread {
                        0 => assert_eq!(scene.a.qp.try_post_list(&wrs), Ok(())),
                        _ => assert_eq!(scene.a.qp.try_call(&wrs), 0),
                    }
                }
            });
        }
    });
    for _ in 0..64 {
        let first = scene.a.send_cq.next().wr_id;
        assert_eq!(first % 10, 0);
        scene.a.send_cq.expect_success(first + 1);
        scene.a.send_cq.expect_success(first + 2);
    }
}
