//! Work completions: the device's reports of completed requests.

use rdma_types::{WcOpcode, WcStatus};

/// The content of fields that the specification leaves undefined. It does not look like any valid value.
pub(crate) const JUNK: u32 = 0xdead_c0de;

/// A global route header precedes the data (`IBV_WC_GRH`).
pub(crate) const GRH: u32 = 1;
/// The number that the message carried is immediate data (`IBV_WC_WITH_IMM`).
pub(crate) const WITH_IMM: u32 = 1 << 1;
/// The number that the message carried is a key that was invalidated (`IBV_WC_WITH_INV`).
pub(crate) const WITH_INV: u32 = 1 << 3;

/// One completion as the device writes it. In a failed completion, the opcode and the flags are undefined; the
/// conversion to an `ibv_wc` fills them with junk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    pub(crate) opcode: WcOpcode,
    /// Junk in failed completions, and in completions of send requests that return no data.
    pub(crate) byte_len: u32,
    /// Immediate data in network order, or the key that was invalidated; junk without the corresponding flag.
    pub(crate) imm: u32,
    /// Any of [`GRH`], [`WITH_IMM`] and [`WITH_INV`].
    pub(crate) flags: u32,
    pub(crate) qpn: u32,
    pub(crate) vendor_err: u32,
    /// Valid only for a received datagram.
    pub(crate) source: Source,
    /// Whether the sender requested an event at the receiver. A failed completion always requests one.
    pub(crate) solicited: bool,
    /// The queue whose slots this completion releases.
    pub(crate) side: Side,
    /// One more than the number of the last request whose slot this completion releases.
    pub(crate) upto: u32,
}

/// The sender of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    /// The sender's queue pair; 27 bits are kept.
    pub(crate) qpn: u32,
    /// The LID of the sender's port, 0 on Ethernet.
    pub(crate) lid: u16,
    pub(crate) service_level: u8,
    pub(crate) path_bits: u8,
}

impl Source {
    /// The source in completions that are not for a datagram. Its values cannot be mistaken for a real source.
    pub(crate) const UNDEFINED: Self =
        Self { qpn: 0x06ad_c0de, lid: 0xdead, service_level: 0xde, path_bits: 0xad };
}

#[cfg(test)]
impl Completion {
    /// Returns a successful completion of a send request.
    pub(crate) fn success(wr_id: u64, upto: u32) -> Self {
        Self {
            wr_id,
            status: WcStatus::SUCCESS,
            opcode: WcOpcode::SEND,
            byte_len: 0,
            imm: 0,
            flags: 0,
            qpn: 0,
            vendor_err: 0,
            source: Source::UNDEFINED,
            solicited: false,
            side: Side::Send,
            upto,
        }
    }
}

/// One of a queue pair's two queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Receive,
}
