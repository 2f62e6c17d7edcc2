//! Peers that do not answer: the requester tries again as often as it was told to and gives up, and
//! nobody else notices.

use std::net::Ipv4Addr;
use std::time::Instant;

use rdma_soft::Builder;
use rdma_sys::{Errno, ibv_gid, ibv_qp_attr, ibv_wc_status as Status};
use rdma_types::{AckTimeout, Gid};

use crate::rig::connect::{
    Endpoint, Knobs, RTR, Side, attributes, connect, connect_sides, endpoint_with_gid, pair,
    pair_with, to_init, to_rtr,
};
use crate::rig::post::Wr;
use crate::rig::{ALL_ACCESS, Size, on_each_device, soft, until};

fn side(device: &str) -> Side {
    Side::new(device, &Size::default(), 32)
}

/// A's next request fails as unanswered.
#[track_caller]
fn expect_unreachable(a: &Side) {
    a.qp.post(&Wr::send(77, &[]));
    a.send_cq.expect(77, Status::IBV_WC_RETRY_EXC_ERR);
    a.qp.wait_for_error();
    assert!(a.send_cq.is_empty());
}

/// Where no device of any process is: software devices have addresses of 240.0.0.0/4 only.
fn nowhere(from: &Endpoint) -> Endpoint {
    let gid = ibv_gid { raw: Gid::from_ipv4(Ipv4Addr::new(192, 0, 2, 1)).to_bytes() };
    // The LID may be another device's, which has no queue pair of this number.
    Endpoint { gid, lid: from.lid % 0xbffe + 1, qpn: 1, ..*from }
}

#[test]
fn destination_that_is_no_device_fails_after_the_retries_and_not_before() {
    on_each_device("nowhere", |device| {
        let a = side(device);
        let at_a = a.endpoint();
        let knobs = Knobs { timeout: 11, retries: 3, ..Knobs::default() };
        connect(&a.qp, &at_a, &nowhere(&at_a), &knobs);
        let least = AckTimeout::from_code(11).unwrap().duration().unwrap() * 4;
        let start = Instant::now();
        expect_unreachable(&a);
        assert!(start.elapsed() >= least, "{:?} of {least:?}", start.elapsed());
    });
}

#[test]
fn unreachable_destination_fails_also_when_nobody_polls() {
    on_each_device("nowhere-no-poll", |device| {
        let a = side(device);
        let at_a = a.endpoint();
        connect(&a.qp, &at_a, &nowhere(&at_a), &Knobs::default());
        for n in 0..3 {
            a.qp.post(&Wr::send(n, &[]).unsignaled());
        }
        a.qp.wait_for_error();
        until("the flush", || soft(device).in_flight(a.qp.qpn()) == 0);
        a.send_cq.expect(0, Status::IBV_WC_RETRY_EXC_ERR);
        a.send_cq.expect_flushed([1, 2]);
    });
}

#[test]
fn peer_that_is_not_ready_yet_is_unreachable() {
    on_each_device("peer-not-ready", |device| {
        for initialised in [false, true] {
            let (a, b) = (side(device), side(device));
            let (at_a, at_b) = (a.endpoint(), b.endpoint());
            connect(&a.qp, &at_a, &at_b, &Knobs::default());
            if initialised {
                to_init(&b.qp, &attributes(&at_b, &at_a, &Knobs::default()));
                b.qp.post_receive(1, &[]);
            }
            expect_unreachable(&a);
            assert!(b.receive_cq.is_empty());
        }
    });
}

#[test]
fn peer_that_becomes_ready_in_time_gets_the_message() {
    on_each_device("peer-in-time", |device| {
        let (a, b) = (side(device), side(device));
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        // The first retry comes after 134 ms, the last after a second.
        let knobs = Knobs { timeout: 15, retries: 7, ..Knobs::default() };
        connect(&a.qp, &at_a, &at_b, &knobs);
        a.qp.post(&Wr::send(1, &[]));
        let attr = attributes(&at_b, &at_a, &knobs);
        to_init(&b.qp, &attr);
        b.qp.post_receive(2, &[]);
        to_rtr(&b.qp, &attr);
        a.send_cq.expect_success(1);
        b.receive_cq.expect_success(2);
    });
}

