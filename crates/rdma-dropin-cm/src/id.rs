//! IDs: `struct rdma_cm_id`, and the state that follows it.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use rdma_cm::IdToken;
use rdma_cm::unmanaged::{self, Address, Parameters, Port, Route};
use rdma_sys::{Process, ibv_qp_init_attr, ibv_qp_type};
use rdma_types::{Psn, Qpn};

use crate::abi::{self, CmId, EventChannel, IbAddress, Path, Space};
use crate::channel::{self, Channel};
use crate::devices::{self, Device, locked};
use crate::errors::{fail, returned};
use crate::event;
use crate::multicast::Membership;
use crate::options::Options;

/// An ID. The program has a pointer to its beginning.
#[repr(C)]
pub(crate) struct Id {
    /// The struct that the program reads. The thread of a device fills it for a new connection. After the program has
    /// received the ID, only functions that the program calls use it.
    shown: UnsafeCell<CmId>,
    state: Mutex<State>,
    /// The port space, and the type of the queue pairs.
    pub(crate) space: Space,
    pub(crate) qp_type: ibv_qp_type,
    /// The number of events that the program has received. Changed while the channel's queue is locked.
    pub(crate) reported: AtomicU64,
    /// Notified when the program acknowledges an event.
    acknowledged: Condvar,
    process: Process,
}

// SAFETY: after the program has received an ID, `shown` is read and written only in calls of the program. Their contract
// forbids that one thread changes an ID while another uses it (SAFETY.md F1). All other fields are Sync.
unsafe impl Sync for Id {}
// SAFETY: the pointers in `shown` belong to the program or to libibverbs, whose objects any thread may use (SAFETY.md F9).
unsafe impl Send for Id {}

/// The progress of an ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    New,
    /// The address is resolved, or a request has arrived.
    Ready,
    Listening,
    /// This end has sent or accepted a request.
    Connecting,
    Established,
    Over,
}

