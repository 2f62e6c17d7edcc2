//! Queue pairs of IDs: their completion queues, shared receive queues and states.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;

use rdma_cm::unmanaged::{Address, QKEY, Route};
use rdma_sys::{
    Errno, ibv_access_flags, ibv_ah_attr, ibv_cq, ibv_create_qp_ex, ibv_gid, ibv_global_route,
    ibv_mtu, ibv_pd, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask, ibv_qp_state, ibv_srq_init_attr, ibv_srq_init_attr_ex,
    ibv_srq_init_attr_mask, ibv_srq_type,
};

use crate::abi::CmId;
use crate::devices::Device;
use crate::errors::returned;
use crate::id::{Id, State};
use crate::library::verbs;

/// The code of 0.64 ms: the time after which a sender retries if there was no receive request.
const RNR_TIMER: u8 = 12;
const HOP_LIMIT: u8 = 64;

/// Returns the address vector of a route.
pub(crate) fn address(device: &Device, route: &Route) -> Option<ibv_ah_attr> {
    let (index, port_num) = device.port_of(route)?;
    let mut vector = ibv_ah_attr { port_num, ..ibv_ah_attr::default() };
    match route.remote {
        Address::Gid(gid) => {
            vector.is_global = 1;
            vector.grh = ibv_global_route {
                dgid: ibv_gid { raw: gid.to_bytes() },
                sgid_index: index,
                hop_limit: HOP_LIMIT,
                traffic_class: route.traffic_class,
                ..ibv_global_route::default()
            };
        }
        Address::Lid(lid) => vector.dlid = lid.get(),
        _ => return None,
    }
    Some(vector)
}

/// Returns the device and the route of an ID, or the error number.
fn bound(state: &State) -> Result<(&'static Device, Route), c_int> {
    state.device.zip(state.path()).ok_or(libc::EINVAL)
}

/// Returns the attributes for the transition of an ID's queue pair to a state.
fn attributes(id: &Id, to: ibv_qp_state) -> Result<(ibv_qp_attr, Mask), c_int> {
    let is_datagram = id.is_datagram();
    let state = id.state();
    let mut attributes = ibv_qp_attr { qp_state: to, ..ibv_qp_attr::default() };
    let mask = match to {
        ibv_qp_state::IBV_QPS_INIT => {
            let device = state.device.ok_or(libc::EINVAL)?;
            let port = state.route.and_then(|route| device.port_of(&route));
            attributes.port_num = port.map_or(1, |(_, port)| port);
            let common = Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT;
            if is_datagram {
                attributes.qkey = QKEY;
                common | Mask::IBV_QP_QKEY
            } else {
                let access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
                    | ibv_access_flags::IBV_ACCESS_REMOTE_READ
                    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
                attributes.qp_access_flags = access.0;
                common | Mask::IBV_QP_ACCESS_FLAGS
            }
        }
        ibv_qp_state::IBV_QPS_RTR if is_datagram => Mask::IBV_QP_STATE,
        ibv_qp_state::IBV_QPS_RTS if is_datagram => Mask::IBV_QP_STATE | Mask::IBV_QP_SQ_PSN,
        ibv_qp_state::IBV_QPS_RTR => {
            let (device, route) = bound(&state)?;
            let peer = state.peer.ok_or(libc::EINVAL)?;
            attributes.ah_attr = address(device, &route).ok_or(libc::EINVAL)?;
            attributes.path_mtu = ibv_mtu(u32::from(route.mtu.code()));
            attributes.dest_qp_num = peer.qpn.get();
            attributes.rq_psn = state.own.psn.get();
            let common = Mask::IBV_QP_STATE
                | Mask::IBV_QP_AV
                | Mask::IBV_QP_PATH_MTU
                | Mask::IBV_QP_DEST_QPN
                | Mask::IBV_QP_RQ_PSN;
            if state.own.is_unreliable {
                common
            } else {
                attributes.max_dest_rd_atomic = state.own.responder_resources;
                attributes.min_rnr_timer = RNR_TIMER;
                common | Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER
            }
        }
        ibv_qp_state::IBV_QPS_RTS => {
            let peer = state.peer.ok_or(libc::EINVAL)?;
            attributes.sq_psn = peer.psn.get();
            let common = Mask::IBV_QP_STATE | Mask::IBV_QP_SQ_PSN;
            if state.own.is_unreliable {
                common
            } else {
                let (_, route) = bound(&state)?;
                attributes.timeout = route.ack_timeout.code();
                attributes.retry_cnt = state.own.retry_count;
                attributes.rnr_retry = peer.rnr_retry_count;
                attributes.max_rd_atomic = state.own.initiator_depth;
                common
                    | Mask::IBV_QP_TIMEOUT
                    | Mask::IBV_QP_RETRY_CNT
                    | Mask::IBV_QP_RNR_RETRY
                    | Mask::IBV_QP_MAX_QP_RD_ATOMIC
            }
        }
        _ => return Err(libc::EINVAL),
    };
    Ok((attributes, mask))
}

