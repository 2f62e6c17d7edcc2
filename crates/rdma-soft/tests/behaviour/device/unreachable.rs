//! Peers that do not answer: the requester retries as often as its attributes specify and gives up,
//! and no other queue pair is affected.

use rdma_soft::Builder;
use rdma_sys::{Errno, ibv_qp_attr};

use crate::device::rig::connect::{
    Knobs, RTR, Side, attributes, connect, connect_sides, pair, to_init,
};
use crate::device::rig::post::Wr;
use crate::device::rig::{ALL_ACCESS, Size, on_each_device, soft};

fn side(device: &str) -> Side {
    Side::new(device, &Size::default(), 32)
}

#[test]
fn peer_of_another_queue_pair_is_unreachable_and_undisturbed() {
    on_each_device("peer-elsewhere", |device| {
        let (b, c) = pair(device);
        let a = side(device);
        connect(&a.qp, &a.endpoint(), &b.endpoint(), &Knobs::prompt());
        b.qp.post_receive(1, &[]);
        a.expect_unreachable();
        c.qp.post(&Wr::send(2, &[]));
        c.send_cq.expect_success(2);
        b.receive_cq.expect_success(1);
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
        connect_sides(&a, &b, &Knobs::prompt());
        let source = a.pd.register_filled(vec![4; 8], 0);
        let sink = b.pd.register(8, ALL_ACCESS);
        a.qp.post(&Wr::write(1, &[source.sge(0, 8)], &sink, 0));
        a.send_cq.expect_success(1);
        sink.assert_filled(4);
    });
}

type Spoil = fn(&mut ibv_qp_attr);

/// Checks that the transition refuses address vectors that no packet could follow.
fn refused_addresses(side: &Side, spoils: &[Spoil]) {
    let at = side.endpoint();
    for (n, spoil) in spoils.iter().enumerate() {
        let mut attr = attributes(&at, &at, &Knobs::prompt());
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
        if soft(device).gids().len() == 5 {
            refused_addresses(
                &side,
                &[
                    |attr| attr.ah_attr.is_global = 0,
                    |attr| attr.ah_attr.grh.sgid_index = 5,
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
