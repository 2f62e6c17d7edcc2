//! Address handles: where datagrams go, by attributes or by what came in.

use rdma_sys::{Errno, ibv_qp_state as State, ibv_wc, ibv_wc_flags, ibv_wc_status as Status};

use crate::rig::connect::{Side, endpoint_with_gid};
use crate::rig::datagram::{HEADER, Pair, QKEY, gid_of, side, vector};
use crate::rig::post::Wr;
use crate::rig::{LOCAL_WRITE, on_each_device, on_each_held_device};

const GRH: u32 = ibv_wc_flags::IBV_WC_GRH.0;

#[test]
fn headers_say_the_way_for_every_kind_of_address() {
    on_each_device("ud-headers", |device| {
        let (a, b) = (side(device), side(device));
        let ethernet = a.endpoint().ethernet;
        let source = a.pd.register_filled(vec![0xaa; 16], 0);
        let sink = b.pd.register(HEADER + 16, LOCAL_WRITE);
        for index in 0..if ethernet { 4 } else { 1 } {
            let end = |side: &Side| endpoint_with_gid(&side.context, &side.qp, index);
            let (from, to) = (&end(&a), &end(&b));
            let ah = a.pd.ah(vector(from, to, true));
            b.qp.post_receive(10, &[sink.sge(0, HEADER + 16)]);
            let wr = Wr::send(1, &[source.sge(0, 13)]).with_imm(5);
            a.qp.post(&wr.to(&ah, b.qp.number(), QKEY));
            a.send_cq.expect_success(1);
            assert_eq!(b.receive_cq.expect_success(10).wc_flags & GRH, GRH);
            let header = &sink.bytes()[..HEADER];
            let (sgid, dgid) = (gid_of(&from.gid).to_bytes(), gid_of(&to.gid).to_bytes());
            // Base header 12, datagram header 8, immediate 4, data and padding 16, checksum 4.
            let packet = 12 + 8 + 4 + 16 + 4;
            if ethernet && index == 3 {
                assert_eq!(header[..20], [0; 20]);
                let ip = &header[20..];
                assert_eq!((ip[0], ip[1]), (0x45, 0x2c));
                assert_eq!(u16::from_be_bytes([ip[2], ip[3]]), 20 + 8 + packet);
                assert_eq!((ip[8], ip[9]), (61, 17));
                assert_eq!(ip[12..16], sgid[12..]);
                assert_eq!(ip[16..], dgid[12..]);
                let words = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
                let sum: u32 = words.sum();
                assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum is right");
            } else {
                let routed = ethernet && index == 1;
                let (next, behind) = if routed { (17, 8 + packet) } else { (0x1b, packet) };
                assert_eq!(header[..4], [0x62, 0xca, 0xbc, 0xde]);
                assert_eq!(u16::from_be_bytes([header[4], header[5]]), behind);
                assert_eq!((header[6], header[7]), (next, 61));
                assert_eq!(header[8..24], sgid);
                assert_eq!(header[24..], dgid);
            }
        }
    });
}

