//! The opcodes of requests.

use rdma_sys::ibv_wr_opcode;

use crate::engine::operation::Opcode;

/// Returns the device's operation for a program's opcode, or `None` if the device does not support it.
#[inline]
pub(crate) fn opcode(opcode: ibv_wr_opcode) -> Option<Opcode> {
    Some(match opcode {
        ibv_wr_opcode::IBV_WR_SEND => Opcode::Send,
        ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => Opcode::SendWithImm,
        ibv_wr_opcode::IBV_WR_SEND_WITH_INV => Opcode::SendWithInvalidate,
        ibv_wr_opcode::IBV_WR_RDMA_WRITE => Opcode::Write,
        ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => Opcode::WriteWithImm,
        ibv_wr_opcode::IBV_WR_RDMA_READ => Opcode::Read,
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => Opcode::CompareAndSwap,
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => Opcode::FetchAndAdd,
        ibv_wr_opcode::IBV_WR_BIND_MW => Opcode::BindWindow,
        ibv_wr_opcode::IBV_WR_LOCAL_INV => Opcode::LocalInvalidate,
        _ => return None,
    })
}
