//! Send and receive queues: their capacities, signaled completions, and when slots are released.

use rdma_sys::{Errno, ibv_wc_status as Status};
use test_support::rig::connect::{Knobs, Side, connect_sides, pair_with};
use test_support::rig::post::Wr;
use test_support::rig::scene::Scene;
use test_support::rig::{LOCAL_WRITE, Qp, Size};

use crate::case::cases;
use crate::device::Device;

cases![
    unsignaled_success_is_silent,
    unsignaled_failure_is_reported,
    unsignaled_request_is_reported_when_every_request_is,
    request_ids_come_back_bit_for_bit,
    requests_of_one_list_are_executed_in_its_order,
    send_queue_takes_as_many_requests_as_it_said,
    receive_queue_takes_as_many_requests_as_it_said,
    send_list_stops_where_the_queue_is_full,
    receive_list_stops_where_the_queue_is_full,
    what_a_full_send_queue_refused_is_never_executed,
    send_queue_has_room_again_when_a_completion_was_polled,
    receive_queue_has_room_again_when_a_completion_was_polled,
    places_of_unsignaled_requests_come_back_with_a_later_completion,
    many_requests_go_through_a_small_queue_in_order,
    queue_pair_that_only_sends_or_only_receives_needs_no_places_for_the_other,
];

const FULL: i32 = Errno::ENOMEM.raw();

fn unsignaled_success_is_silent(device: &Device) {
    let scene = Scene::new(device);
    for n in 1..=5 {
        let wr = Wr::write(n, &[scene.at_a.sge(0, 4)], &scene.at_b, 4 * n as usize);
        scene.a.qp.post(&if n == 5 { wr } else { wr.unsignaled() });
    }
    scene.a.send_cq.expect_success(5);
    assert!(scene.a.send_cq.is_empty());
}

fn unsignaled_failure_is_reported(device: &Device) {
    let scene = Scene::new(device);
    let wr = scene.requests()[0].clone().unsignaled();
    let wr = wr.remote(scene.at_b.address(), scene.at_b.key() ^ 1);
    scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
}

fn unsignaled_request_is_reported_when_every_request_is(device: &Device) {
    let size = Size { signal_all: true, ..Size::default() };
    let scene = Scene::with(device, &size, &Knobs::default());
    scene.a.qp.post(&scene.requests()[0].clone().unsignaled());
    scene.a.send_cq.expect_success(1);
}

fn request_ids_come_back_bit_for_bit(device: &Device) {
    let (a, b) = pair_with(device, &Size::default(), &Knobs::default());
    // Equal IDs are allowed, because only the program uses them.
    for wr_id in [0, u64::MAX, 1 << 63, 0xffff_ffff, 0, 0] {
        b.qp.post_receive(!wr_id, &[]);
        a.qp.post(&Wr::send(wr_id, &[]));
        a.send_cq.expect_success(wr_id);
        b.receive_cq.expect_success(!wr_id);
    }
}

fn requests_of_one_list_are_executed_in_its_order(device: &Device) {
    let (a, b) = pair_with(device, &Size::default(), &Knobs::default());
    let source = a.pd.register_filled((0..32).collect(), 0);
    let sink = b.pd.register(32, LOCAL_WRITE);
    let places: Vec<_> = (0..32).map(|n| [sink.sge(n, 1)]).collect();
    let receives: Vec<_> = places.iter().zip(0..).map(|(place, n)| (n, &place[..])).collect();
    assert_eq!(b.qp.try_post_receive_list(&receives), Ok(()));
    let sends: Vec<_> = (0..32).map(|n| Wr::send(n, &[source.sge(n as usize, 1)])).collect();
    assert_eq!(a.qp.try_post_list(&sends), Ok(()));
    for n in 0..32 {
        a.send_cq.expect_success(n);
        b.receive_cq.expect_success(n);
    }
    assert_eq!(sink.bytes(), source.bytes());
}

/// Returns a pair whose queues have at least this many slots, so A can post at least `places` sends
/// while B has no receive.
fn of_places(device: &Device, places: u32) -> (Side, Side) {
    let size = Size { send_wr: places, receive_wr: places, ..Size::default() };
    pair_with(device, &size, &Knobs::default())
}

fn send_places(qp: &Qp) -> u64 {
    qp.query().cap.max_send_wr.into()
}

fn receive_places(qp: &Qp) -> u64 {
    qp.query().cap.max_recv_wr.into()
}

fn send_queue_takes_as_many_requests_as_it_said(device: &Device) {
    let (a, b) = of_places(device, 10);
    let places = send_places(&a.qp);
    assert!(places >= 10);
    for n in 0..places {
        a.qp.post(&Wr::send(n, &[]));
    }
    for n in 0..places {
        b.qp.post_receive(n, &[]);
        a.send_cq.expect_success(n);
    }
}

fn receive_queue_takes_as_many_requests_as_it_said(device: &Device) {
    let (a, b) = of_places(device, 10);
    let places = receive_places(&b.qp);
    assert!(places >= 10);
    for n in 0..places {
        b.qp.post_receive(n, &[]);
    }
    for n in 0..places {
        a.qp.post(&Wr::send(n, &[]));
        b.receive_cq.expect_success(n);
        a.send_cq.expect_success(n);
    }
}

