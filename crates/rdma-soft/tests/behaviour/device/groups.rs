//! Multicast groups: members on several devices, and the requests that the device refuses.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;

use rdma_soft::{Builder, GidPlace, Limits, Link, Schedule};
use rdma_sys::{Errno, ibv_event_type, ibv_gid, ibv_qp_type, ibv_sge, ibv_wc_status as Status};
use rdma_types::GidType;
use test_support::flag::SetWhenDropped;

use crate::device::rig::connect::{RTR, Side, attributes, to_init};
use crate::device::rig::datagram::{Ah, HEADER, QKEY, activate, side, size, vector};
use crate::device::rig::post::Wr;
use crate::device::rig::{
    Context, LOCAL_WRITE, Mr, Size, imm_of, on_each_device, on_each_held_device, open_default,
    soft, until,
};

const GROUP_QPN: u32 = 0x00ff_ffff;
const REFUSED: i32 = Errno::EINVAL.raw();
const NO_ROOM: i32 = Errno::ENOMEM.raw();

/// An IPv4 group that no other test uses, and its LID where it has one: tests share the link.
#[derive(Clone, Copy)]
struct Group {
    gid: ibv_gid,
    lid: u16,
}

impl Group {
    fn new() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let [high, low] = number.to_be_bytes();
        let raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, high, low];
        Self { gid: ibv_gid { raw }, lid: 0xc000 + number }
    }

    fn joined_by(&self, side: &Side) -> i32 {
        side.qp.attach(&self.gid, self.lid)
    }

    fn left_by(&self, side: &Side) -> i32 {
        side.qp.detach(&self.gid, self.lid)
    }

    fn from(&self, from: &Side) -> Ah {
        let end = from.endpoint();
        let mut attr = vector(&end, &end, true);
        (attr.grh.dgid, attr.dlid) = (self.gid, self.lid);
        from.pd.ah(attr)
    }
}

fn to(ah: &Ah, imm: u32) -> Wr {
    Wr::send(imm.into(), &[]).with_imm(imm).to(ah, GROUP_QPN, QKEY)
}

#[track_caller]
fn send(from: &Side, ah: &Ah, imm: u32) {
    from.qp.post(&to(ah, imm));
    from.send_cq.expect_success(imm.into());
}

/// A queue pair that has joined a group.
struct Member {
    group: Group,
    room: Mr,
    side: Side,
}

impl Member {
    fn new(device: &str, group: &Group) -> Self {
        let side = side(device);
        assert_eq!(group.joined_by(&side), 0);
        Self { group: *group, room: side.pd.register(HEADER, LOCAL_WRITE), side }
    }

    fn receive(&self, wr_id: u64) {
        self.side.qp.post_receive(wr_id, &[self.room.sge(0, HEADER)]);
    }

    #[track_caller]
    fn expect(&self, wr_id: u64, imm: u32) {
        assert_eq!(imm_of(&self.side.receive_cq.expect_success(wr_id)), imm);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.left_by(&self.side);
    }
}

