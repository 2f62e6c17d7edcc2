//! Event channels and IDs of the system's librdmacm.
//!
//! The engine uses them while its state is locked, and acknowledges each event before it unlocks the state. So
//! `rdma_destroy_id` waits for no event that a thread keeps. On iWARP, `rdma_connect` and `rdma_destroy_id` wait for
//! the peer. Threads of their own make these calls, without the lock ([`apart`](super::apart)).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rdma_mem::{Context, Guid};
use rdma_proto::cm::PortSpace;
use rdma_sys::cm::{
    self, Librdmacm, ibv_sa_path_rec, option, rdma_cm_event, rdma_cm_event_type, rdma_cm_id,
    rdma_conn_param, rdma_event_channel, rdma_port_space, rdma_route, rdma_ud_param, read_address,
    storage,
};
use rdma_sys::{Errno, Process, ibv_ah_attr, ibv_qp_attr, ibv_qp_state};
use rdma_types::Gid;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::apart;
use crate::error::Error;
use crate::parameters::Parameters;

/// A number that identifies an ID of this process. The ID's context has it, too.
pub(super) type Token = u64;

/// A non-blocking event channel. Its IDs keep it, so it is destroyed after them.
pub(super) struct Channel {
    library: &'static Librdmacm,
    raw: NonNull<rdma_event_channel>,
    process: Process,
}

// SAFETY: SAFETY.md F32: the functions of librdmacm may be called by any thread, and do not change the channel's
// struct.
unsafe impl Send for Channel {}
// SAFETY: as above, also by several threads at a time.
unsafe impl Sync for Channel {}

/// An event, which was acknowledged.
pub(super) struct Received {
    /// The token of the event's ID, or of the listener that received a request.
    pub(super) token: Token,
    pub(super) event: rdma_cm_event_type,
    pub(super) status: c_int,
    /// The ID of a new connection.
    pub(super) request: Option<Id>,
    /// The parameters of the peer. The pointer in them is invalid.
    pub(super) parameters: rdma_conn_param,
    /// The service's queue pair, or the group, for an ID of the UDP port space.
    pub(super) datagram: Option<Datagram>,
    pub(super) private_data: Vec<u8>,
}

/// The destination of datagrams.
#[derive(Clone, Copy)]
pub(super) struct Datagram {
    pub(super) address: ibv_ah_attr,
    pub(super) qpn: u32,
    pub(super) qkey: u32,
}

impl Channel {
    pub(super) fn open() -> Result<Arc<Self>, Error> {
        Self::open_with(cm::librdmacm()?)
    }

    /// Opens a channel of a library.
    pub(super) fn open_with(library: &'static Librdmacm) -> Result<Arc<Self>, Error> {
        // SAFETY: the call needs nothing (SAFETY.md F2).
        let raw = Errno::check_null(unsafe { (library.create_event_channel)() })
            .map_err(|errno| Error::NoKernel { source: system_error(errno) })?;
        let channel = Self { library, raw, process: Process::current() };
        let file = channel.as_fd();
        fcntl_getfl(file)
            .and_then(|flags| fcntl_setfl(file, flags | OFlags::NONBLOCK))
            .map_err(Error::system("open an event channel"))?;
        Ok(Arc::new(channel))
    }

