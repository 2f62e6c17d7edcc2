//! Receiver not ready: the requester waits as often and as long as its attributes specify, whether
//! or not the program polls.

use rdma_soft::{Builder, Link};
use rdma_sys::{Errno, ibv_qp_attr_mask as Mask, ibv_qp_state as State, ibv_wc_status as Status};

use crate::device::rig::connect::{Knobs, Side, attributes, connect_sides, pair_with};
use crate::device::rig::post::Wr;
use crate::device::rig::{Size, on_each_device, on_each_held_device, soft, until};

/// A pair with these options whose A has posted a SEND of 8 bytes to a B without a receive request.
fn sent_too_early(device: &str, rnr_retries: u8, min_rnr_timer: u8) -> (Side, Side) {
    let knobs = Knobs { rnr_retries, min_rnr_timer, ..Knobs::default() };
    let (a, b) = pair_with(device, &Size::default(), &knobs);
    a.qp.post(&Wr::send(1, &[]));
    (a, b)
}

#[test]
fn receive_for_a_sender_of_an_earlier_life_releases_nothing() {
    on_each_held_device("rnr-earlier-life", |device| {
        let (a, b) = sent_too_early(device.name(), 7, 1);
        let c = Side::new(device.name(), &Size::default(), 16);
        let held = || device.in_flight(a.qp.qpn());
        assert_eq!((device.release(a.qp.qpn(), 1), held()), (0, 1), "it waits now");
        a.qp.to_reset();
        connect_sides(&a, &c, &Knobs::default());
        c.qp.post_receive(8, &[]);
        a.qp.post(&Wr::send(2, &[]));
        b.qp.post_receive(9, &[]);
        assert_eq!(held(), 1, "B's receive no longer concerns A");
        assert_eq!(device.release(a.qp.qpn(), 1), 1);
        a.send_cq.expect_success(2);
        c.receive_cq.expect_success(8);
    });
}

#[test]
fn endless_wait_ends_when_the_port_of_either_goes_down() {
    on_each_device("rnr-port", |device| {
        let there = format!("{device}-there");
        let knobs = Knobs { timeout: 1, retries: 1, rnr_retries: 7, ..Knobs::default() };
        let link = if device.contains("-ib-") { Link::InfiniBand } else { Link::Ethernet };
        Builder::new(&there).link(link).install().unwrap();
        for down in [device, &there] {
            let waits = || soft(device).counters().rcvd_rnr_err;
            let before = waits();
            let [a, b] = [device, &there].map(|name| Side::new(name, &Size::default(), 16));
            connect_sides(&a, &b, &knobs);
            a.qp.post(&Wr::send(1, &[]));
            until("the wait", || a.send_cq.is_empty() && waits() > before);
            soft(down).set_port_up(false);
            a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
            soft(down).set_port_up(true);
        }
    });
}

#[test]
fn endless_wait_ends_when_the_receiver_connects_to_another_peer() {
    on_each_device("rnr-turned", |device| {
        let knobs = Knobs { timeout: 1, retries: 1, rnr_retries: 7, ..Knobs::default() };
        let there = format!("{device}-there");
        let link = if device.contains("-ib-") { Link::InfiniBand } else { Link::Ethernet };
        Builder::new(&there).link(link).install().unwrap();
        let [a, b] = [(); 2].map(|()| Side::new(device, &Size::default(), 16));
        let elsewhere = Side::new(&there, &Size::default(), 16).endpoint();
        let waits = || soft(device).counters().rcvd_rnr_err;
        connect_sides(&a, &b, &knobs);
        a.qp.post(&Wr::send(1, &[]));
        until("the wait", || a.send_cq.is_empty() && waits() > 0);
        assert_eq!(b.qp.to_state(State::IBV_QPS_SQD), 0);
        let attr = attributes(&b.endpoint(), &elsewhere, &knobs);
        assert_eq!(b.qp.modify(attr, Mask::IBV_QP_AV.0), 0);
        a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    });
}

#[test]
fn endless_wait_ends_when_the_requester_gets_a_finite_limit() {
    on_each_device("rnr-told-later", |device| {
        let endless = Knobs { timeout: 0, rnr_retries: 7, ..Knobs::default() };
        let finite = Knobs { timeout: 1, retries: 1, rnr_retries: 1, ..Knobs::default() };
        let timers = Mask::IBV_QP_TIMEOUT.0 | Mask::IBV_QP_RETRY_CNT.0 | Mask::IBV_QP_RNR_RETRY.0;
        for gone in [false, true] {
            let (a, b) = pair_with(device, &Size::default(), &endless);
            let peer = b.endpoint();
            let waits = || soft(device).counters().rcvd_rnr_err;
            let before = waits();
            let _there = Some(b).filter(|_| !gone);
            a.qp.post(&Wr::send(1, &[]));
            until("the wait", || a.send_cq.is_empty() && (gone || waits() > before));
            assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
            assert_eq!(a.qp.modify(attributes(&a.endpoint(), &peer, &finite), timers), 0);
            let resumed = a.qp.to_state(State::IBV_QPS_RTS);
            // On a slow machine the finite wait may have ended by then.
            assert!(resumed == 0 || resumed == Errno::EINVAL.raw(), "{resumed}");
            let (unanswered, not_ready) =
                (Status::IBV_WC_RETRY_EXC_ERR, Status::IBV_WC_RNR_RETRY_EXC_ERR);
            a.send_cq.expect(1, if gone { unanswered } else { not_ready });
        }
    });
}