#[test]
fn peer_that_was_destroyed_is_unreachable() {
    on_each_device("peer-destroyed", |device| {
        let (a, b) = pair(device);
        b.qp.post_receive(1, &[]);
        a.qp.post(&Wr::send(2, &[]));
        a.send_cq.expect_success(2);
        drop(b);
        expect_unreachable(&a);
    });
}

#[test]
fn peer_that_was_reset_is_unreachable() {
    on_each_device("peer-reset", |device| {
        let (a, b) = pair(device);
        b.qp.to_reset();
        expect_unreachable(&a);
    });
}

#[test]
fn peer_in_error_is_unreachable() {
    on_each_device("peer-error", |device| {
        let (a, b) = pair(device);
        b.qp.post_receive(1, &[]);
        b.qp.to_error();
        expect_unreachable(&a);
        b.receive_cq.expect_flushed([1]);
    });
}

#[test]
fn peer_of_somebody_else_is_unreachable_and_undisturbed() {
    on_each_device("peer-elsewhere", |device| {
        let (b, c) = pair(device);
        let a = side(device);
        connect(&a.qp, &a.endpoint(), &b.endpoint(), &Knobs::default());
        b.qp.post_receive(1, &[]);
        expect_unreachable(&a);
        c.qp.post(&Wr::send(2, &[]));
        c.send_cq.expect_success(2);
        b.receive_cq.expect_success(1);
    });
}

#[test]
fn queue_pair_number_that_nobody_has_is_unreachable() {
    on_each_device("wrong-qpn", |device| {
        let (a, b) = (side(device), side(device));
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        connect(&a.qp, &at_a, &Endpoint { qpn: at_b.qpn ^ 0x0080_0000, ..at_b }, &Knobs::default());
        connect(&b.qp, &at_b, &at_a, &Knobs::default());
        b.qp.post_receive(1, &[]);
        expect_unreachable(&a);
        assert!(b.receive_cq.is_empty());
    });
}

#[test]
fn address_that_the_peer_does_not_expect_is_unreachable() {
    on_each_device("wrong-address", |device| {
        let (a, b) = (side(device), side(device));
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        connect(&a.qp, &at_a, &at_b, &Knobs::default());
        // B expects a queue pair of A's number at another address.
        let elsewhere = Endpoint { qpn: at_a.qpn, ..nowhere(&at_a) };
        connect(&b.qp, &at_b, &elsewhere, &Knobs::default());
        b.qp.post_receive(1, &[]);
        expect_unreachable(&a);
        assert!(b.receive_cq.is_empty());
    });
}

#[test]
fn devices_of_one_link_reach_each_other() {
    on_each_device("two-devices", |device| {
        let other = format!("{device}-other");
        let link = if device.contains("-ib-") {
            rdma_soft::Link::InfiniBand
        } else {
            rdma_soft::Link::Ethernet
        };
        Builder::new(&other).link(link).install().unwrap();
        let (a, b) = (side(device), side(&other));
        connect_sides(&a, &b, &Knobs::default());
        let source = a.pd.register_filled(vec![4; 8], 0);
        let sink = b.pd.register(8, ALL_ACCESS);
        a.qp.post(&Wr::write(1, &[source.sge(0, 8)], &sink, 0));
        a.send_cq.expect_success(1);
        sink.assert_filled(4);
    });
}

/// Connects A at one of its GIDs with B at one of B's, and says how a SEND ends.
fn over_gids(device: &str, at_a: u8, at_b: u8) -> Status {
    let (a, b) = (side(device), side(device));
    let at_a = endpoint_with_gid(&a.context, &a.qp, at_a);
    let at_b = endpoint_with_gid(&b.context, &b.qp, at_b);
    connect(&a.qp, &at_a, &at_b, &Knobs::default());
    connect(&b.qp, &at_b, &at_a, &Knobs::default());
    b.qp.post_receive(1, &[]);
    a.qp.post(&Wr::send(2, &[]));
    a.send_cq.next().status
}

