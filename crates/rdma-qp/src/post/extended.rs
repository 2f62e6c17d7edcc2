//! Posting through the `ibv_wr_*` calls, for queue pairs that were built with the option `extended`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::iter::successors;
use std::ptr::{NonNull, null_mut, with_exposed_provenance_mut};
use std::slice;

use rdma_mem::{Errno, ProtectionDomain};
use rdma_sys::{
    ibv_context_ops, ibv_create_qp_ex, ibv_data_buf, ibv_post_send, ibv_qp,
    ibv_qp_create_send_ops_flags as Operation, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask as Mask, ibv_qp_type, ibv_send_flags, ibv_send_wr, ibv_sge,
    ibv_wr_atomic_cmp_swp, ibv_wr_atomic_fetch_add, ibv_wr_bind_mw, ibv_wr_complete,
    ibv_wr_local_inv, ibv_wr_opcode as Opcode, ibv_wr_rdma_read, ibv_wr_rdma_write,
    ibv_wr_rdma_write_imm, ibv_wr_send, ibv_wr_send_imm, ibv_wr_send_inv, ibv_wr_set_inline_data,
    ibv_wr_set_inline_data_list, ibv_wr_set_sge, ibv_wr_set_sge_list, ibv_wr_set_ud_addr,
    ibv_wr_start,
};

use crate::post::stand_in::{Called, real};

/// The operations on datagrams that every device with the `ibv_wr_*` calls supports.
const SENDS: u64 =
    (Operation::IBV_QP_EX_WITH_SEND.0 | Operation::IBV_QP_EX_WITH_SEND_WITH_IMM.0) as u64;
/// The operations on unreliable connections that every device with the `ibv_wr_*` calls supports.
const UNRELIABLE: u64 = SENDS
    | (Operation::IBV_QP_EX_WITH_RDMA_WRITE.0 | Operation::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0)
        as u64;
/// The operations on reliable connections that every device with the `ibv_wr_*` calls supports.
const ALWAYS: u64 = UNRELIABLE | Operation::IBV_QP_EX_WITH_RDMA_READ.0 as u64;
const ATOMICS: u64 = (Operation::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0
    | Operation::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0) as u64;
const WINDOWS: u64 = (Operation::IBV_QP_EX_WITH_LOCAL_INV.0
    | Operation::IBV_QP_EX_WITH_BIND_MW.0
    | Operation::IBV_QP_EX_WITH_SEND_WITH_INV.0) as u64;

/// A queue pair, and the object that requests are posted to.
type Created = (NonNull<ibv_qp>, Called<ibv_qp>);

/// Creates a queue pair that posts through the `ibv_wr_*` calls where the device supports them. `None` if the device
/// supports none of the sets of operations in [`wishes`].
///
/// # Errors
/// Returns an error if the creation fails for another reason.
///
/// # Safety
/// The contract of `ibv_create_qp` applies, for this domain.
pub(crate) unsafe fn create(
    pd: &ProtectionDomain,
    attributes: &mut ibv_qp_init_attr,
) -> Result<Option<Created>, Errno> {
    let verbs = pd.verbs();
    let Some(to_extended) = verbs.qp_to_qp_ex else { return Ok(None) };
    for &operations in wishes(attributes.qp_type) {
        let mut extended = extend(attributes, pd, operations);
        let context = pd.context().as_raw();
        // SAFETY: SAFETY.md F1, F2: by this function's contract.
        let created = unsafe { ibv_create_qp_ex(verbs, context, &raw mut extended) };
        let raw = match Errno::check_null(created) {
            Ok(raw) => raw,
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) => continue,
            Err(errno) => return Err(errno),
        };
        attributes.cap = extended.cap;
        // SAFETY: SAFETY.md F1, F2: the queue pair was just created by this table.
        let calls = unsafe { to_extended(raw.as_ptr()) };
        // Usually, one struct contains both parts. If a provider uses two structs, requests are posted through
        // `ibv_post_send`.
        let called = if calls.cast() == raw.as_ptr() {
            let ops = ibv_context_ops { post_send: Some(post), ..Default::default() };
            Called::through(raw, operations, ops)
        } else {
            Called::itself(raw)
        };
        return Ok(Some((raw, called)));
    }
    Ok(None)
}

