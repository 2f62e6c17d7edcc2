//! The kinds of operations.

use std::fmt;

use rdma_types::WcOpcode;

/// The kinds of operations of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u16)] // a slot stores it together with its state
pub enum Operation {
    /// A message to the peer.
    Send,
    /// Memory for a message from the peer.
    Receive,
    /// A WRITE to the peer's memory.
    Write,
    /// A READ of the peer's memory.
    Read,
    /// Compare-and-swap or fetch-and-add on the peer's memory.
    Atomic,
    /// The bind of a memory window of type 2. Channels never bind windows.
    Bind,
    /// The invalidation of a type 2 window's key by the end that bound the window.
    Invalidation,
}

impl Operation {
    /// Returns the kind of the send queue request that completes with this opcode: a write, a read, an atomic
    /// operation, or otherwise a send.
    #[inline(always)]
    #[must_use]
    pub const fn of(opcode: WcOpcode) -> Self {
        match opcode {
            WcOpcode::RDMA_WRITE => Self::Write,
            WcOpcode::RDMA_READ => Self::Read,
            WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD => Self::Atomic,
            _ => Self::Send,
        }
    }

    pub(crate) const fn with_article(self) -> &'static str {
        match self {
            Self::Send => "a send",
            Self::Receive => "a receive",
            Self::Write => "an RDMA write",
            Self::Read => "an RDMA read",
            Self::Atomic => "an atomic operation",
            Self::Bind => "a bind",
            Self::Invalidation => "an invalidation",
        }
    }

    /// Returns true if operations of this kind are posted to the send queue, which executes them in order.
    #[inline]
    #[must_use]
    pub const fn is_of_send_queue(self) -> bool {
        !matches!(self, Self::Receive)
    }

    /// Returns the opcode of this operation's completion. For all atomic operations, this is the opcode of
    /// fetch-and-add.
    #[inline]
    #[must_use]
    pub const fn opcode(self) -> WcOpcode {
        match self {
            Self::Send => WcOpcode::SEND,
            Self::Receive => WcOpcode::RECV,
            Self::Write => WcOpcode::RDMA_WRITE,
            Self::Read => WcOpcode::RDMA_READ,
            Self::Atomic => WcOpcode::FETCH_ADD,
            Self::Bind => WcOpcode::BIND_MW,
            Self::Invalidation => WcOpcode::LOCAL_INV,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Write => "RDMA write",
            Self::Read => "RDMA read",
            Self::Atomic => "atomic operation",
            Self::Bind => "bind",
            Self::Invalidation => "invalidation",
        })
    }
}
