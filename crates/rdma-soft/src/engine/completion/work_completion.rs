//! Work completions: what the device says of a request that has ended.

use rdma_types::{WcOpcode, WcStatus};

/// What fields hold that the specification leaves undefined: nothing that looks right.
pub(crate) const JUNK: u32 = 0xdead_c0de;

/// A global route header is in front of the data (`IBV_WC_GRH`).
pub(crate) const GRH: u32 = 1;
/// The number that came along is immediate data (`IBV_WC_WITH_IMM`).
pub(crate) const WITH_IMM: u32 = 1 << 1;
/// The number that came along is a key that was invalidated (`IBV_WC_WITH_INV`).
pub(crate) const WITH_INV: u32 = 1 << 3;

/// One completion as the device writes it. Of a failed one the opcode and the flags, which are undefined
/// then, are filled with junk where it is turned into an `ibv_wc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    pub(crate) opcode: WcOpcode,
    /// Junk of what the requester sent, and of failures.
    pub(crate) byte_len: u32,
    /// An immediate in network order, or the key that was invalidated; junk without the flag for it.
    pub(crate) imm: u32,
    /// Any of [`GRH`], [`WITH_IMM`] and [`WITH_INV`].
    pub(crate) flags: u32,
    pub(crate) qpn: u32,
    pub(crate) vendor_err: u32,
    /// Only of a datagram that came in.
    pub(crate) source: Source,
    /// The sender asked for an event at the receiver; a failure always asks.
    pub(crate) solicited: bool,
    /// The queue whose slots this completion gives back, and up to which of its requests.
    pub(crate) side: Side,
    pub(crate) upto: u32,
}

/// Where a datagram came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    /// The sender's queue pair; 27 bits are kept.
    pub(crate) qpn: u32,
    /// That of its port, 0 on Ethernet.
    pub(crate) lid: u16,
    pub(crate) service_level: u8,
    pub(crate) path_bits: u8,
}

impl Source {
    /// For what is no datagram: values that nobody takes for a real source.
    pub(crate) const UNDEFINED: Self =
        Self { qpn: 0x06ad_c0de, lid: 0xdead, service_level: 0xde, path_bits: 0xad };
}

#[cfg(test)]
impl Completion {
    /// The completion of a send request.
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

/// Which of a queue pair's two queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Receive,
}
