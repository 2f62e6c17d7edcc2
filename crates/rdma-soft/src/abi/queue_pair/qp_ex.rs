//! Creates extended queue pairs, and determines which requests they can post.

use std::ptr;

use rdma_sys::{
    ibv_context, ibv_qp, ibv_qp_create_send_ops_flags as Operation, ibv_qp_ex, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask as Mask, ibv_qp_type, ibv_wr_opcode,
};

use super::qp::create;
use crate::abi::block::{device_of, queue_pair_posting};
use crate::abi::errno::pointer;
use crate::abi::work::opcode::opcode;
use crate::engine::Refusal;
use crate::engine::operation::Opcode;
use crate::limits::Limits;
use crate::memory::window::WindowKind;

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller passes valid attributes (SAFETY.md F1).
    let asked = unsafe { attr.read() };
    // SAFETY: the caller passes a live context (SAFETY.md F1).
    let limits = &unsafe { device_of(context) }.limits;
    pointer(check(limits, &asked).and_then(|operations| {
        // SAFETY: the caller passes a live protection domain, and live queues in the attributes. As in C, the
        // attributes begin with those of `ibv_create_qp` (SAFETY.md F1, F5).
        unsafe { create(asked.pd, attr.cast(), operations) }
    }))
}

/// Returns the operations that the queue pair will post with function calls, if any. Refuses attributes, flags and
/// operations that the device does not support, and a missing protection domain.
fn check(limits: &Limits, asked: &ibv_qp_init_attr_ex) -> Result<Option<u64>, Refusal> {
    let has = |bit: Mask| asked.comp_mask & bit.0 != 0;
    let known = Mask::IBV_QP_INIT_ATTR_PD
        | Mask::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let flagged = has(Mask::IBV_QP_INIT_ATTR_CREATE_FLAGS) && asked.create_flags != 0;
    if asked.comp_mask & !known.0 != 0 || flagged {
        return Err(Refusal::Unsupported);
    }
    if !has(Mask::IBV_QP_INIT_ATTR_PD) {
        return Err(Refusal::Invalid);
    }
    if !has(Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
        return Ok(None);
    }
    if asked.send_ops_flags & !operations(limits, asked.qp_type) != 0 {
        return Err(Refusal::Unsupported);
    }
    Ok(Some(asked.send_ops_flags))
}

/// Returns the operations that a queue pair of this type can post (man ibv_wr_post). On an unreliable connection,
/// packets cannot invalidate a key (IBTA volume 1, table 38).
fn operations(limits: &Limits, kind: ibv_qp_type) -> u64 {
    use Operation as Op;
    use ibv_wr_opcode as Wr;
    let sends = [
        (Op::IBV_QP_EX_WITH_SEND, Wr::IBV_WR_SEND),
        (Op::IBV_QP_EX_WITH_SEND_WITH_IMM, Wr::IBV_WR_SEND_WITH_IMM),
    ];
    let connected = [
        (Op::IBV_QP_EX_WITH_RDMA_WRITE, Wr::IBV_WR_RDMA_WRITE),
        (Op::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, Wr::IBV_WR_RDMA_WRITE_WITH_IMM),
        (Op::IBV_QP_EX_WITH_LOCAL_INV, Wr::IBV_WR_LOCAL_INV),
        (Op::IBV_QP_EX_WITH_BIND_MW, Wr::IBV_WR_BIND_MW),
    ];
    let reliable = [
        (Op::IBV_QP_EX_WITH_SEND_WITH_INV, Wr::IBV_WR_SEND_WITH_INV),
        (Op::IBV_QP_EX_WITH_RDMA_READ, Wr::IBV_WR_RDMA_READ),
        (Op::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, Wr::IBV_WR_ATOMIC_CMP_AND_SWP),
        (Op::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, Wr::IBV_WR_ATOMIC_FETCH_AND_ADD),
    ];
    let of_type: &[&[(Op, Wr)]] = match kind {
        ibv_qp_type::IBV_QPT_RC => &[&sends, &connected, &reliable],
        ibv_qp_type::IBV_QPT_UC => &[&sends, &connected],
        ibv_qp_type::IBV_QPT_UD => &[&sends],
        _ => &[],
    };
    let there = |wr: Wr| match opcode(wr) {
        Some(Opcode::BindWindow) => limits.has_windows(WindowKind::Two),
        Some(opcode) => limits.features.atomics || !opcode.is_atomic(),
        None => false,
    };
    let offered = of_type.iter().copied().flatten().filter(|(_, wr)| there(*wr));
    offered.fold(0, |all, (operation, _)| all | u64::from(operation.0))
}

pub(crate) unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    let extended = qp.cast::<ibv_qp_ex>();
    // SAFETY: the caller passes a live queue pair whose C part is an extended one (SAFETY.md F1, F5).
    match unsafe { queue_pair_posting(extended) } {
        Some(_) => extended,
        None => ptr::null_mut(),
    }
}