/// Reserved ports, each with its device.
pub(crate) type Ports = Vec<(&'static Device, Port)>;

/// The state of an ID.
pub(crate) struct State {
    pub(crate) stage: Stage,
    pub(crate) channel: Arc<Channel>,
    /// Whether functions wait for their event. The channel is then the ID's own.
    pub(crate) is_sync: bool,
    pub(crate) device: Option<&'static Device>,
    /// The address to which the program bound the ID.
    pub(crate) bound: Option<SocketAddr>,
    /// The ports that are reserved at this address, until the ID listens.
    pub(crate) ports: Ports,
    pub(crate) route: Option<Route>,
    /// The listener of a request that the program has not received.
    pub(crate) listener: Option<Arc<Id>>,
    /// The connection, the query, or the listeners: one for each device.
    pub(crate) connections: Vec<unmanaged::Id>,
    pub(crate) own: Parameters,
    pub(crate) peer: Option<Parameters>,
    pub(crate) options: Options,
    /// The multicast groups that the program has joined.
    pub(crate) groups: Vec<Membership>,
    /// The attributes of the queue pairs that `rdma_get_request` creates.
    pub(crate) qp_attributes: Option<ibv_qp_init_attr>,
    /// The private data of `rdma_create_ep`, which precedes that of `rdma_connect`.
    pub(crate) connect_data: Vec<u8>,
    /// The number of events that the program has acknowledged.
    pub(crate) completed: u64,
    /// Whether the program has destroyed the ID. No event is queued after that.
    pub(crate) is_ended: bool,
}

impl State {
    /// Sets the parameters of the peer. What it starts, this end serves.
    pub(crate) fn set_peer(&mut self, peer: Parameters) {
        self.own.responder_resources = peer.initiator_depth;
        self.own.initiator_depth = peer.responder_resources;
        self.own.is_unreliable = peer.is_unreliable;
        self.peer = Some(peer);
    }

    /// Returns the IP address to which the program bound the ID, unless it is unspecified.
    pub(crate) fn own_ip(&self) -> Option<IpAddr> {
        let ip = self.bound.map(|own| own.ip().to_canonical());
        ip.filter(|ip| !ip.is_unspecified())
    }

    /// Returns the route, with the properties that the program has set.
    pub(crate) fn path(&self) -> Option<Route> {
        self.route.map(|route| self.options.apply(route))
    }
}

/// The IDs by the tokens of their connections.
static TOKENS: LazyLock<Mutex<HashMap<IdToken, Arc<Id>>>> = LazyLock::new(Mutex::default);

/// Calls a function with the ID that has a token. Waits for IDs that are being registered.
pub(crate) fn with(token: IdToken, call: impl FnOnce(Arc<Id>)) {
    let found = locked(&TOKENS).get(&token).map(Arc::clone);
    if let Some(id) = found {
        call(id);
    }
}

impl Id {
    /// Creates an ID.
    pub(crate) fn new(
        channel: Arc<Channel>,
        is_sync: bool,
        context: *mut c_void,
        space: Space,
        qp_type: ibv_qp_type,
    ) -> Arc<Self> {
        // SAFETY: the struct consists of pointers and integers, so all-zero bytes are valid (SAFETY.md F4).
        let mut shown: CmId = unsafe { std::mem::zeroed() };
        shown.channel = channel.as_raw();
        shown.context = context;
        shown.ps = space;
        shown.qp_type = qp_type;
        let state = State {
            stage: Stage::New,
            channel,
            is_sync,
            device: None,
            bound: None,
            ports: Vec::new(),
            route: None,
            listener: None,
            connections: Vec::new(),
            own: Parameters::new(Qpn::masked(0), psn()),
            peer: None,
            options: Options::default(),
            groups: Vec::new(),
            qp_attributes: None,
            connect_data: Vec::new(),
            completed: 0,
            is_ended: false,
        };
        Arc::new(Self {
            shown: UnsafeCell::new(shown),
            state: Mutex::new(state),
            space,
            qp_type,
            reported: AtomicU64::new(0),
            acknowledged: Condvar::new(),
            process: Process::current(),
        })
    }

    /// Returns the program's pointer.
    pub(crate) const fn as_raw(&self) -> *mut CmId {
        self.shown.get()
    }

    /// Returns the ID to which the program's pointer points.
    ///
    /// # Safety
    /// The pointer is that of a live ID.
    pub(crate) unsafe fn of<'a>(raw: *mut CmId) -> &'a Self {
        // SAFETY: `shown` is the first field, so the pointers are the same (SAFETY.md F1, F5).
        unsafe { &*raw.cast::<Self>() }
    }

    /// Reads fields of the struct that the program sees.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&CmId) -> T) -> T {
        // SAFETY: a function that the program calls with the ID reads the struct, and the program changes nothing in it
        // meanwhile (SAFETY.md F1). Before the program has the ID, only the thread of a device reads it. The struct is as
        // old as the ID.
        read(unsafe { &*self.shown.get() })
    }

    /// Writes fields of the struct that the program sees.
    pub(crate) fn write<T>(&self, write: impl FnOnce(&mut CmId) -> T) -> T {
        // SAFETY: a function that the program calls with the ID writes the struct, and the program does not use these
        // fields meanwhile (SAFETY.md F1). Before the program has the ID, only the thread of a device writes it. The struct
        // is as old as the ID.
        write(unsafe { &mut *self.shown.get() })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Returns a reference that keeps the ID alive.
    pub(crate) fn shared(&self) -> Arc<Self> {
        let raw = ptr::from_ref(self);
        // SAFETY: each ID is in an `Arc`, whose pointer this is.
        unsafe { Arc::increment_strong_count(raw) };
        // SAFETY: the reference was counted above.
        unsafe { Arc::from_raw(raw) }
    }

    /// Makes a connection or a listener, whose events reach this ID.
    pub(crate) fn connect<E>(
        &self,
        connect: impl FnOnce() -> Result<unmanaged::Id, E>,
    ) -> Result<(), E> {
        // An event that arrives now waits for the lock.
        let mut tokens = locked(&TOKENS);
        let connection = connect()?;
        tokens.insert(connection.token(), self.shared());
        // The event's receiver may use the connection at once.
        self.state().connections.push(connection);
        drop(tokens);
        Ok(())
    }

    /// Notes that the program has acknowledged an event.
    pub(crate) fn acknowledge(&self) {
        self.state().completed += 1;
        self.acknowledged.notify_all();
    }

    /// Waits until the program has acknowledged all events that it has received.
    pub(crate) fn wait_acknowledged(&self) {
        let mut state = self.state();
        while state.completed < self.reported.load(Ordering::Acquire) {
            state = self.acknowledged.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns true if the queue pairs of the ID send datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        self.qp_type == ibv_qp_type::IBV_QPT_UD
    }

    /// Binds the ID to a device.
    pub(crate) fn bind_device(&self, device: &'static Device) {
        self.state().device = Some(device);
        self.write(|shown| {
            shown.verbs = device.context().as_raw();
            shown.port_num = 1;
            if shown.pd.is_null() {
                shown.pd = device.pd.as_raw();
            }
        });
    }

    /// Sets the source address that the program sees.
    pub(crate) fn show_source(&self, address: SocketAddr) {
        self.write(|shown| shown.route.src = abi::storage(address));
    }

    /// Sets the addresses that the program sees.
    pub(crate) fn show_route(&self, device: &'static Device, route: &Route) {
        let gid = |address| match address {
            Address::Gid(gid) => gid.to_bytes(),
            _ => [0; 16],
        };
        let ib = IbAddress { sgid: gid(route.local), dgid: gid(route.remote), pkey: u16::MAX };
        let (_, port) = device.port_of(route).unwrap_or((0, 1));
        self.write(|shown| {
            shown.route.src = abi::storage(route.source);
            shown.route.dst = abi::storage(route.destination);
            shown.route.ib = ib;
            shown.port_num = port;
        });
    }

    /// Sets the path that the program sees.
    pub(crate) fn show_path(&self, route: &Route) {
        let lid = |address| match address {
            Address::Lid(lid) => lid.get().to_be(),
            // On Ethernet, the kernel writes other fields of its record here: the mark of a complete route, and parts of a
            // hardware address.
            _ => u16::from_ne_bytes([1, 2]),
        };
        let ib = self.read(|shown| shown.route.ib);
        let path = Path {
            dgid: ib.dgid,
            sgid: ib.sgid,
            dlid: lid(route.remote),
            slid: lid(route.local),
            raw_traffic: 0,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: route.traffic_class,
            reversible: 1,
            numb_path: 1,
            pkey: ib.pkey,
            sl: 0,
            mtu_selector: 2,
            mtu: route.mtu.code(),
            rate_selector: 2,
            rate: 0,
            packet_life_time_selector: 2,
            packet_life_time: 0,
            preference: 0,
        };
        let old = self.write(|shown| {
            shown.route.num_paths = 1;
            std::mem::replace(&mut shown.route.path_rec, Box::into_raw(Box::new(path)))
        });
        free_path(old);
    }

    /// Releases what the program cannot reach: the tokens, and the connections.
    fn disconnect(&self) {
        self.state().is_ended = true;
        self.end_connections();
    }

    /// Ends the connections or listeners.
    pub(crate) fn end_connections(&self) {
        let connections = std::mem::take(&mut self.state().connections);
        let mut tokens = locked(&TOKENS);
        for connection in &connections {
            tokens.remove(&connection.token());
        }
        drop(tokens);
        // The connections end here.
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        free_path(self.shown.get_mut().route.path_rec);
    }
}

/// Frees the path of an ID, if it has one.
fn free_path(path: *mut Path) {
    if !path.is_null() {
        // SAFETY: `show_path` made the path, which only one ID has.
        drop(unsafe { Box::from_raw(path) });
    }
}

/// Returns a random PSN.
fn psn() -> Psn {
    let [a, b, c, ..] = RandomState::new().hash_one(()).to_ne_bytes();
    Psn::masked(u32::from_ne_bytes([a, b, c, 0]))
}

/// Ends an ID that the program will not receive, with its events.
pub(crate) fn end(id: &Id) {
    id.disconnect();
    channel::forget(id);
}

/// Returns an address that stands for all addresses of the same IP version.
pub(crate) const fn unspecified() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)
}