/// Returns the sets of operations to request, largest first.
fn wishes(qp_type: ibv_qp_type) -> &'static [u64] {
    match qp_type {
        ibv_qp_type::IBV_QPT_UD => &[SENDS],
        ibv_qp_type::IBV_QPT_UC => &[UNRELIABLE],
        _ => &[ALWAYS | ATOMICS | WINDOWS, ALWAYS | ATOMICS, ALWAYS | WINDOWS, ALWAYS],
    }
}

fn extend(
    classic: &ibv_qp_init_attr,
    pd: &ProtectionDomain,
    operations: u64,
) -> ibv_qp_init_attr_ex {
    ibv_qp_init_attr_ex {
        qp_context: classic.qp_context,
        send_cq: classic.send_cq,
        recv_cq: classic.recv_cq,
        srq: classic.srq,
        cap: classic.cap,
        qp_type: classic.qp_type,
        sq_sig_all: classic.sq_sig_all,
        comp_mask: (Mask::IBV_QP_INIT_ATTR_PD | Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).0,
        pd: pd.as_raw(),
        send_ops_flags: operations,
        ..Default::default()
    }
}

/// Posts like `ibv_post_send`, but through the `ibv_wr_*` calls, which post either all requests of the list or none. If
/// one request cannot be posted through these calls, the whole list goes to the provider's `ibv_post_send`.
unsafe extern "C" fn post(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: SAFETY.md F20: `qp` is a stand-in for a queue pair.
    let (qp, operations) = unsafe { real(qp) };
    // SAFETY: SAFETY.md F12: the caller passes a valid list.
    let only = unsafe { list.as_ref() }.filter(|wr| wr.next.is_null());
    let Some(wr) = only.filter(|wr| can_be_called(wr, operations)) else {
        // SAFETY: SAFETY.md F1, F12: the caller upholds the contract of `ibv_post_send`.
        return unsafe { post_list(qp, operations, list, bad) };
    };
    // This is what `post_list` does, without its loops.
    let qp = qp.cast::<ibv_qp_ex>();
    // SAFETY: SAFETY.md F1: the queue pair is live and supports the calls. This thread completes the post below, and
    // nothing in between can panic.
    unsafe { ibv_wr_start(qp) };
    // SAFETY: SAFETY.md F1, F12: the post was started above, and `wr` was checked by `can_be_called`. The caller
    // guarantees the rest.
    unsafe { call(qp, wr) };
    // SAFETY: SAFETY.md F1: same argument as above.
    let returned = unsafe { ibv_wr_complete(qp) };
    if returned != 0 {
        // SAFETY: SAFETY.md F1: `bad` is the caller's memory for the refused request.
        unsafe { bad.write(list) };
    }
    returned
}

/// Like [`post`], but for several requests.
///
/// # Safety
/// The contract of `ibv_post_send` applies. The queue pair supports these operations through the `ibv_wr_*` calls.
#[inline(never)]
unsafe fn post_list(
    qp: *mut ibv_qp,
    operations: u64,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: SAFETY.md F12: the caller passes a valid list.
    let requests = || unsafe { requests(list) };
    if !requests().all(|wr| can_be_called(wr, operations)) {
        // SAFETY: SAFETY.md F1, F12: the caller upholds the contract of `ibv_post_send`.
        return unsafe { ibv_post_send(qp, list, bad) };
    }
    let qp = qp.cast::<ibv_qp_ex>();
    // SAFETY: SAFETY.md F1: the queue pair is live and supports the calls. This thread completes the post below, and
    // nothing in between can panic.
    unsafe { ibv_wr_start(qp) };
    for wr in requests() {
        // SAFETY: SAFETY.md F1, F12: the post was started above, and each request was checked by `can_be_called`. The
        // caller guarantees the rest.
        unsafe { call(qp, wr) };
    }
    // SAFETY: SAFETY.md F1: same argument as above.
    let returned = unsafe { ibv_wr_complete(qp) };
    if returned != 0 {
        // SAFETY: SAFETY.md F1: `bad` is the caller's memory for the refused request.
        unsafe { bad.write(list) };
    }
    returned
}

