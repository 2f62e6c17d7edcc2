//! The status and the opcode of a work completion.

use crate::macros::open_enum;

open_enum! {
    /// The result of a work request (`enum ibv_wc_status`). IBTA vol 1, section 11.6.2.
    ///
    /// On a reliable connection, any error moves the queue pair to the error state.
    #[doc(alias = "ibv_wc_status")]
    #[doc(alias = "ibv_wc_status_str")]
    WcStatus(u32), "completion status" {
        /// The request succeeded.
        SUCCESS = 0, "success";
        /// A message was longer than its destination buffer, or than the maximum that the port can
        /// send.
        LOC_LEN_ERR = 1, "local length error";
        /// The queue pair itself could not execute the request.
        LOC_QP_OP_ERR = 2, "local queue pair operation error";
        /// Used only with reliable datagrams, which no device supports.
        LOC_EEC_OP_ERR = 3, "local end-to-end context operation error";
        /// An lkey was invalid, belonged to another protection domain, or did not cover the buffer.
        LOC_PROT_ERR = 4, "local protection error";
        /// The request was flushed without being executed: the queue pair was in error.
        WR_FLUSH_ERR = 5, "work request flushed";
        /// A memory window could not be bound.
        MW_BIND_ERR = 6, "memory window bind error";
        /// The peer sent a response that does not match the request.
        BAD_RESP_ERR = 7, "bad response from the peer";
        /// An incoming write with immediate data targeted a local buffer that does not allow it.
        LOC_ACCESS_ERR = 8, "local access error";
        /// The peer did not recognise the request, or its receive was too small for the message.
        REM_INV_REQ_ERR = 9, "remote invalid request error";
        /// The peer's memory does not allow this access: wrong key, bounds, rights or protection
        /// domain.
        REM_ACCESS_ERR = 10, "remote access error";
        /// The peer could not complete the operation.
        REM_OP_ERR = 11, "remote operation error";
        /// The peer did not respond, and the retries are exhausted.
        RETRY_EXC_ERR = 12, "transport retry counter exceeded";
        /// The peer had no receive posted, and the retries are exhausted.
        RNR_RETRY_EXC_ERR = 13, "receiver-not-ready retry counter exceeded";
        /// Used only with reliable datagrams, which no device supports.
        LOC_RDD_VIOL_ERR = 14, "local reliable datagram domain violation";
        /// Used only with reliable datagrams, which no device supports.
        REM_INV_RD_REQ_ERR = 15, "remote invalid reliable datagram request";
        /// The peer aborted the operation.
        REM_ABORT_ERR = 16, "aborted by the peer";
        /// Used only with reliable datagrams, which no device supports.
        INV_EECN_ERR = 17, "invalid end-to-end context number";
        /// Used only with reliable datagrams, which no device supports.
        INV_EEC_STATE_ERR = 18, "invalid end-to-end context state";
        /// The device failed.
        FATAL_ERR = 19, "fatal device error";
        /// A response did not arrive in time.
        RESP_TIMEOUT_ERR = 20, "response timeout";
        /// An error that no other status describes; the vendor's error code may reveal the cause.
        GENERAL_ERR = 21, "general error";
        /// A tag matching operation failed.
        TM_ERR = 22, "tag matching error";
        /// Software has to finish a tag matching rendezvous.
        TM_RNDV_INCOMPLETE = 23, "tag matching rendezvous left to software";
    }
}

impl WcStatus {
    /// Returns true if the request succeeded.
    #[inline]
    pub const fn is_success(self) -> bool {
        self.0 == Self::SUCCESS.0
    }
}

open_enum! {
    /// The operation of a completed work request (`enum ibv_wc_opcode`). It is valid only in a
    /// successful completion.
    #[doc(alias = "ibv_wc_opcode")]
    WcOpcode(u32), "completion opcode" {
        /// A send of any kind.
        SEND = 0, "send";
        /// An RDMA write, with or without immediate data.
        RDMA_WRITE = 1, "RDMA write";
        /// An RDMA read.
        RDMA_READ = 2, "RDMA read";
        /// An atomic compare and swap.
        COMP_SWAP = 3, "compare and swap";
        /// An atomic fetch and add.
        FETCH_ADD = 4, "fetch and add";
        /// A memory window was bound.
        BIND_MW = 5, "bind memory window";
        /// A local key was invalidated.
        LOCAL_INV = 6, "local invalidate";
        /// A TCP segmentation offload.
        TSO = 7, "TCP segmentation offload";
        /// A remote flush.
        FLUSH = 8, "flush";
        /// An atomic write.
        ATOMIC_WRITE = 9, "atomic write";
        /// A message arrived. This value is the bit that marks receives in the classic verbs.
        RECV = 128, "receive";
        /// A peer's RDMA write with immediate data arrived.
        RECV_RDMA_WITH_IMM = 129, "receive of RDMA write with immediate";
        /// A tag was added.
        TM_ADD = 130, "tag add";
        /// A tag was removed.
        TM_DEL = 131, "tag remove";
        /// Tag lists were synchronized.
        TM_SYNC = 132, "tag synchronize";
        /// A tagged message arrived.
        TM_RECV = 133, "tagged receive";
        /// A message without a matching tag arrived.
        TM_NO_TAG = 134, "receive without a matching tag";
        /// A provider-specific operation.
        DRIVER1 = 135, "provider operation 1";
        /// A provider-specific operation.
        DRIVER2 = 136, "provider operation 2";
        /// A provider-specific operation.
        DRIVER3 = 137, "provider operation 3";
    }
}

