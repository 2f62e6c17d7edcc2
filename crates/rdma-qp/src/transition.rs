//! Which state a queue pair may go to, and what a transition needs and may carry: IBTA vol 1, section
//! 11.2.5.2, `man ibv_modify_qp`.

use rdma_sys::ibv_qp_attr_mask as Mask;
use rdma_types::{QpState, QpType, Qpn};

use crate::Error;

/// The attributes, by the names that [`QueuePairModification`](crate::QueuePairModification) gives them.
const NAMES: [(Mask, &str); 16] = [
    (Mask::IBV_QP_PORT, "port"),
    (Mask::IBV_QP_PKEY_INDEX, "pkey_index"),
    (Mask::IBV_QP_ACCESS_FLAGS, "access"),
    (Mask::IBV_QP_QKEY, "qkey"),
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

/// What goes with the transitions of a type, besides the state itself.
struct Attributes {
    /// What INIT needs, and may change.
    init: Mask,
    /// What RTR needs.
    receive: Mask,
    receive_optional: Mask,
    /// What RTS needs after RTR.
    send: Mask,
    /// What may change while requests are served.
    running: Mask,
    /// What may change while the send queue is drained.
    drained: Mask,
    /// Whether a failed request stops the send queue alone, which can go on then.
    recovers: bool,
}

const NONE: Mask = Mask(0);
const CONNECTED_INIT: Mask =
    any([Mask::IBV_QP_PKEY_INDEX, Mask::IBV_QP_PORT, Mask::IBV_QP_ACCESS_FLAGS]);
const CONNECTED_RECEIVE: Mask =
    any([Mask::IBV_QP_AV, Mask::IBV_QP_PATH_MTU, Mask::IBV_QP_DEST_QPN, Mask::IBV_QP_RQ_PSN]);
const CONNECTED_RECEIVE_OPTIONAL: Mask = any([Mask::IBV_QP_ACCESS_FLAGS, Mask::IBV_QP_PKEY_INDEX]);
const RC_RUNNING: Mask = any([Mask::IBV_QP_ACCESS_FLAGS, Mask::IBV_QP_MIN_RNR_TIMER]);

const RC: Attributes = Attributes {
    init: CONNECTED_INIT,
    receive: any([CONNECTED_RECEIVE, Mask::IBV_QP_MAX_DEST_RD_ATOMIC, Mask::IBV_QP_MIN_RNR_TIMER]),
    receive_optional: CONNECTED_RECEIVE_OPTIONAL,
    send: any([
        Mask::IBV_QP_TIMEOUT,
        Mask::IBV_QP_RETRY_CNT,
        Mask::IBV_QP_RNR_RETRY,
        Mask::IBV_QP_SQ_PSN,
        Mask::IBV_QP_MAX_QP_RD_ATOMIC,
    ]),
    running: RC_RUNNING,
    drained: any([
        Mask::IBV_QP_PORT,
        Mask::IBV_QP_PKEY_INDEX,
        Mask::IBV_QP_AV,
        Mask::IBV_QP_TIMEOUT,
        Mask::IBV_QP_RETRY_CNT,
        Mask::IBV_QP_RNR_RETRY,
        Mask::IBV_QP_MAX_QP_RD_ATOMIC,
        Mask::IBV_QP_MAX_DEST_RD_ATOMIC,
        RC_RUNNING,
    ]),
    recovers: false,
};

const UC: Attributes = Attributes {
    init: CONNECTED_INIT,
    receive: CONNECTED_RECEIVE,
    receive_optional: CONNECTED_RECEIVE_OPTIONAL,
    send: Mask::IBV_QP_SQ_PSN,
    running: Mask::IBV_QP_ACCESS_FLAGS,
    drained: any([Mask::IBV_QP_PKEY_INDEX, Mask::IBV_QP_AV, Mask::IBV_QP_ACCESS_FLAGS]),
    recovers: true,
};

const UD: Attributes = Attributes {
    init: any([Mask::IBV_QP_PKEY_INDEX, Mask::IBV_QP_PORT, Mask::IBV_QP_QKEY]),
    receive: NONE,
    receive_optional: any([Mask::IBV_QP_PKEY_INDEX, Mask::IBV_QP_QKEY]),
    send: Mask::IBV_QP_SQ_PSN,
    running: Mask::IBV_QP_QKEY,
    drained: any([Mask::IBV_QP_PKEY_INDEX, Mask::IBV_QP_QKEY]),
    recovers: true,
};

const fn any<const N: usize>(masks: [Mask; N]) -> Mask {
    let (mut all, mut n) = (0, 0);
    while n < N {
        all |= masks[n].0;
        n += 1;
    }
    Mask(all)
}

/// The attributes that a transition needs, and those that it may have; `None` where there is no such
/// transition.
fn attributes(qp_type: QpType, from: QpState, to: QpState) -> Option<(Mask, Mask)> {
    let of = match qp_type {
        QpType::UC => &UC,
        QpType::UD => &UD,
        _ => &RC,
    };
    Some(match (from, to) {
        (_, QpState::RESET) => (NONE, NONE),
        (QpState::RESET, QpState::INIT) => (of.init, NONE),
        (QpState::INIT, QpState::INIT) => (NONE, of.init),
        (QpState::INIT, QpState::RTR) => (of.receive, of.receive_optional),
        (QpState::RTR, QpState::RTS) => (of.send, of.running),
        (QpState::RTS | QpState::SQD, QpState::RTS) => (NONE, of.running),
        (QpState::SQE, QpState::RTS) if of.recovers => (NONE, of.running),
        (QpState::RTS, QpState::SQD) => (NONE, Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (QpState::SQD, QpState::SQD) => (NONE, of.drained),
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
pub(crate) fn check(
    qpn: Qpn,
    qp_type: QpType,
    from: QpState,
    to: QpState,
    given: Mask,
) -> Result<(), Error> {
    let Some((needed, optional)) = attributes(qp_type, from, to) else {
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
            "x . . u . . x", // SQE: a reliable connection is never in it
            "x . . . . . x", // ERR
        ];
        for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
            for (from, row) in STATES.into_iter().zip(table) {
                for (to, cell) in STATES.into_iter().zip(row.split(' ')) {
                    let exists = cell == "x" || cell == "u" && qp_type != QpType::RC;
                    let found = attributes(qp_type, from, to).is_some();
                    assert_eq!(found, exists, "{qp_type:?}: {from:?} to {to:?}");
                }
            }
        }
    }

    #[test]
    fn each_attribute_that_is_lacking_or_too_much_is_named() {
        let all = NAMES.iter().fold(0, |all, (mask, _)| all | mask.0);
        assert_eq!(all.count_ones(), 16);
        let all = [QpType::RC, QpType::UC, QpType::UD]
            .map(|qp_type| STATES.map(|from| STATES.map(|to| (qp_type, from, to))));
        for (qp_type, from, to) in all.into_iter().flatten().flatten() {
            let Some((needed, optional)) = attributes(qp_type, from, to) else { continue };
            let verdict = |mask| match check(Qpn::masked(1), qp_type, from, to, Mask(mask)) {
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