/// # Safety
/// The list stays valid while the result is used, and is not written during that time.
unsafe fn requests<'a>(list: *const ibv_send_wr) -> impl Iterator<Item = &'a ibv_send_wr> {
    // SAFETY: SAFETY.md F12: by this function's contract.
    let first = unsafe { list.as_ref() };
    // SAFETY: SAFETY.md F12: same argument as above.
    successors(first, |wr| unsafe { wr.next.as_ref() })
}

/// Returns true if the operation was requested when the queue pair was created, and the request has at most
/// [`MOST_INLINE`] parts of inline data.
fn can_be_called(wr: &ibv_send_wr, operations: u64) -> bool {
    let operation = match wr.opcode {
        Opcode::IBV_WR_SEND => Operation::IBV_QP_EX_WITH_SEND,
        Opcode::IBV_WR_SEND_WITH_IMM => Operation::IBV_QP_EX_WITH_SEND_WITH_IMM,
        Opcode::IBV_WR_SEND_WITH_INV => Operation::IBV_QP_EX_WITH_SEND_WITH_INV,
        Opcode::IBV_WR_RDMA_WRITE => Operation::IBV_QP_EX_WITH_RDMA_WRITE,
        Opcode::IBV_WR_RDMA_WRITE_WITH_IMM => Operation::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        Opcode::IBV_WR_RDMA_READ => Operation::IBV_QP_EX_WITH_RDMA_READ,
        Opcode::IBV_WR_ATOMIC_CMP_AND_SWP => Operation::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        Opcode::IBV_WR_LOCAL_INV => Operation::IBV_QP_EX_WITH_LOCAL_INV,
        Opcode::IBV_WR_BIND_MW => Operation::IBV_QP_EX_WITH_BIND_MW,
        _ => return false,
    };
    operations & u64::from(operation.0) != 0
        && (!is_inline(wr) || usize::try_from(wr.num_sge).is_ok_and(|n| n <= MOST_INLINE))
}

/// The maximum number of inline data parts in a request that is posted through the `ibv_wr_*` calls.
const MOST_INLINE: usize = 16;

fn is_inline(wr: &ibv_send_wr) -> bool {
    wr.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0
}

/// Makes the calls for one request.
///
/// # Safety
/// This thread has started a post to the queue pair, and `can_be_called` is true for the request.
#[inline(always)]
unsafe fn call(qp: *mut ibv_qp_ex, wr: &ibv_send_wr) {
    macro_rules! call {
        ($function:ident($($argument:expr),*)) => {
            // SAFETY: SAFETY.md F1: by this function's contract.
            unsafe { $function(qp $(, $argument)*) }
        };
    }
    macro_rules! field {
        ($($field:ident).+) => {
            // SAFETY: SAFETY.md F4: these are numbers and pointers, and any initialised bytes are valid values of them.
            // Immediate data and rkey share four bytes, which `QueuedRequest::new` sets for every kind. Other fields
            // are read only for the kinds that set them, and `ud` only on UD queue pairs, whose requests have a
            // destination (F1).
            unsafe { wr.$($field).+ }
        };
    }
    // SAFETY: SAFETY.md F1: the fields belong to this thread while it posts.
    unsafe { (*qp).wr_id = wr.wr_id };
    // Whether the data is inline depends on the function that sets it. The flags must match that function, because
    // otherwise SoftRoCE reads the inline data as elements.
    // SAFETY: SAFETY.md F1: same argument as above.
    unsafe { (*qp).wr_flags = wr.send_flags };
    let (immediate, rkey) =
        (field!(__bindgen_anon_1.imm_data), field!(__bindgen_anon_1.invalidate_rkey));
    match wr.opcode {
        Opcode::IBV_WR_SEND => call!(ibv_wr_send()),
        Opcode::IBV_WR_SEND_WITH_IMM => call!(ibv_wr_send_imm(immediate)),
        Opcode::IBV_WR_SEND_WITH_INV => call!(ibv_wr_send_inv(rkey)),
        Opcode::IBV_WR_LOCAL_INV => return call!(ibv_wr_local_inv(rkey)),
        Opcode::IBV_WR_BIND_MW => {
            let bind = field!(__bindgen_anon_2.bind_mw);
            return call!(ibv_wr_bind_mw(bind.mw, bind.rkey, &raw const bind.bind_info));
        }
        Opcode::IBV_WR_ATOMIC_CMP_AND_SWP | Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            let it = field!(wr.atomic);
            if wr.opcode == Opcode::IBV_WR_ATOMIC_CMP_AND_SWP {
                let (compare, swap) = (it.compare_add, it.swap);
                call!(ibv_wr_atomic_cmp_swp(it.rkey, it.remote_addr, compare, swap));
            } else {
                call!(ibv_wr_atomic_fetch_add(it.rkey, it.remote_addr, it.compare_add));
            }
        }
        opcode => {
            let remote = field!(wr.rdma);
            let (rkey, address) = (remote.rkey, remote.remote_addr);
            match opcode {
                Opcode::IBV_WR_RDMA_READ => call!(ibv_wr_rdma_read(rkey, address)),
                Opcode::IBV_WR_RDMA_WRITE => call!(ibv_wr_rdma_write(rkey, address)),
                _ => call!(ibv_wr_rdma_write_imm(rkey, address, immediate)),
            }
        }
    }
    // SAFETY: SAFETY.md F1: the queue pair is live, and its type does not change.
    if unsafe { (*qp).qp_base.qp_type } == ibv_qp_type::IBV_QPT_UD {
        let to = field!(wr.ud);
        call!(ibv_wr_set_ud_addr(to.ah, to.remote_qpn, to.remote_qkey));
    }
    // SAFETY: by this function's contract. The request was begun above.
    unsafe { set_data(qp, wr) };
}