impl WcOpcode {
    /// Returns true if the [`RECV`](Self::RECV) bit is set. C programs use this test to recognise
    /// completions from a receive queue. Tag matching and provider opcodes also have the bit.
    #[inline]
    pub const fn is_receive(self) -> bool {
        self.0 & Self::RECV.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::format;
    use std::string::ToString;

    use super::*;

    #[test]
    fn statuses_are_numbered_as_in_verbs_h() {
        // The order of `enum ibv_wc_status`, which starts at 0.
        let names = [
            "SUCCESS",
            "LOC_LEN_ERR",
            "LOC_QP_OP_ERR",
            "LOC_EEC_OP_ERR",
            "LOC_PROT_ERR",
            "WR_FLUSH_ERR",
            "MW_BIND_ERR",
            "BAD_RESP_ERR",
            "LOC_ACCESS_ERR",
            "REM_INV_REQ_ERR",
            "REM_ACCESS_ERR",
            "REM_OP_ERR",
            "RETRY_EXC_ERR",
            "RNR_RETRY_EXC_ERR",
            "LOC_RDD_VIOL_ERR",
            "REM_INV_RD_REQ_ERR",
            "REM_ABORT_ERR",
            "INV_EECN_ERR",
            "INV_EEC_STATE_ERR",
            "FATAL_ERR",
            "RESP_TIMEOUT_ERR",
            "GENERAL_ERR",
            "TM_ERR",
            "TM_RNDV_INCOMPLETE",
        ];
        for (raw, name) in (0..).zip(names) {
            assert_eq!(WcStatus::from_raw(raw).name(), Some(name));
        }
        assert_eq!(WcStatus::from_raw(24).name(), None);
    }

    #[test]
    fn each_status_has_its_own_text() {
        let texts: HashSet<_> = (0..24).map(|raw| WcStatus::from_raw(raw).to_string()).collect();
        assert_eq!(texts.len(), 24);
        assert!(texts.iter().all(|text| !text.starts_with("unknown")));
    }

    #[test]
    fn only_zero_is_success() {
        assert!(WcStatus::SUCCESS.is_success());
        assert!((1..30).all(|raw| !WcStatus::from_raw(raw).is_success()));
    }

    #[test]
    fn opcodes_are_numbered_as_in_verbs_h() {
        let known: &[(u32, &str)] = &[
            (0, "SEND"),
            (1, "RDMA_WRITE"),
            (2, "RDMA_READ"),
            (3, "COMP_SWAP"),
            (4, "FETCH_ADD"),
            (5, "BIND_MW"),
            (6, "LOCAL_INV"),
            (7, "TSO"),
            (8, "FLUSH"),
            (9, "ATOMIC_WRITE"),
            (128, "RECV"),
            (129, "RECV_RDMA_WITH_IMM"),
            (130, "TM_ADD"),
            (131, "TM_DEL"),
            (132, "TM_SYNC"),
            (133, "TM_RECV"),
            (134, "TM_NO_TAG"),
            (135, "DRIVER1"),
            (136, "DRIVER2"),
            (137, "DRIVER3"),
        ];
        for &(raw, name) in known {
            assert_eq!(WcOpcode::from_raw(raw).name(), Some(name));
        }
        let named = (0..=1000).filter(|&raw| WcOpcode::from_raw(raw).name().is_some()).count();
        assert_eq!(named, known.len());
    }

    #[test]
    fn receives_have_bit_7() {
        assert!(WcOpcode::RECV.is_receive() && WcOpcode::RECV_RDMA_WITH_IMM.is_receive());
        assert!(!WcOpcode::SEND.is_receive() && !WcOpcode::ATOMIC_WRITE.is_receive());
    }

    #[test]
    fn unknown_values_are_data() {
        let status = WcStatus::from_raw(99);
        assert_eq!(format!("{status}, {status:?}"), "unknown completion status 99, WcStatus(99)");
        assert_eq!(format!("{:?}", WcOpcode::from_raw(200)), "WcOpcode(200)");
    }
}