/// Returns a mask in the type of the functions' arguments.
const fn bits(mask: Mask) -> c_int {
    mask.0.cast_signed()
}

/// Moves an ID's queue pair, if there is one, to states in turn.
pub(crate) fn move_to(id: &Id, states: &[ibv_qp_state]) -> Result<(), c_int> {
    let qp = id.read(|shown| shown.qp);
    if qp.is_null() {
        return Ok(());
    }
    let verbs = verbs().ok_or(libc::ENODEV)?;
    for &to in states {
        let (mut attributes, mask) = attributes(id, to)?;
        // SAFETY: the program keeps the ID's queue pair until `rdma_destroy_qp` (SAFETY.md F1, F2).
        let moved = unsafe { (verbs.modify_qp)(qp, &raw mut attributes, bits(mask)) };
        Errno::check(moved).map_err(Errno::raw)?;
    }
    Ok(())
}

/// Moves an ID's queue pair, if there is one, to the error state.
pub(crate) fn fail_queue_pair(id: &Id) -> Result<(), c_int> {
    let qp = id.read(|shown| shown.qp);
    if qp.is_null() {
        return Ok(());
    }
    let verbs = verbs().ok_or(libc::ENODEV)?;
    let mut error = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..ibv_qp_attr::default() };
    // SAFETY: the program keeps the ID's queue pair until `rdma_destroy_qp` (SAFETY.md F1, F2).
    let moved = unsafe { (verbs.modify_qp)(qp, &raw mut error, bits(Mask::IBV_QP_STATE)) };
    Errno::check(moved).map_err(Errno::raw)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut CmId,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes attributes with the wanted state (SAFETY.md F1).
    let to = unsafe { (*qp_attr).qp_state };
    returned(attributes(id, to).map(|(attributes, mask)| {
        // SAFETY: the caller passes a valid pointer for the attributes (SAFETY.md F1).
        unsafe { qp_attr.write(attributes) };
        // SAFETY: the caller passes a valid pointer for the mask (SAFETY.md F1).
        unsafe { qp_attr_mask.write(bits(mask)) };
    }))
}

/// Creates the completion queues that an ID lacks. A size of 0 means that the program has one.
fn create_cqs(id: &Id, send: u32, receive: u32) -> Result<(), c_int> {
    let verbs = verbs().ok_or(libc::ENODEV)?;
    let context = id.read(|shown| shown.verbs);
    let create = |size: u32| {
        let size = c_int::try_from(size).map_err(|_| libc::EINVAL)?;
        // SAFETY: the context is that of the ID's device, which stays open (SAFETY.md F1, F2).
        let channel = unsafe { (verbs.create_comp_channel)(context) };
        Errno::check_null(channel).map_err(Errno::raw)?;
        // SAFETY: as above; the channel belongs to the same context.
        let cq = unsafe { (verbs.create_cq)(context, size, id.as_raw().cast(), channel, 0) };
        Ok::<_, c_int>((channel, cq))
    };
    let check = |cq| Errno::check_null(cq).map_err(Errno::raw).map(|_| ());
    if receive > 0 {
        let made = create(receive)?;
        id.write(|shown| (shown.recv_cq_channel, shown.recv_cq) = made);
        check(made.1)?;
    }
    if send > 0 {
        let made = create(send)?;
        id.write(|shown| (shown.send_cq_channel, shown.send_cq) = made);
        check(made.1)?;
    }
    Ok(())
}

