//! Checks that the engine's constants equal those of the bindings, because the functions of `abi` pass them on
//! unchanged.

use rdma_sys::{
    ibv_access_flags as CAccess, ibv_event_type as CEvent, ibv_qp_state as CState, ibv_wc_flags,
    ibv_wc_opcode as COpcode, ibv_wc_status as CStatus,
};
use rdma_types::{AccessFlags, AsyncEventKind, QpState, WcOpcode, WcStatus};

use crate::engine::completion::work_completion;

macro_rules! same {
    ($($rust:ident::$name:ident.$number:ident() = $c:ident::$in_c:ident,)+) => {
        $(assert_eq!($rust::$name.$number(), $c::$in_c.0, stringify!($in_c));)+
    };
}

#[test]
fn states_and_events_equal_those_of_the_bindings() {
    same! {
        QpState::RESET.raw() = CState::IBV_QPS_RESET,
        QpState::INIT.raw() = CState::IBV_QPS_INIT,
        QpState::RTR.raw() = CState::IBV_QPS_RTR,
        QpState::RTS.raw() = CState::IBV_QPS_RTS,
        QpState::SQD.raw() = CState::IBV_QPS_SQD,
        QpState::SQE.raw() = CState::IBV_QPS_SQE,
        QpState::ERR.raw() = CState::IBV_QPS_ERR,
        AsyncEventKind::CQ_ERR.raw() = CEvent::IBV_EVENT_CQ_ERR,
        AsyncEventKind::QP_FATAL.raw() = CEvent::IBV_EVENT_QP_FATAL,
        AsyncEventKind::QP_REQ_ERR.raw() = CEvent::IBV_EVENT_QP_REQ_ERR,
        AsyncEventKind::QP_ACCESS_ERR.raw() = CEvent::IBV_EVENT_QP_ACCESS_ERR,
        AsyncEventKind::COMM_EST.raw() = CEvent::IBV_EVENT_COMM_EST,
        AsyncEventKind::SQ_DRAINED.raw() = CEvent::IBV_EVENT_SQ_DRAINED,
        AsyncEventKind::PORT_ACTIVE.raw() = CEvent::IBV_EVENT_PORT_ACTIVE,
        AsyncEventKind::PORT_ERR.raw() = CEvent::IBV_EVENT_PORT_ERR,
        AsyncEventKind::SRQ_LIMIT_REACHED.raw() = CEvent::IBV_EVENT_SRQ_LIMIT_REACHED,
        AsyncEventKind::QP_LAST_WQE_REACHED.raw() = CEvent::IBV_EVENT_QP_LAST_WQE_REACHED,
    }
}

#[test]
fn completions_equal_those_of_the_bindings() {
    same! {
        WcStatus::SUCCESS.raw() = CStatus::IBV_WC_SUCCESS,
        WcStatus::LOC_LEN_ERR.raw() = CStatus::IBV_WC_LOC_LEN_ERR,
        WcStatus::LOC_QP_OP_ERR.raw() = CStatus::IBV_WC_LOC_QP_OP_ERR,
        WcStatus::LOC_PROT_ERR.raw() = CStatus::IBV_WC_LOC_PROT_ERR,
        WcStatus::WR_FLUSH_ERR.raw() = CStatus::IBV_WC_WR_FLUSH_ERR,
        WcStatus::MW_BIND_ERR.raw() = CStatus::IBV_WC_MW_BIND_ERR,
        WcStatus::REM_INV_REQ_ERR.raw() = CStatus::IBV_WC_REM_INV_REQ_ERR,
        WcStatus::REM_ACCESS_ERR.raw() = CStatus::IBV_WC_REM_ACCESS_ERR,
        WcStatus::REM_OP_ERR.raw() = CStatus::IBV_WC_REM_OP_ERR,
        WcStatus::RETRY_EXC_ERR.raw() = CStatus::IBV_WC_RETRY_EXC_ERR,
        WcStatus::RNR_RETRY_EXC_ERR.raw() = CStatus::IBV_WC_RNR_RETRY_EXC_ERR,
        WcOpcode::SEND.raw() = COpcode::IBV_WC_SEND,
        WcOpcode::RDMA_WRITE.raw() = COpcode::IBV_WC_RDMA_WRITE,
        WcOpcode::RDMA_READ.raw() = COpcode::IBV_WC_RDMA_READ,
        WcOpcode::COMP_SWAP.raw() = COpcode::IBV_WC_COMP_SWAP,
        WcOpcode::FETCH_ADD.raw() = COpcode::IBV_WC_FETCH_ADD,
        WcOpcode::BIND_MW.raw() = COpcode::IBV_WC_BIND_MW,
        WcOpcode::LOCAL_INV.raw() = COpcode::IBV_WC_LOCAL_INV,
        WcOpcode::RECV.raw() = COpcode::IBV_WC_RECV,
        WcOpcode::RECV_RDMA_WITH_IMM.raw() = COpcode::IBV_WC_RECV_RDMA_WITH_IMM,
    }
    assert_eq!(work_completion::GRH, ibv_wc_flags::IBV_WC_GRH.0);
    assert_eq!(work_completion::WITH_IMM, ibv_wc_flags::IBV_WC_WITH_IMM.0);
    assert_eq!(work_completion::WITH_INV, ibv_wc_flags::IBV_WC_WITH_INV.0);
}

#[test]
fn access_flags_equal_those_of_the_bindings() {
    same! {
        AccessFlags::LOCAL_WRITE.bits() = CAccess::IBV_ACCESS_LOCAL_WRITE,
        AccessFlags::REMOTE_WRITE.bits() = CAccess::IBV_ACCESS_REMOTE_WRITE,
        AccessFlags::REMOTE_READ.bits() = CAccess::IBV_ACCESS_REMOTE_READ,
        AccessFlags::REMOTE_ATOMIC.bits() = CAccess::IBV_ACCESS_REMOTE_ATOMIC,
        AccessFlags::MW_BIND.bits() = CAccess::IBV_ACCESS_MW_BIND,
        AccessFlags::ZERO_BASED.bits() = CAccess::IBV_ACCESS_ZERO_BASED,
        AccessFlags::HUGETLB.bits() = CAccess::IBV_ACCESS_HUGETLB,
    }
}
