//! Errors of completions, with hints.

use std::fmt;

use rdma_mem::Recovery;
use rdma_types::WcStatus;

/// A work request that failed.
///
/// The queue pair of a reliable connection is now in the error state, and later requests are flushed. The first failure
/// names the cause; the flushed requests do not.
///
/// ```
/// use rdma_qp::{WorkErrorClass, WorkErrorCode};
///
/// let code = WorkErrorCode::RetryExceededError;
/// assert_eq!(code.class(), WorkErrorClass::Transport);
/// assert!(code.hint().contains("GID"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub struct WorkError {
    status: WcStatus,
    vendor_code: u32,
}

rdma_types::debug_messages!(struct WorkError { status, vendor_code });

impl WorkError {
    #[cold]
    pub(crate) const fn new(status: WcStatus, vendor_code: u32) -> Self {
        Self { status, vendor_code }
    }

    /// Returns the error code.
    #[must_use]
    pub fn code(&self) -> WorkErrorCode {
        WorkErrorCode::from_status(self.status)
    }

    /// Returns the class of the failure.
    #[must_use]
    pub fn class(&self) -> WorkErrorClass {
        self.code().class()
    }

    /// Returns the action that may help after this error. If the peer or the network failed, the action is to
    /// reconnect.
    ///
    /// If the peer refuses a request, one of the ends has a programming error: in sizes, keys or access.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self.class() {
            WorkErrorClass::LocalProgramming | WorkErrorClass::Remote => Recovery::Programming,
            WorkErrorClass::LocalResource => Recovery::Resource,
            WorkErrorClass::Transport
            | WorkErrorClass::Timeout
            | WorkErrorClass::Flushed
            | WorkErrorClass::Fatal
            | WorkErrorClass::Unknown => Recovery::Reconnect,
        }
    }

    /// Returns what to check first.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        self.code().hint()
    }

    /// Returns the raw C status (`enum ibv_wc_status`), whether or not this crate knows it.
    #[must_use]
    pub const fn raw_status(&self) -> u32 {
        self.status.raw()
    }

    /// Returns the vendor's error code; the vendor's documents explain it.
    #[must_use]
    pub const fn vendor_code(&self) -> u32 {
        self.vendor_code
    }
}

impl fmt::Display for WorkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (status, raw, vendor) = (self.status, self.raw_status(), self.vendor_code);
        write!(f, "{status} (status {raw}, vendor code {vendor:#x}): {}", self.hint())
    }
}

/// The class of a [`WorkError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorkErrorClass {
    /// This program's request is invalid: its lengths, keys or access.
    LocalProgramming,
    /// A resource of the local device was not available.
    LocalResource,
    /// The peer refused the request.
    Remote,
    /// The peer, or the path to it, did not respond correctly.
    Transport,
    /// A response did not arrive in time.
    Timeout,
    /// The queue pair failed or was closed before the request completed.
    Flushed,
    /// The device failed.
    Fatal,
    /// The class is unknown.
    Unknown,
}

macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident = $status:ident, $class:ident, $hint:expr;)+) => {
        /// The error code of a completion: every `ibv_wc_status` except success.
        #[doc(alias = "ibv_wc_status")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum WorkErrorCode {
            $($(#[$meta])* $name,)+
            /// A status that this crate does not know; see [`WorkError::raw_status`].
            UnknownError,
        }

        impl WorkErrorCode {
            /// Returns the code of a status.
            #[must_use]
            pub const fn from_status(status: WcStatus) -> Self {
                match status {
                    $(WcStatus::$status => Self::$name,)+
                    _ => Self::UnknownError,
                }
            }

            /// Returns the class of the failure.
            #[must_use]
            pub const fn class(self) -> WorkErrorClass {
                match self {
                    $(Self::$name => WorkErrorClass::$class,)+
                    Self::UnknownError => WorkErrorClass::Unknown,
                }
            }

            /// Returns what to check first.
            #[must_use]
            pub const fn hint(self) -> &'static str {
                match self {
                    $(Self::$name => $hint,)+
                    Self::UnknownError => "see the vendor's documents for the vendor code",
                }
            }
        }
    };
}

const OF_NO_DEVICE: &str = "it concerns a service that no device offers; see the vendor code";

