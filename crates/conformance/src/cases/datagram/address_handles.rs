//! Address handles: the destinations of datagrams, from attributes or from a received header.

use rdma_sys::{
    Errno, ibv_ah_attr, ibv_gid_type, ibv_qp_state as State, ibv_wc, ibv_wc_flags,
    ibv_wc_status as Status,
};

use test_support::rig::connect::{Endpoint, Side, endpoint_with_gid};
use test_support::rig::datagram::{Ah, HEADER, QKEY, activate, gid_of, side, size, vector};
use test_support::rig::device::gid_table;
use test_support::rig::post::Wr;
use test_support::rig::{LOCAL_WRITE, Mr};

use crate::case::cases;
use crate::device::Device;

cases![
    headers_name_both_ends,
    headers_carry_the_traffic_class,
    headers_carry_the_hop_limit,
    headers_say_what_is_behind_them,
    headers_carry_the_flow_label_where_they_have_one,
    headers_say_how_long_the_packet_is,
    headers_of_ipv4_have_a_right_checksum,
    on_ethernet_service_levels_say_what_packet_came,
    attributes_of_the_way_back_are_in_what_came,
    the_way_back_leads_to_whom_the_header_names,
    an_answer_goes_back_by_what_came_with_the_question,
    what_is_no_header_makes_no_handle,
    headers_for_other_addresses_make_no_handle,
    handles_need_a_port_of_the_device,
    handles_need_a_source_of_the_port,
    on_ethernet_handles_need_a_global_route,
    on_ethernet_handles_take_every_service_level,
    on_infiniband_handles_need_a_local_address,
    on_infiniband_a_lid_alone_is_enough,
    domains_with_handles_cannot_be_deallocated,
    handles_of_one_way_live_and_die_apart,
    one_handle_serves_all_queue_pairs_of_its_domain,
    one_handle_leads_to_all_queue_pairs_of_a_port,
    a_handle_may_go_when_its_requests_are_complete,
    a_handle_of_another_domain_fails_here,
    a_handle_of_another_domain_stops_the_send_queue_alone,
];

/// A path between two queue pairs on the port. Both ends use the same row of the GID table.
struct Way {
    index: u8,
    kind: ibv_gid_type,
    from: Endpoint,
    to: Endpoint,
}

impl Way {
    fn is_ipv4(&self) -> bool {
        self.kind == ibv_gid_type::IBV_GID_TYPE_ROCE_V2 && gid_of(&self.from.gid).is_ipv4_mapped()
    }

    fn hop_limit(&self, header: &[u8]) -> u8 {
        if self.is_ipv4() { header[28] } else { header[7] }
    }
}

/// A sender, a receiver with space for a header and 24 bytes, and the sender's data.
struct Scene {
    source: Mr,
    sink: Mr,
    a: Side,
    b: Side,
}

impl Scene {
    fn new(device: &Device) -> Self {
        let (a, b) = (side(device), side(device));
        let source = a.pd.register_filled(vec![0xaa; 16], LOCAL_WRITE);
        Self { source, sink: b.pd.register(HEADER + 24, LOCAL_WRITE), a, b }
    }

    fn ways(&self) -> Vec<Way> {
        let rows = gid_table(&self.a.context, 256, 0).unwrap();
        let ways = rows.iter().map(|row| {
            let index = row.index.try_into().unwrap();
            let end = |side: &Side| endpoint_with_gid(&side.context, &side.qp, index);
            Way { index, kind: ibv_gid_type(row.kind), from: end(&self.a), to: end(&self.b) }
        });
        ways.collect()
    }

    fn ah(&self) -> Ah {
        self.a.pd.ah_to(&self.a.endpoint(), &self.b.endpoint())
    }

    /// Sends `length` bytes to B. Returns the completion and the received header.
    fn send(&self, ah: &Ah, length: usize) -> (ibv_wc, Vec<u8>) {
        self.b.qp.post_receive(10, &[self.sink.sge(0, HEADER + 24)]);
        let wr = Wr::send(1, &[self.source.sge(0, length)]).with_imm(5);
        self.a.qp.post(&wr.to(ah, self.b.qp.number(), QKEY));
        self.a.send_cq.expect_success(1);
        let got = self.b.receive_cq.expect_success(10);
        (got, self.sink.bytes()[..HEADER].to_vec())
    }
}

