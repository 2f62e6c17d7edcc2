//! Events: from the engine to a channel, and from the channel to the program.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::{mem, ptr};

use rdma_cm::unmanaged::{Answered, Event, Group, Parameters, Route, SidrStatus};
use rdma_cm::{End, Reason};
use rdma_sys::{ibv_ah_attr, ibv_qp_type};

use crate::abi::{CmEvent, ConnParam, EventChannel, EventType, Param, UdParam};
use crate::channel::{self, Channel};
use crate::devices::Device;
use crate::errors::{fail, returned};
use crate::id::{self, Id, Stage, State};
use crate::{connecting, multicast, queue_pair};

/// An event that waits in a channel.
pub(crate) struct Waiting {
    /// The ID that counts the event: of a request, that of the listener.
    pub(crate) id: Arc<Id>,
    pub(crate) event: EventType,
    pub(crate) status: c_int,
    /// The ID of a new connection.
    pub(crate) new: Option<Arc<Id>>,
    pub(crate) content: Content,
}

/// The parameters of an event.
pub(crate) enum Content {
    None,
    Connection(Option<Parameters>, Vec<u8>),
    Datagram {
        address: ibv_ah_attr,
        qpn: u32,
        qkey: u32,
        private_data: Vec<u8>,
    },
    /// The number of a membership, its multicast group, the address vector to it, and the context of the call that has
    /// joined it.
    Group {
        number: u64,
        group: Group,
        address: ibv_ah_attr,
        context: AtomicPtr<c_void>,
    },
}

impl Waiting {
    /// Returns an event without parameters.
    pub(crate) fn new(id: &Id, event: EventType, status: c_int) -> Self {
        Self { id: id.shared(), event, status, new: None, content: Content::None }
    }

    /// Adds the event to the channel of its ID. The event of an ID that the program has destroyed is dropped, with the
    /// request in it.
    pub(crate) fn queue(self) {
        let id = Arc::clone(&self.id);
        let state = id.state();
        if !state.is_ended {
            return state.channel.add(self);
        }
        drop(state);
        if let Some(new) = self.new {
            id::end(&new);
        }
    }
}

/// Queues what happened to an ID's connection.
pub(crate) fn queue(device: &'static Device, id: &Arc<Id>, happened: Event) {
    let is_datagram = id.is_datagram();
    let is_unreliable = id.qp_type == ibv_qp_type::IBV_QPT_UC;
    let waiting = match happened {
        // Dropping a request of another type rejects it.
        Event::Requested { parameters, .. }
            if is_datagram || parameters.is_unreliable != is_unreliable =>
        {
            return;
        }
        Event::Queried { .. } if !is_datagram => return,
        Event::Requested { id: connection, parameters, route, private_data } => {
            let new = requested(device, id, connection, route, Some(parameters));
            let content = Content::Connection(Some(parameters), private_data);
            let event = EventType::CONNECT_REQUEST;
            Waiting { id: Arc::clone(id), event, status: 0, new: Some(new), content }
        }
        Event::Queried { id: connection, route, private_data } => {
            let new = requested(device, id, connection, route, None);
            let address = address_of(device, &new.state());
            let content = Content::Datagram { address, qpn: 0, qkey: 0, private_data };
            let event = EventType::CONNECT_REQUEST;
            Waiting { id: Arc::clone(id), event, status: 0, new: Some(new), content }
        }
        Event::Replied { parameters, private_data } => {
            id.state().set_peer(parameters);
            let content = Content::Connection(Some(parameters), private_data);
            let event = EventType::CONNECT_RESPONSE;
            Waiting { content, ..Waiting::new(id, event, 0) }
        }
        Event::Established { private_data } => {
            let mut state = id.state();
            if state.stage != Stage::Connecting {
                return;
            }
            state.stage = Stage::Established;
            drop(state);
            let content = Content::Connection(None, private_data);
            Waiting { content, ..Waiting::new(id, EventType::ESTABLISHED, 0) }
        }
        Event::Answered(answered) => {
            let Some(waiting) = self::answered(device, id, answered) else { return };
            waiting
        }
        // The program never receives the request.
        Event::Ended(_) if channel::withdraw(id) => return id::end(id),
        Event::Ended(end) => {
            let Some(waiting) = ended(id, end) else { return };
            waiting
        }
        _ => return,
    };
    waiting.queue();
}

/// Creates the ID of a request.
fn requested(
    device: &'static Device,
    listener: &Arc<Id>,
    connection: rdma_cm::unmanaged::Id,
    route: Route,
    peer: Option<Parameters>,
) -> Arc<Id> {
    let state = listener.state();
    let (space, qp_type) = (listener.space, listener.qp_type);
    // `report` sets the context.
    let new = Id::new(Arc::clone(&state.channel), false, ptr::null_mut(), space, qp_type);
    let options = state.options;
    drop(state);
    new.bind_device(device);
    new.show_route(device, &route);
    new.show_path(&options.apply(route));
    let mut state = new.state();
    state.stage = Stage::Ready;
    state.route = Some(route);
    if let Some(peer) = peer {
        state.set_peer(peer);
        // A program that moves its own queue pair may read its attributes before it accepts.
        let own = &mut state.own;
        own.responder_resources = own.responder_resources.min(device.max_responder_resources);
        own.initiator_depth = own.initiator_depth.min(device.max_initiator_depth);
    }
    state.listener = Some(Arc::clone(listener));
    state.options = options;
    drop(state);
    let Ok(()) = new.connect::<std::convert::Infallible>(|| Ok(connection));
    new
}

