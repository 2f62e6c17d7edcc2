//! Datagrams: between any queue pairs with the right key, one packet each. The loss of one is not reported.

use rdma_sys::{
    Errno, ibv_event_type, ibv_qp_state as State, ibv_qp_type, ibv_sge, ibv_wc_flags,
    ibv_wc_status as Status,
};

use crate::device::rig::connect::Side;
use crate::device::rig::datagram::{HEADER, MTU, Pair, QKEY, activate, gid_of, side, size};
use crate::device::rig::post::Wr;
use crate::device::rig::{LOCAL_WRITE, Size, on_each_device, on_each_held_device, soft, until};

const REFUSED: i32 = Errno::EINVAL.raw();
const GRH: u32 = ibv_wc_flags::IBV_WC_GRH.0;

#[test]
fn without_a_header_its_space_is_unchanged_and_the_service_level_is_reported() {
    on_each_device("ud-no-header", |device| {
        let pair = Pair::new(device);
        let (from, ah) = (pair.a.endpoint(), pair.ah());
        pair.receive(10, HEADER + 100);
        let got = pair.expect_sent(&pair.good(&ah, 1, 100), 10);
        // On Ethernet it is the type of the packet: UDP and IPv4.
        let expected = if from.ethernet { (GRH, 8 | 2) } else { (0, 3) };
        assert_eq!((got.wc_flags, got.sl), expected);
        assert_eq!(pair.at_b.bytes()[..HEADER] == [0xbb; HEADER], !from.ethernet);
    });
}

#[test]
fn datagrams_without_a_handle_are_refused() {
    use rdma_sys::ibv_qp_create_send_ops_flags as Op;
    let sends = u64::from(Op::IBV_QP_EX_WITH_SEND.0);
    on_each_device("ud-no-handle", |device| {
        let pair = Pair::new(device);
        let ah = pair.ah();
        let good = pair.good(&ah, 1, 8);
        let list = [good.clone(), pair.send(2, 8), good.clone()];
        assert_eq!(pair.a.qp.try_post_list(&list), Err((1, REFUSED)));
        pair.a.send_cq.expect_success(1);
        assert!(pair.a.send_cq.is_empty());
        pair.a.qp.assert_ready();

        // A batch by function calls is posted whole or not at all.
        let side = Side::extended(device, &size(), sends);
        activate(&side.qp, QKEY);
        let source = side.pd.register(8, 0);
        let ah = side.pd.ah_to(&side.endpoint(), &pair.b.endpoint());
        let wr = Wr::send(1, &[source.sge(0, 8)]);
        pair.receive(10, HEADER + 8);
        side.qp.start();
        side.qp.build(&wr);
        side.qp.set_address(ah.0, pair.b.qp.number(), QKEY);
        side.qp.build(&wr);
        assert_eq!(side.qp.complete(), REFUSED, "the second has no destination");
        assert!(side.send_cq.is_empty() && pair.b.receive_cq.is_empty());
    });
}

#[test]
fn datagrams_reach_other_devices_of_the_link() {
    rdma_soft::Builder::new("ud-far-1").install().unwrap();
    rdma_soft::Builder::new("ud-far-2").install().unwrap();
    let (a, b) = (side("ud-far-1"), side("ud-far-2"));
    let sink = b.pd.register(HEADER, LOCAL_WRITE);
    let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
    for round in 0..3 {
        b.qp.post_receive(10, &[sink.sge(0, HEADER)]);
        b.qp.post_receive(11, &[sink.sge(0, HEADER)]);
        a.qp.post(&Wr::send(1, &[]).to(&ah, b.qp.number(), QKEY));
        a.send_cq.expect_success(1);
        b.receive_cq.expect_success(if round == 0 { 10 } else { 11 });
        let header = sink.bytes();
        assert_eq!(header[32..36], gid_of(&a.endpoint().gid).to_bytes()[12..]);
        assert_eq!(header[36..], gid_of(&b.endpoint().gid).to_bytes()[12..]);
        if round > 0 {
            a.qp.post(&Wr::send(1, &[]).to(&ah, b.qp.number(), QKEY));
            a.send_cq.expect_success(1);
            b.receive_cq.expect_success(10);
        }
        // The receiver's port matters as well as the sender's.
        for down in [&a, &b] {
            let port = soft(down.context.name());
            port.set_port_up(false);
            a.qp.post(&Wr::send(2, &[]).to(&ah, b.qp.number(), QKEY));
            a.send_cq.expect_success(2);
            port.set_port_up(true);
            assert!(b.receive_cq.is_empty(), "round {round}");
        }
    }
}