/// Creates an ID, or returns the error number.
///
/// # Safety
/// The channel is live, or NULL for an ID whose functions wait.
pub(crate) unsafe fn create(
    raw: *mut EventChannel,
    context: *mut c_void,
    space: Space,
    qp_type: ibv_qp_type,
) -> Result<*mut CmId, c_int> {
    devices::check()?;
    let is_sync = raw.is_null();
    let channel = match is_sync {
        true => Channel::open()?,
        // SAFETY: this function's contract.
        false => unsafe { Channel::of(raw) },
    };
    let id = Id::new(channel, is_sync, context, space, qp_type);
    Ok(Arc::into_raw(id).cast_mut().cast())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut EventChannel,
    id: *mut *mut CmId,
    context: *mut c_void,
    ps: Space,
) -> c_int {
    let qp_type = match ps {
        Space::UDP | Space::IPOIB => ibv_qp_type::IBV_QPT_UD,
        Space::TCP | Space::IB => ibv_qp_type::IBV_QPT_RC,
        _ => return fail(libc::EPROTONOSUPPORT),
    };
    // SAFETY: the caller passes a live channel, or NULL (SAFETY.md F1).
    let created = unsafe { create(channel, context, ps, qp_type) };
    returned(created.map(|created| {
        // SAFETY: the caller passes a valid pointer for the ID (SAFETY.md F1).
        unsafe { id.write(created) };
    }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut CmId) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    if !unsafe { Id::of(id) }.process.is_current() {
        // The parent's threads may hold locks that this process has copies of, so the copy of the ID is not freed.
        return 0;
    }
    // SAFETY: the caller passes a live ID, which it does not use again. The ID has the count of its creation
    // (SAFETY.md F1).
    let id = unsafe { Arc::from_raw(id.cast_const().cast::<Id>()) };
    id.disconnect();
    channel::forget(&id);
    event::acknowledge_last(&id);
    id.wait_acknowledged();
    let state = id.state();
    let own = state.is_sync.then(|| Arc::clone(&state.channel));
    drop(state);
    if let Some(channel) = own {
        channel.close();
    }
    0
}
