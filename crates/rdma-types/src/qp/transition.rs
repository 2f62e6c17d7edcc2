//! The state transitions of a queue pair, with their required and optional attributes.

use super::kind::QpType;
use super::state::QpState;
use crate::macros::open_flags;

open_flags! {
    /// Attributes of a queue pair that a call to `ibv_modify_qp` sets (`enum ibv_qp_attr_mask`);
    /// see `man ibv_modify_qp`.
    ///
    /// ```
    /// use rdma_types::QpAttributes;
    ///
    /// let given = QpAttributes::STATE | QpAttributes::from_bits_retain(1 << 9);
    /// assert_eq!(given.to_string(), "STATE | TIMEOUT");
    /// ```
    #[doc(alias = "ibv_qp_attr_mask")]
    QpAttributes(u32) {
        /// The new state.
        STATE = 1;
        /// The state in which the caller expects the queue pair to be.
        CUR_STATE = 1 << 1;
        /// Whether an event reports that the send queue is drained.
        EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// The operations that the peer may execute.
        ACCESS_FLAGS = 1 << 3;
        /// The index of the partition key in the port's table.
        PKEY_INDEX = 1 << 4;
        /// The port.
        PORT = 1 << 5;
        /// The key that incoming datagrams must carry.
        QKEY = 1 << 6;
        /// The address vector: the path to the peer.
        AV = 1 << 7;
        /// The path MTU.
        PATH_MTU = 1 << 8;
        /// The time to wait for an acknowledgement.
        TIMEOUT = 1 << 9;
        /// The maximum number of retransmissions.
        RETRY_CNT = 1 << 10;
        /// The maximum number of retries while the peer has no receive posted.
        RNR_RETRY = 1 << 11;
        /// The PSN of the peer's first packet.
        RQ_PSN = 1 << 12;
        /// The maximum number of RDMA reads and atomics that this side may have outstanding.
        MAX_QP_RD_ATOMIC = 1 << 13;
        /// The alternate path to the peer, for automatic path migration.
        ALT_PATH = 1 << 14;
        /// The time that the peer waits when no receive is posted here.
        MIN_RNR_TIMER = 1 << 15;
        /// The PSN of the first packet that this side sends.
        SQ_PSN = 1 << 16;
        /// The maximum number of the peer's RDMA reads and atomics to serve at a time.
        MAX_DEST_RD_ATOMIC = 1 << 17;
        /// The state of path migration.
        PATH_MIG_STATE = 1 << 18;
        /// The sizes of the queues.
        CAP = 1 << 19;
        /// The number of the peer's queue pair.
        DEST_QPN = 1 << 20;
        /// The maximum send rate.
        RATE_LIMIT = 1 << 25;
    }
}

/// A transition between two states, and its attributes other than [`STATE`](QpAttributes::STATE)
/// itself. IBTA vol 1, section 11.2.5.2; `man ibv_modify_qp`.
///
/// ```
/// use rdma_types::{QpAttributes, QpState, QpTransition, QpType};
///
/// let ready = QpTransition::between(QpType::UC, QpState::RTR, QpState::RTS).unwrap();
/// assert_eq!(ready.required(), QpAttributes::SQ_PSN);
/// assert!(ready.optional().contains(QpAttributes::ACCESS_FLAGS));
/// assert_eq!(QpTransition::between(QpType::UC, QpState::RESET, QpState::RTS), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpTransition {
    required: QpAttributes,
    optional: QpAttributes,
}

