//! Which state a queue pair may go to, and what a transition needs and may carry.
//!
//! IBTA volume 1, section 11.2.5.2 (modify queue pair); the kernel checks the same in
//! `ib_modify_qp_is_ok`.

use rdma_sys::{ibv_qp_attr_mask as Mask, ibv_qp_state as State};

use crate::engine::Refusal;
use crate::engine::service::Service;

/// What goes with the transitions of a service, besides the state itself.
struct Attributes {
    /// What INIT needs, and may change.
    init: u32,
    /// What RTR needs.
    receive: u32,
    receive_optional: u32,
    /// What RTS needs after RTR.
    send: u32,
    /// What may change while requests are served.
    running: u32,
    /// What may change while the send queue is drained.
    drained: u32,
    /// What may change when a send queue in error goes on; `None` where it never is.
    recovered: Option<u32>,
}

const ALTERNATE: u32 = Mask::IBV_QP_ALT_PATH.0 | Mask::IBV_QP_PATH_MIG_STATE.0;
const CURRENT: u32 = Mask::IBV_QP_CUR_STATE.0;
const CONNECTED_INIT: u32 =
    Mask::IBV_QP_PKEY_INDEX.0 | Mask::IBV_QP_PORT.0 | Mask::IBV_QP_ACCESS_FLAGS.0;
const CONNECTED_RECEIVE: u32 =
    Mask::IBV_QP_AV.0 | Mask::IBV_QP_PATH_MTU.0 | Mask::IBV_QP_DEST_QPN.0 | Mask::IBV_QP_RQ_PSN.0;
const CONNECTED_RECEIVE_OPTIONAL: u32 =
    Mask::IBV_QP_ALT_PATH.0 | Mask::IBV_QP_ACCESS_FLAGS.0 | Mask::IBV_QP_PKEY_INDEX.0;
const CONNECTED_RUNNING: u32 = CURRENT | Mask::IBV_QP_ACCESS_FLAGS.0 | ALTERNATE;
const RC_RUNNING: u32 = CONNECTED_RUNNING | Mask::IBV_QP_MIN_RNR_TIMER.0;

const RC: Attributes = Attributes {
    init: CONNECTED_INIT,
    receive: CONNECTED_RECEIVE | Mask::IBV_QP_MAX_DEST_RD_ATOMIC.0 | Mask::IBV_QP_MIN_RNR_TIMER.0,
    receive_optional: CONNECTED_RECEIVE_OPTIONAL,
    send: Mask::IBV_QP_TIMEOUT.0
        | Mask::IBV_QP_RETRY_CNT.0
        | Mask::IBV_QP_RNR_RETRY.0
        | Mask::IBV_QP_SQ_PSN.0
        | Mask::IBV_QP_MAX_QP_RD_ATOMIC.0,
    running: RC_RUNNING,
    drained: Mask::IBV_QP_PORT.0
        | Mask::IBV_QP_AV.0
        | Mask::IBV_QP_PKEY_INDEX.0
        | Mask::IBV_QP_TIMEOUT.0
        | Mask::IBV_QP_RETRY_CNT.0
        | Mask::IBV_QP_RNR_RETRY.0
        | Mask::IBV_QP_MAX_QP_RD_ATOMIC.0
        | Mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
        | (RC_RUNNING & !CURRENT),
    recovered: None,
};

const UC: Attributes = Attributes {
    init: CONNECTED_INIT,
    receive: CONNECTED_RECEIVE,
    receive_optional: CONNECTED_RECEIVE_OPTIONAL,
    send: Mask::IBV_QP_SQ_PSN.0,
    running: CONNECTED_RUNNING,
    drained: Mask::IBV_QP_AV.0
        | Mask::IBV_QP_PKEY_INDEX.0
        | Mask::IBV_QP_ACCESS_FLAGS.0
        | ALTERNATE,
    recovered: Some(CURRENT | Mask::IBV_QP_ACCESS_FLAGS.0),
};

const UD: Attributes = Attributes {
    init: Mask::IBV_QP_PKEY_INDEX.0 | Mask::IBV_QP_PORT.0 | Mask::IBV_QP_QKEY.0,
    receive: 0,
    receive_optional: Mask::IBV_QP_PKEY_INDEX.0 | Mask::IBV_QP_QKEY.0,
    send: Mask::IBV_QP_SQ_PSN.0,
    running: CURRENT | Mask::IBV_QP_QKEY.0,
    drained: Mask::IBV_QP_PKEY_INDEX.0 | Mask::IBV_QP_QKEY.0,
    recovered: Some(CURRENT | Mask::IBV_QP_QKEY.0),
};

