//! The requests that one end makes to the other, independent of the packets that carry them.

use rdma_types::{Rkey, WcStatus};

use crate::wire::NakCode;

/// The maximum message size, in bytes (IBTA C9-94).
pub const MAX_MESSAGE_BYTES: u32 = 1 << 31;

/// The kind of a request (IBTA section 9.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "hosts match on it, and IBTA defines no others")]
pub enum Kind {
    /// SEND: the receiver decides where the bytes go.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// ATOMIC CmpSwap.
    CompareSwap,
    /// ATOMIC FetchAdd.
    FetchAdd,
}

impl Kind {
    /// Returns true if the response carries data: for a READ or an atomic. Such a request uses one
    /// of the responder's resources (IBTA chapter 9).
    #[must_use]
    pub const fn fetches(self) -> bool {
        !matches!(self, Self::Send | Self::Write)
    }

    /// Returns true if the request is an atomic.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }
}

/// The start of the peer's memory that a one-sided request accesses. A SEND does not use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Remote {
    /// The virtual address of the first byte.
    pub va: u64,
    /// The key of the memory.
    pub rkey: Rkey,
}

/// The properties of a request that its first packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageStart {
    /// The kind of the request.
    pub kind: Kind,
    /// The number of bytes; `None` for a SEND, whose length only its last packet reveals.
    pub length: Option<u32>,
    /// The remote memory, unless the request is a SEND.
    pub remote: Remote,
    /// The value that a CmpSwap expects, or that a FetchAdd adds.
    pub operand: u64,
    /// The value that a CmpSwap stores.
    pub swap: u64,
}

impl MessageStart {
    /// Describes a SEND.
    #[must_use]
    pub const fn send() -> Self {
        Self {
            kind: Kind::Send,
            length: None,
            remote: Remote { va: 0, rkey: Rkey::new(0) },
            operand: 0,
            swap: 0,
        }
    }

    /// Describes a WRITE or a READ of `length` bytes.
    #[must_use]
    pub const fn one_sided(kind: Kind, remote: Remote, length: u32) -> Self {
        Self { kind, length: Some(length), remote, ..Self::send() }
    }

    /// Describes an atomic; see [`operand`](Self::operand) and [`swap`](Self::swap).
    #[must_use]
    pub const fn atomic(kind: Kind, remote: Remote, operand: u64, swap: u64) -> Self {
        Self { kind, length: Some(8), remote, operand, swap }
    }
}

/// The properties of a message that its last packet carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MessageEnd {
    /// The total number of bytes.
    pub length: u32,
    /// The immediate data.
    pub immediate: Option<u32>,
    /// The key that a SEND invalidates.
    pub invalidate: Option<Rkey>,
    /// Whether the message wakes threads that wait only for solicited completions.
    pub solicited: bool,
}

/// The reason that a request can never be executed. Such a request ends the connection (IBTA
/// section 9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Nak {
    /// The request itself is invalid, or longer than its receive.
    InvalidRequest,
    /// The request's key, range or rights are wrong.
    RemoteAccess,
    /// The responder cannot continue, but the requester is not at fault.
    RemoteOperational,
}

impl Nak {
    /// Returns the code in a NAK packet.
    #[must_use]
    pub const fn code(self) -> NakCode {
        match self {
            Self::InvalidRequest => NakCode::InvalidRequest,
            Self::RemoteAccess => NakCode::RemoteAccess,
            Self::RemoteOperational => NakCode::RemoteOperational,
        }
    }

    /// Returns the status of the request's completion.
    #[must_use]
    pub const fn status(self) -> WcStatus {
        match self {
            Self::InvalidRequest => WcStatus::REM_INV_REQ_ERR,
            Self::RemoteAccess => WcStatus::REM_ACCESS_ERR,
            Self::RemoteOperational => WcStatus::REM_OP_ERR,
        }
    }
}

/// The reason that a [`Host`](crate::Host) does not continue with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// No receive is posted for the request. The requester should try again later (RNR).
    NotReady,
    /// The request cannot be executed.
    Nak(Nak),
    /// Drop the packet as if it had never arrived. On a reliable connection it arrives again.
    Drop,
}
