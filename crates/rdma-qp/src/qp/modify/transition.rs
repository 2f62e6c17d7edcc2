//! The check of a modification against its transition.

use rdma_types::{QpAttributes, QpState, QpTransition, QpType, Qpn};

use crate::error::Error;

/// The attributes, and the methods of [`QueuePairModification`](crate::QueuePairModification) that set them.
const NAMES: [(QpAttributes, &str); 16] = [
    (QpAttributes::PORT, "port"),
    (QpAttributes::PKEY_INDEX, "pkey_index"),
    (QpAttributes::ACCESS_FLAGS, "access"),
    (QpAttributes::QKEY, "qkey"),
    (QpAttributes::AV, "path"),
    (QpAttributes::PATH_MTU, "mtu"),
    (QpAttributes::DEST_QPN, "peer_qpn"),
    (QpAttributes::RQ_PSN, "recv_psn"),
    (QpAttributes::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
    (QpAttributes::MIN_RNR_TIMER, "min_rnr_timer"),
    (QpAttributes::TIMEOUT, "ack_timeout"),
    (QpAttributes::RETRY_CNT, "max_ack_retries"),
    (QpAttributes::RNR_RETRY, "max_rnr_retries"),
    (QpAttributes::SQ_PSN, "send_psn"),
    (QpAttributes::MAX_QP_RD_ATOMIC, "max_rd_atomic"),
    (QpAttributes::EN_SQD_ASYNC_NOTIFY, "notify_drained"),
];

/// Returns the names of the methods that set these attributes, leaving out the state.
pub(crate) fn names(wanted: QpAttributes) -> Vec<&'static str> {
    let wanted = NAMES.iter().filter(|(attribute, _)| wanted.contains(*attribute));
    wanted.map(|&(_, name)| name).collect()
}

/// Checks a transition and its attributes, before the device sees them.
pub(crate) fn check(
    qpn: Qpn,
    qp_type: QpType,
    from: QpState,
    to: QpState,
    given: QpAttributes,
) -> Result<(), Error> {
    let Some(transition) = QpTransition::between(qp_type, from, to) else {
        return Err(Error::NoTransition { qpn, from, to });
    };
    let lacking = names(transition.lacking(given));
    let forbidden = names(transition.forbidden(given));
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
    fn each_attribute_that_is_lacking_or_too_much_is_named() {
        let all: QpAttributes = NAMES.iter().map(|&(attribute, _)| attribute).collect();
        assert_eq!(all.bits().count_ones(), 16);
        let all = [QpType::RC, QpType::UC, QpType::UD]
            .map(|qp_type| STATES.map(|from| STATES.map(|to| (qp_type, from, to))));
        for (qp_type, from, to) in all.into_iter().flatten().flatten() {
            let verdict = |given| match check(Qpn::masked(1), qp_type, from, to, given) {
                Ok(()) => (vec![], vec![]),
                Err(Error::Attributes { lacking, forbidden, .. }) => (lacking, forbidden),
                Err(error) => panic!("{error}"),
            };
            let Some(way) = QpTransition::between(qp_type, from, to) else {
                let refused = check(Qpn::masked(1), qp_type, from, to, QpAttributes::STATE);
                assert!(matches!(refused, Err(Error::NoTransition { .. })), "{from:?} to {to:?}");
                continue;
            };
            let required = way.required() | QpAttributes::STATE;
            for (attribute, name) in NAMES {
                let lacks = if required.contains(attribute) { vec![name] } else { vec![] };
                assert_eq!(verdict(required - attribute), (lacks, vec![]), "{from:?} to {to:?}");
                let fits = (required | way.optional()).contains(attribute);
                let excess = if fits { vec![] } else { vec![name] };
                assert_eq!(verdict(required | attribute), (vec![], excess), "{from:?} to {to:?}");
            }
        }
    }

    /// An attribute without a name would not be reported as missing. Instead, the device would refuse the change
    /// without giving a reason.
    #[test]
    fn each_attribute_that_a_transition_requires_has_a_name() {
        let all: QpAttributes = NAMES.iter().map(|&(attribute, _)| attribute).collect();
        for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
            for (from, to) in STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to))) {
                let way = QpTransition::between(qp_type, from, to);
                assert!(way.is_none_or(|way| all.contains(way.required())), "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn attributes_are_the_bits_of_c() {
        macro_rules! bits {
            ($($name:ident = $raw:ident),+ $(,)?) => {
                [$((QpAttributes::$name, rdma_sys::ibv_qp_attr_mask::$raw)),+]
            };
        }
        let bits = bits![
            STATE = IBV_QP_STATE,
            CUR_STATE = IBV_QP_CUR_STATE,
            EN_SQD_ASYNC_NOTIFY = IBV_QP_EN_SQD_ASYNC_NOTIFY,
            ACCESS_FLAGS = IBV_QP_ACCESS_FLAGS,
            PKEY_INDEX = IBV_QP_PKEY_INDEX,
            PORT = IBV_QP_PORT,
            QKEY = IBV_QP_QKEY,
            AV = IBV_QP_AV,
            PATH_MTU = IBV_QP_PATH_MTU,
            TIMEOUT = IBV_QP_TIMEOUT,
            RETRY_CNT = IBV_QP_RETRY_CNT,
            RNR_RETRY = IBV_QP_RNR_RETRY,
            RQ_PSN = IBV_QP_RQ_PSN,
            MAX_QP_RD_ATOMIC = IBV_QP_MAX_QP_RD_ATOMIC,
            ALT_PATH = IBV_QP_ALT_PATH,
            MIN_RNR_TIMER = IBV_QP_MIN_RNR_TIMER,
            SQ_PSN = IBV_QP_SQ_PSN,
            MAX_DEST_RD_ATOMIC = IBV_QP_MAX_DEST_RD_ATOMIC,
            PATH_MIG_STATE = IBV_QP_PATH_MIG_STATE,
            CAP = IBV_QP_CAP,
            DEST_QPN = IBV_QP_DEST_QPN,
            RATE_LIMIT = IBV_QP_RATE_LIMIT,
        ];
        for (attribute, raw) in bits {
            assert_eq!(attribute.bits(), raw.0, "{attribute}");
        }
    }
}
