//! Multicast groups: a datagram reaches all queue pairs that have joined.

use std::net::{Ipv4Addr, UdpSocket};

use rdma_sys::{Errno, IBV_LINK_LAYER_ETHERNET, ibv_gid, ibv_qp_state as State, ibv_qp_type};

use test_support::rig::connect::Side;
use test_support::rig::datagram::{Ah, HEADER, QKEY, gid_of, side, size, step, vector};
use test_support::rig::post::Wr;
use test_support::rig::{LOCAL_WRITE, Mr, Size, imm_of};

use super::datagrams::mtu;
use crate::case::cases;
use crate::device::Device;

cases![
    without_groups_nobody_joins,
    a_datagram_to_a_group_reaches_all_members,
    a_datagram_to_a_group_names_it,
    each_member_gets_all_bytes,
    who_left_hears_nothing,
    who_joined_another_group_hears_nothing,
    members_with_another_key_hear_nothing,
    members_without_a_receive_miss_a_datagram_alone,
    senders_need_not_join,
    senders_that_joined_hear_themselves,
    who_joined_twice_hears_once_and_leaves_once,
    who_joined_two_groups_hears_both,
    members_that_are_reset_stay_members,
    groups_can_be_joined_before_a_queue_pair_is_ready,
    only_datagram_queue_pairs_join,
    only_addresses_of_groups_can_be_joined,
    who_did_not_join_cannot_leave,
    members_cannot_be_destroyed,
];

/// The QPN to which datagrams for groups are addressed.
const GROUP_QPN: u32 = 0x00ff_ffff;

/// The first group, as a GID for networks without IPv4.
const MULTICAST: [u8; 16] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// A multicast group, identified by a number. With IPv4, its address is in 239.255/16, which is
/// locally scoped, or contains the process ID if the device has a network.
struct Group {
    address: ibv_gid,
    /// The LID; 0 on Ethernet.
    lid: u16,
    /// Keeps the host itself a member. Without it, the host's network stack drops incoming packets.
    /// `None` for a software device, which joins by itself, and if the port has no IPv4 address.
    _socket: Option<UdpSocket>,
}

impl Group {
    fn new(device: &Device, side: &Side, number: u8) -> Self {
        let own = gid_of(&side.endpoint().gid);
        let mut raw = MULTICAST;
        raw[15] = number;
        let mut socket = None;
        if own.is_ipv4_mapped() {
            // Over UDP, a datagram to the group also reaches other processes, which run other
            // cases. The process ID makes the groups of processes differ.
            let [.., first, second] = std::process::id().to_be_bytes();
            let [first, second] = if device.has_network() { [first, second] } else { [255, 77] };
            let group = Ipv4Addr::new(239, first, second, number);
            raw = group.to_ipv6_mapped().octets();
            socket = (!device.is_software()).then(|| host_joins(&group, &own.to_ipv4().unwrap()));
        }
        let lid = if side.endpoint().ethernet { 0 } else { 0xc000 + u16::from(number) };
        Self { address: ibv_gid { raw }, lid, _socket: socket }
    }

    fn joined_by(&self, side: &Side) -> i32 {
        side.qp.attach(&self.address, self.lid)
    }

    fn left_by(&self, side: &Side) -> i32 {
        side.qp.detach(&self.address, self.lid)
    }
}

fn host_joins(group: &Ipv4Addr, interface: &Ipv4Addr) -> UdpSocket {
    let member = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    member.join_multicast_v4(group, interface).unwrap();
    member
}

/// A sender, and queue pairs that can join the group.
struct Scene {
    ah: Ah,
    room: Vec<Mr>,
    group: Group,
    a: Side,
    others: Vec<Side>,
}

impl Scene {
    /// Creates the scene, or skips the case if the device has no multicast groups.
    fn new(device: &Device, others: usize) -> Self {
        needs_groups(device);
        let a = side(device);
        let others: Vec<_> = (0..others).map(|_| side(device)).collect();
        let group = Group::new(device, &a, 1);
        let room = others.iter().map(|other| other.pd.register(HEADER, LOCAL_WRITE)).collect();
        Self { ah: way(&a, &group), room, group, a, others }
    }