/// Returns the address to which an ID sends datagrams.
fn address_of(device: &Device, state: &State) -> ibv_ah_attr {
    state.path().and_then(|route| queue_pair::address(device, &route)).unwrap_or_default()
}

/// Returns the event for the answer to a query, or `None` if an earlier event reported the end of the query.
fn answered(device: &'static Device, id: &Arc<Id>, answered: Answered) -> Option<Waiting> {
    let mut state = id.state();
    if state.stage == Stage::Over {
        return None;
    }
    let address = address_of(device, &state);
    let Answered { status, qpn, qkey, private_data } = answered;
    let is_valid = status == SidrStatus::VALID;
    state.stage = if is_valid { Stage::Established } else { Stage::Over };
    drop(state);
    let event = if is_valid { EventType::ESTABLISHED } else { EventType::UNREACHABLE };
    let content = Content::Datagram { address, qpn: qpn.get(), qkey, private_data };
    Some(Waiting { content, ..Waiting::new(id, event, status.get().into()) })
}

/// Returns the event for the end of a connection, or `None` if an earlier one reported it.
fn ended(id: &Arc<Id>, end: End) -> Option<Waiting> {
    let mut state = id.state();
    if state.stage == Stage::Over {
        return None;
    }
    let was_established = state.stage == Stage::Established;
    state.stage = Stage::Over;
    drop(state);
    let reason = |reason: Reason| c_int::from(reason.get());
    let (event, status, data) = match end {
        // The kernel's rdma_cm reports the status of a SIDR_REP.
        End::Rejected { .. } if id.is_datagram() => {
            (EventType::UNREACHABLE, c_int::from(SidrStatus::UNSUPPORTED.get()), Vec::new())
        }
        End::Rejected { reason: why, private_data } => {
            (EventType::REJECTED, reason(why), private_data)
        }
        End::Disconnected { private_data } => (EventType::DISCONNECTED, 0, private_data),
        End::Refused { reason: why } => (EventType::CONNECT_ERROR, reason(why), Vec::new()),
        End::PeerGone if was_established => (EventType::DISCONNECTED, 0, Vec::new()),
        End::PeerGone => (EventType::UNREACHABLE, -libc::ECONNRESET, Vec::new()),
        End::OtherUser => (EventType::UNREACHABLE, -libc::EACCES, Vec::new()),
        End::Busy => (EventType::UNREACHABLE, -libc::EAGAIN, Vec::new()),
        _ => (EventType::UNREACHABLE, -libc::ETIMEDOUT, Vec::new()),
    };
    let content = Content::Connection(None, data);
    Some(Waiting { content, ..Waiting::new(id, event, status) })
}

/// An event that the program has, until it acknowledges it. The program has a pointer to its beginning.
#[repr(C)]
struct Reported {
    shown: CmEvent,
    private_data: Vec<u8>,
    id: Arc<Id>,
}

/// Returns the number of bytes, and a pointer to them unless there are none.
fn data_of(data: &[u8]) -> (*const c_void, u8) {
    let length = u8::try_from(data.len()).unwrap_or(u8::MAX);
    if length == 0 { (ptr::null(), 0) } else { (data.as_ptr().cast(), length) }
}

/// Returns the parameters of an event for a connection, which point to the private data.
fn connection(parameters: Option<Parameters>, private_data: &[u8]) -> ConnParam {
    // SAFETY: the struct consists of pointers and integers, so all-zero bytes are valid (SAFETY.md F4).
    let mut conn: ConnParam = unsafe { mem::zeroed() };
    (conn.private_data, conn.private_data_len) = data_of(private_data);
    if let Some(peer) = parameters {
        // What the peer starts, this end serves.
        conn.responder_resources = peer.initiator_depth;
        conn.initiator_depth = peer.responder_resources;
        conn.flow_control = u8::from(peer.flow_control);
        conn.retry_count = peer.retry_count;
        conn.rnr_retry_count = peer.rnr_retry_count;
        conn.srq = u8::from(peer.srq);
        conn.qp_num = peer.qpn.get();
    }
    conn
}