/// Two members on each of three devices, and one device forces packets; each member sends.
#[test]
fn members_on_every_device_with_an_active_port_receive() {
    for (link, name) in [(Link::Ethernet, "roce"), (Link::InfiniBand, "ib")] {
        let group = Group::new();
        let names = [0, 1, 2].map(|n| format!("groups-far-{name}-{n}"));
        let builder = |n: usize| Builder::new(&names[n]).link(link);
        builder(0).install().unwrap();
        builder(1).install().unwrap();
        builder(2).force_wire().install().unwrap();
        let members: Vec<_> = (0..6).map(|n| Member::new(&names[n / 2], &group)).collect();
        let mut imm = 0;
        for sender in 0..3 {
            let from = &members[2 * sender].side;
            let ah = group.from(from);
            for down in [None, Some(0), Some(1), Some(2)] {
                let port = down.map(|n: usize| soft(&names[n]));
                members.iter().for_each(|member| member.receive(10));
                if let Some(port) = port {
                    let lost = port.counters().port_down;
                    port.set_port_up(false);
                    send(from, &ah, imm);
                    if port.name() != from.context.name() {
                        for (n, member) in members.iter().enumerate() {
                            if names[n / 2] != port.name() {
                                member.expect(10, imm);
                                member.receive(10);
                            }
                        }
                    }
                    // Packets arrive at a port that is down before it is up again.
                    if down != Some(sender) && (sender == 2 || down == Some(2)) {
                        until("the packet is lost", || port.counters().port_down > lost);
                    }
                    assert!(members.iter().all(|member| member.side.receive_cq.is_empty()));
                    port.set_port_up(true);
                    imm += 1;
                }
                send(from, &ah, imm);
                members.iter().for_each(|member| member.expect(10, imm));
                imm += 1;
            }
        }
        // The devices of the other link receive nothing.
        let other = if link == Link::Ethernet { "softib0" } else { "soft0" };
        rdma_soft::install();
        let stranger = Member::new(other, &group);
        stranger.receive(10);
        send(&members[0].side, &group.from(&members[0].side), imm);
        assert!(stranger.side.receive_cq.is_empty());
    }
}

/// More than the inboxes of two devices hold: the sender waits, and each member receives each message once.
#[test]
fn a_sender_of_packets_to_a_group_waits_for_space_on_every_device() {
    const MANY: u32 = 600;
    let group = Group::new();
    let names = ["groups-room-0", "groups-room-1", "groups-room-2"];
    for name in names {
        Builder::new(name).force_wire().install().unwrap();
    }
    let size = Size { send_wr: MANY, receive_wr: MANY, ..size() };
    let sides = names.map(|name| Side::new(name, &size, 2 * MANY as i32));
    sides.iter().for_each(|side| activate(&side.qp, QKEY));
    let rooms: Vec<_> = sides.iter().map(|side| side.pd.register(HEADER, LOCAL_WRITE)).collect();
    for (side, room) in sides.iter().zip(&rooms) {
        assert_eq!(group.joined_by(side), 0);
        (0..MANY).for_each(|n| side.qp.post_receive(n.into(), &[room.sge(0, HEADER)]));
    }
    let ah = group.from(&sides[0]);
    let list: Vec<_> = (0..MANY).map(|n| to(&ah, n)).collect();
    sides[0].qp.try_post_list(&list).unwrap();
    for n in 0..MANY {
        sides[0].send_cq.expect_success(n.into());
        for side in &sides {
            assert_eq!(imm_of(&side.receive_cq.expect_success(n.into())), n);
        }
    }
    for side in &sides {
        assert!(side.receive_cq.is_empty());
        assert_eq!(group.left_by(side), 0);
    }
}

#[test]
fn groups_and_members_are_limited_as_the_device_was_built() {
    let [one, two, three] = [(); 3].map(|()| Group::new());
    Builder::new("groups-few")
        .limits(
            Limits::default().max_mcast_grp(2).max_mcast_qp_attach(2).max_total_mcast_qp_attach(3),
        )
        .install()
        .unwrap();
    let [a, b, c] = [(); 3].map(|()| side("groups-few"));
    let attr = a.context.query_device();
    assert_eq!((attr.max_mcast_grp, attr.max_mcast_qp_attach), (2, 2));
    assert_eq!(attr.max_total_mcast_qp_attach, 3);
    assert_eq!([&a, &b, &c].map(|side| one.joined_by(side)), [0, 0, NO_ROOM], "two in one group");
    assert_eq!(one.joined_by(&a), 0, "joining again needs no additional space");
    assert_eq!([&a, &b].map(|side| two.joined_by(side)), [0, NO_ROOM], "three in all");
    assert_eq!(one.left_by(&b), 0);
    assert_eq!(three.joined_by(&b), NO_ROOM, "two groups");
    // When the last member leaves a group, the group is removed.
    assert_eq!([two.left_by(&a), three.joined_by(&b)], [0, 0]);
    assert_eq!([three.left_by(&b), three.left_by(&b), one.left_by(&a)], [0, REFUSED, 0]);

    Builder::new("groups-none").limits(Limits::default().max_mcast_grp(0)).install().unwrap();
    let side_of_none = side("groups-none");
    let attr = side_of_none.context.query_device();
    assert_eq!((attr.max_mcast_grp, attr.max_mcast_qp_attach), (0, 0));
    assert_eq!(attr.max_total_mcast_qp_attach, 0);
    let refused = [one.joined_by(&side_of_none), one.left_by(&side_of_none)];
    assert_eq!(refused, [Errno::EOPNOTSUPP.raw(); 2]);

    Builder::new("groups-empty")
        .limits(Limits::default().max_mcast_qp_attach(0))
        .install()
        .unwrap();
    assert_eq!(one.joined_by(&side("groups-empty")), NO_ROOM);
}