#[test]
fn two_receivers_with_bad_elements_fail_by_two_calls_at_the_latest() {
    on_each_device("ud-bad-receives", |device| {
        let (a, b, c) = (side(device), side(device), side(device));
        let wrs = [&b, &c].map(|receiver| {
            let bad = ibv_sge { addr: 8, length: 64, lkey: 1 };
            receiver.qp.post_receive(10, &[bad]);
            let ah = a.pd.ah_to(&a.endpoint(), &receiver.endpoint());
            (Wr::send(1, &[]).to(&ah, receiver.qp.number(), QKEY), ah)
        });
        for _ in 0..2 {
            a.qp.try_post_list(&[wrs[0].0.clone(), wrs[1].0.clone()]).unwrap();
            a.send_cq.expect_success(1);
            a.send_cq.expect_success(1);
        }
        for receiver in [&b, &c] {
            receiver.receive_cq.expect(10, Status::IBV_WC_LOC_PROT_ERR);
            receiver.qp.wait_for_error();
            let event = (ibv_event_type::IBV_EVENT_QP_FATAL, receiver.qp.0.addr());
            // The thread that executed the datagram reports it after the state.
            until("the event", || receiver.context.has_async_events());
            assert_eq!(receiver.context.async_events(), [event]);
        }
        a.qp.assert_ready();
    });
}

#[test]
fn a_datagram_longer_than_the_mtu_fails_at_the_sender() {
    on_each_device("ud-long", |device| {
        let pair = Pair::new(device);
        let ah = pair.ah();
        pair.receive(10, HEADER + MTU);
        let got = pair.expect_sent(&pair.good(&ah, 1, MTU), 10);
        assert_eq!(got.byte_len as usize, HEADER + MTU);
        assert_eq!(pair.at_b.bytes()[HEADER..], [0xaa; MTU]);
        pair.receive(11, HEADER + MTU);
        pair.a.qp.post(&pair.good(&ah, 2, MTU + 1));
        pair.a.send_cq.expect(2, Status::IBV_WC_LOC_LEN_ERR);
        assert_eq!(pair.a.qp.state(), State::IBV_QPS_SQE);
        assert!(pair.b.receive_cq.is_empty());
    });
}

#[test]
fn a_half_copied_datagram_starts_over_in_another_receive() {
    on_each_held_device("ud-half", |device| {
        let pair = Pair::new(device.name());
        let other = side(device.name());
        let from_other = other.pd.ah_to(&other.endpoint(), &pair.b.endpoint());
        let (ah, qpn) = (pair.ah(), pair.a.qp.qpn());
        pair.receive(10, HEADER + 16);
        pair.b.qp.post_receive(11, &[pair.at_b.sge(100, HEADER + 16)]);
        pair.a.qp.post(&pair.good(&ah, 1, 16));
        assert!(device.release_half(qpn));
        assert_eq!(device.half_copied(qpn), 8);
        assert!(pair.a.send_cq.is_empty());
        assert_eq!(pair.at_b.bytes()[HEADER..HEADER + 16], [[0xaa; 8], [0xbb; 8]].concat());
        assert!(pair.b.receive_cq.is_empty());
        // Another one comes in between and takes the receive.
        other.qp.post(&Wr::send(2, &[]).to(&from_other, pair.b.qp.number(), QKEY));
        assert_eq!(device.release(other.qp.qpn(), 1), 1);
        assert_eq!(pair.b.receive_cq.expect_success(10).byte_len, 40);
        assert_eq!(device.release(qpn, 1), 1);
        assert_eq!(pair.b.receive_cq.expect_success(11).byte_len, 56);
        assert_eq!(pair.at_b.bytes()[140..156], [0xaa; 16], "all of it");
        pair.a.send_cq.expect_success(1);
    });
}

