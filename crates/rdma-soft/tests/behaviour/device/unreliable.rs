//! Unreliable connections: there are no acknowledgements, so a message counts as sent whatever
//! happens to it.

use rdma_sys::{
    ibv_qp_attr_mask as Mask, ibv_qp_state as State, ibv_qp_type, ibv_wc_status as Status,
};

use crate::device::rig::connect::{Knobs, Side, attributes, connect_unreliably};
use crate::device::rig::post::Wr;
use crate::device::rig::{ALL_ACCESS, Mr, Size, on_each_device, on_each_held_device, soft};

const BYTES: usize = 64;

fn size() -> Size {
    Size { qp_type: ibv_qp_type::IBV_QPT_UC, ..Size::default() }
}

/// Two connected ends with memory of 64 bytes: a's are 0xaa, b's 0xbb.
struct Pair {
    at_a: Mr,
    at_b: Mr,
    a: Side,
    b: Side,
}

impl Pair {
    fn new(device: &str) -> Self {
        Self::with(device, &Knobs::default())
    }

    fn with(device: &str, knobs: &Knobs) -> Self {
        let (a, b) = (Side::new(device, &size(), 256), Side::new(device, &size(), 256));
        connect_unreliably(&a.qp, &a.endpoint(), &b.endpoint(), knobs);
        connect_unreliably(&b.qp, &b.endpoint(), &a.endpoint(), knobs);
        let at_a = a.pd.register_filled(vec![0xaa; BYTES], ALL_ACCESS);
        let at_b = b.pd.register_filled(vec![0xbb; BYTES], ALL_ACCESS);
        Self { at_a, at_b, a, b }
    }

    fn send(&self, wr_id: u64) -> Wr {
        Wr::send(wr_id, &[self.at_a.sge(0, 16)])
    }

    fn write(&self, wr_id: u64) -> Wr {
        Wr::write(wr_id, &[self.at_a.sge(0, 16)], &self.at_b, 8)
    }

    /// Posts a request that is lost: the sender is done, and B is unchanged.
    #[track_caller]
    fn expect_lost(&self, wr: &Wr) {
        self.a.qp.post(wr);
        self.a.send_cq.expect_success(wr.wr.wr_id);
        assert!(self.b.receive_cq.is_empty());
        self.at_b.assert_filled(0xbb);
        self.a.qp.assert_ready();
    }

    /// Posts a request that arrives.
    #[track_caller]
    fn expect_sent(&self, wr_id: u64, receive: u64) {
        self.a.qp.post(&self.send(wr_id));
        self.a.send_cq.expect_success(wr_id);
        assert_eq!(self.b.receive_cq.expect_success(receive).byte_len, 16);
    }

    fn receive(&self, wr_id: u64, length: usize) {
        self.b.qp.post_receive(wr_id, &[self.at_b.sge(0, length)]);
    }
}

#[test]
fn nothing_is_sent_before_its_release_and_the_rest_follows_the_half() {
    on_each_held_device("uc-held", |device| {
        let pair = Pair::new(device.name());
        let qpn = pair.a.qp.qpn();
        pair.a.qp.post(&pair.write(1));
        pair.a.qp.post(&pair.send(2));
        assert_eq!(device.in_flight(qpn), 2);
        assert!(pair.a.send_cq.is_empty());
        pair.at_b.assert_filled(0xbb);
        assert!(device.release_half(qpn));
        assert_eq!(device.half_copied(qpn), 8);
        assert_eq!(pair.at_b.bytes()[8..24], [[0xaa; 8], [0xbb; 8]].concat());
        assert_eq!(device.release(qpn, 1), 1);
        assert_eq!(pair.at_b.bytes()[8..24], [0xaa; 16]);
        pair.a.send_cq.expect_success(1);
        assert_eq!(device.release(qpn, 9), 1, "without a receive it is lost, and does not wait");
        pair.a.send_cq.expect_success(2);
        assert!(pair.b.receive_cq.is_empty());
    });
}

#[test]
fn messages_that_are_held_are_lost_with_their_receiver() {
    on_each_held_device("uc-held-lost", |device| {
        let mut pair = Pair::new(device.name());
        let qpn = pair.a.qp.qpn();
        pair.a.qp.post(&pair.write(1));
        assert!(device.release_half(qpn));
        pair.b.qp.destroy();
        pair.at_b.fill(0xbb);
        assert_eq!(device.release_all(), 1);
        pair.at_b.assert_filled(0xbb);
        pair.a.send_cq.expect_success(1);
    });
}