fn headers_name_both_ends(device: &Device) {
    let scene = Scene::new(device);
    for way in scene.ways() {
        let ah = scene.a.pd.ah(vector(&way.from, &way.to, true));
        let (got, header) = scene.send(&ah, 13);
        assert_ne!(got.wc_flags & ibv_wc_flags::IBV_WC_GRH.0, 0);
        let [sgid, dgid] = [way.from.gid, way.to.gid].map(|gid| gid_of(&gid).to_bytes());
        if way.is_ipv4() {
            assert_eq!(header[32..36], sgid[12..]);
            assert_eq!(header[36..], dgid[12..]);
        } else {
            assert_eq!(header[8..24], sgid);
            assert_eq!(header[24..], dgid);
        }
    }
}

fn headers_carry_the_traffic_class(device: &Device) {
    let scene = Scene::new(device);
    for way in scene.ways() {
        for traffic_class in [0x2c, 0, 0xff, 1] {
            let mut attr = vector(&way.from, &way.to, true);
            attr.grh.traffic_class = traffic_class;
            let (_, header) = scene.send(&scene.a.pd.ah(attr), 13);
            let carried = carried_class(device, traffic_class);
            if way.is_ipv4() {
                assert_eq!(header[20..22], [0x45, carried]);
            } else {
                let start = u16::from_be_bytes([header[0], header[1]]);
                assert_eq!(start >> 4, 6 << 8 | u16::from(carried));
            }
        }
    }
}

/// Returns the traffic class expected in the received header.
fn carried_class(device: &Device, traffic_class: u8) -> u8 {
    match device.differs_by_udp("traffic-class-of-udp") {
        true => traffic_class & 3,
        false => traffic_class,
    }
}

fn headers_carry_the_hop_limit(device: &Device) {
    let scene = Scene::new(device);
    for way in scene.ways() {
        for hop_limit in [61, 1, 255] {
            let mut attr = vector(&way.from, &way.to, true);
            attr.grh.hop_limit = hop_limit;
            let (_, header) = scene.send(&scene.a.pd.ah(attr), 13);
            let carried = device.expected(hop_limit, "hop-limit-is-the-routes", 64);
            let carried = if device.differs_by_udp("hop-limit-of-udp") { 64 } else { carried };
            assert_eq!(way.hop_limit(&header), carried);
        }
    }
}

fn headers_say_what_is_behind_them(device: &Device) {
    let scene = Scene::new(device);
    for way in scene.ways() {
        let (_, header) = scene.send(&scene.a.pd.ah(vector(&way.from, &way.to, true)), 13);
        let udp = way.kind == ibv_gid_type::IBV_GID_TYPE_ROCE_V2;
        let at = if way.is_ipv4() { 29 } else { 6 };
        assert_eq!(header[at], if udp { 17 } else { 0x1b });
    }
}

fn headers_carry_the_flow_label_where_they_have_one(device: &Device) {
    let scene = Scene::new(device);
    for way in scene.ways().into_iter().filter(|way| !way.is_ipv4()) {
        let (_, header) = scene.send(&scene.a.pd.ah(vector(&way.from, &way.to, true)), 13);
        let label = u32::from_be_bytes([0, header[1] & 0xf, header[2], header[3]]);
        assert_eq!(label, device.expected(0x000a_bcde, "flow-label-of-ipv6", 0));
    }
}

fn headers_say_how_long_the_packet_is(device: &Device) {
    let scene = Scene::new(device);
    for way in scene.ways() {
        let ah = scene.a.pd.ah(vector(&way.from, &way.to, true));
        let (_, header) = scene.send(&ah, 13);
        // A packet consists of the base header (12 bytes), the datagram header (8), immediate data
        // (4), data with padding (16) and the checksum (4). Over UDP, the length also includes the
        // UDP header (8) and, for IPv4, the IPv4 header (20).
        let packet = 12 + 8 + 4 + 16 + 4;
        let (at, length) = match way.kind {
            ibv_gid_type::IBV_GID_TYPE_ROCE_V2 if way.is_ipv4() => (22, 20 + 8 + packet),
            ibv_gid_type::IBV_GID_TYPE_ROCE_V2 => (4, 8 + packet),
            _ => (4, packet),
        };
        assert_eq!(u16::from_be_bytes([header[at], header[at + 1]]), length);
    }
}

/// Returns the sum of the words of an IPv4 header, computed as for its checksum.
fn ipv4_sum(header: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    let sum: u32 = header[20..].chunks(2).map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()
}