/// Prepares an event for the program. Returns `None` if the program must not see it.
fn report(waiting: Waiting) -> Option<Box<Reported>> {
    let Waiting { id, mut event, mut status, new, content } = waiting;
    match event {
        // Without a queue pair, the program calls `rdma_establish`.
        EventType::CONNECT_RESPONSE if !id.read(|shown| shown.qp).is_null() => {
            // The connection has ended meanwhile, and the event of its end is queued.
            if id.state().stage == Stage::Over {
                id.acknowledge();
                return None;
            }
            event = EventType::ESTABLISHED;
            if let Err(number) = connecting::finish(&id) {
                (event, status) = (EventType::CONNECT_ERROR, -number);
                // Exactly one event reports the end, which may have been queued meanwhile.
                if mem::replace(&mut id.state().stage, Stage::Over) == Stage::Over {
                    id.acknowledge();
                    return None;
                }
            }
        }
        EventType::REJECTED => {
            // The program receives the rejection, and its queue pair can no longer send.
            let _ = queue_pair::fail_queue_pair(&id);
        }
        EventType::MULTICAST_JOIN => {
            let Content::Group { number, .. } = content else { return None };
            match multicast::attach(&id, number) {
                Some(Ok(())) => {}
                Some(Err(number)) => (event, status) = (EventType::MULTICAST_ERROR, -number),
                None => {
                    id.acknowledge();
                    return None;
                }
            }
        }
        EventType::CONNECT_REQUEST => {
            if let Some(new) = &new {
                follow(new, &id);
                let is_sync = id.state().is_sync;
                if is_sync && make_sync(new).is_err() {
                    id::end(new);
                    id.acknowledge();
                    return None;
                }
            }
        }
        _ => {}
    }
    let listener = new.as_ref().map_or(ptr::null_mut(), |_| id.as_raw());
    let raw = match new {
        // The program destroys the new ID.
        Some(new) => Arc::into_raw(new).cast_mut().cast(),
        None => id.as_raw(),
    };
    // SAFETY: the struct consists of pointers and integers, so all-zero bytes are valid (SAFETY.md F4).
    let mut shown: CmEvent = unsafe { mem::zeroed() };
    (shown.id, shown.listen_id, shown.event, shown.status) = (raw, listener, event, status);
    let mut private_data = Vec::new();
    match content {
        Content::None => {}
        Content::Connection(parameters, data) => {
            private_data = data;
            shown.param = Param { conn: connection(parameters, &private_data) };
        }
        Content::Group { group, address, context, .. } => {
            shown.param = Param { ud: multicast::parameters(&group, address, context) };
        }
        Content::Datagram { address, qpn, qkey, private_data: data } => {
            private_data = data;
            let (data, length) = data_of(&private_data);
            let (private_data, private_data_len, ah_attr) = (data, length, address);
            shown.param = Param {
                ud: UdParam { private_data, private_data_len, ah_attr, qp_num: qpn, qkey },
            };
        }
    }
    Some(Box::new(Reported { shown, private_data, id }))
}

/// Gives the ID of a request, which the program receives now, the channel and the context of its listener.
fn follow(new: &Id, listener: &Id) {
    let to = Arc::clone(&listener.state().channel);
    let mut state = new.state();
    // The device's thread no longer withdraws the request.
    let before = state.listener.take();
    let is_moved = !Arc::ptr_eq(&state.channel, &to);
    drop((state, before));
    if is_moved {
        channel::migrate(new, &to);
    }
    let context = listener.read(|shown| shown.context);
    new.write(|shown| (shown.channel, shown.context) = (to.as_raw(), context));
}

/// Gives an ID its own channel, so that its functions wait.
fn make_sync(id: &Id) -> Result<(), c_int> {
    let own = Channel::open()?;
    channel::migrate(id, &own);
    let mut state = id.state();
    state.is_sync = true;
    id.write(|shown| shown.channel = own.as_raw());
    Ok(())
}

/// Waits for the next event of a channel.
pub(crate) fn next(channel: &Channel) -> Result<*mut CmEvent, c_int> {
    loop {
        if let Some(reported) = report(channel.next()?) {
            return Ok(Box::into_raw(reported).cast());
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut EventChannel,
    event: *mut *mut CmEvent,
) -> c_int {
    if channel.is_null() || event.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a live channel, which begins with this struct (SAFETY.md F1, F5). No reference to it is
    // counted, because `pthread_cancel` may end the call.
    let channel = unsafe { &*channel.cast_const().cast::<Channel>() };
    returned(next(channel).map(|next| {
        // SAFETY: the caller passes a valid pointer for the event (SAFETY.md F1).
        unsafe { event.write(next) };
    }))
}

/// Acknowledges the event of the last function that waited.
pub(crate) fn acknowledge_last(id: &Id) {
    let last = id.write(|shown| mem::replace(&mut shown.event, ptr::null_mut()));
    if !last.is_null() {
        // SAFETY: a function of this ID received the event, and nothing else acknowledges it.
        unsafe { acknowledge(last) };
    }
}

/// # Safety
/// `next` returned the event, which was not acknowledged before.
unsafe fn acknowledge(event: *mut CmEvent) {
    // SAFETY: `report` made the box, which begins with this struct (SAFETY.md F5).
    let reported = unsafe { Box::from_raw(event.cast::<Reported>()) };
    let Reported { id, private_data, .. } = *reported;
    drop(private_data);
    id.acknowledge();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut CmEvent) -> c_int {
    if event.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller passes an event of `rdma_get_cm_event`, once (SAFETY.md F1).
    unsafe { acknowledge(event) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn rdma_event_str(event: EventType) -> *const c_char {
    event.name().as_ptr()
}