    /// Returns the next event that has arrived. `name` returns a token for a new connection.
    pub(super) fn next(self: &Arc<Self>, name: impl FnOnce() -> Token) -> Option<Received> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is live, and the pointer is writable (SAFETY.md F1, F2).
        let returned = unsafe { (self.library.get_cm_event)(self.raw.as_ptr(), &raw mut raw) };
        Errno::check(returned).ok()?;
        let event = NonNull::new(raw)?;
        let received = self.read(event, name);
        // SAFETY: the event is acknowledged once, and not used again (SAFETY.md F1, F2).
        unsafe { (self.library.ack_cm_event)(event.as_ptr()) };
        received
    }

    fn read(
        self: &Arc<Self>,
        event: NonNull<rdma_cm_event>,
        name: impl FnOnce() -> Token,
    ) -> Option<Received> {
        // SAFETY: the library returned the event, which is not acknowledged yet (SAFETY.md F32).
        let event = unsafe { event.as_ref() };
        let id = NonNull::new(event.id)?;
        let is_request = event.event == rdma_cm_event_type::CONNECT_REQUEST;
        let of = NonNull::new(event.listen_id).filter(|_| is_request).unwrap_or(id);
        // SAFETY: SAFETY.md F32: the ID is live, because its end waits until the event is acknowledged.
        let context = unsafe { (*of.as_ptr()).context };
        // SAFETY: SAFETY.md F4, F32: all bytes of the union are initialised. Its members begin with the same fields, those of
        // the private data, and the others are integers.
        let parameters = unsafe { event.param.conn };
        // SAFETY: SAFETY.md F32: the ID is live, as above.
        let space = unsafe { (*of.as_ptr()).ps };
        // SAFETY: SAFETY.md F4, F32: all bytes of the union are initialised.
        let rdma_ud_param { ah_attr: address, qp_num: qpn, qkey, .. } = unsafe { event.param.ud };
        let is_datagram = space == rdma_port_space::UDP;
        let datagram = is_datagram.then_some(Datagram { address, qpn, qkey });
        let (data, length) = (parameters.private_data.cast::<u8>(), parameters.private_data_len);
        let private_data = match NonNull::new(data.cast_mut()) {
            // SAFETY: SAFETY.md F32: the data has this length, and is live until the event is acknowledged.
            Some(data) => unsafe { slice::from_raw_parts(data.as_ptr(), length.into()) }.to_vec(),
            None => Vec::new(),
        };
        let (status, event) = (event.status, event.event);
        let token = context.addr() as Token;
        let request = is_request.then(|| Id::new(self, id, name()));
        Some(Received { token, event, status, request, parameters, datagram, private_data })
    }

    /// Creates an ID for a port space.
    pub(super) fn create_id(self: &Arc<Self>, token: Token, space: PortSpace) -> Result<Id, Errno> {
        let mut raw = ptr::null_mut();
        let (create, channel) = (self.library.create_id, self.raw.as_ptr());
        let space = match space {
            PortSpace::Tcp => rdma_port_space::TCP,
            PortSpace::Udp => rdma_port_space::UDP,
            _ => return Err(Errno::EPROTONOSUPPORT),
        };
        // SAFETY: the channel is live, and the pointer is writable (SAFETY.md F1, F2).
        checked(unsafe { create(channel, &raw mut raw, ptr::null_mut(), space) })?;
        let raw = Errno::check_null(raw)?;
        Ok(Id::new(self, raw, token))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library returned the channel, which is live (SAFETY.md F1).
        let file = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: the channel owns the file until it is destroyed, after this borrow (SAFETY.md F32).
        unsafe { BorrowedFd::borrow_raw(file) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // The channel of a forked child is the parent's.
        if self.process.is_current() {
            // SAFETY: the channel is live, its IDs were destroyed, and nothing uses it again (SAFETY.md F1, F2, F32).
            unsafe { (self.library.destroy_event_channel)(self.raw.as_ptr()) };
        }
    }
}

/// An ID, which is destroyed when this is dropped. It has no queue pair.
pub(super) struct Id {
    channel: Arc<Channel>,
    raw: Raw,
    token: Token,
    /// The multicast group that was joined.
    group: OnceLock<SocketAddr>,
    /// Whether the kernel may wait for the peer when it destroys the ID.
    waits: AtomicBool,
}

/// The pointer to an ID.
#[derive(Clone, Copy)]
struct Raw(NonNull<rdma_cm_id>);

// SAFETY: SAFETY.md F32: the functions of librdmacm may be called by any thread.
unsafe impl Send for Raw {}
// SAFETY: SAFETY.md F32: as above. No function changes what another thread reads at the same time.
unsafe impl Sync for Raw {}

impl Raw {
    const fn as_ptr(self) -> *mut rdma_cm_id {
        self.0.as_ptr()
    }
}