/// Posts more sends than fit into A's empty queue, while B has no receive. Returns the number of
/// accepted requests.
#[track_caller]
fn overfill_sends(a: &Side) -> usize {
    let places = send_places(&a.qp) as usize;
    let list: Vec<_> = (0..2 * places as u64 + 8).map(|n| Wr::send(n, &[])).collect();
    let (taken, errno) = a.qp.try_post_list(&list).unwrap_err();
    assert_eq!(errno, FULL);
    assert!(taken >= places, "{taken} of {places}");
    taken
}

fn send_list_stops_where_the_queue_is_full(device: &Device) {
    let (a, _b) = of_places(device, 4);
    overfill_sends(&a);
    assert_eq!(a.qp.try_post_list(&[Wr::send(90, &[]), Wr::send(91, &[])]), Err((0, FULL)));
}

#[track_caller]
fn overfill_receives(b: &Side) -> usize {
    let places = receive_places(&b.qp) as usize;
    let list: Vec<_> = (0..2 * places as u64 + 8).map(|n| (n, &[][..])).collect();
    let (taken, errno) = b.qp.try_post_receive_list(&list).unwrap_err();
    assert_eq!(errno, FULL);
    assert!(taken >= places, "{taken} of {places}");
    taken
}

fn receive_list_stops_where_the_queue_is_full(device: &Device) {
    let (_a, b) = of_places(device, 4);
    overfill_receives(&b);
    assert_eq!(b.qp.try_post_receive_list(&[(90, &[]), (91, &[])]), Err((0, FULL)));
}

fn what_a_full_send_queue_refused_is_never_executed(device: &Device) {
    let (a, b) = of_places(device, 4);
    let taken = overfill_sends(&a) as u64;
    for n in 0..taken {
        b.qp.post_receive(n, &[]);
        a.send_cq.expect_success(n);
        b.receive_cq.expect_success(n);
    }
    // If a refused request had been posted, it would complete before this one.
    b.qp.post_receive(500, &[]);
    a.qp.post(&Wr::send(600, &[]));
    a.send_cq.expect_success(600);
    b.receive_cq.expect_success(500);
}

fn send_queue_has_room_again_when_a_completion_was_polled(device: &Device) {
    let (a, b) = of_places(device, 2);
    let taken = overfill_sends(&a) as u64;
    for n in 0..10 {
        b.qp.post_receive(n, &[]);
        b.receive_cq.expect_success(n);
        a.send_cq.expect_success(n);
        a.qp.post(&Wr::send(taken + n, &[]));
    }
}

fn receive_queue_has_room_again_when_a_completion_was_polled(device: &Device) {
    let (a, b) = of_places(device, 2);
    let taken = overfill_receives(&b) as u64;
    for n in 0..10 {
        a.qp.post(&Wr::send(n, &[]));
        b.receive_cq.expect_success(n);
        b.qp.post_receive(taken + n, &[]);
        a.send_cq.expect_success(n);
    }
}

fn places_of_unsignaled_requests_come_back_with_a_later_completion(device: &Device) {
    let size = Size { send_wr: 3, ..Size::default() };
    let scene = Scene::with(device, &size, &Knobs::default());
    let places = send_places(&scene.a.qp);
    let write = |n| Wr::write(n, &[scene.at_a.sge(0, 4)], &scene.at_b, 0);
    for round in 0..5 {
        for n in 1..places {
            scene.a.qp.post(&write(n).unsignaled());
        }
        scene.a.qp.post(&write(round + 100));
        scene.a.send_cq.expect_success(round + 100);
    }
}

fn many_requests_go_through_a_small_queue_in_order(device: &Device) {
    let (a, b) = of_places(device, 3);
    let source = a.pd.register_filled((0..=255).collect(), 0);
    let sink = b.pd.register(3, LOCAL_WRITE);
    let (mut posted, mut sent, mut received) = (0u64, 0u64, 0u64);
    for n in 0..3 {
        b.qp.post_receive(n, &[sink.sge(n as usize, 1)]);
    }
    while received < 256 {
        while posted < 256 && posted - sent < 3 {
            a.qp.post(&Wr::send(posted, &[source.sge(posted as usize, 1)]));
            posted += 1;
        }
        a.send_cq.expect_success(sent);
        sent += 1;
        b.receive_cq.expect_success(received);
        let place = (received % 3) as usize;
        assert_eq!(u64::from(sink.bytes()[place]), received);
        received += 1;
        b.qp.post_receive(received + 2, &[sink.sge(place, 1)]);
    }
}

fn queue_pair_that_only_sends_or_only_receives_needs_no_places_for_the_other(device: &Device) {
    let sender = Size { receive_wr: 0, ..Size::default() };
    let receiver = Size { send_wr: 0, ..Size::default() };
    let (a, b) = (Side::new(device, &sender, 16), Side::new(device, &receiver, 16));
    connect_sides(&a, &b, &Knobs::default());
    b.qp.post_receive(1, &[]);
    a.qp.post(&Wr::send(2, &[]));
    a.send_cq.expect_success(2);
    b.receive_cq.expect_success(1);
}