#[test]
fn held_requests_after_one_that_fails_are_flushed() {
    on_each_held_device("uc-held-flush", |device| {
        let Pair { a, b: _b, at_a, at_b } = Pair::new(device.name());
        let local = [at_a.sge(0, 16)];
        for id in 1..=3 {
            a.qp.post(&Wr::write(id, &local, &at_b, 0));
        }
        assert_eq!(device.release(a.qp.qpn(), 1), 1);
        a.send_cq.expect_success(1);
        at_a.deregister();
        assert_eq!(device.release(a.qp.qpn(), 1), 1);
        a.send_cq.expect(2, Status::IBV_WC_LOC_PROT_ERR);
        a.send_cq.expect_flushed([3]);
        assert_eq!((device.in_flight(a.qp.qpn()), a.qp.state()), (0, State::IBV_QPS_SQE));
    });
}

#[test]
fn a_port_that_is_down_loses_messages() {
    on_each_device("uc-port", |device| {
        let pair = Pair::new(device);
        pair.receive(10, 32);
        pair.a.qp.post(&Wr::send(1, &[]));
        pair.b.receive_cq.expect_success(10);
        pair.a.send_cq.expect_success(1);
        pair.receive(11, 32);
        soft(device).set_port_up(false);
        pair.expect_lost(&pair.send(2));
        soft(device).set_port_up(true);
        pair.expect_sent(3, 11);
    });
}

#[test]
fn a_connection_follows_its_path_and_its_peer() {
    rdma_soft::Builder::new("uc-path-1").install().unwrap();
    rdma_soft::Builder::new("uc-path-2").install().unwrap();
    let side = |device| Side::new(device, &size(), 64);
    let (a, b) = (side("uc-path-1"), side("uc-path-2"));
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    connect_unreliably(&a.qp, &at_a, &at_b, &Knobs::default());
    connect_unreliably(&b.qp, &at_b, &at_a, &Knobs::default());
    for wr_id in 10..12 {
        b.qp.post_receive(wr_id, &[]);
    }
    let send = |wr_id| {
        a.qp.post(&Wr::send(wr_id, &[]));
        a.send_cq.expect_success(wr_id);
    };
    send(1);
    b.receive_cq.expect_success(10);
    let towards = |to| {
        assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
        let attr = attributes(&at_a, to, &Knobs::default());
        assert_eq!(a.qp.modify(attr, Mask::IBV_QP_AV.0), 0);
        assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
    };
    // To another device, which has no queue pair of that number.
    towards(&at_a);
    send(2);
    assert!(b.receive_cq.is_empty());
    towards(&at_b);
    send(3);
    b.receive_cq.expect_success(11);
}

#[test]
fn the_second_half_ends_the_message() {
    on_each_held_device("uc-halves", |device| {
        let pair = Pair::new(device.name());
        let qpn = pair.a.qp.qpn();
        pair.a.qp.post(&pair.write(1));
        assert!(device.release_half(qpn));
        pair.at_b.fill(0xbb);
        assert!(!device.release_half(qpn), "it ends now");
        assert_eq!(pair.at_b.bytes()[8..24], [[0xbb; 8], [0xaa; 8]].concat());
        pair.a.send_cq.expect_success(1);
    });
}

#[test]
fn messages_to_another_device_count_and_need_both_ports() {
    let names = ["uc-far-a", "uc-far-b"];
    let devices = names.map(|name| rdma_soft::Builder::new(name).install().unwrap());
    let [a, b] = names.map(|name| Side::new(name, &size(), 64));
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    connect_unreliably(&a.qp, &at_a, &at_b, &Knobs::default());
    connect_unreliably(&b.qp, &at_b, &at_a, &Knobs::default());
    let send = |wr_id| {
        a.qp.post(&Wr::send(wr_id, &[]));
        a.send_cq.expect_success(wr_id);
    };
    for wr_id in 10..13 {
        b.qp.post_receive(wr_id, &[]);
    }
    send(1);
    b.receive_cq.expect_success(10);
    for device in &devices {
        device.set_port_up(false);
        send(2);
        assert!(b.receive_cq.is_empty(), "{device:?}");
        device.set_port_up(true);
    }
    for wr_id in 11..13 {
        send(3);
        b.receive_cq.expect_success(wr_id);
    }
    let [sent, received] = devices.map(|device| device.counters());
    assert_eq!((sent.sent_pkts, sent.rdma_sends), (5, 5), "two were lost");
    assert_eq!((received.rcvd_pkts, received.rdma_recvs), (3, 3));
}
