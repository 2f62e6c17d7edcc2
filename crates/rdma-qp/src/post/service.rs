//! The operations that each type of queue pair supports.

use rdma_sys::{ibv_pd, ibv_wr_opcode};
use rdma_types::QpType;

use crate::post::error::{PostError, Reason};
use crate::post::operations::Operations;
use crate::qp::queue_pair::QueuePair;

/// Checks that the queue pair supports the operation, and that the request has a valid destination if, and only if, the
/// queue pair is UD. `handle` is the domain of the destination's address handle.
pub(crate) fn check_service(
    qp: &QueuePair,
    opcode: ibv_wr_opcode,
    bytes: u64,
    handle: Option<*mut ibv_pd>,
) -> Result<(), PostError> {
    let refuse = |reason| Err(PostError::new(0, reason));
    let qp_type = qp.qp_type();
    if !carries(qp_type, opcode) {
        return refuse(Reason::Opcode { opcode: name(opcode), qp_type });
    }
    let Operations { has_atomics, is_iwarp } = qp.operations();
    if is_atomic(opcode) && !has_atomics {
        return refuse(Reason::NoAtomics { is_iwarp });
    }
    if is_iwarp && has_immediate(opcode) {
        return refuse(Reason::NoImmediates);
    }
    match (qp.datagrams(), handle) {
        (Err(_), None) => Ok(()),
        (Err(_), Some(_)) => refuse(Reason::Destination { qp_type }),
        (Ok(_), None) => refuse(Reason::NoDestination),
        (Ok(_), Some(pd)) if pd != qp.pd().as_raw() => refuse(Reason::ForeignHandle),
        (Ok(datagrams), Some(_)) => {
            let mtu = datagrams.end.endpoint.mtu();
            let fits = bytes <= u64::from(mtu.bytes());
            if fits { Ok(()) } else { refuse(Reason::LongerThanMtu { bytes, mtu }) }
        }
    }
}

/// Returns true if this type of queue pair supports the operation; IBTA vol 1, table 38.
fn carries(qp_type: QpType, opcode: ibv_wr_opcode) -> bool {
    match opcode {
        ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => true,
        ibv_wr_opcode::IBV_WR_RDMA_WRITE
        | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        | ibv_wr_opcode::IBV_WR_BIND_MW
        | ibv_wr_opcode::IBV_WR_LOCAL_INV => qp_type != QpType::UD,
        _ => qp_type == QpType::RC,
    }
}

/// Returns true if the request is an atomic operation.
pub(crate) const fn is_atomic(opcode: ibv_wr_opcode) -> bool {
    matches!(
        opcode,
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
    )
}

/// Returns true if the request carries immediate data.
const fn has_immediate(opcode: ibv_wr_opcode) -> bool {
    matches!(
        opcode,
        ibv_wr_opcode::IBV_WR_SEND_WITH_IMM | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
    )
}

/// Returns the name of an operation, for errors about types that do not support it.
fn name(opcode: ibv_wr_opcode) -> &'static str {
    match opcode {
        ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
            "an RDMA write"
        }
        ibv_wr_opcode::IBV_WR_RDMA_READ => "an RDMA read",
        ibv_wr_opcode::IBV_WR_SEND_WITH_INV => "a send that invalidates",
        ibv_wr_opcode::IBV_WR_BIND_MW => "a bind of a memory window",
        ibv_wr_opcode::IBV_WR_LOCAL_INV => "an invalidation",
        _ => "an atomic operation",
    }
}