#[test]
fn every_gid_reaches_its_own_kind() {
    on_each_device("gids", |device| {
        // Link-local v1 and v2, IPv4-mapped v1 and v2; an InfiniBand port does not look.
        for gid in 0..4 {
            assert_eq!(over_gids(device, gid, gid), Status::IBV_WC_SUCCESS, "GID {gid}");
        }
    });
}

#[test]
fn roce_v1_and_v2_do_not_reach_each_other() {
    on_each_device("v1-v2", |device| {
        if soft(device).gids().len() == 4 {
            for (from, to) in [(0, 1), (1, 0), (2, 3), (3, 2)] {
                let status = over_gids(device, from, to);
                assert_eq!(status, Status::IBV_WC_RETRY_EXC_ERR, "GID {from} to {to}");
            }
        }
    });
}

type Spoil = fn(&mut ibv_qp_attr);

/// Address vectors that no packet could follow are refused by the transition.
fn refused_addresses(side: &Side, spoils: &[Spoil]) {
    let at = side.endpoint();
    for (n, spoil) in spoils.iter().enumerate() {
        let mut attr = attributes(&at, &at, &Knobs::default());
        side.qp.to_reset();
        to_init(&side.qp, &attr);
        spoil(&mut attr);
        attr.qp_state = rdma_sys::ibv_qp_state::IBV_QPS_RTR;
        assert_eq!(side.qp.modify(attr, RTR), Errno::EINVAL.raw(), "number {n}");
    }
}

#[test]
fn address_that_no_packet_can_follow_is_refused() {
    on_each_device("bad-address", |device| {
        let side = side(device);
        if soft(device).gids().len() == 4 {
            refused_addresses(
                &side,
                &[
                    |attr| attr.ah_attr.is_global = 0,
                    |attr| attr.ah_attr.grh.sgid_index = 4,
                    // Another family than that of the source.
                    |attr| attr.ah_attr.grh.sgid_index = 0,
                    |attr| attr.ah_attr.grh.dgid.raw = [0xfe; 16],
                    |attr| attr.ah_attr.grh.dgid.raw = [0; 16],
                ],
            );
        } else {
            refused_addresses(
                &side,
                &[
                    |attr| attr.ah_attr.dlid = 0,
                    |attr| attr.ah_attr.dlid = 0xc000,
                    |attr| attr.ah_attr.dlid = 0xffff,
                    |attr| {
                        attr.ah_attr.is_global = 1;
                        attr.ah_attr.grh.sgid_index = 1;
                    },
                ],
            );
        }
    });
}

#[test]
fn timeout_0_waits_for_ever_and_ends_with_the_error_state() {
    on_each_device("timeout-0", |device| {
        let (a, limited) = (side(device), side(device));
        let at_a = a.endpoint();
        let knobs = Knobs { timeout: 0, retries: 0, ..Knobs::default() };
        connect(&a.qp, &at_a, &nowhere(&at_a), &knobs);
        a.qp.post(&Wr::send(1, &[]));
        a.qp.post(&Wr::send(2, &[]));
        // Longer than what any other timeout of this length would take.
        let at_limited = limited.endpoint();
        let knobs = Knobs { timeout: 10, retries: 1, ..Knobs::default() };
        connect(&limited.qp, &at_limited, &nowhere(&at_limited), &knobs);
        expect_unreachable(&limited);
        a.qp.assert_ready();
        assert!(a.send_cq.is_empty());
        assert_eq!(soft(device).in_flight(a.qp.qpn()), 2);
        a.qp.to_error();
        a.send_cq.expect_flushed([1, 2]);
    });
}

#[test]
fn requester_that_gives_up_leaves_other_queue_pairs_alone() {
    on_each_device("give-up-alone", |device| {
        let (a, b) = pair_with(device, &Size::default(), &Knobs::default());
        let (c, d) = pair(device);
        drop(b);
        expect_unreachable(&a);
        d.qp.post_receive(1, &[]);
        c.qp.post(&Wr::send(2, &[]));
        c.send_cq.expect_success(2);
        d.receive_cq.expect_success(1);
    });
}
