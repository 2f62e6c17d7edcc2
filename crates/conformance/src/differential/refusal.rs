//! Calls that every device refuses.

use rdma_sys::{Errno, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State};
use test_support::rig::connect::INIT;
use test_support::rig::map::Mapping;
use test_support::rig::memory::deregister;
use test_support::rig::post::Wr;
use test_support::rig::{Context, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_WRITE, Size};

use super::end::EndState;
use super::program::Refusal;

const PAGE: usize = 4096;

/// Makes the call; the error number, or 0 if it was not refused.
pub(super) fn call(context: &Context, end: &EndState, call: Refusal) -> i32 {
    match call {
        Refusal::SendElements => {
            let sges = vec![rdma_sys::ibv_sge::default(); end.caps.max_send_sge as usize + 1];
            end.qp.try_post(&Wr::send(1, &sges))
        }
        Refusal::ReceiveElements => {
            let sges = vec![rdma_sys::ibv_sge::default(); end.caps.max_recv_sge as usize + 1];
            // A queue pair with a shared queue has none of its own.
            end.qp.try_post_receive(1, &sges)
        }
        Refusal::InlineBytes => {
            let sges = [end.slots[0].memory.sge(0, end.caps.max_inline_data as usize + 1)];
            end.qp.try_post(&Wr::send(1, &sges).inline())
        }
        Refusal::RemoteWriteAlone => register(end, REMOTE_WRITE),
        Refusal::RemoteAtomicAlone => register(end, REMOTE_ATOMIC),
        Refusal::Unmapped => {
            let hole = Mapping::inaccessible(PAGE);
            registered(end.pd.try_register(hole.start(), PAGE, LOCAL_WRITE))
        }
        Refusal::Backwards => {
            let attr =
                ibv_qp_attr { qp_state: State::IBV_QPS_INIT, port_num: 1, ..Default::default() };
            end.qp.modify(attr, INIT)
        }
        Refusal::ForeignAttribute => {
            let attr = ibv_qp_attr { qp_state: State::IBV_QPS_RTS, ..Default::default() };
            end.qp.modify(attr, Mask::IBV_QP_STATE.0 | Mask::IBV_QP_PORT.0)
        }
        Refusal::HugeQueuePair => {
            let most = context.query_device().max_qp_wr.cast_unsigned();
            let size = Size { send_wr: most + 1, ..Size::default() };
            end.pd.try_qp(&end.send_cq, &end.receive_cq, &size).err().map_or(0, Errno::raw)
        }
        Refusal::HugeCompletionQueue => {
            let most = context.query_device().max_cqe;
            context.try_cq(most + 1, 0).err().map_or(0, Errno::raw)
        }
        Refusal::EmptyCompletionQueue => context.try_cq(0, 0).err().map_or(0, Errno::raw),
        Refusal::DomainInUse => end.pd.try_dealloc(),
        Refusal::CompletionQueueInUse => end.send_cq.try_destroy(),
    }
}

fn register(end: &EndState, access: u32) -> i32 {
    registered(end.pd.try_register(end.slots[0].memory.start(), PAGE, access))
}

fn registered(result: Result<*mut rdma_sys::ibv_mr, Errno>) -> i32 {
    result.map_or_else(Errno::raw, |region| {
        deregister(region);
        0
    })
}
