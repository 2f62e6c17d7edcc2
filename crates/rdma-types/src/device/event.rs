//! What happens when nobody calls.

use crate::macros::open_enum;

open_enum! {
    /// What an asynchronous event is about (`enum ibv_event_type`). IBTA vol 1, section 11.6.3.
    #[doc(alias = "ibv_event_type")]
    AsyncEventKind(u32), "asynchronous event" {
        /// A completion queue failed: it overflowed.
        CQ_ERR = 0, "completion queue error";
        /// A queue pair failed, and no completion can say so.
        QP_FATAL = 1, "queue pair fatal error";
        /// A queue pair refused a request of its peer that is no legal one.
        QP_REQ_ERR = 2, "invalid request of the peer";
        /// A queue pair refused its peer access to memory.
        QP_ACCESS_ERR = 3, "access error of the peer";
        /// A queue pair that is ready to receive, and not yet to send, received something.
        COMM_EST = 4, "communication established";
        /// A queue pair's send queue is drained.
        SQ_DRAINED = 5, "send queue drained";
        /// A queue pair uses its other path now.
        PATH_MIG = 6, "path migrated";
        /// A queue pair could not go to its other path.
        PATH_MIG_ERR = 7, "path migration failed";
        /// The device failed: close everything.
        DEVICE_FATAL = 8, "device fatal error";
        /// A port passes data now.
        PORT_ACTIVE = 9, "port active";
        /// A port passes no data any more.
        PORT_ERR = 10, "port error";
        /// A port has another LID now.
        LID_CHANGE = 11, "LID changed";
        /// A port has other partition keys now.
        PKEY_CHANGE = 12, "partition keys changed";
        /// A port has another subnet manager now.
        SM_CHANGE = 13, "subnet manager changed";
        /// A shared receive queue failed.
        SRQ_ERR = 14, "shared receive queue error";
        /// A shared receive queue has fewer receives left than its limit.
        SRQ_LIMIT_REACHED = 15, "shared receive queue limit reached";
        /// A queue pair in its error state takes no more from its shared receive queue.
        QP_LAST_WQE_REACHED = 16, "last receive of the queue pair reached";
        /// The subnet manager asks to register with it again.
        CLIENT_REREGISTER = 17, "client reregistration";
        /// A port has other GIDs now.
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