/// Defines methods that call a function of the library, with arguments that are numbers.
macro_rules! calls {
    ($($(#[$doc:meta])* $method:ident: $field:ident($($argument:expr),*);)+) => {
        $(
            $(#[$doc])*
            pub(super) fn $method(&self) -> Result<(), Errno> {
                // SAFETY: the ID is live (SAFETY.md F1, F2).
                checked(unsafe { (self.channel.library.$field)(self.raw.as_ptr() $(, $argument)*) })
            }
        )+
    };
}

/// The time limit for resolving an address, and for resolving a route.
pub(super) const RESOLVE_MS: c_int = 10_000;
/// The number of requests that wait until the engine receives them.
const BACKLOG: c_int = 128;

impl Id {
    calls! {
        resolve_route: resolve_route(RESOLVE_MS);
        listen: listen(BACKLOG);
        establish: establish();
        disconnect: disconnect();
    }

    /// Takes an ID that the library has created.
    fn new(channel: &Arc<Channel>, raw: NonNull<rdma_cm_id>, token: Token) -> Self {
        #[allow(clippy::cast_possible_truncation)] // the crate needs pointers of 64 bits
        let context = ptr::without_provenance_mut(token as usize);
        // SAFETY: SAFETY.md F32: the ID is live, and this field belongs to the program.
        unsafe { (*raw.as_ptr()).context = context };
        let (channel, raw) = (Arc::clone(channel), Raw(raw));
        Self { channel, raw, token, group: OnceLock::new(), waits: AtomicBool::new(false) }
    }

    /// Lets another thread destroy the ID, because the kernel may wait for the peer then.
    pub(super) fn end_apart(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    /// Destroys the ID in this thread, which may wait for the peer.
    pub(super) fn end_here(self) {
        self.waits.store(false, Ordering::Relaxed);
    }

    pub(super) const fn token(&self) -> Token {
        self.token
    }

    pub(super) fn bind(&self, address: SocketAddr) -> Result<(), Errno> {
        let mut address = storage(address);
        let address = (&raw mut address).cast();
        // SAFETY: the ID is live, and the address has the length of its family (SAFETY.md F1, F2).
        checked(unsafe { (self.channel.library.bind_addr)(self.raw.as_ptr(), address) })
    }

    pub(super) fn resolve_address(
        &self,
        source: Option<IpAddr>,
        to: SocketAddr,
    ) -> Result<(), Errno> {
        let mut source = source.map(|ip| storage(SocketAddr::new(ip, 0)));
        let source = source.as_mut().map_or(ptr::null_mut(), ptr::from_mut).cast();
        let mut to = storage(to);
        let (id, to) = (self.raw.as_ptr(), (&raw mut to).cast());
        // SAFETY: the ID is live, and the addresses have the lengths of their families; one may be NULL (SAFETY.md F1, F2).
        checked(unsafe { (self.channel.library.resolve_addr)(id, source, to, RESOLVE_MS) })
    }

    /// Joins a multicast group.
    pub(super) fn join(&self, group: SocketAddr) -> Result<(), Errno> {
        let mut address = storage(group);
        let (id, address) = (self.raw.as_ptr(), (&raw mut address).cast());
        // SAFETY: the ID is live, and the address has the length of its family (SAFETY.md F1, F2).
        checked(unsafe { (self.channel.library.join_multicast)(id, address, ptr::null_mut()) })?;
        let _ = self.group.set(group);
        Ok(())
    }

    /// Sends a REQ, or a SIDR_REQ.
    pub(super) fn connect(&self, own: &Parameters, private_data: &[u8]) -> Result<(), Errno> {
        let mut parameters = parameters(own, private_data);
        // SAFETY: the ID is live, and the parameters and their data are valid (SAFETY.md F1, F2).
        checked(unsafe { (self.channel.library.connect)(self.raw.as_ptr(), &raw mut parameters) })
    }

    /// Sends a REP, or a SIDR_REP.
    pub(super) fn accept(&self, own: &Parameters, private_data: &[u8]) -> Result<(), Errno> {
        let mut parameters = parameters(own, private_data);
        // SAFETY: the ID is live, and the parameters and their data are valid (SAFETY.md F1, F2).
        checked(unsafe { (self.channel.library.accept)(self.raw.as_ptr(), &raw mut parameters) })
    }

    pub(super) fn reject(&self, private_data: &[u8]) -> Result<(), Errno> {
        let (id, data) = (self.raw.as_ptr(), private_data.as_ptr().cast());
        // SAFETY: the ID is live, and the data has this length (SAFETY.md F1, F2).
        checked(unsafe { (self.channel.library.reject)(id, data, length_of(private_data)) })
    }

    /// Sets an option whose value is a byte.
    pub(super) fn set_byte(&self, option: (c_int, c_int), mut value: u8) -> Result<(), Errno> {
        // SAFETY: the value is a byte.
        unsafe { self.set(option, (&raw mut value).cast(), size_of::<u8>()) }
    }

    /// Sets an option that is off by default.
    pub(super) fn turn_on(&self, option: (c_int, c_int)) -> Result<(), Errno> {
        let mut value: c_int = 1;
        // SAFETY: the value is an integer.
        unsafe { self.set(option, (&raw mut value).cast(), size_of::<c_int>()) }
    }

    /// # Safety
    /// The value has this length.
    unsafe fn set(
        &self,
        (level, name): (c_int, c_int),
        value: *mut c_void,
        length: usize,
    ) -> Result<(), Errno> {
        let set = self.channel.library.set_option;
        // SAFETY: the ID is live, and the value has its length by this function's contract (SAFETY.md F1, F2).
        checked(unsafe { set(self.raw.as_ptr(), level, name, value, length) })
    }

    /// Returns the attributes with which a queue pair moves to INIT, RTR and RTS.
    pub(super) fn attributes(&self) -> Result<[ibv_qp_attr; 3], Errno> {
        let states =
            [ibv_qp_state::IBV_QPS_INIT, ibv_qp_state::IBV_QPS_RTR, ibv_qp_state::IBV_QPS_RTS];
        let mut all = states.map(|qp_state| ibv_qp_attr { qp_state, ..ibv_qp_attr::default() });
        for attributes in &mut all {
            let (init, id, mut mask) = (self.channel.library.init_qp_attr, self.raw.as_ptr(), 0);
            // SAFETY: the ID is live, and the attributes and the mask are writable (SAFETY.md F1, F2).
            checked(unsafe { init(id, attributes, &raw mut mask) })?;
        }
        Ok(all)
    }

    fn route(&self) -> rdma_route {
        // SAFETY: SAFETY.md F32: the ID is live, and the library does not change it while no function is called with it.
        unsafe { (*self.raw.as_ptr()).route }
    }

    /// Returns the addresses of this end and of the peer, if they are known.
    pub(super) fn addresses(&self) -> [Option<SocketAddr>; 2] {
        let route = self.route();
        [route.src, route.dst].map(|storage| {
            // SAFETY: the storage has room for every address, and its family is 0 if it has none (SAFETY.md F1).
            unsafe { read_address((&raw const storage).cast()) }
        })
    }

    /// Returns the GIDs of this end and of the other.
    pub(super) fn gids(&self) -> [Gid; 2] {
        let ib = self.route().ib;
        [ib.sgid, ib.dgid].map(Gid::from_bytes)
    }

    /// Returns the port of the device, from 1.
    pub(super) fn port(&self) -> u8 {
        // SAFETY: SAFETY.md F32: the ID is live, and the library does not change it while no function is called with it.
        unsafe { (*self.raw.as_ptr()).port_num }
    }

    /// Returns the record of the path to the other end, if there is one.
    pub(super) fn path(&self) -> Option<ibv_sa_path_rec> {
        let route = self.route();
        let path = NonNull::new(route.path_rec).filter(|_| route.num_paths > 0)?;
        // SAFETY: SAFETY.md F32: the library has allocated this number of records, and the ID is live.
        Some(unsafe { path.read() })
    }

    /// Returns the name and the GUID of the device that the ID was bound to, if it was. `context` is that of a device of
    /// the same libibverbs.
    fn device(&self, context: &Context) -> Option<(String, Guid)> {
        // SAFETY: SAFETY.md F32: the ID is live.
        let verbs = NonNull::new(unsafe { (*self.raw.as_ptr()).verbs })?;
        // SAFETY: SAFETY.md F32: the context stays open while its ID is live.
        let device = NonNull::new(unsafe { (*verbs.as_ptr()).device })?;
        // SAFETY: the device is listed by the libibverbs of this table (SAFETY.md F2, F32).
        let name = unsafe { (context.verbs().get_device_name)(device.as_ptr()) };
        // SAFETY: as above.
        let guid = Guid::from_be(unsafe { (context.verbs().get_device_guid)(device.as_ptr()) });
        // SAFETY: the name ends with a zero byte, and is as old as the device (SAFETY.md F2).
        let name = unsafe { CStr::from_ptr(name) };
        Some((name.to_string_lossy().into_owned(), guid))
    }

    /// Checks that the ID is bound to the device of a context, or to no device.
    ///
    /// # Errors
    /// Returns the name of the other device.
    pub(super) fn check_device(&self, context: &Context) -> Result<(), String> {
        let wanted = context.device();
        match self.device(context) {
            Some((name, guid)) if name != wanted.name() || guid != wanted.guid() => Err(name),
            _ => Ok(()),
        }
    }

    /// Sets the options of a port before it is bound.
    pub(super) fn set_port_options(
        &self,
        is_shared: bool,
        is_one_ip_version: bool,
    ) -> Result<(), Errno> {
        for (option, is_set) in
            [(option::REUSEADDR, is_shared), (option::AFONLY, is_one_ip_version)]
        {
            if is_set {
                self.turn_on(option)?;
            }
        }
        Ok(())
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // The ID of a forked child is the parent's.
        if self.channel.process.is_current() {
            let (channel, group) = (Arc::clone(&self.channel), self.group.get().copied());
            let ending = Ending { channel, raw: self.raw, group };
            if self.waits.load(Ordering::Relaxed) {
                // Without another thread, this one destroys the ID.
                let _ = apart::spawn(move || drop(ending));
            }
        }
    }
}

/// An ID that nothing else uses, which is destroyed when this is dropped.
struct Ending {
    channel: Arc<Channel>,
    raw: Raw,
    group: Option<SocketAddr>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let (library, id) = (self.channel.library, self.raw.as_ptr());
        if let Some(group) = self.group {
            let mut address = storage(group);
            let address = (&raw mut address).cast();
            // SAFETY: the ID is live, and the address has the length of its family (SAFETY.md F1, F2, F32).
            unsafe { (library.leave_multicast)(id, address) };
        }
        // SAFETY: the ID is live, and nothing else uses it again (SAFETY.md F1, F2, F32).
        unsafe { (library.destroy_id)(id) };
    }
}

/// Returns the GID to which a path leads.
pub(super) fn gid_of_path(path: &ibv_ah_attr) -> Gid {
    // SAFETY: SAFETY.md F4: all bytes of the union are initialised, and each of its members can have any bytes.
    Gid::from_bytes(unsafe { path.grh.dgid.raw })
}

fn length_of(private_data: &[u8]) -> u8 {
    u8::try_from(private_data.len()).unwrap_or(u8::MAX)
}

/// Returns parameters that point to the private data.
pub(super) fn parameters(own: &Parameters, private_data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: length_of(private_data),
        responder_resources: own.responder_resources,
        initiator_depth: own.initiator_depth,
        flow_control: own.flow_control.into(),
        retry_count: own.retry_count,
        rnr_retry_count: own.rnr_retry_count,
        srq: own.srq.into(),
        qp_num: own.qpn.get(),
    }
}

/// Returns the error of a function that returns 0 if it succeeds, and otherwise sets `errno`.
fn checked(returned: c_int) -> Result<(), Errno> {
    match returned {
        0 => Ok(()),
        -1 => Err(Errno::last()),
        _ => Err(Errno::from_raw(returned.abs())),
    }
}

pub(super) fn system_error(errno: Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno.raw())
}
