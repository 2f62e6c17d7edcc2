//! Makes the calls that every device refuses.

use rdma_sys::{Errno, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State};
use test_support::rig::connect::{INIT, Knobs, connect, endpoint};
use test_support::rig::map::Mapping;
use test_support::rig::memory::deregister;
use test_support::rig::post::Wr;
use test_support::rig::{Context, LOCAL_WRITE, Qp, REMOTE_ATOMIC, REMOTE_WRITE, Size};

use super::end::EndState;
use super::program::RefusedCall;

const PAGE: usize = 4096;

/// Makes the call. Returns the error number, or 0 if it was not refused.
pub(super) fn call(context: &Context, end: &EndState, call: RefusedCall) -> i32 {
    match call {
        RefusedCall::SendElements => {
            let sges = vec![rdma_sys::ibv_sge::default(); end.caps.max_send_sge as usize + 1];
            end.qp.try_post(&Wr::send(1, &sges))
        }
        RefusedCall::ReceiveElements => {
            let sges = vec![rdma_sys::ibv_sge::default(); end.caps.max_recv_sge as usize + 1];
            // A queue pair with a shared receive queue has no receive queue of its own, and refuses
            // any receive.
            end.qp.try_post_receive(1, &sges)
        }
        RefusedCall::InlineBytes => {
            let sges = [end.slots[0].memory.sge(0, end.caps.max_inline_data as usize + 1)];
            end.qp.try_post(&Wr::send(1, &sges).inline())
        }
        RefusedCall::RemoteWriteAlone => register(end, REMOTE_WRITE),
        RefusedCall::RemoteAtomicAlone => register(end, REMOTE_ATOMIC),
        RefusedCall::Unmapped => {
            let hole = Mapping::inaccessible(PAGE);
            registered(end.pd.try_register(hole.start(), PAGE, LOCAL_WRITE))
        }
        RefusedCall::Backwards => {
            let attr =
                ibv_qp_attr { qp_state: State::IBV_QPS_INIT, port_num: 1, ..Default::default() };
            end.qp.modify(attr, INIT)
        }
        RefusedCall::ForeignAttribute => {
            let attr = ibv_qp_attr { qp_state: State::IBV_QPS_RTS, ..Default::default() };
            end.qp.modify(attr, Mask::IBV_QP_STATE.0 | Mask::IBV_QP_PORT.0)
        }
        RefusedCall::FullReceiveQueue => full(context, end, |qp| qp.try_post_receive(1, &[])),
        RefusedCall::FullSendQueue => full(context, end, |qp| qp.try_post(&Wr::send(1, &[]))),
        RefusedCall::HugeQueuePair => {
            let most = context.query_device().max_qp_wr.cast_unsigned();
            let size = Size { send_wr: most + 1, ..Size::default() };
            end.pd.try_qp(&end.send_cq, &end.receive_cq, &size).err().map_or(0, Errno::raw)
        }
        RefusedCall::HugeCompletionQueue => {
            let most = context.query_device().max_cqe;
            context.try_cq(most + 1, 0).err().map_or(0, Errno::raw)
        }
        RefusedCall::EmptyCompletionQueue => context.try_cq(0, 0).err().map_or(0, Errno::raw),
        RefusedCall::DomainInUse => end.pd.try_dealloc(),
        RefusedCall::CompletionQueueInUse => end.send_cq.try_destroy(),
    }
}

/// Creates a queue pair whose requests wait because its peer has no receive. Posts to it until a
/// post is refused. Returns the error number, or 0 if no post is refused.
fn full(context: &Context, end: &EndState, post: impl Fn(&Qp) -> i32) -> i32 {
    const ROOM: u32 = 4;
    let size = Size { send_wr: ROOM, receive_wr: ROOM, ..Size::default() };
    let side = || end.pd.qp(&end.send_cq, &end.receive_cq, &size);
    let (qp, peer) = (side(), side());
    let (own, there) = (endpoint(context, &qp), endpoint(context, &peer));
    connect(&qp, &own, &there, &Knobs::default());
    connect(&peer, &there, &own, &Knobs::default());
    (0..ROOM).for_each(|_| assert_eq!(post(&qp), 0));
    // Devices may provide more space than requested, so this posts until a post fails.
    (0..u32::from(u16::MAX)).map(|_| post(&qp)).find(|&errno| errno != 0).unwrap_or(0)
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
