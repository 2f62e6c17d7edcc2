//! Requests for connections, their answers, and their ends.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::slice;

use rdma_cm::unmanaged::{self, Parameters, PortSpace, QKEY};
use rdma_cm::{Error, Reason};
use rdma_sys::{ibv_ece, ibv_event_type, ibv_qp_state, ibv_qp_type};
use rdma_types::Qpn;

use crate::abi::{CmId, ConnParam, DEVICE_MAXIMUM, Space};
use crate::devices::Device;
use crate::endpoint::complete;
use crate::errors::{fail, number, returned};
use crate::id::{Id, Stage};
use crate::queue_pair;

/// The reason of `rdma_reject_ece`.
const VENDOR_OPTION: u16 = 35;

/// The greatest number of retries, which has 3 bits.
const MAX_RETRIES: u8 = 7;
/// The states to which the queue pair of a connection is moved. Its attributes in INIT may have changed.
const STATES: [ibv_qp_state; 3] =
    [ibv_qp_state::IBV_QPS_INIT, ibv_qp_state::IBV_QPS_RTR, ibv_qp_state::IBV_QPS_RTS];

/// Returns the port space of the engine.
pub(crate) fn port_space(space: Space) -> PortSpace {
    match space {
        Space::TCP => PortSpace::Tcp,
        Space::IB => PortSpace::Ib,
        _ => PortSpace::Udp,
    }
}

/// Returns private data of the program.
///
/// # Safety
/// The data has this length, or is NULL.
unsafe fn data<'a>(data: *const c_void, length: u8) -> &'a [u8] {
    if data.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: this function's contract.
    unsafe { slice::from_raw_parts(data.cast(), usize::from(length)) }
}

/// Returns the private data in parameters.
///
/// # Safety
/// The parameters are valid.
unsafe fn data_of<'a>(parameters: Option<&ConnParam>) -> &'a [u8] {
    // SAFETY: this function's contract.
    parameters.map_or(&[], |it| unsafe { data(it.private_data, it.private_data_len) })
}

/// Returns the number of an ID's queue pair, and whether it has a shared receive queue.
fn queue_pair_of(id: &Id) -> Option<(u32, bool)> {
    let qp = id.read(|shown| shown.qp);
    // SAFETY: the program keeps the ID's queue pair until `rdma_destroy_qp` (SAFETY.md F1).
    let qp = unsafe { qp.as_ref() }?;
    Some((qp.qp_num, !qp.srq.is_null()))
}

/// Sets the parameters of an ID's end. `peer` is the active end, whose requests limit those of a passive one.
fn set_parameters(
    id: &Id,
    parameters: Option<&ConnParam>,
    peer: Option<Parameters>,
) -> Result<(), c_int> {
    let queue_pair = queue_pair_of(id);
    let is_unreliable = id.qp_type == ibv_qp_type::IBV_QPT_UC;
    let mut state = id.state();
    let device: &Device = state.device.ok_or(libc::EINVAL)?;
    let named = parameters.map(|it| (it.qp_num, it.srq != 0));
    let (qpn, srq) = queue_pair.or(named).ok_or(libc::EINVAL)?;
    let choose = |wanted: Option<u8>, most: u8, of_peer: Option<u8>| match wanted {
        Some(wanted) if wanted != DEVICE_MAXIMUM => {
            Some(wanted).filter(|&wanted| wanted <= most).ok_or(libc::EINVAL)
        }
        _ => Ok(of_peer.map_or(most, |of_peer| of_peer.min(most))),
    };
    let own = &mut state.own;
    // What the peer starts, this end serves.
    own.responder_resources = choose(
        parameters.map(|it| it.responder_resources),
        device.max_responder_resources,
        peer.map(|peer| peer.initiator_depth),
    )?;
    own.initiator_depth = choose(
        parameters.map(|it| it.initiator_depth),
        device.max_initiator_depth,
        peer.map(|peer| peer.responder_resources),
    )?;
    if let Some(parameters) = parameters {
        own.flow_control = parameters.flow_control != 0;
        own.rnr_retry_count = parameters.rnr_retry_count.min(MAX_RETRIES);
        own.retry_count = parameters.retry_count.min(MAX_RETRIES);
    }
    if let Some(peer) = peer {
        // The active end chooses for both.
        own.retry_count = peer.retry_count;
    }
    own.is_unreliable = peer.map_or(is_unreliable, |peer| peer.is_unreliable);
    (own.qpn, own.srq) = (Qpn::masked(qpn), srq);
    Ok(())
}

/// Requests a connection, or queries a datagram service.
fn connect(id: &Id, parameters: Option<&ConnParam>, private_data: &[u8]) -> Result<(), c_int> {
    let is_datagram = id.is_datagram();
    let space = port_space(id.space);
    if !is_datagram {
        set_parameters(id, parameters, None)?;
    }
    let mut state = id.state();
    let (Some(device), Some(route), Stage::Ready) = (state.device, state.path(), state.stage)
    else {
        return Err(libc::EINVAL);
    };
    let private_data = [&state.connect_data, private_data].concat();
    let own = state.own;
    // The answer may arrive at once.
    state.stage = Stage::Connecting;
    drop(state);
    let connected = id.connect(|| match is_datagram {
        true => unmanaged::query(&device.channel, space, &route, &private_data),
        false => unmanaged::connect(&device.channel, space, &route, &own, &private_data),
    });
    let mut state = id.state();
    match connected {
        Ok(()) => state.connect_data.clear(),
        Err(_) => state.stage = Stage::Ready,
    }
    drop(state);
    connected.map_err(|error| number(&error))?;
    complete(id)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_connect(id: *mut CmId, conn_param: *mut ConnParam) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes valid parameters or NULL (SAFETY.md F1).
    let parameters = unsafe { conn_param.as_ref() };
    // SAFETY: as above.
    let private_data = unsafe { data_of(parameters) };
    returned(connect(id, parameters, private_data))
}