#[test]
fn a_datagram_is_released_whole_or_in_two_halves() {
    on_each_held_device("ud-halves", |device| {
        let pair = Pair::new(device.name());
        let (ah, qpn) = (pair.ah(), pair.a.qp.qpn());
        for wr_id in [1, 2] {
            pair.receive(10, HEADER + 16);
            pair.a.qp.post(&pair.good(&ah, wr_id, 16));
        }
        assert_eq!(device.release(qpn, 1), 1);
        assert!(device.release_half(qpn));
        assert!(!device.release_half(qpn), "it ends now");
        for wr_id in [1, 2] {
            pair.a.send_cq.expect_success(wr_id);
            pair.b.receive_cq.expect_success(10);
        }
    });
}

#[test]
fn datagrams_that_are_held_are_cancelled_or_lost() {
    on_each_held_device("ud-held", |device| {
        let mut pair = Pair::new(device.name());
        let (ah, qpn) = (pair.ah(), pair.a.qp.qpn());
        pair.receive(10, HEADER + 16);
        pair.a.qp.post(&pair.good(&ah, 1, 16));
        pair.a.qp.post(&pair.good(&ah, 2, 16));
        assert!(device.release_half(qpn));
        pair.a.qp.to_error();
        pair.a.send_cq.expect_flushed([1, 2]);
        assert_eq!(device.release_all(), 0);
        assert!(pair.b.receive_cq.is_empty());
        pair.a.qp.to_reset();
        activate(&pair.a.qp, QKEY);
        pair.a.qp.post(&pair.good(&ah, 3, 16));
        pair.at_b.fill(0xbb);
        pair.b.qp.destroy();
        assert_eq!(device.release_all(), 1);
        pair.a.send_cq.expect_success(3);
        pair.at_b.assert_filled(0xbb);
    });
}

#[test]
fn other_types_are_not_supported() {
    rdma_soft::install();
    let side = side("soft0");
    for qp_type in [
        ibv_qp_type::IBV_QPT_RAW_PACKET,
        ibv_qp_type::IBV_QPT_XRC_SEND,
        ibv_qp_type::IBV_QPT_XRC_RECV,
        ibv_qp_type::IBV_QPT_DRIVER,
        ibv_qp_type(0),
        ibv_qp_type(99),
    ] {
        let size = Size { qp_type, ..Size::default() };
        let made = side.pd.try_qp(&side.send_cq, &side.receive_cq, &size);
        assert_eq!(made.err(), Some(Errno::EOPNOTSUPP), "{qp_type:?}");
    }
}

#[test]
fn datagrams_are_counted_as_requests_are() {
    let names = ["ud-count-a", "ud-count-b"];
    let devices = names.map(|name| rdma_soft::Builder::new(name).install().unwrap());
    let [a, b] = names.map(side);
    let sink = b.pd.register(HEADER, LOCAL_WRITE);
    let ah = a.pd.ah_to(&a.endpoint(), &b.endpoint());
    b.qp.post_receive(10, &[sink.sge(0, HEADER)]);
    for wr_id in 0..2 {
        a.qp.post(&Wr::send(wr_id, &[]).to(&ah, b.qp.number(), QKEY));
        a.send_cq.expect_success(wr_id);
    }
    let [sent, received] = devices.map(|device| device.counters());
    assert_eq!(
        (sent.sent_pkts, sent.rdma_sends),
        (2, 2),
        "the sender does not know that one was lost"
    );
    assert_eq!((received.rcvd_pkts, received.rdma_recvs, received.send_rnr_err), (1, 1, 0));
}