/// Updates the checksum of a modified header.
fn set_ipv4_checksum(header: &mut [u8]) {
    header[30..32].fill(0);
    let checksum = !ipv4_sum(header);
    header[30..32].copy_from_slice(&checksum.to_be_bytes());
}

fn headers_of_ipv4_have_a_right_checksum(device: &Device) {
    let scene = Scene::new(device);
    let Some(way) = scene.ways().into_iter().find(Way::is_ipv4) else {
        device.skip("the port has no IPv4 address");
    };
    let (_, header) = scene.send(&scene.a.pd.ah(vector(&way.from, &way.to, true)), 13);
    let right = ipv4_sum(&header) == 0xffff;
    assert_eq!(right, device.expected(true, "checksum-of-looped-headers", false));
}

fn on_ethernet_service_levels_say_what_packet_came(device: &Device) {
    let scene = Scene::new(device);
    device.needs(scene.a.endpoint().ethernet, "the port is of InfiniBand");
    for way in scene.ways() {
        let (got, _) = scene.send(&scene.a.pd.ah(vector(&way.from, &way.to, true)), 13);
        let udp = way.kind == ibv_gid_type::IBV_GID_TYPE_ROCE_V2;
        let packet_type = match (udp, way.is_ipv4()) {
            (false, _) => 0,
            (true, false) => 8 | 1,
            (true, true) => 8 | 2,
        };
        if device.is_other() {
            // Adapters report the packet type, its low three bits, or nothing.
            assert!([packet_type, packet_type & 7, 0].contains(&got.sl), "{}", got.sl);
        } else {
            let difference = "service-level-of-a-packet-type";
            assert_eq!(got.sl, device.expected(packet_type, difference, 0));
        }
    }
}

fn attributes_of_the_way_back_are_in_what_came(device: &Device) {
    let scene = Scene::new(device);
    for way in scene.ways() {
        let ah = scene.a.pd.ah(vector(&way.from, &way.to, true));
        let (question, header) = scene.send(&ah, 0);
        let attr = scene.b.context.ah_attributes(&question, &header).unwrap();
        let back = vector(&way.to, &way.from, true);
        assert_eq!((attr.port_num, attr.is_global), (1, 1));
        assert_eq!(gid_of(&attr.grh.dgid), gid_of(&back.grh.dgid));
        assert_eq!(attr.grh.sgid_index, way.index, "the index of the destination address");
        let carried = (way.hop_limit(&header), carried_class(device, 0x2c));
        assert_eq!((attr.grh.hop_limit, attr.grh.traffic_class), carried);
        // Zeros precede an IPv4 header, so its flow label is 0.
        let start = u32::from_be_bytes(header[..4].try_into().unwrap());
        assert_eq!(attr.grh.flow_label, start & 0x000f_ffff);
        assert_eq!(attr.sl, question.sl);
        if !way.from.ethernet {
            assert_eq!((attr.sl, attr.dlid, attr.src_path_bits), (back.sl, back.dlid, 0));
        }
    }
}

fn the_way_back_leads_to_whom_the_header_names(device: &Device) {
    let scene = Scene::new(device);
    for way in scene.ways() {
        let ah = scene.a.pd.ah(vector(&way.from, &way.to, true));
        let (question, mut header) = scene.send(&ah, 0);
        // The last byte of the source address is changed, as if the datagram came from elsewhere.
        let last = if way.is_ipv4() { 35 } else { 23 };
        header[last] ^= 0x40;
        if way.is_ipv4() {
            set_ipv4_checksum(&mut header);
        }
        let mut source = gid_of(&way.from.gid).to_bytes();
        source[15] ^= 0x40;
        let attr = scene.b.context.ah_attributes(&question, &header).unwrap();
        assert_eq!(gid_of(&attr.grh.dgid).to_bytes(), source);
        assert_eq!(attr.grh.sgid_index, way.index);
    }
}

fn an_answer_goes_back_by_what_came_with_the_question(device: &Device) {
    let scene = Scene::new(device);
    for way in scene.ways() {
        let ah = scene.a.pd.ah(vector(&way.from, &way.to, true));
        let (question, header) = scene.send(&ah, 0);
        let back = scene.b.pd.try_ah_from(&question, &header).unwrap();
        let at_a = scene.a.pd.register(HEADER, LOCAL_WRITE);
        scene.a.qp.post_receive(20, &[at_a.sge(0, HEADER)]);
        scene.b.qp.post(&Wr::send(2, &[]).to(&back, question.src_qp, QKEY));
        scene.b.send_cq.expect_success(2);
        assert_eq!(scene.a.receive_cq.expect_success(20).src_qp, scene.b.qp.number());
    }
}