    fn join(&self, n: usize) {
        assert_eq!(self.group.joined_by(&self.others[n]), 0);
    }

    fn leave(&self, n: usize) {
        assert_eq!(self.group.left_by(&self.others[n]), 0);
    }

    fn receive(&self, n: usize, wr_id: u64) {
        self.others[n].qp.post_receive(wr_id, &[self.room[n].sge(0, HEADER)]);
    }

    /// Sends a datagram with this immediate data to the group.
    fn send(&self, imm: u32) {
        self.a.qp.post(&Wr::send(1, &[]).with_imm(imm).to(&self.ah, GROUP_QPN, QKEY));
        self.a.send_cq.expect_success(1);
    }

    /// Checks that the next datagram that queue pair `n` receives has this immediate data.
    #[track_caller]
    fn expect(&self, n: usize, wr_id: u64, imm: u32) {
        let got = self.others[n].receive_cq.expect_success(wr_id);
        assert_eq!((imm_of(&got), got.byte_len, got.src_qp), (imm, 40, self.a.qp.number()));
        assert_eq!(got.qp_num, self.others[n].qp.number());
    }
}

fn way(from: &Side, group: &Group) -> Ah {
    let end = from.endpoint();
    let mut attr = vector(&end, &end, true);
    (attr.grh.dgid, attr.dlid) = (group.address, group.lid);
    from.pd.ah(attr)
}

fn needs_groups(device: &Device) {
    let attributes = device.attributes();
    device.needs(attributes.max_mcast_grp > 0, "the device has no multicast groups");
    let port = device.open().query_port();
    let ethernet = u32::from(port.link_layer) == IBV_LINK_LAYER_ETHERNET;
    let leads_everywhere = ethernet || device.is_software();
    device.needs(leads_everywhere, "groups of InfiniBand need a subnet manager");
}

fn without_groups_nobody_joins(device: &Device) {
    let attributes = device.attributes();
    device.needs(attributes.max_mcast_grp == 0, "the device has multicast groups");
    assert_eq!((attributes.max_mcast_qp_attach, attributes.max_total_mcast_qp_attach), (0, 0));
    let side = side(device);
    let group = ibv_gid { raw: MULTICAST };
    for errno in [side.qp.attach(&group, 0), side.qp.detach(&group, 0)] {
        assert!([Errno::EOPNOTSUPP, Errno::ENOSYS].contains(&Errno::from_raw(errno)), "{errno}");
    }
}

fn a_datagram_to_a_group_reaches_all_members(device: &Device) {
    let scene = Scene::new(device, 3);
    for n in 0..3 {
        scene.join(n);
        scene.receive(n, 10);
        scene.receive(n, 11);
    }
    for imm in 0..2 {
        scene.send(imm);
        for n in 0..3 {
            scene.expect(n, 10 + u64::from(imm), imm);
        }
    }
    (0..3).for_each(|n| scene.leave(n));
}

fn a_datagram_to_a_group_names_it(device: &Device) {
    let scene = Scene::new(device, 1);
    scene.join(0);
    scene.receive(0, 10);
    scene.send(7);
    scene.expect(0, 10, 7);
    let (header, group) = (scene.room[0].bytes(), gid_of(&scene.group.address));
    let named = if group.is_ipv4_mapped() { 12 } else { 0 };
    assert_eq!(header[24 + named..], group.to_bytes()[named..]);
    scene.leave(0);
}

fn each_member_gets_all_bytes(device: &Device) {
    let scene = Scene::new(device, 2);
    let longest = mtu(&scene.a);
    let bytes: Vec<u8> = (0..longest).map(|n| (n % 251) as u8).collect();
    let source = scene.a.pd.register_filled(bytes.clone(), 0);
    let sinks: Vec<_> =
        (0..2).map(|n| scene.others[n].pd.register(HEADER + longest, LOCAL_WRITE)).collect();
    (0..2).for_each(|n| scene.join(n));
    for length in [1, 100, longest] {
        for (other, sink) in scene.others.iter().zip(&sinks) {
            other.qp.post_receive(10, &[sink.sge(0, HEADER + longest)]);
        }
        let wr = Wr::send(1, &[source.sge(0, length)]);
        scene.a.qp.post(&wr.to(&scene.ah, GROUP_QPN, QKEY));
        scene.a.send_cq.expect_success(1);
        for (other, sink) in scene.others.iter().zip(&sinks) {
            let got = other.receive_cq.expect_success(10);
            assert_eq!(got.byte_len as usize, HEADER + length);
            assert_eq!(sink.bytes()[HEADER..HEADER + length], bytes[..length]);
        }
    }
    (0..2).for_each(|n| scene.leave(n));
}

