//! Messages that are half-way when their receiver begins a new life, and sources that change: what was
//! begun is never continued into something else.

use rdma_soft::{Builder, GidPlace, Schedule};
use rdma_sys::{
    ibv_qp_attr_mask as Mask, ibv_qp_state as State, ibv_qp_type, ibv_wc_status as Status,
};
use rdma_types::GidType;

use crate::rig::connect::{
    Knobs, Side, attributes, connect, connect_sides, connect_unreliably, endpoint_with_gid,
};
use crate::rig::post::Wr;
use crate::rig::scene::{AT_A, AT_B, BYTES, Scene};
use crate::rig::{ALL_ACCESS, Size, on_each_held_device};

/// The receiver is reset while half of a SEND is there, and connected again: the message is whole in
/// the receive request that it is said to be in.
#[test]
fn a_send_begins_again_in_the_receive_after_a_reset() {
    on_each_held_device("half-reset", |device| {
        let scene = Scene::new(device.name());
        scene.a.qp.post(&Wr::send(1, &[scene.at_a.sge(0, BYTES)]));
        assert!(device.release_half(scene.a.qp.qpn()));
        scene.b.qp.to_reset();
        let (at_a, at_b) = (scene.a.endpoint(), scene.b.endpoint());
        connect(&scene.b.qp, &at_b, &at_a, &Knobs::default());
        let next = scene.b.pd.register_filled(vec![0; BYTES], ALL_ACCESS);
        scene.b.qp.post_receive(2, &[next.sge(0, BYTES)]);
        assert_eq!(device.release(scene.a.qp.qpn(), 1), 1);
        scene.a.send_cq.expect_success(1);
        assert_eq!(scene.b.receive_cq.expect_success(2).byte_len as usize, BYTES);
        assert_eq!(next.bytes(), [AT_A; BYTES]);
    });
}

/// The same without acknowledgements.
#[test]
fn an_unreliable_send_begins_again_in_the_receive_after_a_reset() {
    on_each_held_device("half-reset-uc", |device| {
        let size = Size { qp_type: ibv_qp_type::IBV_QPT_UC, ..Size::default() };
        let [a, b] = [(); 2].map(|()| Side::new(device.name(), &size, 64));
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        connect_unreliably(&a.qp, &at_a, &at_b, &Knobs::default());
        connect_unreliably(&b.qp, &at_b, &at_a, &Knobs::default());
        let source = a.pd.register_filled(vec![AT_A; BYTES], 0);
        let sinks = [(); 2].map(|()| b.pd.register_filled(vec![AT_B; BYTES], ALL_ACCESS));
        b.qp.post_receive(1, &[sinks[0].sge(0, BYTES)]);
        a.qp.post(&Wr::send(1, &[source.sge(0, BYTES)]));
        assert!(device.release_half(a.qp.qpn()));
        b.qp.to_reset();
        connect_unreliably(&b.qp, &at_b, &at_a, &Knobs::default());
        b.qp.post_receive(2, &[sinks[1].sge(0, BYTES)]);
        assert_eq!(device.release(a.qp.qpn(), 1), 1);
        b.receive_cq.expect_success(2);
        assert_eq!(sinks[1].bytes(), [AT_A; BYTES]);
    });
}

/// A requester that was reset while half of its message was there begins its next message, which comes to
/// the same receive request, at the beginning.
#[test]
fn a_new_message_begins_at_the_beginning() {
    on_each_held_device("half-new", |device| {
        let scene = Scene::new(device.name());
        scene.a.qp.post(&Wr::send(1, &[scene.at_a.sge(0, BYTES)]));
        assert!(device.release_half(scene.a.qp.qpn()));
        scene.a.qp.to_reset();
        let (at_a, at_b) = (scene.a.endpoint(), scene.b.endpoint());
        connect(&scene.a.qp, &at_a, &at_b, &Knobs::default());
        let other = scene.a.pd.register_filled(vec![0x77; BYTES], 0);
        scene.a.qp.post(&Wr::send(2, &[other.sge(0, BYTES)]));
        assert_eq!(device.release(scene.a.qp.qpn(), 1), 1);
        scene.a.send_cq.expect_success(2);
        assert_eq!(scene.at_b.bytes(), [0x77; BYTES]);
    });
}

/// A drained requester takes another address of its port as its source: its peer was told of the first,
/// and drops what comes from elsewhere.
#[test]
fn a_new_source_is_not_taken_for_the_old_one() {
    for (name, schedule) in
        [("av", Schedule::Immediate), ("av-deferred", Schedule::Deferred { seed: 3 })]
    {
        let places =
            [GidPlace::Ipv4Mapped(GidType::ROCE_V2), GidPlace::Ipv4Mapped(GidType::ROCE_V2)];
        Builder::new(name).gids(places).schedule(schedule).install().unwrap();
        let [a, b] = [(); 2].map(|()| Side::new(name, &Size::default(), 64));
        connect_sides(&a, &b, &Knobs::default());
        b.qp.post_receive(10, &[]);
        a.qp.post(&Wr::send(1, &[]));
        a.send_cq.expect_success(1);
        let source = |index| {
            assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
            let own = endpoint_with_gid(&a.context, &a.qp, index);
            let attr = attributes(&own, &b.endpoint(), &Knobs::default());
            assert_eq!(a.qp.modify(attr, Mask::IBV_QP_AV.0), 0);
            assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
        };
        source(1);
        source(0);
        b.qp.post_receive(11, &[]);
        a.qp.post(&Wr::send(2, &[]));
        a.send_cq.expect_success(2);
        source(1);
        b.qp.post_receive(12, &[]);
        a.qp.post(&Wr::send(3, &[]));
        a.send_cq.expect(3, Status::IBV_WC_RETRY_EXC_ERR);
        b.receive_cq.expect_success(10);
        b.receive_cq.expect_success(11);
        assert!(b.receive_cq.is_empty(), "a message from another source was taken");
    }
}