codes! {
    /// A message was too long for its buffer or for the port.
    LocalLengthError = LOC_LEN_ERR, LocalProgramming,
        "a receive was smaller than the message for it, or a message longer than the port's \
         max_message_size";
    /// The queue pair could not execute the request.
    LocalQueuePairOperationError = LOC_QP_OP_ERR, LocalProgramming,
        "check that the request suits the queue pair: reads and atomics need a `max_rd_atomic` \
         above 0, and its elements a `max_send_sge` that is large enough";
    /// An error that only reliable datagrams cause; no device implements them.
    LocalEecOperationError = LOC_EEC_OP_ERR, LocalProgramming, OF_NO_DEVICE;
    /// A local key does not cover the memory.
    LocalProtectionError = LOC_PROT_ERR, LocalProgramming,
        "check that each element is within a region of the queue pair's own protection domain, that \
         the region is still registered, and has local write where the device is to write";
    /// The request was flushed.
    WorkRequestFlushError = WR_FLUSH_ERR, Flushed,
        "the queue pair was in the error state: look at the first failed completion, at the code that closed the \
         connection, and at the peer: this end may have refused one of its requests";
    /// A memory window could not be bound, or a key could not be invalidated. The specification calls this a memory
    /// management operation error.
    MemoryWindowBindError = MW_BIND_ERR, LocalResource,
        "check that the region has with_mw_bind, and the range and access that the window \
         requests; that a window of type 2 was invalidated before it was bound again; and that a \
         key to be invalidated belongs to such a window, bound with this queue pair";
    /// The peer's response was invalid.
    BadResponseError = BAD_RESP_ERR, Transport,
        "the peer's response does not match the request: check that both ends are connected to \
         each other, and to no other peer";
    /// An incoming message was directed at memory that does not allow the access.
    LocalAccessError = LOC_ACCESS_ERR, LocalProgramming,
        "check that memory that peers write to has remote write, and that the queue pair's access \
         has it too";
    /// The peer refused the request as invalid.
    RemoteInvalidRequestError = REM_INV_REQ_ERR, Remote,
        "the peer's receive was smaller than the message, or its queue pair does not accept this \
         operation: check the sizes, and the peer's access flags and depth of reads";
    /// The peer's memory does not allow the access.
    RemoteAccessError = REM_ACCESS_ERR, Remote,
        "check the rkey, that address and length are within the peer's region, that the region is \
         still registered, and that the region and the peer's queue pair have this access";
    /// The peer failed.
    RemoteOperationError = REM_OP_ERR, Remote,
        "the peer failed: look at the errors of its queue pair";
    /// The peer did not answer.
    RetryExceededError = RETRY_EXC_ERR, Transport,
        "the peer did not answer: most often its process has ended or has destroyed its queue pair; if the \
         connection never worked, check that the peer's queue pair is in RTR or RTS; that QPN, PSN, LID, GID \
         index and GID type (RoCE v1 or v2) match at both ends; that the path MTU fits; that the network \
         lets UDP port 4791 through (RoCE v2); that both processes share the device (software devices \
         on one host); and try a longer ack_timeout";
    /// The peer had no receive posted.
    RnrRetryExceededError = RNR_RETRY_EXC_ERR, Transport,
        "the peer had no receive posted during all retries: post more of them in time, give credits, or \
         raise max_rnr_retries here and min_rnr_timer at the peer";
    /// An error that only reliable datagrams cause; no device implements them.
    LocalRddViolationError = LOC_RDD_VIOL_ERR, LocalProgramming, OF_NO_DEVICE;
    /// An error that only reliable datagrams (RD) cause; no device implements them. RDMA reads do not cause it.
    RemoteInvalidRdRequestError = REM_INV_RD_REQ_ERR, Remote, OF_NO_DEVICE;
    /// The peer aborted the operation.
    RemoteAbortError = REM_ABORT_ERR, Remote,
        "the peer aborted the operation: look at the errors of its queue pair";
    /// An error that only reliable datagrams cause; no device implements them.
    InvalidEecnError = INV_EECN_ERR, LocalProgramming, OF_NO_DEVICE;
    /// An error that only reliable datagrams cause; no device implements them.
    InvalidEecStateError = INV_EEC_STATE_ERR, LocalProgramming, OF_NO_DEVICE;
    /// The device failed.
    FatalError = FATAL_ERR, Fatal,
        "the device failed: see the kernel's log (dmesg), and open the device again";
    /// A response did not arrive in time.
    ResponseTimeoutError = RESP_TIMEOUT_ERR, Timeout,
        "check that the peer is alive, and the path to it";
    /// An error that no other code describes.
    GeneralError = GENERAL_ERR, Unknown,
        "see the kernel's log (dmesg), and the vendor's documents for the vendor code";
    /// Tag matching failed.
    TagMatchingError = TM_ERR, LocalResource,
        "tag matching failed; see the vendor code";
    /// Tag matching left a rendezvous to software.
    TagMatchingRendezvousIncomplete = TM_RNDV_INCOMPLETE, LocalResource,
        "software has to finish the rendezvous";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_status_has_a_code_of_its_own() {
        let code = |raw| WorkErrorCode::from_status(WcStatus::from_raw(raw));
        let codes: HashSet<_> = (1..=23).map(code).collect();
        assert_eq!(codes.len(), 23);
        assert!(!codes.contains(&WorkErrorCode::UnknownError));
        assert_eq!(code(24), WorkErrorCode::UnknownError);
    }

    #[test]
    fn the_text_has_status_vendor_code_and_hint() {
        let text = WorkError::new(WcStatus::RETRY_EXC_ERR, 0x81).to_string();
        let start = "transport retry counter exceeded (status 12, vendor code 0x81): the peer did";
        assert!(text.starts_with(start), "{text}");
    }

    #[test]
    fn flushes_and_causes_have_different_classes() {
        assert_eq!(WorkErrorCode::WorkRequestFlushError.class(), WorkErrorClass::Flushed);
        let unknown = WorkError::new(WcStatus::from_raw(99), 0);
        assert_eq!(unknown.class(), WorkErrorClass::Unknown);
    }
}
