//! Requests that are provably in flight, some of them half copied, when something ends: a cancelled or refused request
//! touches no memory afterwards.

use rdma_soft::SoftDevice;
use rdma_sys::{ibv_sge, ibv_wc_status as Status};
use rdma_types::Qpn;

use crate::device::rig::connect::{Knobs, connect_sides, pair};
use crate::device::rig::post::Wr;
use crate::device::rig::scene::{AT_A, AT_B, BYTES, RECEIVE_A, RECEIVE_B, Scene};
use crate::device::rig::{ALL_ACCESS, Size, on_each_held_device, until};

const HALF: usize = BYTES / 2;

/// A WRITE, a READ or a SEND of all 64 bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Write,
    Read,
    Send,
}

const KINDS: [Kind; 3] = [Kind::Write, Kind::Read, Kind::Send];

/// The contents of the destination after the first `n` bytes have arrived.
fn arrived(kind: Kind, n: usize) -> Vec<u8> {
    let (old, new) = if kind == Kind::Read { (AT_A, AT_B) } else { (AT_B, AT_A) };
    let mut bytes = vec![old; BYTES];
    bytes[..n].fill(new);
    bytes
}

/// A scene whose A has posted request 1.
fn posted(device: &SoftDevice, kind: Kind) -> Scene {
    let scene = Scene::with(device.name(), &Size::default(), &Knobs::prompt());
    let all = [scene.at_a.sge(0, BYTES)];
    scene.a.qp.post(&match kind {
        Kind::Write => Wr::write(1, &all, &scene.at_b, 0),
        Kind::Read => Wr::read(1, &all, &scene.at_b, 0),
        Kind::Send => Wr::send(1, &all),
    });
    assert_eq!(device.in_flight(scene.a.qp.qpn()), 1);
    scene
}

/// A scene whose A has a half-copied request.
fn half_way(device: &SoftDevice, kind: Kind) -> Scene {
    let scene = posted(device, kind);
    assert!(device.release_half(scene.a.qp.qpn()));
    assert_eq!(device.half_copied(scene.a.qp.qpn()), HALF as u64);
    assert_eq!(device.in_flight(scene.a.qp.qpn()), 1);
    assert_eq!(destination(&scene, kind), arrived(kind, HALF));
    scene
}

fn destination(scene: &Scene, kind: Kind) -> Vec<u8> {
    if kind == Kind::Read { scene.at_a.bytes() } else { scene.at_b.bytes() }
}

fn for_each_kind(name: &str, test: impl Fn(&SoftDevice, Kind)) {
    on_each_held_device(name, |device| KINDS.into_iter().for_each(|kind| test(device, kind)));
}

/// Checks that the destination stays half filled, whatever is released now.
#[track_caller]
fn expect_still_half(device: &SoftDevice, scene: &Scene, kind: Kind) {
    device.release_all();
    assert_eq!(destination(scene, kind), arrived(kind, HALF));
    assert!(scene.b.receive_cq.is_empty());
}

#[test]
fn nothing_happens_before_it_is_released() {
    for_each_kind("held-nothing", |device, kind| {
        let scene = posted(device, kind);
        for _ in 0..1000 {
            assert!(scene.a.send_cq.is_empty() && scene.b.receive_cq.is_empty());
        }
        scene.assert_untouched();
        assert_eq!(device.release(scene.a.qp.qpn(), 1), 1);
        assert_eq!(destination(&scene, kind), arrived(kind, BYTES));
        scene.a.send_cq.expect_success(1);
        assert_eq!(device.in_flight(scene.a.qp.qpn()), 0);
    });
}

