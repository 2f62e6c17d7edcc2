//! What a successful completion says.

use rdma_types::{Rkey, WcOpcode};

/// A work request that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkSuccess {
    opcode: WcOpcode,
    /// Only of receives.
    bytes: Option<u32>,
    number: Number,
}

/// The number that came along with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    None,
    Immediate(u32),
    Invalidated(Rkey),
}

impl WorkSuccess {
    /// A request of the send queue that is known to be done: by its completion, or, if it was
    /// [unsignaled](crate::WriteWorkRequest::signaled), by that of a later one.
    #[inline]
    #[must_use]
    pub const fn of_send(opcode: WcOpcode) -> Self {
        Self { opcode, bytes: None, number: Number::None }
    }

    #[inline]
    pub(crate) const fn of_receive(opcode: WcOpcode, bytes: u32, number: Number) -> Self {
        Self { opcode, bytes: Some(bytes), number }
    }

    /// What it was.
    #[inline]
    #[must_use]
    pub const fn opcode(&self) -> WcOpcode {
        self.opcode
    }

    /// Whether it was a receive: the other questions are about these.
    #[inline]
    #[must_use]
    pub const fn is_receive(&self) -> bool {
        self.bytes.is_some()
    }

    /// The number that the peer sent along, in host order; `None` if it sent none, and of requests
    /// that are no receives.
    #[inline]
    #[must_use]
    pub const fn immediate_data(&self) -> Option<u32> {
        match self.number {
            Number::Immediate(immediate) => Some(immediate),
            _ => None,
        }
    }

    /// The key of the window that the peer has invalidated with its send
    /// ([`SendWithInvalidate`](crate::SendWithInvalidate)): it has no access through it any more. `None` if
    /// it was another send, and of requests that are no receives.
    #[doc(alias = "IBV_WC_WITH_INV")]
    #[inline]
    #[must_use]
    pub const fn invalidated_rkey(&self) -> Option<Rkey> {
        match self.number {
            Number::Invalidated(rkey) => Some(rkey),
            _ => None,
        }
    }

    /// How many bytes arrived: in the receive's own elements, or for an RDMA write with immediate
    /// ([`WcOpcode::RECV_RDMA_WITH_IMM`]) in the memory that the peer named. `None` of requests that
    /// are no receives.
    #[inline]
    #[must_use]
    pub const fn scattered_bytes(&self) -> Option<usize> {
        match self.bytes {
            Some(bytes) => Some(bytes as usize),
            None => None,
        }
    }
}