#[test]
fn refused_joins_are_invalid_arguments() {
    let group = Group::new();
    for device in ["soft0", "softib0"] {
        rdma_soft::install();
        let side = side(device);
        let infiniband = !side.endpoint().ethernet;
        let Group { gid, lid } = group;
        for raw in [[0; 16], [0xfe; 16], [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]] {
            assert_eq!(side.qp.attach(&ibv_gid { raw }, lid), REFUSED);
        }
        for qp_type in [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UC] {
            let other = Side::new(device, &Size { qp_type, ..size() }, 16);
            assert_eq!([group.joined_by(&other), group.left_by(&other)], [REFUSED; 2]);
        }
        assert_eq!(group.left_by(&side), REFUSED);
        for lid in [0, 1, 0xbfff, 0xffff] {
            let joined = side.qp.attach(&gid, lid);
            assert_eq!(joined, if infiniband { REFUSED } else { 0 }, "{lid:#x}");
        }
        if infiniband {
            // Another LID is another group.
            assert_eq!([group.joined_by(&side), side.qp.detach(&gid, lid + 1)], [0, REFUSED]);
        }
        assert_eq!(side.qp.try_destroy(), Errno::EBUSY.raw());
        assert_eq!([group.left_by(&side), group.left_by(&side)], [0, REFUSED]);
    }
}

#[test]
fn handles_of_groups_must_fit_the_link() {
    let group = Group::new();
    let ib = { open_default("softib0").pd() };
    let attr = |spoil: &dyn Fn(&mut rdma_sys::ibv_ah_attr)| {
        let mut attr = rdma_sys::ibv_ah_attr { port_num: 1, is_global: 1, ..Default::default() };
        (attr.grh.dgid, attr.dlid) = (group.gid, group.lid);
        spoil(&mut attr);
        attr
    };
    let refused = |attr| ib.try_ah(attr).err() == Some(Errno::EINVAL);
    ib.ah(attr(&|_| {}));
    ib.ah(attr(&|attr| attr.dlid = 0xfffe));
    assert!(refused(attr(&|attr| attr.is_global = 0)));
    assert!(refused(attr(&|attr| attr.dlid = 0xffff)));
    assert!(refused(attr(&|attr| attr.grh.dgid.raw = [0xfe; 16])));
    assert!(refused(attr(&|attr| attr.grh.sgid_index = 1)));

    let (v1, v2) = (GidType::ROCE_V1, GidType::ROCE_V2);
    let places = [GidPlace::LinkLocal, GidPlace::Global, GidPlace::Ipv4Mapped];
    let places = [v1, v2].into_iter().flat_map(|kind| places.map(|place| place(kind)));
    Builder::new("groups-handles").gids(places).install().unwrap();
    let pd = Context::open("groups-handles").pd();
    let of_ipv6 = ibv_gid { raw: [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1] };
    for (index, v4) in [(0, false), (1, false), (2, true), (3, false), (4, false), (5, true)] {
        for (dgid, fits) in [(group.gid, v4 || index < 3), (of_ipv6, !v4 || index < 3)] {
            let made =
                pd.try_ah(attr(&|attr| (attr.grh.sgid_index, attr.grh.dgid) = (index, dgid)));
            assert_eq!(made.err(), (!fits).then_some(Errno::EINVAL), "{index}");
        }
    }
}