#[test]
fn half_of_a_copy_is_half_and_the_rest_follows() {
    for_each_kind("held-half", |device, kind| {
        let scene = half_way(device, kind);
        assert!(scene.a.send_cq.is_empty() && scene.b.receive_cq.is_empty());
        assert_eq!(device.release(scene.a.qp.qpn(), 1), 1);
        assert_eq!(destination(&scene, kind), arrived(kind, BYTES));
        assert_eq!(device.half_copied(scene.a.qp.qpn()), 0);
        scene.a.send_cq.expect_success(1);
        if kind == Kind::Send {
            assert_eq!(scene.b.receive_cq.expect_success(RECEIVE_B).byte_len as usize, BYTES);
        }
        assert!(scene.a.send_cq.is_empty() && scene.b.receive_cq.is_empty());
    });
}

#[test]
fn one_byte_cannot_be_half_copied() {
    on_each_held_device("held-byte", |device| {
        let scene = Scene::new(device.name());
        scene.a.qp.post(&Wr::write(1, &[scene.at_a.sge(0, 1)], &scene.at_b, 0));
        assert!(!device.release_half(scene.a.qp.qpn()));
        scene.a.send_cq.expect_success(1);
    });
}

#[test]
fn half_of_a_copy_over_many_elements_is_half() {
    on_each_held_device("held-half-elements", |device| {
        let scene = Scene::new(device.name());
        let source = scene.a.pd.register_filled((0..64).collect(), 0);
        let sink = scene.b.pd.register(70, ALL_ACCESS);
        scene.b.qp.post_receive(2, &[sink.sge(0, 5), sink.sge(10, 30), sink.sge(40, 30)]);
        let qpn = scene.a.qp.qpn();
        scene.a.qp.post(&Wr::send(1, &[]));
        scene.a.qp.post(&Wr::send(2, &[source.sge(0, 33), source.sge(40, 24), source.sge(33, 4)]));
        assert!(!device.release_half(qpn), "an empty queue has no half");
        scene.a.send_cq.expect_success(1);
        assert!(device.release_half(qpn));
        // 61 bytes in all, 30 of them now.
        let mut expected = vec![0; 70];
        expected[..5].copy_from_slice(&[0, 1, 2, 3, 4]);
        expected[10..35].copy_from_slice(&(5..30).collect::<Vec<u8>>());
        assert_eq!(sink.bytes(), expected);
        assert_eq!(device.release_all(), 1);
        let message: Vec<u8> = (0..33).chain(40..64).chain(33..37).collect();
        expected[10..40].copy_from_slice(&message[5..35]);
        expected[40..66].copy_from_slice(&message[35..]);
        assert_eq!(sink.bytes(), expected);
    });
}

#[test]
fn requests_are_released_in_order_and_as_many_as_asked_for() {
    on_each_held_device("held-count", |device| {
        let scene = Scene::new(device.name());
        for n in 0..10 {
            scene.a.qp.post(&Wr::write(n, &[scene.at_a.sge(0, 8)], &scene.at_b, 0));
        }
        let qpn = scene.a.qp.qpn();
        assert_eq!(device.release(qpn, 0), 0);
        assert_eq!(device.release(qpn, 3), 3);
        assert_eq!(device.in_flight(qpn), 7);
        for n in 0..3 {
            scene.a.send_cq.expect_success(n);
        }
        assert!(scene.a.send_cq.is_empty());
        assert_eq!(device.release(qpn, 100), 7);
        for n in 3..10 {
            scene.a.send_cq.expect_success(n);
        }
        let nobody = Qpn::masked(qpn.get() ^ 0x0080_0000);
        assert_eq!((device.release(nobody, 1), device.in_flight(nobody)), (0, 0));
    });
}

#[test]
fn all_that_a_device_holds_is_released_at_once() {
    on_each_held_device("held-all", |device| {
        let scenes: Vec<_> = KINDS.into_iter().map(|kind| (kind, posted(device, kind))).collect();
        scenes[2].1.b.qp.post(&Wr::write(5, &[], &scenes[2].1.at_a, 0));
        assert_eq!(device.release_all(), 4);
        for (kind, scene) in &scenes {
            scene.a.send_cq.expect_success(1);
            assert_eq!(destination(scene, *kind), arrived(*kind, BYTES));
        }
        scenes[2].1.b.send_cq.expect_success(5);
        assert_eq!(device.release_all(), 0);
    });
}

