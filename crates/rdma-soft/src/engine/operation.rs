//! The operation of a request: everything that a message carries besides data. It is executed by the peer, or by the
//! requester's own queue pair.

use rdma_types::{AccessFlags, WcOpcode};

use crate::engine::completion::work_completion::{WITH_IMM, WITH_INV};

/// The opcodes in the order of `enum ibv_wr_opcode`, so that the conversion costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opcode {
    Write,
    WriteWithImm,
    Send,
    SendWithImm,
    Read,
    CompareAndSwap,
    FetchAndAdd,
    LocalInvalidate,
    BindWindow,
    SendWithInvalidate,
}

impl Opcode {
    /// Returns the opcode of the requester's completion.
    #[inline]
    pub(crate) fn completion(self) -> WcOpcode {
        match self {
            Self::Send | Self::SendWithImm | Self::SendWithInvalidate => WcOpcode::SEND,
            Self::Write | Self::WriteWithImm => WcOpcode::RDMA_WRITE,
            Self::Read => WcOpcode::RDMA_READ,
            Self::CompareAndSwap => WcOpcode::COMP_SWAP,
            Self::FetchAndAdd => WcOpcode::FETCH_ADD,
            Self::BindWindow => WcOpcode::BIND_MW,
            Self::LocalInvalidate => WcOpcode::LOCAL_INV,
        }
    }

    /// Returns true if the receiver determines where the data goes.
    #[inline]
    pub(crate) fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendWithImm | Self::SendWithInvalidate)
    }

    #[inline]
    pub(crate) fn takes_receive(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendWithImm | Self::SendWithInvalidate | Self::WriteWithImm
        )
    }

    /// Returns the flags of the receiver's completion that state what number the message carries, if any.
    #[inline]
    pub(crate) fn receive_flags(self) -> u32 {
        match self {
            Self::SendWithImm | Self::WriteWithImm => WITH_IMM,
            Self::SendWithInvalidate => WITH_INV,
            _ => 0,
        }
    }

    /// Returns the right that a one-sided request needs on the peer's queue pair and region, or 0 for other requests.
    #[inline]
    pub(crate) fn remote_access(self) -> u32 {
        match self {
            Self::Send
            | Self::SendWithImm
            | Self::SendWithInvalidate
            | Self::BindWindow
            | Self::LocalInvalidate => 0,
            Self::Write | Self::WriteWithImm => AccessFlags::REMOTE_WRITE.bits(),
            Self::Read => AccessFlags::REMOTE_READ.bits(),
            Self::CompareAndSwap | Self::FetchAndAdd => AccessFlags::REMOTE_ATOMIC.bits(),
        }
    }

    /// Returns true for a SEND or WRITE that only transfers data, with or without immediate data.
    #[inline]
    pub(crate) fn is_plain(self) -> bool {
        matches!(self, Self::Send | Self::SendWithImm | Self::Write | Self::WriteWithImm)
    }

    #[inline]
    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::CompareAndSwap | Self::FetchAndAdd)
    }

    /// Returns true if the operation has parameters other than its data, a remote range and immediate data.
    #[inline]
    pub(crate) fn is_special(self) -> bool {
        self.is_atomic() || self.is_local() || self == Self::SendWithInvalidate
    }

    /// Returns true if the operation is executed locally, without a peer.
    #[inline]
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Self::BindWindow | Self::LocalInvalidate)
    }

    /// Returns true if the operation returns data. The data is written to the local elements, and the operation uses
    /// one of the responder's resources for reads and atomics.
    #[inline]
    pub(crate) fn fetches(self) -> bool {
        self == Self::Read || self.is_atomic()
    }
}

/// An [`Opcode`] and its parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation {
    pub(crate) opcode: Opcode,
    pub(crate) solicited: bool,
    /// Immediate data in network order, passed through unchanged, or a key to be invalidated, in host order.
    pub(crate) imm: u32,
    pub(crate) remote_address: u64,
    pub(crate) rkey: u32,
    /// The value that an atomic compares with or adds.
    pub(crate) operand: u64,
    /// The value that a compare-and-swap stores.
    pub(crate) swap: u64,
}

impl Operation {
    /// A SEND without data or options.
    pub(crate) const EMPTY: Self = Self {
        opcode: Opcode::Send,
        solicited: false,
        imm: 0,
        remote_address: 0,
        rkey: 0,
        operand: 0,
        swap: 0,
    };
}