/// Returns the completion of a datagram that was received with a header.
fn with_header() -> ibv_wc {
    ibv_wc { wc_flags: ibv_wc_flags::IBV_WC_GRH.0, ..Default::default() }
}

fn what_is_no_header_makes_no_handle(device: &Device) {
    let side = side(device);
    device.needs(side.endpoint().ethernet, "InfiniBand headers have only one form");
    for header in [[0; HEADER], [0xff; HEADER]] {
        let refused = side.context.ah_attributes(&with_header(), &header).err();
        assert!(refused.is_some());
        assert!(side.pd.try_ah_from(&with_header(), &header).is_err());
    }
}

fn headers_for_other_addresses_make_no_handle(device: &Device) {
    let scene = Scene::new(device);
    let (question, mut header) = scene.send(&scene.ah(), 0);
    device.needs(scene.a.endpoint().ethernet, "without a header only the port is checked");
    assert!(scene.b.context.ah_attributes(&question, &header).is_ok());
    // This is the last byte of the destination address.
    header[39] ^= 0x40;
    if header[0] >> 4 != 6 {
        set_ipv4_checksum(&mut header);
    }
    assert!(scene.b.context.ah_attributes(&question, &header).is_err());
    assert!(scene.b.pd.try_ah_from(&question, &header).is_err());
}

/// Checks that a valid address vector is refused once `spoil` has changed it.
#[track_caller]
fn expect_refused(device: &Device, spoil: impl Fn(&mut ibv_ah_attr)) {
    let side = side(device);
    let end = side.endpoint();
    let mut attr = vector(&end, &end, end.ethernet);
    side.pd.ah(attr).destroy();
    spoil(&mut attr);
    assert!(side.pd.try_ah(attr).is_err());
}

fn handles_need_a_port_of_the_device(device: &Device) {
    let ports = device.attributes().phys_port_cnt;
    expect_refused(device, |attr| attr.port_num = 0);
    expect_refused(device, |attr| attr.port_num = ports + 1);
    expect_refused(device, |attr| attr.port_num = 255);
}

fn handles_need_a_source_of_the_port(device: &Device) {
    let rows = gid_table(&device.open(), 256, 0).unwrap();
    let has = |index: u8| rows.iter().any(|row| row.index == u32::from(index));
    // The first index without a GID (possibly beyond the table), and the highest possible index.
    let first = (0..=u8::MAX).find(|&index| !has(index));
    for index in first.into_iter().chain([u8::MAX]) {
        expect_refused(device, |attr| (attr.is_global, attr.grh.sgid_index) = (1, index));
    }
}

fn on_ethernet_handles_need_a_global_route(device: &Device) {
    let ethernet = side(device).endpoint().ethernet;
    device.needs(ethernet, "the port is of InfiniBand");
    expect_refused(device, |attr| attr.is_global = 0);
    // The all-zero address is not valid either.
    expect_refused(device, |attr| attr.grh.dgid = Default::default());
}

/// On Ethernet, the service level of a completion is the type of the packet. Handles that are
/// created from completions contain this level, so handles must accept every level.
fn on_ethernet_handles_take_every_service_level(device: &Device) {
    let scene = Scene::new(device);
    device.needs(scene.a.endpoint().ethernet, "the port is of InfiniBand");
    for way in scene.ways() {
        for service_level in 0..16 {
            let attr = ibv_ah_attr { sl: service_level, ..vector(&way.from, &way.to, true) };
            let (got, _) = scene.send(&scene.a.pd.ah(attr), 13);
            assert_eq!(got.src_qp, scene.a.qp.number(), "{service_level}");
        }
    }
}

fn on_infiniband_handles_need_a_local_address(device: &Device) {
    let ethernet = side(device).endpoint().ethernet;
    device.needs(!ethernet, "the port is of Ethernet, which has no LIDs");
    // LIDs from 0xc000 are multicast LIDs.
    expect_refused(device, |attr| attr.dlid = 0);
    expect_refused(device, |attr| (attr.dlid, attr.is_global) = (0xc000, 0));
    expect_refused(device, |attr| attr.sl = 16);
}