fn who_left_hears_nothing(device: &Device) {
    let scene = Scene::new(device, 2);
    for n in 0..2 {
        scene.join(n);
        scene.receive(n, 10);
    }
    scene.leave(0);
    scene.send(1);
    scene.expect(1, 10, 1);
    device.let_arrive();
    // The next datagram that queue pair 0 receives is the one sent after it joined again.
    scene.join(0);
    scene.receive(1, 11);
    scene.send(2);
    scene.expect(0, 10, 2);
    scene.expect(1, 11, 2);
    (0..2).for_each(|n| scene.leave(n));
}

fn who_joined_another_group_hears_nothing(device: &Device) {
    let scene = Scene::new(device, 1);
    let another = Group::new(device, &scene.a, 2);
    assert_eq!(another.joined_by(&scene.others[0]), 0);
    scene.receive(0, 10);
    scene.send(1);
    let ah = way(&scene.a, &another);
    scene.a.qp.post(&Wr::send(2, &[]).with_imm(2).to(&ah, GROUP_QPN, QKEY));
    scene.a.send_cq.expect_success(2);
    scene.expect(0, 10, 2);
    assert_eq!(another.left_by(&scene.others[0]), 0);
}

fn members_with_another_key_hear_nothing(device: &Device) {
    let scene = Scene::new(device, 2);
    (0..2).for_each(|n| scene.join(n));
    (0..2).for_each(|n| scene.receive(n, 10));
    scene.others[0].qp.to_reset();
    for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS] {
        step(&scene.others[0].qp, state, QKEY + 1);
    }
    scene.receive(0, 20);
    scene.send(1);
    scene.expect(1, 10, 1);
    // The next datagram that this member receives is the one with the member's Q_Key.
    scene.a.qp.post(&Wr::send(2, &[]).with_imm(2).to(&scene.ah, GROUP_QPN, QKEY + 1));
    scene.a.send_cq.expect_success(2);
    scene.expect(0, 20, 2);
    (0..2).for_each(|n| scene.leave(n));
}

fn members_without_a_receive_miss_a_datagram_alone(device: &Device) {
    let scene = Scene::new(device, 2);
    (0..2).for_each(|n| scene.join(n));
    scene.receive(1, 10);
    scene.send(1);
    scene.expect(1, 10, 1);
    device.let_arrive();
    scene.receive(0, 11);
    scene.receive(1, 11);
    scene.send(2);
    scene.expect(0, 11, 2);
    scene.expect(1, 11, 2);
    (0..2).for_each(|n| scene.leave(n));
}

fn senders_need_not_join(device: &Device) {
    let scene = Scene::new(device, 1);
    scene.join(0);
    let at_a = scene.a.pd.register(HEADER, LOCAL_WRITE);
    scene.a.qp.post_receive(20, &[at_a.sge(0, HEADER)]);
    scene.receive(0, 10);
    scene.send(1);
    scene.expect(0, 10, 1);
    // The next datagram that the sender receives is the one that it addressed to its own QPN.
    let own = scene.a.pd.ah_to(&scene.a.endpoint(), &scene.a.endpoint());
    scene.a.qp.post(&Wr::send(2, &[]).with_imm(2).to(&own, scene.a.qp.number(), QKEY));
    scene.a.send_cq.expect_success(2);
    assert_eq!(imm_of(&scene.a.receive_cq.expect_success(20)), 2);
    scene.leave(0);
}

