//! Which state a queue pair may go to, and what a transition needs and may carry: IBTA vol 1, section
//! 11.2.5.2, `man ibv_modify_qp`.

use rdma_sys::ibv_qp_attr_mask as Mask;
use rdma_types::{QpState, Qpn};

use crate::Error;

/// The attributes, by the names that [`QueuePairModification`](crate::QueuePairModification) gives them.
const NAMES: [(Mask, &str); 15] = [
    (Mask::IBV_QP_PORT, "port"),
    (Mask::IBV_QP_PKEY_INDEX, "pkey_index"),
    (Mask::IBV_QP_ACCESS_FLAGS, "access"),
    (Mask::IBV_QP_AV, "path"),
    (Mask::IBV_QP_PATH_MTU, "mtu"),
    (Mask::IBV_QP_DEST_QPN, "peer_qpn"),
    (Mask::IBV_QP_RQ_PSN, "recv_psn"),
    (Mask::IBV_QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
    (Mask::IBV_QP_MIN_RNR_TIMER, "min_rnr_timer"),
    (Mask::IBV_QP_TIMEOUT, "ack_timeout"),
    (Mask::IBV_QP_RETRY_CNT, "max_ack_retries"),
    (Mask::IBV_QP_RNR_RETRY, "max_rnr_retries"),
    (Mask::IBV_QP_SQ_PSN, "send_psn"),
    (Mask::IBV_QP_MAX_QP_RD_ATOMIC, "max_rd_atomic"),
    (Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY, "notify_drained"),
];

const NONE: Mask = Mask(0);
const INIT: Mask = any([Mask::IBV_QP_PKEY_INDEX, Mask::IBV_QP_PORT, Mask::IBV_QP_ACCESS_FLAGS]);
const READY_TO_RECEIVE: Mask = any([
    Mask::IBV_QP_AV,
    Mask::IBV_QP_PATH_MTU,
    Mask::IBV_QP_DEST_QPN,
    Mask::IBV_QP_RQ_PSN,
    Mask::IBV_QP_MAX_DEST_RD_ATOMIC,
    Mask::IBV_QP_MIN_RNR_TIMER,
]);
const READY_TO_SEND: Mask = any([
    Mask::IBV_QP_TIMEOUT,
    Mask::IBV_QP_RETRY_CNT,
    Mask::IBV_QP_RNR_RETRY,
    Mask::IBV_QP_SQ_PSN,
    Mask::IBV_QP_MAX_QP_RD_ATOMIC,
]);
/// What may change while requests are served.
const RUNNING: Mask = any([Mask::IBV_QP_ACCESS_FLAGS, Mask::IBV_QP_MIN_RNR_TIMER]);
/// What may change while the send queue is drained.
const DRAINED: Mask = any([
    Mask::IBV_QP_PORT,
    Mask::IBV_QP_PKEY_INDEX,
    Mask::IBV_QP_AV,
    Mask::IBV_QP_TIMEOUT,
    Mask::IBV_QP_RETRY_CNT,
    Mask::IBV_QP_RNR_RETRY,
    Mask::IBV_QP_MAX_QP_RD_ATOMIC,
    Mask::IBV_QP_MAX_DEST_RD_ATOMIC,
    RUNNING,
]);

const fn any<const N: usize>(masks: [Mask; N]) -> Mask {
    let (mut all, mut n) = (0, 0);
    while n < N {
        all |= masks[n].0;
        n += 1;
    }
    Mask(all)
}

/// The attributes that a transition of a reliable connection needs, and those that it may have;
/// `None` where there is no such transition.
fn attributes(from: QpState, to: QpState) -> Option<(Mask, Mask)> {
    let init_optional = any([Mask::IBV_QP_ACCESS_FLAGS, Mask::IBV_QP_PKEY_INDEX]);
    Some(match (from, to) {
        (_, QpState::RESET) => (NONE, NONE),
        (QpState::RESET, QpState::INIT) => (INIT, NONE),
        (QpState::INIT, QpState::INIT) => (NONE, INIT),
        (QpState::INIT, QpState::RTR) => (READY_TO_RECEIVE, init_optional),
        (QpState::RTR, QpState::RTS) => (READY_TO_SEND, RUNNING),
        (QpState::RTS | QpState::SQD, QpState::RTS) => (NONE, RUNNING),
        (QpState::RTS, QpState::SQD) => (NONE, Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (QpState::SQD, QpState::SQD) => (NONE, DRAINED),
        (QpState::RESET, QpState::ERR) => return None,
        (_, QpState::ERR) => (NONE, NONE),
        _ => return None,
    })
}

/// What the attributes are called, besides the state.
pub(crate) fn names(wanted: Mask) -> Vec<&'static str> {
    let wanted = NAMES.iter().filter(|(mask, _)| mask.0 & wanted.0 != 0);
    wanted.map(|&(_, name)| name).collect()
}

/// Checks a transition and its attributes, before the device sees them.
pub(crate) fn check(qpn: Qpn, from: QpState, to: QpState, given: Mask) -> Result<(), Error> {
    let Some((needed, optional)) = attributes(from, to) else {
        return Err(Error::NoTransition { qpn, from, to });
    };
    let lacking = names(Mask(needed.0 & !given.0));
    let forbidden = names(Mask(given.0 & !(needed.0 | optional.0)));
    if lacking.is_empty() && forbidden.is_empty() {
        return Ok(());
    }
    Err(Error::Attributes { qpn, from, to, lacking, forbidden })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] = [
        QpState::RESET,
        QpState::INIT,
        QpState::RTR,
        QpState::RTS,
        QpState::SQD,
        QpState::SQE,
        QpState::ERR,
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
    fn each_attribute_that_is_lacking_or_too_much_is_named() {
        let all = NAMES.iter().fold(0, |all, (mask, _)| all | mask.0);
        assert_eq!(all.count_ones(), 15);
        for (from, to) in STATES.iter().flat_map(|&from| STATES.map(|to| (from, to))) {
            let Some((needed, optional)) = attributes(from, to) else { continue };
            let verdict = |mask| match check(Qpn::masked(1), from, to, Mask(mask)) {
                Ok(()) => (vec![], vec![]),
                Err(Error::Attributes { lacking, forbidden, .. }) => (lacking, forbidden),
                Err(error) => panic!("{error}"),
            };
            for (mask, name) in NAMES {
                let lacks = if needed.0 & mask.0 != 0 { vec![name] } else { vec![] };
                assert_eq!(verdict(needed.0 & !mask.0), (lacks, vec![]), "{from:?} to {to:?}");
                let fits = (needed.0 | optional.0) & mask.0 != 0;
                let excess = if fits { vec![] } else { vec![name] };
                assert_eq!(verdict(needed.0 | mask.0), (vec![], excess), "{from:?} to {to:?}");
            }
        }
    }
}
