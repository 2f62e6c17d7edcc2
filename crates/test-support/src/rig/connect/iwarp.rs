//! Connects queue pairs of an iWARP device by the kernel's rdma_cm, with the system's librdmacm.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::ptr::{self, null_mut};

use rdma_sys::cm::{
    Librdmacm, librdmacm, rdma_cm_event_type as Kind, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_port_space, read_address, storage,
};
use rdma_sys::{InterfaceAddress, ibv_transport_type, interface_addresses};

use super::{Knobs, Side, attributes, to_init};
use crate::rig::Context;
use crate::rig::device::query_gid;

/// The time limit for resolving an address or a route.
const LIMIT_MS: i32 = 10_000;

/// Returns true if the device speaks iWARP.
pub fn is_iwarp(context: &Context) -> bool {
    let transport = unsafe { (*(*context.0).device).transport_type };
    transport == ibv_transport_type::IBV_TRANSPORT_IWARP
}

/// Returns an address of the interface whose hardware address is the beginning of this GID, which is
/// the only one of an iWARP device.
pub fn address_of(gid: [u8; 16]) -> IpAddr {
    let own = gid[..6].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
    let of_device = |entry: &&InterfaceAddress| {
        let file = format!("/sys/class/net/{}/address", entry.interface);
        fs::read_to_string(file).is_ok_and(|address| address.trim() == own)
    };
    let all = interface_addresses().unwrap();
    let mut own = all.iter().filter(of_device).filter_map(|entry| entry.address);
    own.find(SocketAddr::is_ipv4).expect("an address of the device's interface").ip()
}

/// Connects A to B. The IDs of the connection are never destroyed, which would end it.
pub(super) fn connect(a: &Side, b: &Side, knobs: &Knobs) {
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    to_init(&a.qp, &attributes(&at_a, &at_b, knobs));
    to_init(&b.qp, &attributes(&at_b, &at_a, knobs));
    let ip = address_of(query_gid(&a.context, 1, 0).unwrap().to_bytes());
    let manager = Manager::new();
    let library = manager.library;
    let (listener, active) = (manager.id(), manager.id());

    let mut own = storage(SocketAddr::new(ip, 0));
    assert_eq!(unsafe { (library.bind_addr)(listener, (&raw mut own).cast()) }, 0);
    assert_eq!(unsafe { (library.listen)(listener, 1) }, 0);
    let bound = unsafe { (*listener).route.src };
    let to = unsafe { read_address((&raw const bound).cast()) }.unwrap();

    let mut to = storage(to);
    let to = (&raw mut to).cast();
    assert_eq!(unsafe { (library.resolve_addr)(active, null_mut(), to, LIMIT_MS) }, 0);
    manager.expect(Kind::ADDR_RESOLVED);
    assert_eq!(unsafe { (library.resolve_route)(active, LIMIT_MS) }, 0);
    manager.expect(Kind::ROUTE_RESOLVED);

    let mut own = parameters(at_a.qpn, knobs);
    assert_eq!(unsafe { (library.connect)(active, &raw mut own) }, 0);
    let passive = manager.expect(Kind::CONNECT_REQUEST);
    let mut own = parameters(at_b.qpn, knobs);
    assert_eq!(unsafe { (library.accept)(passive, &raw mut own) }, 0);
    // One for each end.
    manager.expect(Kind::ESTABLISHED);
    manager.expect(Kind::ESTABLISHED);
}

fn parameters(qpn: u32, knobs: &Knobs) -> rdma_conn_param {
    rdma_conn_param {
        private_data: ptr::null(),
        private_data_len: 0,
        responder_resources: knobs.rd_atomic,
        initiator_depth: knobs.rd_atomic,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: 0,
        qp_num: qpn,
    }
}

/// An event channel, which is never destroyed.
struct Manager {
    library: &'static Librdmacm,
    channel: *mut rdma_event_channel,
}

impl Manager {
    fn new() -> Self {
        let library = librdmacm().unwrap();
        let channel = unsafe { (library.create_event_channel)() };
        assert!(!channel.is_null(), "the kernel's rdma_cm is not loaded");
        Self { library, channel }
    }

    fn id(&self) -> *mut rdma_cm_id {
        let (mut id, create) = (null_mut(), self.library.create_id);
        let space = rdma_port_space::TCP;
        assert_eq!(unsafe { create(self.channel, &raw mut id, null_mut(), space) }, 0);
        id
    }

    /// Waits for an event of this kind. Returns its ID.
    #[track_caller]
    fn expect(&self, kind: Kind) -> *mut rdma_cm_id {
        let mut event = null_mut();
        assert_eq!(unsafe { (self.library.get_cm_event)(self.channel, &raw mut event) }, 0);
        let (found, status, id) = unsafe { ((*event).event, (*event).status, (*event).id) };
        assert_eq!((found, status), (kind, 0));
        assert_eq!(unsafe { (self.library.ack_cm_event)(event) }, 0);
        id
    }
}
