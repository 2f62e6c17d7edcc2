//! Cases for datagram services and multicast groups by IP address. On a device of the system's libibverbs, the kernel's
//! rdma_cm resolves services, and joins groups.
#![allow(unsafe_code)] // posting is unsafe

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rdma_cm::unmanaged::{self, Address, Answered, Event, PortSpace, Route, SidrStatus};
use rdma_cm::{BindOptions, End, EventChannel, Reason};
use rdma_mem::{Context, ProtectionDomain};
use rdma_qp::prelude::*;
use rdma_qp::{
    AddressHandle, AddressVector, CompletionQueue, GlobalRoute, GlobalRouteHeader, PollSlot,
    QueuePair, QueuePairType, ReceiveWorkRequest, SendWorkRequest,
};
use rdma_types::{Lid, Qpn};
use test_support::rig::pause;

use crate::case::cases;
use crate::cases::connection::by_address::{BOUND, address_of, open, own_address};
use crate::device::Device;

cases![
    a_service_is_found_by_its_address_and_receives_datagrams,
    a_port_without_a_service_is_unsupported,
    a_group_is_joined_by_its_address,
];

/// The value of each datagram.
const VALUE: u32 = 0x0bad_cafe;

struct Node {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    channel: EventChannel,
}

impl Node {
    fn new(device: &Device) -> (Self, Context) {
        let (context, channel) = open(device);
        let pd = context.allocate_pd().unwrap();
        let cq = CompletionQueue::create(&context, 16).unwrap();
        (Self { pd, cq, channel }, context)
    }

    fn queue_pair(&self) -> QueuePair {
        let builder = self.pd.create_qp().qp_type(QueuePairType::UD);
        let builder = builder.send_cq(&self.cq).recv_cq(&self.cq).qkey(unmanaged::QKEY);
        builder.build().unwrap().activate().unwrap()
    }

    fn next(&self) -> Event {
        unmanaged::event(self.channel.next(Some(BOUND)).unwrap().expect("an event")).1
    }

    /// Sends a datagram from a queue pair, and waits until a receive of another has it.
    fn exchange(&self, [from, to]: [&QueuePair; 2], way: &AddressVector, qpn: Qpn) {
        let mut region = self.pd.allocate_region(GlobalRouteHeader::BYTES).unwrap();
        let mut header = region.get_mut(0, GlobalRouteHeader::BYTES).unwrap();
        let mut elements = [header.scatter_element()];
        // SAFETY: SAFETY.md F8: nothing uses the region before the receive has completed below.
        unsafe { to.post_receive(ReceiveWorkRequest::new(&mut elements), 1) }.unwrap();
        let handle = AddressHandle::create(&self.pd, way).unwrap();
        let message = SendWorkRequest::only_immediate(VALUE).to(&handle, qpn, unmanaged::QKEY);
        // SAFETY: SAFETY.md F8: the handle is used until the send has completed below.
        unsafe { from.post_send(message, 2) }.unwrap();
        let (mut slots, mut values, mut turns) = ([PollSlot::default(); 2], Vec::new(), 0);
        while values.len() < 2 {
            for completion in self.cq.poll(&mut slots).unwrap() {
                let success = completion.result().unwrap();
                values.push(success.is_receive().then(|| success.immediate_data().unwrap()));
            }
            pause(&mut turns);
        }
        values.sort_unstable();
        assert_eq!(values, [None, Some(VALUE)]);
    }
}

/// Returns the address vector of a route to a queue pair of the same device.
fn vector(context: &Context, route: &Route) -> AddressVector {
    let Address::Gid(remote) = route.remote else {
        let Address::Lid(lid) = route.remote else { panic!("{route:?}") };
        return AddressVector::new(1, lid);
    };
    let table = context.gid_table().unwrap();
    let own = table
        .iter()
        .find(|entry| Address::Gid(entry.gid) == route.local && entry.gid_type == route.gid_type);
    let own = own.unwrap();
    let index = own.index.try_into().unwrap();
    AddressVector::new(own.port, Lid::NONE).with_route(GlobalRoute::new(index, remote))
}

fn a_service_is_found_by_its_address_and_receives_datagrams(device: &Device) {
    let (node, context) = Node::new(device);
    let ip = address_of(&context);
    let options = BindOptions::new();
    let port = unmanaged::bind(&node.channel, PortSpace::Udp, (ip, 0).into(), options).unwrap();
    let address = SocketAddr::new(ip, port.number());
    let _listener = unmanaged::listen(&node.channel, &port).unwrap();
    let route = unmanaged::route(&node.channel, address).unwrap();
    assert_eq!(route.destination, address);
    let _query = unmanaged::query(&node.channel, PortSpace::Udp, &route, b"who?").unwrap();
    let Event::Queried { id, private_data, .. } = node.next() else { panic!() };
    assert_eq!(private_data[..5], *b"who?\0");
    let (client, service) = (node.queue_pair(), node.queue_pair());
    id.answer(service.qpn(), unmanaged::QKEY, b"me").unwrap();
    let Event::Answered(Answered { status, qpn, qkey, private_data }) = node.next() else {
        panic!()
    };
    assert_eq!((status, qpn), (SidrStatus::VALID, service.qpn()));
    assert_eq!((qkey, &private_data[..3]), (unmanaged::QKEY, &b"me\0"[..]));
    node.exchange([&client, &service], &vector(&context, &route), qpn);
}

fn a_port_without_a_service_is_unsupported(device: &Device) {
    let (node, context) = Node::new(device);
    let ip = address_of(&context);
    let options = BindOptions::new();
    let port = unmanaged::bind(&node.channel, PortSpace::Udp, (ip, 0).into(), options).unwrap();
    let number = port.number();
    drop(port);
    let route = unmanaged::route(&node.channel, (ip, number).into()).unwrap();
    let _query = unmanaged::query(&node.channel, PortSpace::Udp, &route, b"").unwrap();
    let status = match node.next() {
        Event::Answered(Answered { status, .. }) => status,
        // Between processes of a host, no process has the port.
        Event::Ended(End::Rejected { reason: Reason::INVALID_SERVICE_ID, .. }) => {
            SidrStatus::UNSUPPORTED
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(status, SidrStatus::UNSUPPORTED);
}

fn a_group_is_joined_by_its_address(device: &Device) {
    let (node, context) = Node::new(device);
    let groups = device.attributes().max_mcast_grp;
    device.needs(groups > 0, "the device has no multicast groups");
    // Over a network, a datagram also reaches other processes, which run the same case.
    let [.., high, low] = std::process::id().to_be_bytes();
    let group = IpAddr::from(Ipv4Addr::new(239, high, low, 77));
    let source = own_address(&context).map(IpAddr::from);
    let _membership = unmanaged::join(&node.channel, group, source).unwrap();
    let Event::Joined(group) = node.next() else { panic!() };
    assert_eq!(group.qkey, unmanaged::QKEY);
    let (client, member) = (node.queue_pair(), node.queue_pair());
    member.attach_multicast(group.gid, group.lid).unwrap();
    let way = group.address_vector(&context).unwrap();
    node.exchange([&client, &member], &way, Qpn::MULTICAST);
    member.detach_multicast(group.gid, group.lid).unwrap();
}
