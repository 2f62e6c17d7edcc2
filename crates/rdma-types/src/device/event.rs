//! Asynchronous events, which a device reports unsolicited.

use crate::macros::open_enum;

open_enum! {
    /// The kind of an asynchronous event (`enum ibv_event_type`). IBTA vol 1, section 11.6.3.
    #[doc(alias = "ibv_event_type")]
    AsyncEventKind(u32), "asynchronous event" {
        /// A completion queue failed because it overflowed.
        CQ_ERR = 0, "completion queue error";
        /// A queue pair failed and cannot report this in a completion.
        QP_FATAL = 1, "queue pair fatal error";
        /// A queue pair refused an invalid request from its peer.
        QP_REQ_ERR = 2, "invalid request from the peer";
        /// A queue pair refused its peer access to memory.
        QP_ACCESS_ERR = 3, "access violation by the peer";
        /// A queue pair in RTR (ready to receive, not yet to send) received a packet.
        COMM_EST = 4, "communication established";
        /// A queue pair's send queue is drained.
        SQ_DRAINED = 5, "send queue drained";
        /// A queue pair has moved to its alternate path.
        PATH_MIG = 6, "path migrated";
        /// A queue pair failed to move to its alternate path.
        PATH_MIG_ERR = 7, "path migration failed";
        /// The device failed. All its objects have to be closed.
        DEVICE_FATAL = 8, "device fatal error";
        /// A port has become active.
        PORT_ACTIVE = 9, "port active";
        /// A port is no longer active.
        PORT_ERR = 10, "port error";
        /// The LID of a port changed.
        LID_CHANGE = 11, "LID changed";
        /// The partition keys of a port changed.
        PKEY_CHANGE = 12, "partition keys changed";
        /// The subnet manager of a port changed.
        SM_CHANGE = 13, "subnet manager changed";
        /// A shared receive queue failed.
        SRQ_ERR = 14, "shared receive queue error";
        /// A shared receive queue fell below its limit of posted receives.
        SRQ_LIMIT_REACHED = 15, "shared receive queue limit reached";
        /// A queue pair in the error state has consumed its last receive from its shared receive
        /// queue.
        QP_LAST_WQE_REACHED = 16, "last receive of the queue pair reached";
        /// The subnet manager requests that its clients register again.
        CLIENT_REREGISTER = 17, "client reregistration";
        /// The GIDs of a port changed.
        GID_CHANGE = 18, "GIDs changed";
        /// A work queue failed.
        WQ_FATAL = 19, "work queue fatal error";
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn values_are_those_of_verbs_h() {
        let known = (0..20).map(AsyncEventKind::from_raw);
        assert!(known.clone().all(|kind| kind.name().is_some()));
        assert_eq!(AsyncEventKind::QP_ACCESS_ERR.raw(), 3);
        assert_eq!(AsyncEventKind::PORT_ERR.raw(), 10);
        assert_eq!(AsyncEventKind::WQ_FATAL.raw(), 19);
    }

    #[test]
    fn unknown_values_are_data() {
        let speed_change = AsyncEventKind::from(20);
        assert_eq!(
            format!("{speed_change} {speed_change:?}"),
            "unknown asynchronous event 20 AsyncEventKind(20)"
        );
    }
}