#[test]
fn connections_to_groups_are_refused() {
    let group = Group::new();
    rdma_soft::install();
    for device in ["soft0", "softib0"] {
        let side = Side::new(device, &Size::default(), 8);
        let end = side.endpoint();
        let mut attr = attributes(&end, &end, &Default::default());
        to_init(&side.qp, &attr);
        attr.qp_state = rdma_sys::ibv_qp_state::IBV_QPS_RTR;
        (attr.ah_attr.grh.dgid, attr.ah_attr.dlid) = (group.gid, group.lid);
        attr.ah_attr.is_global = 1;
        assert_eq!(side.qp.modify(attr, RTR), REFUSED);
    }
}

/// A datagram is for a group only if both its number and its address are.
#[test]
fn a_group_needs_both_its_address_and_its_number() {
    on_each_device("groups-half", |device| {
        let group = Group::new();
        let member = Member::new(device, &group);
        let a = side(device);
        let to_group = group.from(&a);
        let to_port = a.pd.ah_to(&a.endpoint(), &member.side.endpoint());
        member.receive(10);
        for (ah, qpn) in [(&to_port, GROUP_QPN), (&to_group, member.side.qp.number())] {
            a.qp.post(&Wr::send(1, &[]).to(ah, qpn, QKEY));
            a.send_cq.expect_success(1);
        }
        send(&a, &to_group, 2);
        member.expect(10, 2);
    });
}

#[test]
fn a_closed_context_ends_memberships() {
    on_each_device("groups-closed", |device| {
        let group = Group::new();
        let context = Context::open(device);
        let (cq, pd) = (context.cq(10), context.pd());
        let qp = pd.qp(&cq, &cq, &size());
        let Group { gid, lid } = group;
        assert_eq!([qp.attach(&gid, lid), qp.try_destroy()], [0, Errno::EBUSY.raw()]);
        assert_eq!(context.close(), 0);
        // The drop asserts that the destruction succeeds.
        drop(qp);
        let a = side(device);
        send(&a, &group.from(&a), 1);
        drop((pd, cq));
    });
}

#[test]
fn only_the_member_with_a_short_receive_misses_the_datagram() {
    on_each_device("groups-short", |device| {
        let group = Group::new();
        let [one, two] = [(); 2].map(|()| Member::new(device, &group));
        let a = side(device);
        let ah = group.from(&a);
        one.side.qp.post_receive(10, &[one.room.sge(0, HEADER - 1)]);
        two.receive(10);
        send(&a, &ah, 1);
        two.expect(10, 1);
        assert!(one.side.receive_cq.is_empty());
        one.side.qp.assert_ready();
    });
}

#[test]
fn members_with_bad_elements_fail_one_by_one() {
    on_each_device("groups-bad", |device| {
        let group = Group::new();
        let members = [(); 3].map(|()| Member::new(device, &group));
        let a = side(device);
        let ah = group.from(&a);
        for member in &members[..2] {
            let bad = ibv_sge { addr: 8, length: 64, lkey: 1 };
            member.side.qp.post_receive(10, &[bad]);
        }
        for imm in 1..3 {
            members[2].receive(10);
            send(&a, &ah, imm);
            members[2].expect(10, imm);
        }
        for member in &members[..2] {
            member.side.receive_cq.expect(10, Status::IBV_WC_LOC_PROT_ERR);
            member.side.qp.wait_for_error();
            let event = (ibv_event_type::IBV_EVENT_QP_FATAL, member.side.qp.0.addr());
            // The thread that executed the datagram reports it after the state.
            until("the event", || member.side.context.has_async_events());
            assert_eq!(member.side.context.async_events(), [event]);
        }
        a.qp.assert_ready();
    });
}

