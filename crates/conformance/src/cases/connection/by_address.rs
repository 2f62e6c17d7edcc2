//! Cases for connections by address and port. On a device of the system's libibverbs, they pass through the kernel's rdma_cm.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use rdma_async::{ConnectionOptions, Driver};
use rdma_channel::prelude::*;
use rdma_channel::{Channel, LeftReason, ServerEvent};
use rdma_cm::unmanaged::{self, Address, PortSpace, Route};
use rdma_cm::{
    Accepting, BindOptions, Connection, ConnectionRequest, End, Error, EventChannel, Listener, Mtu,
    PreparedQueuePair, Reason, Resolved,
};
use rdma_mem::{
    AccessFlags, BufferPool, Context, MemoryWindow, ProtectionDomain, RemoteMemoryRegion,
    WindowType,
};
use rdma_qp::{
    CompletionQueue, QpState, QueuePairType, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest,
    WriteWorkRequest,
};
use rdma_types::{AckTimeout, GidType, TransportType};
use test_support::rig::connect::iwarp;

use crate::case::cases;
use crate::device::Device;

cases![
    an_address_and_a_port_connect_two_queue_pairs,
    channels_exchange_messages,
    a_server_answers_its_client,
    futures_exchange_messages,
    what_iwarp_lacks_is_refused_by_name,
    a_port_without_a_listener_rejects,
    a_rejection_has_its_private_data,
    private_data_of_the_maximum_length_arrives,
    an_end_that_is_dropped_disconnects_its_peer,
    a_closed_channel_wakes_its_waiters,
];

/// The limit for all waits; only a hanging case reaches it.
pub(in crate::cases) const BOUND: Duration = Duration::from_secs(60);

pub(in crate::cases) struct Node {
    pub(in crate::cases) pd: ProtectionDomain,
    pub(in crate::cases) cq: CompletionQueue,
    pub(in crate::cases) channel: EventChannel,
    pub(in crate::cases) ip: IpAddr,
}