impl QpTransition {
    /// Returns the transition between these states for a queue pair of this type. Returns `None` if
    /// the specification does not define the transition, and for types other than RC, UC and UD.
    #[must_use]
    pub const fn between(qp_type: QpType, from: QpState, to: QpState) -> Option<Self> {
        const NONE: QpAttributes = QpAttributes::empty();
        let of = match qp_type {
            QpType::RC => &RC,
            QpType::UC => &UC,
            QpType::UD => &UD,
            _ => return None,
        };
        let (required, optional) = match (from, to) {
            (_, QpState::RESET) => (NONE, NONE),
            (QpState::RESET, QpState::INIT) => (of.init, NONE),
            (QpState::INIT, QpState::INIT) => (NONE, of.init),
            (QpState::INIT, QpState::RTR) => (of.receive, of.receive_optional),
            (QpState::RTR, QpState::RTS) => (of.send, of.running),
            (QpState::RTS | QpState::SQD, QpState::RTS) => (NONE, of.running),
            (QpState::RTS, QpState::SQD) => (NONE, QpAttributes::EN_SQD_ASYNC_NOTIFY),
            (QpState::SQD, QpState::SQD) => (NONE, of.drained),
            (QpState::SQE, QpState::RTS) => match of.recovered {
                Some(recovered) => (NONE, recovered),
                None => return None,
            },
            (QpState::RESET, QpState::ERR) => return None,
            (_, QpState::ERR) => (NONE, NONE),
            _ => return None,
        };
        Some(Self { required, optional })
    }

    /// Returns the attributes that the caller must set.
    #[must_use]
    pub const fn required(self) -> QpAttributes {
        self.required
    }

    /// Returns the attributes that the caller may set.
    #[must_use]
    pub const fn optional(self) -> QpAttributes {
        self.optional
    }

    /// Returns the required attributes that are missing from `given`.
    #[must_use]
    pub const fn lacking(self, given: QpAttributes) -> QpAttributes {
        self.required.difference(given)
    }

    /// Returns the attributes in `given` that this transition does not allow. The state itself is
    /// allowed.
    #[must_use]
    pub const fn forbidden(self, given: QpAttributes) -> QpAttributes {
        given.difference(self.required.union(self.optional).union(QpAttributes::STATE))
    }
}

/// The attributes that one queue pair type uses in its transitions.
struct Attributes {
    /// Attributes that INIT requires, and that may change while in INIT.
    init: QpAttributes,
    /// Attributes that RTR requires.
    receive: QpAttributes,
    receive_optional: QpAttributes,
    /// Attributes that RTS requires after RTR.
    send: QpAttributes,
    /// Attributes that may change while requests are served.
    running: QpAttributes,
    /// Attributes that may change while the send queue is drained.
    drained: QpAttributes,
    /// Attributes that may change on recovery from a send queue error; `None` for a type that
    /// cannot recover.
    recovered: Option<QpAttributes>,
}

const ALTERNATE: QpAttributes = QpAttributes::ALT_PATH.union(QpAttributes::PATH_MIG_STATE);
const CONNECTED_INIT: QpAttributes =
    QpAttributes::PKEY_INDEX.union(QpAttributes::PORT).union(QpAttributes::ACCESS_FLAGS);
const CONNECTED_RECEIVE: QpAttributes = QpAttributes::AV
    .union(QpAttributes::PATH_MTU)
    .union(QpAttributes::DEST_QPN)
    .union(QpAttributes::RQ_PSN);
const CONNECTED_RECEIVE_OPTIONAL: QpAttributes =
    QpAttributes::ALT_PATH.union(QpAttributes::ACCESS_FLAGS).union(QpAttributes::PKEY_INDEX);
const CONNECTED_RUNNING: QpAttributes =
    QpAttributes::CUR_STATE.union(QpAttributes::ACCESS_FLAGS).union(ALTERNATE);
const RC_RUNNING: QpAttributes = CONNECTED_RUNNING.union(QpAttributes::MIN_RNR_TIMER);
const RC_SEND: QpAttributes = QpAttributes::TIMEOUT
    .union(QpAttributes::RETRY_CNT)
    .union(QpAttributes::RNR_RETRY)
    .union(QpAttributes::MAX_QP_RD_ATOMIC);

const RC: Attributes = Attributes {
    init: CONNECTED_INIT,
    receive: CONNECTED_RECEIVE
        .union(QpAttributes::MAX_DEST_RD_ATOMIC)
        .union(QpAttributes::MIN_RNR_TIMER),
    receive_optional: CONNECTED_RECEIVE_OPTIONAL,
    send: RC_SEND.union(QpAttributes::SQ_PSN),
    running: RC_RUNNING,
    drained: RC_RUNNING
        .difference(QpAttributes::CUR_STATE)
        .union(RC_SEND)
        .union(QpAttributes::PORT)
        .union(QpAttributes::AV)
        .union(QpAttributes::PKEY_INDEX)
        .union(QpAttributes::MAX_DEST_RD_ATOMIC),
    recovered: None,
};

