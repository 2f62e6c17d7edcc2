//! Multicast groups: joining, and datagrams to their members.
#![allow(unsafe_code)] // posting is unsafe

use std::net::IpAddr;

use rdma_cm::EventChannel;
use rdma_cm::unmanaged::{self, Event, Group, Id};
use rdma_mem::Context;
use rdma_qp::prelude::*;
use rdma_qp::{
    AddressHandle, CompletionQueue, GlobalRouteHeader, PollSlot, QueuePairType, ReceiveWorkRequest,
    SendWorkRequest,
};
use rdma_soft::GidPlace;
use rdma_types::{GidType, Lid, Qpn};
use test_support::rig::pause;

use crate::common::{LIMIT, open};
use crate::other_hosts::Host;

/// Joins a group with a channel, and returns the ID and the group.
fn join(channel: &EventChannel, group: IpAddr, source: Option<IpAddr>) -> (Id, Group) {
    let id = unmanaged::join(channel, group, source).unwrap();
    let (of, event) = unmanaged::event(channel.next(Some(LIMIT)).unwrap().unwrap());
    let Event::Joined(joined) = event else { panic!("{event:?}") };
    assert_eq!((of, joined.qkey), (id.token(), unmanaged::QKEY));
    (id, joined)
}

/// Joins a group at two channels, and sends a datagram to the members.
pub(crate) fn groups(context: &Context, group: &str) -> Group {
    let channels = [(); 2].map(|()| EventChannel::open(context).unwrap());
    let joined = channels.each_ref().map(|channel| join(channel, group.parse().unwrap(), None));
    let [(first, group), (_second, again)] = joined;
    assert_eq!((group.gid, group.lid), (again.gid, again.lid));
    let cq = CompletionQueue::create(context, 16).unwrap();
    let pd = context.allocate_pd().unwrap();
    let members = [(); 2].map(|()| {
        let builder = pd.create_qp().qp_type(QueuePairType::UD).send_cq(&cq).recv_cq(&cq);
        let member = builder.qkey(group.qkey).build().unwrap().activate().unwrap();
        member.attach_multicast(group.gid, group.lid).unwrap();
        member
    });
    let mut region = pd.allocate_region(2 * GlobalRouteHeader::BYTES).unwrap();
    for (place, member) in members.iter().enumerate() {
        let at = place * GlobalRouteHeader::BYTES;
        let mut header = region.get_mut(at, GlobalRouteHeader::BYTES).unwrap();
        let mut elements = [header.scatter_element()];
        // SAFETY: SAFETY.md F8: nothing uses the region before both receives have completed below.
        unsafe { member.post_receive(ReceiveWorkRequest::new(&mut elements), 1) }.unwrap();
    }
    let way = group.address_vector(context).unwrap();
    let to_group = AddressHandle::create(&pd, &way).unwrap();
    let message = SendWorkRequest::only_immediate(5).to(&to_group, Qpn::MULTICAST, group.qkey);
    // SAFETY: SAFETY.md F8: the handle is used until the send has completed below.
    unsafe { members[0].post_send(message, 2) }.unwrap();
    let (mut slots, mut completed, mut turns) = ([PollSlot::default(); 4], Vec::new(), 0);
    while completed.len() < 3 {
        let polled = cq.poll(&mut slots).unwrap();
        completed.extend(polled.map(|completion| completion.result().unwrap().is_receive()));
        pause(&mut turns);
    }
    completed.sort_unstable();
    assert_eq!(completed, [false, true, true]);
    drop(first);
    group
}

#[test]
fn members_of_a_group_receive_its_datagrams() {
    let group = groups(&open("soft0"), "239.1.2.3");
    assert_eq!((group.gid, group.lid), ("::ffff:239.1.2.3".parse().unwrap(), Lid::NONE));
    let group = groups(&open("soft0"), "ff0e::7");
    assert_eq!(group.gid, "ff0e::7".parse().unwrap());
    let group = groups(&open("softib0"), "239.1.2.3");
    assert_eq!(group.gid, "ff12:4001:ffff::f01:203".parse().unwrap());
    assert_eq!(group.lid, Lid::new(0xc203));
}

#[test]
fn a_group_is_reached_from_the_address_at_which_the_device_listens() {
    let host = Host::new();
    let channel = EventChannel::open(&host.context).unwrap();
    let (_id, group) = join(&channel, [239, 1, 2, 3].into(), None);
    assert_eq!(group.route.source.ip(), host.ip);
}

#[test]
fn a_group_is_reached_from_the_wanted_address() {
    let other = GidPlace::Ipv4Mapped(GidType::ROCE_V2);
    let host = Host::with(|builder| builder.gids([other]));
    let channel = EventChannel::open(&host.context).unwrap();
    let table = host.context.gid_table().unwrap();
    let all: Vec<_> = table.iter().filter_map(|entry| entry.gid.to_ipv4()).collect();
    assert!(all.len() == 2 && all.contains(&host.ip));
    for ip in all {
        for source in [IpAddr::V4(ip), ip.to_ipv6_mapped().into()] {
            let group = unmanaged::group(&channel, ([239, 1, 2, 3], 0).into(), Some(source));
            assert_eq!(group.unwrap().route.source.ip(), ip);
            let (_id, group) = join(&channel, [239, 1, 2, 3].into(), Some(source));
            assert_eq!(group.route.source.ip(), ip);
        }
    }
}

#[test]
fn an_address_that_is_no_groups_is_refused() {
    let channel = EventChannel::open(&open("soft0")).unwrap();
    let error = unmanaged::join(&channel, [192, 0, 2, 1].into(), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "192.0.2.1 is no multicast address: use one of 224.0.0.0/4 or ff00::/8"
    );
}
