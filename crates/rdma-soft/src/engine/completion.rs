//! Completions, the queue of them, and what polling them gives back.

use std::sync::Arc;

use rdma_types::{WcOpcode, WcStatus};

use crate::engine::shared_receive_queue::SharedReceiveQueue;
use crate::sync::{AtomicU32, Line, Ordering};

mod entry;
#[cfg(test)]
#[cfg(loom)]
mod loom_resize_tests;
#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
mod queue;
mod resize;
mod rings;
mod seats;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub(crate) use queue::{CompletionQueue, Notifier};
pub(crate) use seats::Seat;

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
    /// Of [`GRH`], [`WITH_IMM`] and [`WITH_INV`].
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
    /// Of what is no datagram: nothing that looks right.
    pub(crate) const UNDEFINED: Self =
        Self { qpn: 0x06ad_c0de, lid: 0xdead, service_level: 0xde, path_bits: 0xad };
}

#[cfg(test)]
impl Completion {
    /// Of a send request.
    fn success(wr_id: u64, upto: u32) -> Self {
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

/// How many requests of each queue have been given back by polled completions (free-running).
///
/// As on hardware, a slot is free again when its completion, or a later one of the same queue, was
/// polled, not when the request was executed.
#[derive(Debug, Default)]
pub(crate) struct Reclaimed {
    send: Line<AtomicU32>,
    receive: Line<AtomicU32>,
    /// Whose the receive requests are, if not the queue pair's own.
    shared: Option<Arc<SharedReceiveQueue>>,
}

impl Reclaimed {
    pub(crate) fn new(shared: Option<&Arc<SharedReceiveQueue>>) -> Self {
        Self { shared: shared.map(Arc::clone), ..Self::default() }
    }

    /// The requests before `upto` are done with. The caller holds the pollers' lock of the queue where
    /// they complete, or no completion of them is there.
    #[inline(always)]
    pub(crate) fn give_back(&self, side: Side, upto: u32) {
        match (side, &self.shared) {
            (Side::Receive, Some(shared)) => {
                let before = self.receive.swap(upto, Ordering::AcqRel);
                shared.give_back(upto.wrapping_sub(before));
            }
            _ => self.of(side).store(upto, Ordering::Release),
        }
    }

    #[inline]
    pub(crate) fn of(&self, side: Side) -> &AtomicU32 {
        match side {
            Side::Send => &self.send,
            Side::Receive => &self.receive,
        }
    }
}
