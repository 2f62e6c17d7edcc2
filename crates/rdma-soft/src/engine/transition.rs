//! Which state a queue pair may go to, and what a transition needs and may carry.
//!
//! IBTA volume 1, section 11.2.5.2 (modify queue pair), table 96 for reliable connections; the kernel
//! checks the same in `ib_modify_qp_is_ok`.

use rdma_sys::{ibv_qp_attr_mask as Mask, ibv_qp_state as State};

use crate::engine::Refusal;

const ALTERNATE: u32 = Mask::IBV_QP_ALT_PATH.0 | Mask::IBV_QP_PATH_MIG_STATE.0;
const INIT: u32 = Mask::IBV_QP_PKEY_INDEX.0 | Mask::IBV_QP_PORT.0 | Mask::IBV_QP_ACCESS_FLAGS.0;
const READY_TO_RECEIVE: u32 = Mask::IBV_QP_AV.0
    | Mask::IBV_QP_PATH_MTU.0
    | Mask::IBV_QP_DEST_QPN.0
    | Mask::IBV_QP_RQ_PSN.0
    | Mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
    | Mask::IBV_QP_MIN_RNR_TIMER.0;
const READY_TO_SEND: u32 = Mask::IBV_QP_TIMEOUT.0
    | Mask::IBV_QP_RETRY_CNT.0
    | Mask::IBV_QP_RNR_RETRY.0
    | Mask::IBV_QP_SQ_PSN.0
    | Mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
/// What may change while requests are served.
const RUNNING: u32 = Mask::IBV_QP_CUR_STATE.0
    | Mask::IBV_QP_ACCESS_FLAGS.0
    | Mask::IBV_QP_MIN_RNR_TIMER.0
    | ALTERNATE;
/// What may change while the send queue is drained.
const DRAINED: u32 = Mask::IBV_QP_PORT.0
    | Mask::IBV_QP_AV.0
    | Mask::IBV_QP_PKEY_INDEX.0
    | Mask::IBV_QP_TIMEOUT.0
    | Mask::IBV_QP_RETRY_CNT.0
    | Mask::IBV_QP_RNR_RETRY.0
    | Mask::IBV_QP_MAX_QP_RD_ATOMIC.0
    | Mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
    | RUNNING;

/// The attributes that a transition of a reliable connection (required, optional), besides the state
/// itself; `None` where there is no such transition.
fn attributes(from: State, to: State) -> Option<(u32, u32)> {
    Some(match (from, to) {
        (_, State::IBV_QPS_RESET) => (0, 0),
        (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => (INIT, 0),
        (State::IBV_QPS_INIT, State::IBV_QPS_INIT) => (0, INIT),
        (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => (
            READY_TO_RECEIVE,
            Mask::IBV_QP_ALT_PATH.0 | Mask::IBV_QP_ACCESS_FLAGS.0 | Mask::IBV_QP_PKEY_INDEX.0,
        ),
        (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => (READY_TO_SEND, RUNNING),
        (State::IBV_QPS_RTS, State::IBV_QPS_RTS) => (0, RUNNING),
        (State::IBV_QPS_RTS, State::IBV_QPS_SQD) => (0, Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0),
        (State::IBV_QPS_SQD, State::IBV_QPS_RTS) => (0, RUNNING),
        (State::IBV_QPS_SQD, State::IBV_QPS_SQD) => (0, DRAINED),
        (State::IBV_QPS_RESET, State::IBV_QPS_ERR) => return None,
        (_, State::IBV_QPS_ERR) => (0, 0),
        _ => return None,
    })
}

/// Checks a transition and its attributes.
pub(crate) fn check(from: State, to: State, mask: u32) -> Result<(), Refusal> {
    let (required, optional) = attributes(from, to).ok_or(Refusal::Invalid)?;
    let given = mask & !Mask::IBV_QP_STATE.0;
    if given & required != required || given & !(required | optional) != 0 {
        return Err(Refusal::Invalid);
    }
    // Automatic path migration is optional, and this device has no second path.
    if given & ALTERNATE != 0 {
        return Err(Refusal::Unsupported);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 7] = [
        State::IBV_QPS_RESET,
        State::IBV_QPS_INIT,
        State::IBV_QPS_RTR,
        State::IBV_QPS_RTS,
        State::IBV_QPS_SQD,
        State::IBV_QPS_SQE,
        State::IBV_QPS_ERR,
    ];

    #[test]
    fn exactly_the_transitions_of_the_specification_exist() {
        // Rows: from; columns: to RESET, INIT, RTR, RTS, SQD, SQE, ERR.
        let table = [
            "x x . . . . .", // RESET
            "x x x . . . x", // INIT
            "x . . x . . x", // RTR
            "x . . x x . x", // RTS
            "x . . x x . x", // SQD
            "x . . . . . x", // SQE: a reliable connection is never in it
            "x . . . . . x", // ERR
        ];
        for (from, row) in STATES.into_iter().zip(table) {
            for (to, cell) in STATES.into_iter().zip(row.split(' ')) {
                assert_eq!(attributes(from, to).is_some(), cell == "x", "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn each_required_attribute_is_required_and_no_other_is_allowed() {
        for from in STATES {
            for to in STATES {
                let Some((required, optional)) = attributes(from, to) else { continue };
                assert!(check(from, to, required).is_ok());
                for bit in (0..26).map(|n| 1 << n) {
                    if bit == Mask::IBV_QP_STATE.0 {
                        continue;
                    }
                    if required & bit != 0 {
                        assert_eq!(check(from, to, required & !bit), Err(Refusal::Invalid));
                    }
                    let more = check(from, to, required | bit);
                    let allowed = (required | optional) & bit != 0 && bit & ALTERNATE == 0;
                    assert_eq!(more.is_ok(), allowed, "{from:?} to {to:?} with {bit:#x}");
                }
            }
        }
    }
}