#[test]
fn a_datagram_to_a_group_is_never_half_copied() {
    on_each_held_device("groups-held", |device| {
        let group = Group::new();
        let member = Member::new(device.name(), &group);
        let a = side(device.name());
        let (ah, source) = (group.from(&a), a.pd.register(16, 0));
        member.side.qp.post_receive(10, &[]);
        a.qp.post(&Wr::send(1, &[source.sge(0, 16)]).to(&ah, GROUP_QPN, QKEY));
        assert!(!device.release_half(a.qp.qpn()), "it ends now");
        a.send_cq.expect_success(1);
        // A member that leaves before the release receives nothing.
        member.receive(11);
        a.qp.post(&to(&ah, 2));
        assert_eq!(group.left_by(&member.side), 0);
        assert_eq!(device.release_all(), 1);
        a.send_cq.expect_success(2);
        assert!(member.side.receive_cq.is_empty());
    });
}

#[test]
fn a_locally_wrong_request_reaches_no_member() {
    on_each_device("groups-wrong", |device| {
        let group = Group::new();
        let member = Member::new(device, &group);
        let a = side(device);
        member.receive(10);
        let bad = ibv_sge { addr: 8, length: 1, lkey: 1 };
        a.qp.post(&Wr::send(1, &[bad]).to(&group.from(&a), GROUP_QPN, QKEY));
        a.send_cq.expect(1, Status::IBV_WC_LOC_PROT_ERR);
        let b = side(device);
        let of_another_domain = group.from(&b);
        a.qp.to_reset();
        activate(&a.qp, QKEY);
        a.qp.post(&Wr::send(2, &[]).to(&of_another_domain, GROUP_QPN, QKEY));
        a.send_cq.expect(2, Status::IBV_WC_LOC_QP_OP_ERR);
        send(&b, &of_another_domain, 3);
        member.expect(10, 3);
    });
}

#[test]
fn datagrams_to_groups_are_one_request_each_and_one_for_each_member() {
    let group = Group::new();
    let names = ["groups-count-a", "groups-count-b"];
    let devices = names.map(|name| Builder::new(name).install().unwrap());
    let a = side(names[0]);
    let members = [0, 1, 1].map(|n: usize| Member::new(names[n], &group));
    members.iter().for_each(|member| member.receive(10));
    let ah = group.from(&a);
    send(&a, &ah, 1);
    members.iter().for_each(|member| member.expect(10, 1));
    assert_eq!(a.qp.query().sq_psn, 6, "one number per datagram, whatever the number of members");
    let violations = || members[1].side.context.query_port().qkey_viol_cntr;
    let before = violations();
    a.qp.post(&Wr::send(2, &[]).to(&ah, GROUP_QPN, QKEY + 1));
    a.send_cq.expect_success(2);
    assert_eq!(violations() - before, 2);
    let [here, there] = devices.map(|device| device.counters());
    assert_eq!((here.sent_pkts, here.rdma_sends, here.rcvd_pkts), (2, 2, 1));
    assert_eq!((there.sent_pkts, there.rcvd_pkts, there.rdma_recvs), (0, 2, 2));
}

/// Members join and leave on a thread while another one sends; one that stays receives everything, in order.
#[test]
fn members_join_and_leave_while_others_send() {
    let schedules = [Schedule::Immediate, Schedule::Deferred { seed: 3 }];
    for (n, (schedule, wire)) in schedules.into_iter().zip([false, true]).enumerate() {
        let group = Group::new();
        let name = format!("groups-threads-{n}");
        let builder = Builder::new(&name).schedule(schedule);
        if wire { builder.force_wire() } else { builder }.install().unwrap();
        let (a, stays) = (side(&name), Member::new(&name, &group));
        let ah = group.from(&a);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let others = scope.spawn(|| {
                let mut heard = 0;
                while !done.load(Ordering::Relaxed) {
                    let member = Member::new(&name, &group);
                    member.receive(10);
                    // The datagram may have arrived, be in flight, or be missing.
                    heard += usize::from(!member.side.receive_cq.is_empty());
                }
                heard
            });
            let sends = SetWhenDropped(&done);
            for imm in 0..500 {
                stays.receive(imm.into());
                send(&a, &ah, imm);
                stays.expect(imm.into(), imm);
            }
            drop(sends);
            others.join().unwrap();
        });
        assert!(stays.side.receive_cq.is_empty());
    }
}
