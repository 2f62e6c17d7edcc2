//! The states of a queue pair.

use crate::macros::open_enum;

open_enum! {
    /// The state of a queue pair (`enum ibv_qp_state`). IBTA vol 1, section 10.3.1.
    #[doc(alias = "ibv_qp_state")]
    QpState(u32), "queue pair state" {
        /// New or reset: nothing can be posted.
        RESET = 0, "RESET";
        /// Bound to a port: receives can be posted.
        INIT = 1, "INIT";
        /// Ready to receive: the peer is set, and its requests are answered.
        RTR = 2, "RTR (ready to receive)";
        /// Ready to send: sends are executed.
        RTS = 3, "RTS (ready to send)";
        /// Send queue drained: posted sends are held.
        SQD = 4, "SQD (send queue drained)";
        /// Send queue error, of unreliable queue pairs: sends are flushed.
        SQE = 5, "SQE (send queue error)";
        /// Error: everything posted is flushed.
        ERR = 6, "ERR (error)";
        /// The device could not determine the state.
        UNKNOWN = 7, "unknown";
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn values_are_those_of_verbs_h() {
        let states = [
            QpState::RESET,
            QpState::INIT,
            QpState::RTR,
            QpState::RTS,
            QpState::SQD,
            QpState::SQE,
            QpState::ERR,
            QpState::UNKNOWN,
        ];
        assert_eq!(states.map(QpState::raw), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(format!("{:?}", QpState::RTS), "QpState::RTS");
    }

    #[test]
    fn unknown_values_are_data() {
        assert_eq!(format!("{0} {0:?}", QpState::from(8)), "unknown queue pair state 8 QpState(8)");
    }
}
