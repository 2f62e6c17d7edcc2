//! Memory that a program has declared to stay mapped: the kernel copies none of it, on any path of a request.

use rdma_soft::{Builder, Peers, Schedule};
use rdma_sys::ibv_qp_type;

use crate::device::rig::connect::{Knobs, Side, connect_unreliably, pair};
use crate::device::rig::datagram;
use crate::device::rig::post::Wr;
use crate::device::rig::window::TYPE_2;
use crate::device::rig::{ALL_ACCESS, MW_BIND, Mr, REMOTE_WRITE, Size, soft};

const LENGTH: usize = 10_000;

/// Devices that execute requests elsewhere than within their post.
fn devices(name: &str) -> [String; 3] {
    let [deferred, wire, link] = ["deferred", "wire", "link"].map(|way| format!("{name}-{way}"));
    Builder::new(&deferred).schedule(Schedule::Deferred { seed: 3 }).install().unwrap();
    Builder::new(&wire).force_wire().install().unwrap();
    Builder::new(&link).peers(Peers::SameUser).force_wire().install().unwrap();
    [deferred, wire, link]
}

fn memory(side: &Side, byte: u8) -> Mr {
    side.pd.register_filled(vec![byte; LENGTH], ALL_ACCESS).mapped()
}

#[track_caller]
fn assert_not_guarded(device: &str) {
    assert_eq!(soft(device).counters().guarded_copies, 0, "{device}");
}

#[test]
fn requests_of_reliable_connections_take_no_guarded_copy() {
    for device in devices("mapped-rc") {
        let (a, b) = pair(&device);
        let (here, there) = (memory(&a, 1), memory(&b, 2));
        let all = [here.sge(0, 100), here.sge(100, LENGTH - 100)];
        a.qp.post(&Wr::write(1, &all, &there, 0));
        a.send_cq.expect_success(1);
        there.assert_filled(1);
        there.fill(3);
        a.qp.post(&Wr::read(2, &all, &there, 0));
        a.send_cq.expect_success(2);
        here.assert_filled(3);
        b.qp.post_receive(4, &[there.sge(LENGTH / 2, LENGTH / 2)]);
        a.qp.post(&Wr::send(3, &[here.sge(0, LENGTH / 2)]));
        a.send_cq.expect_success(3);
        b.receive_cq.expect_success(4);
        a.qp.post(&Wr::fetch_add(5, &[here.sge(0, 8)], &there, 8, 1));
        a.send_cq.expect_success(5);
        assert_not_guarded(&device);
    }
}

/// A message without a receive request is executed by the call that posts one, for another queue pair.
#[test]
fn requests_started_by_a_receive_take_no_guarded_copy() {
    Builder::new("mapped-turn").install().unwrap();
    let (a, b) = pair("mapped-turn");
    let (here, there) = (memory(&a, 1), memory(&b, 2));
    a.qp.post(&Wr::send(1, &[here.sge(0, LENGTH)]));
    b.qp.post_receive(2, &[there.sge(0, LENGTH)]);
    a.send_cq.expect_success(1);
    b.receive_cq.expect_success(2);
    there.assert_filled(1);
    assert_not_guarded("mapped-turn");
}

#[test]
fn messages_without_acknowledgements_take_no_guarded_copy() {
    for device in devices("mapped-uc") {
        let size = Size { qp_type: ibv_qp_type::IBV_QPT_UC, ..Size::default() };
        let [a, b] = [(); 2].map(|()| Side::new(&device, &size, 64));
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        connect_unreliably(&a.qp, &at_a, &at_b, &Knobs::default());
        connect_unreliably(&b.qp, &at_b, &at_a, &Knobs::default());
        let (here, there) = (memory(&a, 1), memory(&b, 2));
        b.qp.post_receive(2, &[there.sge(0, LENGTH)]);
        a.qp.post(&Wr::send(1, &[here.sge(0, LENGTH)]));
        a.send_cq.expect_success(1);
        b.receive_cq.expect_success(2);
        there.assert_filled(1);
        assert_not_guarded(&device);
    }
}

#[test]
fn datagrams_take_no_guarded_copy() {
    for device in devices("mapped-ud") {
        let [a, b] = [(); 2].map(|()| datagram::side(&device));
        let (here, there) = (memory(&a, 1), memory(&b, 2));
        let to = b.endpoint();
        let ah = a.pd.ah_to(&a.endpoint(), &to);
        b.qp.post_receive(2, &[there.sge(0, 200)]);
        a.qp.post(&Wr::send(1, &[here.sge(0, 100)]).to(&ah, to.qpn, datagram::QKEY));
        a.send_cq.expect_success(1);
        assert_eq!(b.receive_cq.expect_success(2).byte_len, 140);
        assert_eq!(there.bytes()[datagram::HEADER..200], [vec![1; 100], vec![2; 60]].concat());
        ah.destroy();
        assert_not_guarded(&device);
    }
}

/// A window inherits this from its region.
#[test]
fn requests_through_a_window_take_no_guarded_copy() {
    for device in devices("mapped-window") {
        let (a, b) = pair(&device);
        let here = memory(&a, 1);
        let there = b.pd.register_filled(vec![2; LENGTH], ALL_ACCESS | MW_BIND).mapped();
        let window = b.pd.mw(TYPE_2);
        let key = b.qp.post_bind(3, &window, there.part(0, LENGTH, REMOTE_WRITE));
        b.send_cq.expect_success(3);
        let write = Wr::write(1, &[here.sge(0, LENGTH)], &there, 0);
        a.qp.post(&write.remote(there.address(), key));
        a.send_cq.expect_success(1);
        there.assert_filled(1);
        assert_not_guarded(&device);
    }
}
