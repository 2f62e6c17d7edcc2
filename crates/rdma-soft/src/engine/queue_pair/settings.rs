//! The queue pair attributes that a program sets and queries.

use rdma_types::{QpAttributes, QpState};

use crate::address::AddressAttributes;

/// The attributes of a queue pair (`struct ibv_qp_attr`), in the form in which a program sets and queries them. A
/// modification uses only the attributes in its mask. A new queue pair has the default values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) state: QpState,
    /// The state that the program believes the queue pair to be in.
    pub(crate) current_state: QpState,
    /// If not 0, an event is sent when the send queue is drained. Stored unchanged.
    pub(crate) notify_drained: u8,
    /// `IBV_ACCESS_*`.
    pub(crate) access: u32,
    pub(crate) pkey_index: u16,
    pub(crate) port: u8,
    pub(crate) qkey: u32,
    pub(crate) address: AddressAttributes,
    /// Code 1 means 256 bytes, and each further code doubles the size.
    pub(crate) path_mtu: u32,
    /// A 5-bit code (IBTA volume 1, 9.7.6.1.3).
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    /// A 5-bit code (IBTA volume 1, 9.7.5.2.8).
    pub(crate) min_rnr_timer: u8,
    pub(crate) peer_qpn: u32,
}

/// The result of a query.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) settings: Settings,
    /// Whether the queue pair is in SQD with a request that has begun but is not finished.
    pub(crate) draining: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            state: QpState::RESET,
            current_state: QpState::RESET,
            notify_drained: 0,
            access: 0,
            pkey_index: 0,
            port: 0,
            qkey: 0,
            address: AddressAttributes::default(),
            path_mtu: 0,
            timeout: 0,
            retries: 0,
            rnr_retries: 0,
            rq_psn: 0,
            sq_psn: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            peer_qpn: 0,
        }
    }
}

impl Settings {
    /// Copies the attributes that a modification names, except the current state and the packet sequence numbers.
    /// Sequence numbers change with every message, so the send side and the responder store them.
    pub(crate) fn record(&mut self, new: &Self, mask: QpAttributes) {
        macro_rules! record {
            ($($attribute:ident: $field:ident;)+) => {
                $(if mask.intersects(QpAttributes::$attribute) { self.$field = new.$field; })+
            };
        }
        record! {
            STATE: state;
            ACCESS_FLAGS: access;
            PKEY_INDEX: pkey_index;
            PORT: port;
            AV: address;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retries;
            RNR_RETRY: rnr_retries;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            MIN_RNR_TIMER: min_rnr_timer;
            DEST_QPN: peer_qpn;
            EN_SQD_ASYNC_NOTIFY: notify_drained;
            QKEY: qkey;
        }
    }
}