fn senders_that_joined_hear_themselves(device: &Device) {
    let scene = Scene::new(device, 1);
    scene.join(0);
    assert_eq!(scene.group.joined_by(&scene.a), 0);
    let at_a = scene.a.pd.register(HEADER, LOCAL_WRITE);
    for imm in 0..2 {
        scene.a.qp.post_receive(20, &[at_a.sge(0, HEADER)]);
        scene.receive(0, 10);
        scene.send(imm);
        scene.expect(0, 10, imm);
        let own = scene.a.receive_cq.expect_success(20);
        assert_eq!((imm_of(&own), own.src_qp), (imm, scene.a.qp.number()));
    }
    assert_eq!(scene.group.left_by(&scene.a), 0);
    scene.leave(0);
}

fn who_joined_twice_hears_once_and_leaves_once(device: &Device) {
    let scene = Scene::new(device, 1);
    scene.join(0);
    scene.join(0);
    for wr_id in 10..12 {
        scene.receive(0, wr_id);
    }
    // Each datagram consumes only one receive.
    for imm in 0..2 {
        scene.send(imm);
        scene.expect(0, 10 + u64::from(imm), imm);
    }
    scene.leave(0);
    assert_ne!(scene.group.left_by(&scene.others[0]), 0);
}

fn who_joined_two_groups_hears_both(device: &Device) {
    let scene = Scene::new(device, 1);
    let another = Group::new(device, &scene.a, 2);
    let to_another = way(&scene.a, &another);
    scene.join(0);
    assert_eq!(another.joined_by(&scene.others[0]), 0);
    for (wr_id, ah) in (10..).zip([&scene.ah, &to_another, &scene.ah]) {
        scene.receive(0, wr_id);
        let imm = u32::try_from(wr_id).unwrap();
        scene.a.qp.post(&Wr::send(1, &[]).with_imm(imm).to(ah, GROUP_QPN, QKEY));
        scene.a.send_cq.expect_success(1);
        scene.expect(0, wr_id, imm);
    }
    assert_eq!(another.left_by(&scene.others[0]), 0);
    // The queue pair is still a member of the first group.
    scene.receive(0, 20);
    scene.send(3);
    scene.expect(0, 20, 3);
    scene.leave(0);
}

fn members_that_are_reset_stay_members(device: &Device) {
    let scene = Scene::new(device, 2);
    (0..2).for_each(|n| scene.join(n));
    (0..2).for_each(|n| scene.receive(n, 10));
    scene.others[0].qp.to_reset();
    // A queue pair in RESET receives nothing.
    scene.send(1);
    scene.expect(1, 10, 1);
    device.let_arrive();
    for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS] {
        step(&scene.others[0].qp, state, QKEY);
    }
    (0..2).for_each(|n| scene.receive(n, 20));
    scene.send(2);
    (0..2).for_each(|n| scene.expect(n, 20, 2));
    (0..2).for_each(|n| scene.leave(n));
}

fn groups_can_be_joined_before_a_queue_pair_is_ready(device: &Device) {
    let scene = Scene::new(device, 1);
    scene.others[0].qp.to_reset();
    scene.join(0);
    for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR] {
        step(&scene.others[0].qp, state, QKEY);
    }
    scene.receive(0, 10);
    scene.send(1);
    scene.expect(0, 10, 1);
    scene.leave(0);
}

fn only_datagram_queue_pairs_join(device: &Device) {
    let scene = Scene::new(device, 0);
    for qp_type in device.types(&[ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UC]) {
        let other = Side::new(device, &Size { qp_type, ..size() }, 16);
        assert_ne!(scene.group.joined_by(&other), 0);
    }
}

fn only_addresses_of_groups_can_be_joined(device: &Device) {
    let scene = Scene::new(device, 0);
    for address in [scene.a.endpoint().gid, ibv_gid { raw: [0; 16] }] {
        assert_ne!(scene.a.qp.attach(&address, scene.group.lid), 0);
    }
}

fn who_did_not_join_cannot_leave(device: &Device) {
    let scene = Scene::new(device, 1);
    assert_ne!(scene.group.left_by(&scene.others[0]), 0);
    scene.join(0);
    scene.leave(0);
    assert_ne!(scene.group.left_by(&scene.others[0]), 0);
}

fn members_cannot_be_destroyed(device: &Device) {
    let scene = Scene::new(device, 1);
    scene.join(0);
    assert_eq!(scene.others[0].qp.try_destroy(), Errno::EBUSY.raw());
    scene.leave(0);
    // The drop asserts that the destruction succeeds now.
}