/// Destroys the completion queues that `create_cqs` created. The ID has no queue pair.
fn destroy_cqs(id: &Id) {
    let Some(verbs) = verbs() else { return };
    let taken = id.write(|shown| {
        [
            (&mut shown.recv_cq_channel, &mut shown.recv_cq),
            (&mut shown.send_cq_channel, &mut shown.send_cq),
        ]
        .map(|(channel, cq)| {
            (std::mem::replace(channel, ptr::null_mut()), std::mem::replace(cq, ptr::null_mut()))
        })
    });
    for (channel, cq) in taken {
        if !cq.is_null() {
            // SAFETY: this library created the queue, which the ID no longer names (SAFETY.md F1, F2).
            unsafe { (verbs.destroy_cq)(cq) };
        }
        if !channel.is_null() {
            // SAFETY: this library created the channel, which the ID no longer names (SAFETY.md F1, F2).
            unsafe { (verbs.destroy_comp_channel)(channel) };
        }
    }
}

/// Returns true if both are set and differ.
fn differ(one: *mut ibv_cq, other: *mut ibv_cq) -> bool {
    !one.is_null() && !other.is_null() && one != other
}

/// Creates the queue pair of an ID, and moves it to INIT, or to RTS if it sends datagrams.
///
/// # Safety
/// The attributes are valid, and their objects live.
unsafe fn create_qp(id: &Id, wanted: &mut ibv_qp_init_attr_ex) -> Result<(), c_int> {
    let verbs = verbs().ok_or(libc::ENODEV)?;
    let (context, pd, srq) = id.read(|shown| (shown.verbs, shown.pd, shown.srq));
    let (send_cq, recv_cq) = id.read(|shown| (shown.send_cq, shown.recv_cq));
    if !id.read(|shown| shown.qp).is_null() || context.is_null() {
        return Err(libc::EINVAL);
    }
    let has_pd = wanted.comp_mask & ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 != 0;
    if !has_pd || wanted.pd.is_null() {
        wanted.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        wanted.pd = pd;
    // SAFETY: this function's contract.
    } else if unsafe { (*wanted.pd).context } != context {
        return Err(libc::EINVAL);
    }
    if differ(send_cq, wanted.send_cq) || differ(recv_cq, wanted.recv_cq) {
        return Err(libc::EINVAL);
    }
    let size = |wanted: *mut ibv_cq, own: *mut ibv_cq, size| {
        if wanted.is_null() && own.is_null() { size } else { 0 }
    };
    let send = size(wanted.send_cq, send_cq, wanted.cap.max_send_wr);
    let receive = size(wanted.recv_cq, recv_cq, wanted.cap.max_recv_wr);
    let result = create_cqs(id, send, receive).and_then(|()| {
        let (send_cq, recv_cq) = id.read(|shown| (shown.send_cq, shown.recv_cq));
        for (wanted, own) in [(&mut wanted.send_cq, send_cq), (&mut wanted.recv_cq, recv_cq)] {
            if wanted.is_null() {
                *wanted = own;
            }
        }
        if wanted.srq.is_null() {
            wanted.srq = srq;
        }
        // SAFETY: this function's contract; the context is that of the ID's device (SAFETY.md F1, F2).
        let qp = unsafe { ibv_create_qp_ex(verbs, context, wanted) };
        let qp = Errno::check_null(qp).map_err(Errno::raw)?.as_ptr();
        id.write(|shown| shown.qp = qp);
        let states =
            [ibv_qp_state::IBV_QPS_INIT, ibv_qp_state::IBV_QPS_RTR, ibv_qp_state::IBV_QPS_RTS];
        let states = if id.is_datagram() { &states[..] } else { &states[..1] };
        move_to(id, states).inspect_err(|_| {
            id.write(|shown| shown.qp = ptr::null_mut());
            // SAFETY: the queue pair was created above, and the program does not have it (SAFETY.md F1, F2).
            unsafe { (verbs.destroy_qp)(qp) };
        })
    });
    match result {
        Ok(()) => id.write(|shown| shown.pd = wanted.pd),
        Err(_) => destroy_cqs(id),
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut CmId,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes valid attributes (SAFETY.md F1).
    let wanted = unsafe { &mut *qp_init_attr };
    // SAFETY: as above.
    returned(unsafe { create_qp(id, wanted) })
}

/// Creates the queue pair of an ID with basic attributes, in which the results are stored.
///
/// # Safety
/// The attributes are valid, and their objects live.
pub(crate) unsafe fn create(
    id: &Id,
    pd: *mut ibv_pd,
    given: &mut ibv_qp_init_attr,
) -> Result<(), c_int> {
    let mut wanted = ibv_qp_init_attr_ex {
        qp_context: given.qp_context,
        send_cq: given.send_cq,
        recv_cq: given.recv_cq,
        srq: given.srq,
        cap: given.cap,
        qp_type: given.qp_type,
        sq_sig_all: given.sq_sig_all,
        comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0,
        pd,
        ..ibv_qp_init_attr_ex::default()
    };
    // SAFETY: this function's contract.
    let created = unsafe { create_qp(id, &mut wanted) };
    (given.send_cq, given.recv_cq) = (wanted.send_cq, wanted.recv_cq);
    (given.srq, given.cap) = (wanted.srq, wanted.cap);
    created
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp(
    id: *mut CmId,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes valid attributes (SAFETY.md F1).
    let given = unsafe { &mut *qp_init_attr };
    // SAFETY: as above.
    returned(unsafe { create(id, pd, given) })
}

/// Destroys the queue pair of an ID, if there is one, and the completion queues that this library created for it.
pub(crate) fn destroy(id: &Id) {
    let qp = id.write(|shown| std::mem::replace(&mut shown.qp, ptr::null_mut()));
    if let Some(verbs) = verbs().filter(|_| !qp.is_null()) {
        // SAFETY: the program does not use the ID's queue pair again (SAFETY.md F1, F2).
        unsafe { (verbs.destroy_qp)(qp) };
    }
    destroy_cqs(id);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_qp(id: *mut CmId) {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    destroy(unsafe { Id::of(id) });
}

/// # Safety
/// The attributes are valid, and their objects live.
unsafe fn create_srq(id: &Id, wanted: &mut ibv_srq_init_attr_ex) -> Result<(), c_int> {
    let has = |bit: ibv_srq_init_attr_mask| wanted.comp_mask & bit.0 != 0;
    if !has(ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE) {
        return Err(libc::EINVAL);
    }
    if wanted.srq_type != ibv_srq_type::IBV_SRQT_BASIC {
        return Err(libc::EOPNOTSUPP);
    }
    if !has(ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD) || wanted.pd.is_null() {
        wanted.pd = id.read(|shown| shown.pd);
        wanted.comp_mask |= ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
    }
    let verbs = verbs().filter(|_| !wanted.pd.is_null()).ok_or(libc::EINVAL)?;
    let pd = wanted.pd;
    // SAFETY: this function's contract; the extended attributes begin with the basic ones (SAFETY.md F1, F2, F5).
    let srq = unsafe { (verbs.create_srq)(pd, ptr::from_mut(wanted).cast()) };
    Errno::check_null(srq).map_err(Errno::raw)?;
    id.write(|shown| {
        shown.srq = srq;
        if shown.pd.is_null() {
            shown.pd = pd;
        }
    });
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(id: *mut CmId, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes valid attributes (SAFETY.md F1).
    let wanted = unsafe { &mut *attr };
    // SAFETY: as above.
    returned(unsafe { create_srq(id, wanted) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq(
    id: *mut CmId,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    let id = unsafe { Id::of(id) };
    // SAFETY: the caller passes valid attributes (SAFETY.md F1).
    let given = unsafe { &mut *attr };
    let mask = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE
        | ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD;
    let mut wanted = ibv_srq_init_attr_ex {
        srq_context: given.srq_context,
        attr: given.attr,
        comp_mask: mask.0,
        srq_type: ibv_srq_type::IBV_SRQT_BASIC,
        pd,
        ..ibv_srq_init_attr_ex::default()
    };
    // SAFETY: as above.
    let created = unsafe { create_srq(id, &mut wanted) };
    given.attr = wanted.attr;
    returned(created)
}

/// Destroys the shared receive queue of an ID, if there is one.
pub(crate) fn destroy_srq(id: &Id) {
    let srq = id.write(|shown| std::mem::replace(&mut shown.srq, ptr::null_mut()));
    if let Some(verbs) = verbs().filter(|_| !srq.is_null()) {
        // SAFETY: the program does not use the ID's queue again (SAFETY.md F1, F2).
        unsafe { (verbs.destroy_srq)(srq) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_srq(id: *mut CmId) {
    // SAFETY: the caller passes a live ID (SAFETY.md F1).
    destroy_srq(unsafe { Id::of(id) });
}