#[test]
fn receiver_that_was_not_ready_is_retried_once_it_is() {
    on_each_held_device("held-not-ready", |device| {
        let (a, b) = pair(device.name());
        a.qp.post(&Wr::send(1, &[]));
        a.qp.post(&Wr::send(2, &[]));
        let qpn = a.qp.qpn();
        assert_eq!(device.release(qpn, 1), 0, "it stays");
        b.qp.post_receive(3, &[]);
        b.qp.post_receive(4, &[]);
        a.send_cq.expect_success(1);
        assert_eq!(device.in_flight(qpn), 1, "the second was never released");
        assert_eq!(device.release(qpn, 1), 1);
        a.send_cq.expect_success(2);
    });
}

#[test]
fn destroying_the_requester_cancels_what_it_holds() {
    for_each_kind("held-destroy-a", |device, kind| {
        let mut scene = half_way(device, kind);
        let qpn = scene.a.qp.qpn();
        scene.a.qp.post(&Wr::write(2, &[scene.at_a.sge(0, 8)], &scene.at_b, HALF));
        scene.a.qp.destroy();
        let (send_cq, receive_cq) = (&scene.a.send_cq, &scene.a.receive_cq);
        assert!(send_cq.is_empty() && receive_cq.is_empty(), "no completion outlives it");
        assert_eq!((device.in_flight(qpn), device.release(qpn, 9)), (0, 0));
        expect_still_half(device, &scene, kind);
        scene.b.qp.assert_ready();
        // The message never ends, so it still holds the receive request.
        scene.b.qp.to_error();
        scene.b.receive_cq.expect_flushed([RECEIVE_B]);
    });
}

#[test]
fn destroying_the_responder_leaves_its_memory_alone() {
    for_each_kind("held-destroy-b", |device, kind| {
        let mut scene = half_way(device, kind);
        scene.b.qp.destroy();
        assert_eq!(device.release(scene.a.qp.qpn(), 1), 0, "the destroyed peer does not answer");
        expect_still_half(device, &scene, kind);
        scene.a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        expect_still_half(device, &scene, kind);
    });
}

#[test]
fn error_state_of_the_requester_cancels_what_it_holds() {
    for_each_kind("held-error-a", |device, kind| {
        let scene = half_way(device, kind);
        scene.a.qp.post(&Wr::write(2, &[], &scene.at_b, 0).unsignaled());
        scene.a.qp.to_error();
        scene.a.send_cq.expect_flushed([1, 2]);
        scene.a.receive_cq.expect_flushed([RECEIVE_A]);
        let qpn = scene.a.qp.qpn();
        assert_eq!((device.in_flight(qpn), device.half_copied(qpn)), (0, 0));
        expect_still_half(device, &scene, kind);
        scene.b.qp.assert_ready();
    });
}

#[test]
fn error_state_of_the_responder_leaves_its_memory_alone() {
    for_each_kind("held-error-b", |device, kind| {
        let scene = half_way(device, kind);
        scene.b.qp.to_error();
        scene.b.receive_cq.expect_flushed([RECEIVE_B]);
        expect_still_half(device, &scene, kind);
        scene.a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        expect_still_half(device, &scene, kind);
    });
}

#[test]
fn reset_of_the_requester_drops_what_it_holds() {
    for_each_kind("held-reset-a", |device, kind| {
        let scene = half_way(device, kind);
        scene.a.qp.to_reset();
        assert_eq!(device.in_flight(scene.a.qp.qpn()), 0);
        assert_eq!(device.half_copied(scene.a.qp.qpn()), 0);
        expect_still_half(device, &scene, kind);
        assert!(scene.a.send_cq.is_empty());
        // After the reset a copy starts from the beginning.
        scene.b.qp.to_reset();
        connect_sides(&scene.a, &scene.b, &Knobs::default());
        scene.a.qp.post(&Wr::write(3, &[scene.at_a.sge(0, 8)], &scene.at_b, 50));
        assert_eq!(device.release_all(), 1);
        scene.a.send_cq.expect_success(3);
        assert_eq!(scene.at_b.bytes()[50..58], scene.at_a.bytes()[..8]);
    });
}