const UC: Attributes = Attributes {
    init: CONNECTED_INIT,
    receive: CONNECTED_RECEIVE,
    receive_optional: CONNECTED_RECEIVE_OPTIONAL,
    send: QpAttributes::SQ_PSN,
    running: CONNECTED_RUNNING,
    drained: QpAttributes::AV
        .union(QpAttributes::PKEY_INDEX)
        .union(QpAttributes::ACCESS_FLAGS)
        .union(ALTERNATE),
    recovered: Some(QpAttributes::CUR_STATE.union(QpAttributes::ACCESS_FLAGS)),
};

const UD: Attributes = Attributes {
    init: QpAttributes::PKEY_INDEX.union(QpAttributes::PORT).union(QpAttributes::QKEY),
    receive: QpAttributes::empty(),
    receive_optional: QpAttributes::PKEY_INDEX.union(QpAttributes::QKEY),
    send: QpAttributes::SQ_PSN,
    running: QpAttributes::CUR_STATE.union(QpAttributes::QKEY),
    drained: QpAttributes::PKEY_INDEX.union(QpAttributes::QKEY),
    recovered: Some(QpAttributes::CUR_STATE.union(QpAttributes::QKEY)),
};

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

    const TYPES: [QpType; 3] = [QpType::RC, QpType::UC, QpType::UD];

    #[test]
    fn exactly_the_transitions_of_the_specification_exist() {
        // Each row is a state to leave; the columns are the states to enter: RESET, INIT, RTR, RTS,
        // SQD, SQE, ERR.
        let table = [
            "x x . . . . .", // RESET
            "x x x . . . x", // INIT
            "x . . x . . x", // RTR
            "x . . x x . x", // RTS
            "x . . x x . x", // SQD
            "x . . u . . x", // SQE: a reliable connection is never in it
            "x . . . . . x", // ERR
        ];
        for qp_type in TYPES {
            for (from, row) in STATES.into_iter().zip(table) {
                for (to, cell) in STATES.into_iter().zip(row.split(' ')) {
                    let exists = cell == "x" || cell == "u" && qp_type != QpType::RC;
                    let found = QpTransition::between(qp_type, from, to).is_some();
                    assert_eq!(found, exists, "{qp_type:?}: {from:?} to {to:?}");
                }
            }
        }
    }

    #[test]
    fn unknown_types_and_states_have_no_transitions() {
        for state in STATES {
            for unknown in [QpState::UNKNOWN, QpState::from_raw(99)] {
                let to_unknown = QpTransition::between(QpType::UC, state, unknown);
                assert_eq!(to_unknown, None, "{state:?} to {unknown:?}");
                let ends = matches!(state, QpState::RESET | QpState::ERR);
                let from_unknown = QpTransition::between(QpType::UC, unknown, state);
                assert_eq!(from_unknown.is_some(), ends, "{unknown:?} to {state:?}");
            }
            for qp_type in [QpType::RAW_PACKET, QpType::XRC_SEND, QpType::from_raw(0)] {
                assert_eq!(QpTransition::between(qp_type, state, QpState::RESET), None);
            }
        }
    }

    /// Copied from `man ibv_modify_qp`.
    #[test]
    fn types_need_what_the_manual_page_lists() {
        let access = QpAttributes::PKEY_INDEX | QpAttributes::PORT | QpAttributes::ACCESS_FLAGS;
        let qkey = QpAttributes::PKEY_INDEX | QpAttributes::PORT | QpAttributes::QKEY;
        let path = QpAttributes::AV | QpAttributes::PATH_MTU;
        let peer = path | QpAttributes::DEST_QPN | QpAttributes::RQ_PSN;
        let answers = QpAttributes::MAX_DEST_RD_ATOMIC | QpAttributes::MIN_RNR_TIMER;
        let first = QpAttributes::SQ_PSN;
        let reads = first | QpAttributes::MAX_QP_RD_ATOMIC;
        let retries = QpAttributes::RETRY_CNT | QpAttributes::RNR_RETRY | QpAttributes::TIMEOUT;
        let lists = [
            (QpType::RC, access, peer | answers, reads | retries),
            (QpType::UC, access, peer, first),
            (QpType::UD, qkey, QpAttributes::empty(), first),
        ];
        for (qp_type, init, receive, send) in lists {
            let required =
                |from, to| QpTransition::between(qp_type, from, to).map(QpTransition::required);
            assert_eq!(required(QpState::RESET, QpState::INIT), Some(init));
            assert_eq!(required(QpState::INIT, QpState::RTR), Some(receive));
            assert_eq!(required(QpState::RTR, QpState::RTS), Some(send));
            for to in STATES {
                let none = required(QpState::RTS, to).is_none_or(|list| list.is_empty());
                assert!(none, "{qp_type:?}: RTS to {to:?}");
            }
        }
    }

    /// IBTA vol 1, section 11.2.5.2.
    #[test]
    fn types_take_what_the_specification_lists() {
        let list = |names: &str| -> QpAttributes {
            let all = QpAttributes::all().iter_names();
            all.filter(|(name, _)| names.split(' ').any(|n| n == *name))
                .map(|(_, bit)| bit)
                .collect()
        };
        let (ud_way, way) = ("PKEY_INDEX QKEY", "ALT_PATH ACCESS_FLAGS PKEY_INDEX");
        let (ud_runs, uc_runs) =
            ("CUR_STATE QKEY", "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE");
        let runs = "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE MIN_RNR_TIMER";
        let uc_drained = "AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE";
        let drained = "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC \
                       ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE";
        let drains = "EN_SQD_ASYNC_NOTIFY";
        let (init, ud_init) = ("PKEY_INDEX PORT ACCESS_FLAGS", "PKEY_INDEX PORT QKEY");
        let rows = [
            (QpState::INIT, QpState::INIT, [init, init, ud_init]),
            (QpState::INIT, QpState::RTR, [way, way, ud_way]),
            (QpState::RTR, QpState::RTS, [runs, uc_runs, ud_runs]),
            (QpState::RTS, QpState::RTS, [runs, uc_runs, ud_runs]),
            (QpState::RTS, QpState::SQD, [drains; 3]),
            (QpState::SQD, QpState::RTS, [runs, uc_runs, ud_runs]),
            (QpState::SQD, QpState::SQD, [drained, uc_drained, ud_way]),
            (QpState::SQE, QpState::RTS, ["", "CUR_STATE ACCESS_FLAGS", ud_runs]),
        ];
        for (from, to) in STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to))) {
            let row =
                rows.iter().find(|row| (row.0, row.1) == (from, to)).map_or([""; 3], |row| row.2);
            for (qp_type, names) in TYPES.into_iter().zip(row) {
                let way = QpTransition::between(qp_type, from, to);
                let taken = way.map_or(QpAttributes::empty(), QpTransition::optional);
                assert_eq!(taken, list(names), "{qp_type:?}: {from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn lacking_and_forbidden_attributes_are_found() {
        let all = TYPES.map(|qp_type| STATES.map(|from| STATES.map(|to| (qp_type, from, to))));
        for (qp_type, from, to) in all.into_iter().flatten().flatten() {
            let Some(way) = QpTransition::between(qp_type, from, to) else { continue };
            let required = way.required();
            assert!(!(required | way.optional()).contains(QpAttributes::STATE));
            assert!(!required.intersects(way.optional()), "{qp_type:?}: {from:?} to {to:?}");
            for bit in (0..32).map(|n| QpAttributes::from_bits_retain(1 << n)) {
                assert_eq!(way.lacking(required - bit), required & bit);
                let fits = (required | way.optional() | QpAttributes::STATE).contains(bit);
                let excess = if fits { QpAttributes::empty() } else { bit };
                assert_eq!(way.forbidden(required | bit), excess, "{from:?} to {to:?}, {bit}");
            }
        }
    }
}
