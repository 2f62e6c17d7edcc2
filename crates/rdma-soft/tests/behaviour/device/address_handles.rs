//! Address handles: the destinations of datagrams, from attributes or from a received header.

use rdma_sys::{Errno, ibv_wc, ibv_wc_flags};

use crate::device::rig::datagram::{HEADER, Pair, side, vector};
use crate::device::rig::on_each_held_device;

const GRH: u32 = ibv_wc_flags::IBV_WC_GRH.0;

#[test]
fn headers_for_unknown_addresses_make_no_handle() {
    rdma_soft::install();
    let side = side("soft0");
    let wc = ibv_wc { wc_flags: GRH, slid: 0, sl: 0, ..Default::default() };
    let attributes = |header: [u8; HEADER]| side.context.ah_attributes(&wc, &header).err();
    let unknown = Some(Errno::EPROTONOSUPPORT);
    assert_eq!(attributes([0; HEADER]), unknown);
    assert_eq!(attributes([0xff; HEADER]), unknown);
    let mut ipv4 = [0; HEADER];
    ipv4[20] = 0x45;
    assert_eq!(attributes(ipv4), unknown, "the checksum is wrong");
    let sum: u16 = !0x4500;
    ipv4[30..32].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(attributes(ipv4), Some(Errno::ENOENT), "not an address of this port");
    let mut ipv6 = [0; HEADER];
    ipv6[0] = 0x60;
    assert_eq!(attributes(ipv6), unknown);
    for next in [17, 0x1b] {
        ipv6[6] = next;
        assert_eq!(attributes(ipv6), Some(Errno::ENOENT));
    }
    assert!(side.pd.try_ah_from(&wc, &ipv6).is_err());
    let local = ibv_wc { wc_flags: 0, ..wc };
    assert_eq!(side.context.ah_attributes(&local, &ipv6).unwrap().is_global, 0);
    let refused = side.pd.try_ah_from(&local, &ipv6).err();
    assert_eq!(refused, Some(Errno::EINVAL), "RoCE needs a global header");
}

#[test]
fn handles_are_counted() {
    for link in [rdma_soft::Link::Ethernet, rdma_soft::Link::InfiniBand] {
        let name = format!("ud-handles-{link:?}");
        rdma_soft::Builder::new(&name)
            .link(link)
            .limits(rdma_soft::Limits::default().max_ah(2))
            .install()
            .unwrap();
        let side = side(&name);
        assert_eq!(side.context.query_device().max_ah, 2);
        let (end, ethernet) = (side.endpoint(), side.endpoint().ethernet);
        let good = vector(&end, &end, ethernet);
        let refused = |spoil: &dyn Fn(&mut rdma_sys::ibv_ah_attr)| {
            let mut attr = good;
            spoil(&mut attr);
            assert_eq!(side.pd.try_ah(attr).err(), Some(Errno::EINVAL));
        };
        refused(&|attr| attr.sl = 16);
        side.pd.ah(rdma_sys::ibv_ah_attr { sl: 15, ..good }).destroy();
        if ethernet {
            // Link-local, while the other end is IPv4.
            refused(&|attr| attr.grh.sgid_index = 0);
        }
        let (one, two) = (side.pd.ah(good), side.pd.ah(good));
        assert_eq!(side.pd.try_ah(good).err(), Some(Errno::ENOMEM));
        one.destroy();
        let three = side.pd.ah(good);
        two.destroy();
        three.destroy();
    }
}

#[test]
fn a_handle_may_be_destroyed_while_requests_that_name_it_are_queued() {
    on_each_held_device("ud-handle-gone", |device| {
        let pair = Pair::new(device.name());
        let ah = pair.ah();
        pair.receive(10, HEADER);
        pair.a.qp.post(&pair.good(&ah, 1, 0));
        assert_eq!(device.in_flight(pair.a.qp.qpn()), 1);
        ah.destroy();
        assert_eq!(device.release_all(), 1);
        pair.b.receive_cq.expect_success(10);
        pair.a.send_cq.expect_success(1);
    });
}