#[test]
fn an_answer_goes_back_by_what_came_with_the_question() {
    on_each_device("ud-back", |device| {
        let (a, b) = (side(device), side(device));
        let ethernet = a.endpoint().ethernet;
        let (at_a, at_b) = (a.pd.register(64, LOCAL_WRITE), b.pd.register(64, LOCAL_WRITE));
        let ways: Vec<_> = (0..if ethernet { 4 } else { 1 }).map(|index| (index, true)).collect();
        let by_lid = (!ethernet).then_some((0, false));
        for (index, global) in ways.into_iter().chain(by_lid) {
            let end = |side: &Side| endpoint_with_gid(&side.context, &side.qp, index);
            let ah = a.pd.ah(vector(&end(&a), &end(&b), global));
            b.qp.post_receive(10, &[at_b.sge(0, 64)]);
            a.qp.post(&Wr::send(1, &[]).to(&ah, b.qp.number(), QKEY));
            let question = b.receive_cq.expect_success(10);
            a.send_cq.expect_success(1);
            let header = &at_b.bytes()[..HEADER];

            let attr = b.context.ah_attributes(&question, header).unwrap();
            let back = vector(&end(&b), &end(&a), global);
            assert_eq!((attr.port_num, attr.sl, attr.dlid), (1, back.sl, back.dlid));
            assert_eq!((attr.is_global, attr.src_path_bits), (back.is_global, 0));
            if global {
                assert_eq!(gid_of(&attr.grh.dgid), gid_of(&back.grh.dgid));
                assert_eq!(attr.grh.sgid_index, index, "by the address at which it came");
                assert_eq!((attr.grh.hop_limit, attr.grh.traffic_class), (61, 0x2c));
                let label = if ethernet && index == 3 { 0 } else { 0x000a_bcde };
                assert_eq!(attr.grh.flow_label, label, "IPv4 has none");
            }

            let ah = b.pd.try_ah_from(&question, header).unwrap();
            a.qp.post_receive(20, &[at_a.sge(0, 64)]);
            b.qp.post(&Wr::send(2, &[]).to(&ah, question.src_qp, QKEY));
            assert_eq!(a.receive_cq.expect_success(20).src_qp, b.qp.number());
            b.send_cq.expect_success(2);
        }
    });
}

#[test]
fn headers_of_nobody_make_no_handle() {
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
    assert_eq!(refused, Some(Errno::EINVAL), "no RoCE without a header");
}

#[test]
fn handles_are_checked_counted_and_keep_their_domain() {
    for link in [rdma_soft::Link::Ethernet, rdma_soft::Link::InfiniBand] {
        let name = format!("ud-handles-{link:?}");
        rdma_soft::Builder::new(&name).link(link).max_address_handles(2).install().unwrap();
        let side = side(&name);
        assert_eq!(side.context.query_device().max_ah, 2);
        let (end, ethernet) = (side.endpoint(), side.endpoint().ethernet);
        let good = vector(&end, &end, ethernet);
        let pd = side.context.pd();
        let refused = |spoil: &dyn Fn(&mut rdma_sys::ibv_ah_attr)| {
            let mut attr = good;
            spoil(&mut attr);
            assert_eq!(pd.try_ah(attr).err(), Some(Errno::EINVAL));
        };
        refused(&|attr| attr.port_num = 0);
        refused(&|attr| attr.port_num = 2);
        refused(&|attr| attr.sl = 16);
        refused(&|attr| (attr.is_global, attr.grh.sgid_index) = (1, 200));
        if ethernet {
            refused(&|attr| attr.is_global = 0);
            refused(&|attr| attr.grh.dgid = Default::default());
            refused(&|attr| attr.grh.sgid_index = 0);
        } else {
            refused(&|attr| attr.dlid = 0);
            refused(&|attr| attr.dlid = 0xc000);
        }
        let (one, two) = (pd.ah(good), pd.ah(good));
        assert_eq!(pd.try_ah(good).err(), Some(Errno::ENOMEM));
        assert_eq!(pd.try_dealloc(), Errno::EBUSY.raw());
        one.destroy();
        let three = pd.ah(good);
        two.destroy();
        assert_eq!(pd.try_dealloc(), Errno::EBUSY.raw());
        three.destroy();
    }
}

#[test]
fn a_handle_may_go_while_requests_that_name_it_are_queued() {
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

#[test]
fn a_handle_of_another_domain_fails_here() {
    on_each_device("ud-foreign", |device| {
        let pair = Pair::new(device);
        let foreign = pair.a.context.pd();
        let ah = foreign.ah_to(&pair.a.endpoint(), &pair.b.endpoint());
        pair.receive(10, HEADER);
        pair.a.qp.post(&pair.good(&ah, 1, 0));
        pair.a.send_cq.expect(1, Status::IBV_WC_LOC_QP_OP_ERR);
        assert_eq!(pair.a.qp.state(), State::IBV_QPS_SQE);
        assert!(pair.b.receive_cq.is_empty());
    });
}
