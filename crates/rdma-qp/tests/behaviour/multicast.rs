//! Multicast groups: joining, leaving, and the end of members.
#![allow(unsafe_code)]

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::common::{TestPeer, pair, parts};
use rdma_mem::{Context, Errno, Gid, Lid, ScatterElement};
use rdma_qp::{
    AddressHandle, AddressVector, Error, GlobalRoute, GlobalRouteHeader, Qpn, QueuePair,
    QueuePairType, ReceiveWorkRequest, SendWorkRequest, prelude::*,
};
use rdma_soft::{Builder, Limits};

const QKEY: u32 = 0x1234;

/// Returns a group that no other test uses, and its LID.
fn new_group(device: &str) -> (Gid, Lid) {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let [high, low] = number.to_be_bytes();
    let lid = if device == "softib0" { Lid::new(0xc000 + number) } else { Lid::NONE };
    (Gid::from_ipv4(Ipv4Addr::new(239, 2, high, low)), lid)
}

fn end(device: &str) -> TestPeer {
    let (pd, cq) = parts(device);
    let builder = pd.create_qp().qp_type(QueuePairType::UD).qkey(QKEY);
    let qp = builder.send_cq(&cq).recv_cq(&cq).build().unwrap().activate().unwrap();
    let board = pd.allocate_shared_region(4096, crate::common::everything()).unwrap();
    TestPeer { qp, cq, pd, board }
}

fn receive(end: &TestPeer) {
    let element = end.board.element(0..GlobalRouteHeader::BYTES).unwrap();
    // SAFETY: SAFETY.md F8: a shared region, which outlives the queue pair's requests.
    unsafe {
        end.qp.post_receive(ReceiveWorkRequest::new(&mut [ScatterElement::from(element)]), 1)
    }
    .unwrap();
}

/// Sends a number to the group, and waits until it is sent.
fn send(from: &TestPeer, (gid, lid): (Gid, Lid), number: u32) {
    let table = from.pd.context().gid_table().unwrap();
    let own = table.iter().find(|own| lid != Lid::NONE || own.gid.is_ipv4_mapped()).unwrap();
    let route = GlobalRoute::new(own.index.try_into().unwrap(), gid);
    let way = AddressVector::new(own.port, lid).with_route(route);
    let handle = AddressHandle::create(&from.pd, &way).unwrap();
    let request = SendWorkRequest::only_immediate(number).to(&handle, Qpn::MULTICAST, QKEY);
    // SAFETY: SAFETY.md F8: no memory, and the handle lives until the send has completed.
    unsafe { from.qp.post_send(request, 2) }.unwrap();
    from.next().result().unwrap();
}

fn errno(error: &Error) -> Errno {
    let Error::Verb(error) = error else { panic!("{error}") };
    error.errno
}

#[test]
fn members_receive_until_they_leave() {
    for device in ["soft0", "softib0"] {
        let (a, left, member) = (end(device), end(device), end(device));
        let group @ (gid, lid) = new_group(device);
        for end in [&left, &member] {
            end.qp.attach_multicast(gid, lid).unwrap();
            receive(end);
        }
        left.qp.detach_multicast(gid, lid).unwrap();
        send(&a, group, 7);
        let completion = member.next();
        assert_eq!(completion.result().unwrap().immediate_data(), Some(7));
        assert_eq!(member.qp.datagram(&completion).unwrap().qpn, a.qp.qpn());
        assert!(left.is_idle(), "it has left");
    }
}

/// Installs a device that supports one group with at most one member.
fn device_with_room_for_one(name: &str) -> Context {
    let limits = Limits::default().max_mcast_grp(1).max_mcast_qp_attach(1);
    let _ = Builder::new(name).limits(limits).install();
    rdma_mem::open_device(name).unwrap()
}

fn on(context: &Context) -> QueuePair {
    let cq = rdma_qp::CompletionQueue::create(context, 16).unwrap();
    let pd = context.allocate_pd().unwrap();
    let builder = pd.create_qp().qp_type(QueuePairType::UD).send_cq(&cq).recv_cq(&cq);
    builder.build().unwrap().activate().unwrap()
}

#[test]
fn the_end_of_a_queue_pair_ends_its_memberships() {
    let context = device_with_room_for_one("groups0");
    let (gid, lid) = new_group("groups0");
    for close in [false, true] {
        let member = on(&context);
        member.attach_multicast(gid, lid).unwrap();
        member.attach_multicast(gid, lid).unwrap();
        let other = on(&context);
        let full = other.attach_multicast(gid, lid).unwrap_err();
        assert_eq!(errno(&full), Errno::ENOMEM);
        assert!(full.to_string().contains("1 groups of 1 queue pairs each"), "{full}");
        if close {
            member.close().unwrap();
        } else {
            drop(member);
        }
        other.attach_multicast(gid, lid).unwrap();
    }
    context.close().unwrap();
}

#[test]
fn a_refused_group_has_a_hint() {
    let (gid, lid) = new_group("soft0");
    let (connected, _peer) = pair("soft0");
    for refused in
        [connected.qp.attach_multicast(gid, lid), connected.qp.detach_multicast(gid, lid)]
    {
        assert!(matches!(refused, Err(Error::NotDatagrams { .. })), "{refused:?}");
    }
    let refused = end("soft0").qp.attach_multicast(Gid::from_bytes([0; 16]), lid).unwrap_err();
    assert_eq!(errno(&refused), Errno::EINVAL);
    assert!(refused.to_string().contains("ff00::/8"), "{refused}");
    let no_lid = end("softib0").qp.attach_multicast(gid, Lid::NONE).unwrap_err();
    assert!(no_lid.to_string().contains("0xc000 to 0xfffe"), "{no_lid}");
    let no_member = end("soft0").qp.detach_multicast(gid, lid).unwrap_err();
    assert_eq!(errno(&no_member), Errno::EINVAL);
    assert!(no_member.to_string().contains("is not in that group"), "{no_member}");

    let limits = Limits::default().max_mcast_grp(0);
    let _ = Builder::new("nogroups0").limits(limits).install();
    let refused = on(&rdma_mem::open_device("nogroups0").unwrap()).attach_multicast(gid, lid);
    let refused = refused.unwrap_err();
    assert_eq!(errno(&refused), Errno::EOPNOTSUPP);
    assert!(refused.to_string().contains("send to each queue pair"), "{refused}");
}
