//! A device with a listener, which may die and return.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rdma_cm::unmanaged::{self, Event, Id, PortSpace, Route};
use rdma_cm::{BindOptions, EventChannel, IdToken};
use rdma_mem::{Context, GidType};
use rdma_soft::{Builder, Network, SoftDevice};

/// The port of all listeners.
pub(super) const PORT: u16 = 7471;
/// A port that never has a listener.
pub(super) const NO_PORT: u16 = 9;

pub(super) struct Host {
    pub(super) device: SoftDevice,
    context: Context,
    ip: IpAddr,
    /// The channel, while the host lives.
    pub(super) channel: Option<EventChannel>,
    /// The listeners: to connections, and to queries.
    pub(super) listeners: Option<[Id; 2]>,
    /// The last time at which a REQ was rejected because there was no listener.
    pub(super) closed_at: Option<Duration>,
    pub(super) deaths: u64,
    /// The number of queue pairs so far.
    pub(super) qpns: u32,
}

impl Host {
    pub(super) fn new(network: &Network, name: &str) -> Self {
        let device = Builder::new(name).network(network).install().unwrap();
        let context = rdma_mem::open_device(device.name()).unwrap();
        let table = context.gid_table().unwrap();
        let mut v2 = table.iter().filter(|entry| entry.gid_type == GidType::ROCE_V2);
        let ip: Ipv4Addr = v2.find_map(|entry| entry.gid.to_ipv4()).unwrap();
        let mut host = Self {
            device,
            context,
            ip: ip.into(),
            channel: None,
            listeners: None,
            closed_at: None,
            deaths: 0,
            qpns: 0,
        };
        host.begin();
        host
    }

    /// Opens a channel, and listens.
    pub(super) fn begin(&mut self) {
        self.channel = Some(EventChannel::open(&self.context).unwrap());
        self.listen();
    }

    pub(super) fn listen(&mut self) {
        let channel = self.channel.as_ref().unwrap();
        self.listeners = Some([PortSpace::Tcp, PortSpace::Udp].map(|space| {
            let to = self.address(PORT);
            let port = unmanaged::bind(channel, space, to, BindOptions::new()).unwrap();
            unmanaged::listen(channel, &port).unwrap()
        }));
    }

    /// Dies, without a message if all links are cut.
    pub(super) fn die(&mut self) {
        (self.channel, self.listeners) = (None, None);
        self.deaths += 1;
    }

    pub(super) const fn is_alive(&self) -> bool {
        self.channel.is_some()
    }

    pub(super) fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }

    pub(super) fn route_to(&self, to: SocketAddr) -> Route {
        unmanaged::route(self.channel.as_ref().unwrap(), to).unwrap()
    }

    pub(super) fn next(&self) -> Option<(IdToken, Event)> {
        let event = self.channel.as_ref()?.next(Some(Duration::ZERO)).unwrap();
        event.map(unmanaged::event)
    }

    pub(super) fn is_listener(&self, token: IdToken) -> bool {
        self.listeners.iter().flatten().any(|id| id.token() == token)
    }
}