/// The attributes of a transition (required, optional), besides the state itself; `None` where there is
/// no such transition.
fn attributes(service: Service, from: State, to: State) -> Option<(u32, u32)> {
    let of = match service {
        Service::ReliableConnection => &RC,
        Service::UnreliableConnection => &UC,
        Service::UnreliableDatagram => &UD,
    };
    Some(match (from, to) {
        (_, State::IBV_QPS_RESET) => (0, 0),
        (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => (of.init, 0),
        (State::IBV_QPS_INIT, State::IBV_QPS_INIT) => (0, of.init),
        (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => (of.receive, of.receive_optional),
        (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => (of.send, of.running),
        (State::IBV_QPS_RTS, State::IBV_QPS_RTS) => (0, of.running),
        (State::IBV_QPS_RTS, State::IBV_QPS_SQD) => (0, Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0),
        (State::IBV_QPS_SQD, State::IBV_QPS_RTS) => (0, of.running),
        (State::IBV_QPS_SQD, State::IBV_QPS_SQD) => (0, of.drained),
        (State::IBV_QPS_SQE, State::IBV_QPS_RTS) => (0, of.recovered?),
        (State::IBV_QPS_RESET, State::IBV_QPS_ERR) => return None,
        (_, State::IBV_QPS_ERR) => (0, 0),
        _ => return None,
    })
}

/// Checks a transition and its attributes.
pub(crate) fn check(service: Service, from: State, to: State, mask: u32) -> Result<(), Refusal> {
    let (required, optional) = attributes(service, from, to).ok_or(Refusal::Invalid)?;
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

    const SERVICES: [Service; 3] =
        [Service::ReliableConnection, Service::UnreliableConnection, Service::UnreliableDatagram];

    #[test]
    fn exactly_the_transitions_of_the_specification_exist() {
        // Rows: from; columns: to RESET, INIT, RTR, RTS, SQD, SQE, ERR.
        let table = [
            "x x . . . . .", // RESET
            "x x x . . . x", // INIT
            "x . . x . . x", // RTR
            "x . . x x . x", // RTS
            "x . . x x . x", // SQD
            "x . . u . . x", // SQE: a reliable connection is never in it
            "x . . . . . x", // ERR
        ];
        for service in SERVICES {
            for (from, row) in STATES.into_iter().zip(table) {
                for (to, cell) in STATES.into_iter().zip(row.split(' ')) {
                    let unreliable = service != Service::ReliableConnection;
                    let exists = cell == "x" || cell == "u" && unreliable;
                    let found = attributes(service, from, to).is_some();
                    assert_eq!(found, exists, "{service:?}: {from:?} to {to:?}");
                }
            }
        }
    }

    #[test]
    fn each_required_attribute_is_required_and_no_other_is_allowed() {
        let all = SERVICES.map(|service| STATES.map(|from| STATES.map(|to| (service, from, to))));
        for (service, from, to) in all.into_iter().flatten().flatten() {
            let Some((required, optional)) = attributes(service, from, to) else { continue };
            assert!(check(service, from, to, required).is_ok());
            for bit in (0..26).map(|n| 1 << n) {
                if bit == Mask::IBV_QP_STATE.0 {
                    continue;
                }
                if required & bit != 0 {
                    let less = check(service, from, to, required & !bit);
                    assert_eq!(less, Err(Refusal::Invalid));
                }
                let more = check(service, from, to, required | bit);
                let allowed = (required | optional) & bit != 0 && bit & ALTERNATE == 0;
                assert_eq!(more.is_ok(), allowed, "{service:?}: {from:?} to {to:?} with {bit:#x}");
            }
        }
    }

    /// `man ibv_modify_qp`, word by word.
    #[test]
    fn services_need_what_the_manual_page_lists() {
        let needs = |service, from, to| attributes(service, from, to).unwrap().0;
        let (reset, init) = (State::IBV_QPS_RESET, State::IBV_QPS_INIT);
        let (rtr, rts) = (State::IBV_QPS_RTR, State::IBV_QPS_RTS);
        let uc = Service::UnreliableConnection;
        let access = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        assert_eq!(needs(uc, reset, init), access.0);
        let path = Mask::IBV_QP_AV | Mask::IBV_QP_PATH_MTU;
        let peer = Mask::IBV_QP_DEST_QPN | Mask::IBV_QP_RQ_PSN;
        assert_eq!(needs(uc, init, rtr), (path | peer).0);
        assert_eq!(needs(uc, rtr, rts), Mask::IBV_QP_SQ_PSN.0);
        let ud = Service::UnreliableDatagram;
        let qkey = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_QKEY;
        assert_eq!(needs(ud, reset, init), qkey.0);
        assert_eq!(needs(ud, init, rtr), 0);
        assert_eq!(needs(ud, rtr, rts), Mask::IBV_QP_SQ_PSN.0);
    }
}