/// Sets the data of the current request.
///
/// # Safety
/// The contract of [`call`] applies, and the function that begins this request was called.
#[inline(always)]
unsafe fn set_data(qp: *mut ibv_qp_ex, wr: &ibv_send_wr) {
    let count = usize::try_from(wr.num_sge).unwrap_or(0);
    let elements: &[ibv_sge] = match count {
        0 => &[],
        // SAFETY: SAFETY.md F12: the caller passes `count` valid elements.
        _ => unsafe { slice::from_raw_parts(wr.sg_list, count) },
    };
    match (is_inline(wr), elements) {
        (false, [one]) => {
            // SAFETY: SAFETY.md F1: by this function's contract, here and below.
            unsafe { ibv_wr_set_sge(qp, one.lkey, one.addr, one.length) }
        }
        (false, _) => {
            // SAFETY: SAFETY.md F1, F12: same argument as above.
            unsafe { ibv_wr_set_sge_list(qp, count, elements.as_ptr()) }
        }
        (true, [one]) => {
            let one = buffer(one);
            // SAFETY: SAFETY.md F1, F12: same argument as above; the data is copied.
            unsafe { ibv_wr_set_inline_data(qp, one.addr, one.length) }
        }
        // SAFETY: by this function's contract.
        (true, _) => unsafe { set_inline_list(qp, elements) },
    }
}

/// Sets the inline data of the current request if it has several parts or none.
///
/// # Safety
/// The contract of [`call`] applies, and the function that begins this request was called.
// Not inlined, because every post would otherwise have the array in its stack frame.
#[inline(never)]
unsafe fn set_inline_list(qp: *mut ibv_qp_ex, elements: &[ibv_sge]) {
    let mut buffers = [ibv_data_buf { addr: null_mut(), length: 0 }; MOST_INLINE];
    for (place, element) in buffers.iter_mut().zip(elements) {
        *place = buffer(element);
    }
    // SAFETY: SAFETY.md F1, F12: by this function's contract. The parts fit into the array, and the data is copied.
    unsafe { ibv_wr_set_inline_data_list(qp, elements.len(), buffers.as_ptr()) }
}

/// Converts an element of inline data. Its address is the pointer that it was created from (SAFETY.md F7, F12).
fn buffer(element: &ibv_sge) -> ibv_data_buf {
    ibv_data_buf {
        addr: with_exposed_provenance_mut(usize::try_from(element.addr).unwrap_or(0)),
        length: element.length as usize,
    }
}