#[test]
fn reset_of_the_responder_leaves_its_memory_alone() {
    for_each_kind("held-reset-b", |device, kind| {
        let scene = half_way(device, kind);
        scene.b.qp.to_reset();
        expect_still_half(device, &scene, kind);
        scene.a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        expect_still_half(device, &scene, kind);
    });
}

#[test]
fn deregistering_the_requesters_region_fails_what_it_holds() {
    for_each_kind("held-dereg-a", |device, kind| {
        let Scene { a, b, at_a, at_b } = half_way(device, kind);
        let memory = at_a.deregister();
        assert_eq!(device.release(a.qp.qpn(), 1), 1);
        a.send_cq.expect(1, Status::IBV_WC_LOC_PROT_ERR);
        let sink = if kind == Kind::Read { memory } else { at_b.bytes() };
        assert_eq!(sink, arrived(kind, HALF));
        b.qp.assert_ready();
        b.qp.to_error();
        b.receive_cq.expect_flushed([RECEIVE_B]);
    });
}

#[test]
fn deregistering_the_responders_region_fails_what_is_held() {
    for_each_kind("held-dereg-b", |device, kind| {
        let Scene { a, b, at_a, at_b } = half_way(device, kind);
        let memory = at_b.deregister();
        assert_eq!(device.release(a.qp.qpn(), 1), 1);
        if kind == Kind::Send {
            a.send_cq.expect(1, Status::IBV_WC_REM_OP_ERR);
            b.receive_cq.expect(RECEIVE_B, Status::IBV_WC_LOC_PROT_ERR);
        } else {
            a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
            b.receive_cq.expect_flushed([RECEIVE_B]);
        }
        let sink = if kind == Kind::Read { at_a.bytes() } else { memory };
        assert_eq!(sink, arrived(kind, HALF));
    });
}

#[test]
fn region_that_is_deregistered_before_its_request_runs_is_refused() {
    for_each_kind("held-dereg-early", |device, kind| {
        let Scene { a, b: _b, at_a, at_b } = posted(device, kind);
        assert_eq!(at_a.deregister(), [AT_A; BYTES]);
        assert_eq!(device.release_all(), 1);
        a.send_cq.expect(1, Status::IBV_WC_LOC_PROT_ERR);
        at_b.assert_filled(AT_B);
    });
}

#[test]
fn inline_data_is_copied_half_way_too() {
    on_each_held_device("held-inline", |device| {
        let scene = Scene::new(device.name());
        let mut bytes = [0x11u8; 32];
        let addr = bytes.as_mut_ptr().expose_provenance() as u64;
        let sge = ibv_sge { addr, length: 32, lkey: 0 };
        scene.a.qp.post(&Wr::write(1, &[sge], &scene.at_b, 0).inline());
        bytes.fill(0x22);
        assert_eq!(std::hint::black_box(bytes), [0x22; 32]);
        assert!(device.release_half(scene.a.qp.qpn()));
        let half = scene.at_b.bytes();
        assert_eq!((&half[..16], &half[16..]), (&[0x11; 16][..], &[AT_B; BYTES - 16][..]));
        assert_eq!(device.release_all(), 1);
        assert_eq!(scene.at_b.bytes()[..32], [0x11; 32]);
    });
}

#[test]
fn peer_may_deregister_and_end_while_requests_wait_for_it() {
    on_each_held_device("held-all-gone", |device| {
        let Scene { a, b, at_a, at_b } = posted(device, Kind::Write);
        let memory = at_b.deregister();
        drop(b);
        assert_eq!(device.release_all(), 0);
        until("the retries", || device.in_flight(a.qp.qpn()) == 0);
        a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        assert_eq!(memory, [AT_B; BYTES]);
        at_a.assert_filled(AT_A);
    });
}