fn on_infiniband_a_lid_alone_is_enough(device: &Device) {
    let scene = Scene::new(device);
    let (from, to) = (scene.a.endpoint(), scene.b.endpoint());
    device.needs(!from.ethernet, "the port is of Ethernet, which has no LIDs");
    let (question, header) = scene.send(&scene.a.pd.ah(vector(&from, &to, false)), 0);
    assert_eq!(question.wc_flags & ibv_wc_flags::IBV_WC_GRH.0, 0);
    let attr = scene.b.context.ah_attributes(&question, &header).unwrap();
    assert_eq!((attr.is_global, attr.dlid, attr.port_num, attr.sl), (0, from.lid, 1, 3));
}

fn domains_with_handles_cannot_be_deallocated(device: &Device) {
    let side = side(device);
    let pd = side.context.pd();
    let ah = pd.ah_to(&side.endpoint(), &side.endpoint());
    assert_eq!(pd.try_dealloc(), Errno::EBUSY.raw());
    ah.destroy();
    // The drop asserts that the domain can be destroyed now.
    drop(pd);
}

fn handles_of_one_way_live_and_die_apart(device: &Device) {
    let scene = Scene::new(device);
    let handles: Vec<_> = (0..16).map(|_| scene.ah()).collect();
    for (n, ah) in handles.into_iter().enumerate() {
        if n % 2 == 0 {
            ah.destroy();
        } else {
            scene.send(&ah, 8);
        }
    }
}

fn one_handle_serves_all_queue_pairs_of_its_domain(device: &Device) {
    let scene = Scene::new(device);
    let (a, ah) = (&scene.a, scene.ah());
    for wr_id in 0..4 {
        let qp = a.pd.qp(&a.send_cq, &a.receive_cq, &size());
        activate(&qp, QKEY);
        scene.b.qp.post_receive(10, &[scene.sink.sge(0, HEADER)]);
        qp.post(&Wr::send(wr_id, &[]).to(&ah, scene.b.qp.number(), QKEY));
        a.send_cq.expect_success(wr_id);
        assert_eq!(scene.b.receive_cq.expect_success(10).src_qp, qp.number());
    }
}

fn one_handle_leads_to_all_queue_pairs_of_a_port(device: &Device) {
    let scene = Scene::new(device);
    let (b, ah) = (&scene.b, scene.ah());
    for wr_id in 0..4 {
        let qp = b.pd.qp(&b.send_cq, &b.receive_cq, &size());
        activate(&qp, QKEY);
        qp.post_receive(10, &[scene.sink.sge(0, HEADER)]);
        scene.a.qp.post(&Wr::send(wr_id, &[]).to(&ah, qp.number(), QKEY));
        scene.a.send_cq.expect_success(wr_id);
        assert_eq!(b.receive_cq.expect_success(10).qp_num, qp.number());
    }
}

fn a_handle_may_go_when_its_requests_are_complete(device: &Device) {
    let scene = Scene::new(device);
    for _ in 0..3 {
        let ah = scene.ah();
        scene.send(&ah, 8);
        ah.destroy();
    }
}

/// Posts a datagram with an address handle from another domain. Returns the completion's status.
fn post_by_foreign_handle(scene: &Scene) -> Status {
    let foreign = scene.a.context.pd();
    let ah = foreign.ah_to(&scene.a.endpoint(), &scene.b.endpoint());
    scene.b.qp.post_receive(10, &[scene.sink.sge(0, HEADER)]);
    scene.a.qp.post(&Wr::send(1, &[]).to(&ah, scene.b.qp.number(), QKEY));
    let ended = scene.a.send_cq.next();
    assert_eq!(ended.wr_id, 1);
    ended.status
}

fn a_handle_of_another_domain_fails_here(device: &Device) {
    let scene = Scene::new(device);
    assert_eq!(post_by_foreign_handle(&scene), Status::IBV_WC_LOC_QP_OP_ERR);
    scene.b.qp.post(&Wr::send(2, &[]).to(
        &scene.b.pd.ah_to(&scene.b.endpoint(), &scene.b.endpoint()),
        scene.b.qp.number(),
        QKEY,
    ));
    // The next message that B receives is the one that B sent.
    assert_eq!(scene.b.receive_cq.expect_success(10).src_qp, scene.b.qp.number());
    scene.b.send_cq.expect_success(2);
}

fn a_handle_of_another_domain_stops_the_send_queue_alone(device: &Device) {
    let scene = Scene::new(device);
    post_by_foreign_handle(&scene);
    let (contract, rxe) = (State::IBV_QPS_SQE, State::IBV_QPS_ERR);
    let state = device.expected(contract, "no-send-queue-error-state", rxe);
    test_support::rig::until("the state", || scene.a.qp.state() == state);
}