/// Opens the device. Skips the case if its connections need something that is missing. That is a
/// failure on SoftRoCE, whose machine has both.
pub(in crate::cases) fn open(device: &Device) -> (Context, EventChannel) {
    let context = rdma_mem::open_device(&**device).unwrap();
    match EventChannel::open(&context) {
        Ok(channel) => (context, channel),
        Err(Error::Library(_)) if device.is_other() => device.skip("librdmacm is not installed"),
        Err(Error::NoKernel { .. }) if device.is_other() => {
            device.skip("the kernel's rdma_cm is not loaded")
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns the device's IPv4 address, if its port has one.
pub(in crate::cases) fn own_address(context: &Context) -> Option<Ipv4Addr> {
    context.gid_table().unwrap().iter().find_map(|entry| entry.gid.to_ipv4())
}

/// Returns an address of the device, or localhost if its port has no IPv4 address.
pub(in crate::cases) fn address_of(context: &Context) -> IpAddr {
    if is_iwarp(context) {
        return iwarp::address_of(context.gid_table().unwrap()[0].gid.to_bytes());
    }
    own_address(context).unwrap_or(Ipv4Addr::LOCALHOST).into()
}

pub(in crate::cases) fn is_iwarp(context: &Context) -> bool {
    context.device().transport_type() == TransportType::IWARP
}

impl Node {
    pub(in crate::cases) fn new(device: &Device) -> Self {
        let (context, channel) = open(device);
        let pd = context.allocate_pd().unwrap();
        let cq = CompletionQueue::create(&context, 64).unwrap();
        Self { pd, cq, channel, ip: address_of(&context) }
    }

    pub(in crate::cases) fn queue_pair(&self) -> PreparedQueuePair {
        self.pd.create_qp().send_cq(&self.cq).recv_cq(&self.cq).build().unwrap()
    }

    pub(in crate::cases) fn listen(&self) -> Listener {
        Listener::bind(&self.channel, (self.ip, 0)).unwrap()
    }

    /// Connects two queue pairs of the device.
    pub(in crate::cases) fn connect(&self, listener: &Listener) -> (Connection, Connection) {
        let resolved = self.channel.resolve(listener.local_address()).unwrap();
        let connecting = resolved.connect(self.queue_pair(), b"hello").unwrap();
        let request = listener.incoming(BOUND).unwrap();
        assert_eq!(request.private_data()[..6], *b"hello\0");
        let accepted = request.prepare(self.queue_pair()).unwrap().accept(b"welcome").unwrap();
        let replied = connecting.wait(BOUND).unwrap();
        assert_eq!(replied.private_data()[..8], *b"welcome\0");
        let active = replied.establish().unwrap();
        (active, accepted.wait(BOUND).unwrap())
    }
}

fn an_address_and_a_port_connect_two_queue_pairs(device: &Device) {
    let node = Node::new(device);
    let listener = node.listen();
    let (active, passive) = node.connect(&listener);
    let [one, other] = [&active, &passive].map(Connection::queue_pair);
    if is_iwarp(node.channel.context()) {
        // TCP carries no numbers of queue pairs.
        assert_eq!((one.peer(), other.peer()), (None, None));
    } else {
        assert_eq!(one.peer().unwrap().peer_qpn, other.qpn());
        assert_eq!(other.peer().unwrap().peer_qpn, one.qpn());
        assert_eq!(one.peer().unwrap().send_psn, other.peer().unwrap().recv_psn);
        assert_eq!(other.peer().unwrap().send_psn, one.peer().unwrap().recv_psn);
    }
    let ended = active.disconnect(b"").unwrap();
    assert!(matches!(passive.wait(BOUND).unwrap(), End::Disconnected { .. }));
    assert!(matches!(ended.wait(BOUND).unwrap().end(), End::Disconnected { .. }));
    if !is_iwarp(node.channel.context()) {
        // The kernel's siw does not report states.
        assert_eq!(passive.queue_pair().state().unwrap(), QpState::ERR);
    }
}

fn channels_exchange_messages(device: &Device) {
    let (context, _) = open(device);
    device.needs(!is_iwarp(&context), "the device does not retry while the receiver is not ready");
    let (pd, ip) = (context.allocate_pd().unwrap(), address_of(&context));
    let mut listener = pd.create_channel().listen_cm((ip, 0)).unwrap();
    let address = listener.local_addr();
    let client = pd.clone();
    let client = thread::spawn(move || {
        let mut channel = Channel::connect_cm(address, &client).unwrap();
        send(&mut channel, &client, b"ping");
        assert_eq!(receive(&mut channel, &client), b"pong");
    });
    let mut channel = listener.accept().unwrap();
    assert_eq!(receive(&mut channel, &pd), b"ping");
    send(&mut channel, &pd, b"pong");
    client.join().unwrap();
}

fn a_server_answers_its_client(device: &Device) {
    let (context, _) = open(device);
    let (pd, ip) = (context.allocate_pd().unwrap(), address_of(&context));
    let mut server = pd.create_server().bind_cm((ip, 0)).unwrap();
    let address = server.local_addr();
    let client = thread::spawn(move || {
        let mut channel = Channel::connect_cm(address, &pd).unwrap();
        let [mut question, mut answer] = [4, 4].map(|length| pd.allocate_region(length).unwrap());
        question.copy_from_slice(b"ping");
        // iWARP does not repeat an answer that arrives before its receive is posted.
        assert_eq!(channel.exchange_from(&question, &mut answer).unwrap(), 4);
        assert_eq!(*answer, *b"pong");
    });
    let mut has_left = false;
    while !has_left {
        match server.next(Some(BOUND)).unwrap().expect("an event") {
            ServerEvent::Message { peer, mut buffer, length, .. } => {
                assert_eq!(buffer[..length], *b"ping");
                buffer[..4].copy_from_slice(b"pong");
                server.send(peer, buffer, 4).unwrap();
            }
            // The kernel's rdma_cm reports no private data of a DREQ, so a killed client is not distinguished.
            ServerEvent::Left { reason, .. } => {
                assert!(matches!(reason, LeftReason::Gone { .. }), "{reason:?}");
                has_left = true;
            }
            _ => {}
        }
    }
    client.join().unwrap();
}

fn futures_exchange_messages(device: &Device) {
    let (context, _) = open(device);
    let (pd, ip) = (context.allocate_pd().unwrap(), address_of(&context));
    let exchange = async {
        let driver = Driver::spawn(&context).unwrap();
        let options = || ConnectionOptions::from(pd.create_qp()).rendezvous_timeout(BOUND);
        let listener = driver.listen_cm((ip, 0), options().user_bytes(b"welcome")).await.unwrap();
        let connect = driver.connect_cm(listener.local_addr(), options());
        let (client, server) = tokio::join!(connect, listener.accept());
        let ((client, greeting), server) = (client.unwrap(), server.unwrap());
        assert_eq!(*greeting, *b"welcome");
        let pool = BufferPool::new(&pd);
        for (from, to) in [(&client, &server), (&server, &client)] {
            let receive = to.receive(pool.allocate(64).unwrap()).post().await.unwrap();
            let mut message = pool.allocate(5).unwrap();
            message.copy_from_slice(b"hello");
            from.send(message).await.unwrap();
            let received = receive.await.unwrap();
            assert_eq!(received.memory[..received.length], *b"hello");
        }
        drop(client);
        assert!(server.receive(pool.allocate(64).unwrap()).await.is_err());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(BOUND, exchange).await.unwrap() });
}

fn send(channel: &mut Channel, pd: &ProtectionDomain, message: &[u8]) {
    let mut region = pd.allocate_region(message.len()).unwrap();
    region.copy_from_slice(message);
    let data = region.get_ref(0, message.len()).unwrap();
    channel.send(SendWorkRequest::new(&[data.gather_element()])).unwrap();
}

fn receive(channel: &mut Channel, pd: &ProtectionDomain) -> Vec<u8> {
    let mut region = pd.allocate_region(64).unwrap();
    let mut room = region.get_mut(0, 64).unwrap();
    let received = channel.receive(ReceiveWorkRequest::new(&mut [room.scatter_element()])).unwrap();
    let length = received.scattered_bytes().unwrap();
    region[..length].to_vec()
}

/// Returns a route from the device to itself.
fn route_of(node: &Node) -> Route {
    let gid = Address::Gid(node.channel.context().gid_table().unwrap()[0].gid);
    let address = SocketAddr::new(node.ip, 9);
    Route {
        local: gid,
        remote: gid,
        gid_type: GidType::IB,
        mtu: Mtu::MTU1024,
        traffic_class: 0,
        ack_timeout: AckTimeout::default(),
        source: address,
        destination: address,
        is_outside: false,
    }
}

fn what_iwarp_lacks_is_refused_by_name(device: &Device) {
    let node = Node::new(device);
    device.needs(is_iwarp(node.channel.context()), "the device does not speak iWARP");
    let named = |error: &dyn std::error::Error| {
        let text = format!("{error:?}");
        assert!(text.contains("iWARP"), "{text}");
    };
    for qp_type in [QueuePairType::UC, QueuePairType::UD] {
        let builder = node.pd.create_qp().send_cq(&node.cq).recv_cq(&node.cq);
        named(&builder.qp_type(qp_type).build().unwrap_err());
    }
    let endpoint = node.queue_pair().endpoint();
    named(&node.queue_pair().handshake(endpoint).unwrap_err());
    let group = IpAddr::from([239, 1, 2, 3]);
    named(&unmanaged::join(&node.channel, group, None).unwrap_err());
    let at = SocketAddr::new(node.ip, 0);
    let (udp, options) = (PortSpace::Udp, BindOptions::new());
    named(&unmanaged::bind(&node.channel, udp, at, options).unwrap_err());
    named(&unmanaged::route(&node.channel, at).unwrap_err());
    named(&unmanaged::query(&node.channel, udp, &route_of(&node), b"").unwrap_err());
    // Some NICs have windows. `siw` has none.
    let region = node.pd.allocate_shared_region(64, AccessFlags::new().with_local_write()).unwrap();
    if let Err((_, error)) = MemoryWindow::allocate(&region, WindowType::Two) {
        assert!(matches!(error, rdma_mem::Error::NoWindows { .. }), "{error}");
    }
    let access = AccessFlags::new().with_local_write().with_remote_atomic();
    let error = node.pd.allocate_shared_region(8, access).unwrap_err();
    assert!(matches!(error, rdma_mem::Error::NoAtomics { .. }), "{error}");

    let mut listener = node.pd.create_channel().listen_cm((node.ip, 0)).unwrap();
    let (address, client) = (listener.local_addr(), node.pd.clone());
    let client = thread::spawn(move || Channel::connect_cm(address, &client).unwrap());
    let mut channel = listener.accept().unwrap();
    let _client = client.join().unwrap();
    named(&channel.send(SendWorkRequest::only_immediate(1)).unwrap_err());
    named(&channel.write(WriteWorkRequest::only_immediate(1)).unwrap_err());
    let word = RemoteMemoryRegion::new(0x1000, 8, 1);
    named(&channel.fetch_add(word, 1).unwrap_err());
    named(&channel.compare_and_swap(word, 1, 2).unwrap_err());
    let mut memory = node.pd.allocate_region(8).unwrap();
    let (mut one, mut other) = memory.as_slice_mut().split_at(4);
    let mut two = [one.scatter_element(), other.scatter_element()];
    named(&channel.read(ReadWorkRequest::new(&mut two, word)).unwrap_err());
}

fn a_port_without_a_listener_rejects(device: &Device) {
    let node = Node::new(device);
    let address = node.listen().local_address();
    let connecting =
        node.channel.resolve(address).unwrap().connect(node.queue_pair(), b"").unwrap();
    let Err(Error::Ended(End::Rejected { reason, .. })) = connecting.wait(BOUND) else { panic!() };
    assert_eq!(reason, Reason::INVALID_SERVICE_ID);
}

fn a_rejection_has_its_private_data(device: &Device) {
    let node = Node::new(device);
    let listener = node.listen();
    let resolved = node.channel.resolve(listener.local_address()).unwrap();
    let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
    listener.incoming(BOUND).unwrap().reject(b"full").unwrap();
    let Err(Error::Ended(End::Rejected { reason, private_data })) = connecting.wait(BOUND) else {
        panic!()
    };
    assert_eq!(reason, Reason::CONSUMER_DEFINED);
    assert_eq!((private_data.len(), &private_data[..5]), (148, &b"full\0"[..]));
}

fn private_data_of_the_maximum_length_arrives(device: &Device) {
    let node = Node::new(device);
    let listener = node.listen();
    let resolved = node.channel.resolve(listener.local_address()).unwrap();
    let bytes = |count: usize| (1..=255).cycle().take(count).collect::<Vec<u8>>();
    let most = [
        Resolved::MAX_PRIVATE_DATA,
        Accepting::MAX_PRIVATE_DATA,
        ConnectionRequest::MAX_PRIVATE_DATA,
    ];
    assert_eq!(most, [56, 196, 148]);
    let [request, reply, rejection] = most.map(bytes);

    let connecting = resolved.connect(node.queue_pair(), &request).unwrap();
    let requested = listener.incoming(BOUND).unwrap();
    assert_eq!(requested.private_data(), request);
    let _accepted = requested.prepare(node.queue_pair()).unwrap().accept(&reply).unwrap();
    assert_eq!(connecting.wait(BOUND).unwrap().private_data(), reply);

    let connecting = resolved.connect(node.queue_pair(), &request).unwrap();
    listener.incoming(BOUND).unwrap().reject(&rejection).unwrap();
    let Err(Error::Ended(End::Rejected { private_data, .. })) = connecting.wait(BOUND) else {
        panic!()
    };
    assert_eq!(private_data, rejection);

    let too_much = resolved.connect(node.queue_pair(), &bytes(57)).unwrap_err();
    assert!(matches!(too_much, Error::PrivateData { length: 57, most: 56, .. }), "{too_much}");
}

fn an_end_that_is_dropped_disconnects_its_peer(device: &Device) {
    let node = Node::new(device);
    let listener = node.listen();
    let (active, passive) = node.connect(&listener);
    drop(active);
    assert!(matches!(passive.wait(BOUND).unwrap(), End::Disconnected { .. }));
}

fn a_closed_channel_wakes_its_waiters(device: &Device) {
    let node = Node::new(device);
    let waits = node.channel.clone();
    let waits = thread::spawn(move || waits.next(None).map(drop));
    node.channel.close();
    assert!(matches!(waits.join().unwrap(), Err(Error::Closed)));
}