/// Prepares the queue pair of an active end whose request was accepted, and confirms.
pub(crate) fn finish(id: &Id) -> Result<(), c_int> {
    let ready = queue_pair::move_to(id, &STATES).and_then(|()| {
        let mut state = id.state();
        let connection = state.connections.first().ok_or(libc::EINVAL)?;
        connection.establish().map_err(|error| number(&error))?;
        state.stage = Stage::Established;
        Ok(())
    });
    if ready.is_err() {
        let _ = queue_pair::fail_queue_pair(id);
        let state = id.state();
        if let Some(connection) = state.connections.first() {
            let _ = connection.reject(Reason::CONSUMER_DEFINED, &[]);
        }
    }
    ready
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(id: *mut CmId) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // With a queue pair, `rdma_get_cm_event` has done this.
    if queue_pair_of(id).is_some() { fail(libc::EINVAL) } else { returned(finish(id)) }
}

/// Accepts a request, or answers a query.
fn accept(id: &Id, parameters: Option<&ConnParam>, private_data: &[u8]) -> Result<(), c_int> {
    if id.is_datagram() {
        let own = queue_pair_of(id).map(|(qpn, _)| qpn);
        let qpn = own.or(parameters.map(|it| it.qp_num)).ok_or(libc::EINVAL)?;
        return call(id, |connection| connection.answer(Qpn::masked(qpn), QKEY, private_data));
    }
    let peer = id.state().peer.ok_or(libc::EINVAL)?;
    set_parameters(id, parameters, Some(peer))?;
    queue_pair::move_to(id, &STATES)?;
    let mut state = id.state();
    let (own, before) = (state.own, state.stage);
    // The peer's confirmation may arrive at once.
    state.stage = Stage::Connecting;
    drop(state);
    if let Err(error) = call(id, |connection| connection.accept(&own, private_data)) {
        let mut state = id.state();
        if state.stage == Stage::Connecting {
            state.stage = before;
        }
        drop(state);
        let _ = queue_pair::fail_queue_pair(id);
        return Err(error);
    }
    complete(id)
}

/// Calls a function of an ID's connection.
fn call(id: &Id, call: impl FnOnce(&unmanaged::Id) -> Result<(), Error>) -> Result<(), c_int> {
    let state = id.state();
    let connection = state.connections.first().ok_or(libc::EINVAL)?;
    call(connection).map_err(|error| number(&error))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(id: *mut CmId, conn_param: *mut ConnParam) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes valid parameters or NULL (SAFETY.md F1).
    let parameters = unsafe { conn_param.as_ref() };
    // SAFETY: as above.
    let private_data = unsafe { data_of(parameters) };
    returned(accept(id, parameters, private_data))
}

/// Rejects a request, or refuses a query.
fn reject(id: &Id, reason: Reason, private_data: &[u8]) -> c_int {
    let is_datagram = id.is_datagram();
    returned(call(id, |connection| match is_datagram {
        true => connection.refuse(private_data),
        false => connection.reject(reason, private_data),
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(
    id: *mut CmId,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes data of this length, or NULL (SAFETY.md F1).
    reject(id, Reason::CONSUMER_DEFINED, unsafe { data(private_data, private_data_len) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject_ece(
    id: *mut CmId,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes data of this length, or NULL (SAFETY.md F1).
    reject(id, Reason::new(VENDOR_OPTION), unsafe { data(private_data, private_data_len) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(id: *mut CmId, event: ibv_event_type) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    if event != ibv_event_type::IBV_EVENT_COMM_EST {
        return fail(libc::EINVAL);
    }
    // An established connection needs no notification.
    let is_established = || id.state().stage == Stage::Established;
    if is_established() {
        return 0;
    }
    // `call` locks the state again. Meanwhile, the peer's message may establish the connection.
    returned(
        call(id, unmanaged::Id::communication_established)
            .or_else(|error| if is_established() { Ok(()) } else { Err(error) }),
    )
}

/// Disconnects. An event follows, unless it waits or the program has received it.
fn disconnect(id: &Id) -> Result<(), c_int> {
    queue_pair::fail_queue_pair(id)?;
    let state = id.state();
    match (state.stage, state.connections.first()) {
        (Stage::Connecting | Stage::Established, Some(connection)) => {
            connection.disconnect().map_err(|error| number(&error))?;
        }
        (Stage::Over, _) => return Ok(()),
        _ => return Err(libc::EINVAL),
    }
    drop(state);
    complete(id)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_disconnect(id: *mut CmId) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    returned(disconnect(unsafe { Id::of(id) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_local_ece(id: *mut CmId, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller passes a live ID, or NULL (SAFETY.md F1).
    let id = unsafe { id.as_ref() };
    // SAFETY: the caller passes a valid struct, or NULL (SAFETY.md F1).
    let ece = unsafe { ece.as_ref() };
    match (id, ece) {
        // The software device has no vendor's options, so they are not sent.
        (Some(id), Some(ece)) if id.qp.is_null() && ece.vendor_id != 0 && ece.comp_mask == 0 => 0,
        _ => fail(libc::EINVAL),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_remote_ece(id: *mut CmId, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller passes a live ID, or NULL (SAFETY.md F1).
    let id = unsafe { id.as_ref() };
    // SAFETY: the caller passes a valid struct, or NULL (SAFETY.md F1).
    let ece = unsafe { ece.as_mut() };
    match (id, ece) {
        (Some(id), Some(ece)) if id.qp.is_null() => {
            *ece = ibv_ece::default();
            0
        }
        _ => fail(libc::EINVAL),
    }
}
