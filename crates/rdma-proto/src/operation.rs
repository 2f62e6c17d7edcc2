//! What one end asks of the other, without the packets that carry it.

use rdma_types::{Rkey, WcStatus};

use crate::wire::NakCode;

/// The longest message in bytes (IBTA C9-94).
pub const MAX_MESSAGE_BYTES: u32 = 1 << 31;

/// What a request does (IBTA section 9.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "hosts match on it, and the specification has no more")]
pub enum Kind {
    /// SEND: the receiver says where the bytes go.
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
    /// Whether something comes back: of a READ and of an atomic. Such a request takes one of the responder's
    /// resources (IBTA chapter 9).
    #[must_use]
    pub const fn fetches(self) -> bool {
        !matches!(self, Self::Send | Self::Write)
    }

    /// Whether it is an atomic.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }
}

/// Where a one-sided request begins in the memory of the peer; not used by a SEND.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Remote {
    /// The virtual address of the first byte.
    pub va: u64,
    /// The key of the memory.
    pub rkey: Rkey,
}

/// What is known of a request when its first packet comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Start {
    /// What it does.
    pub kind: Kind,
    /// How many bytes it has; `None` for a SEND, of which only the last packet tells.
    pub length: Option<u32>,
    /// Where, unless it is a SEND.
    pub remote: Remote,
    /// What a CmpSwap expects to find, or what a FetchAdd adds.
    pub operand: u64,
    /// What a CmpSwap puts there.
    pub swap: u64,
}

impl Start {
    /// A SEND.
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

    /// A WRITE or a READ of so many bytes.
    #[must_use]
    pub const fn one_sided(kind: Kind, remote: Remote, length: u32) -> Self {
        Self { kind, length: Some(length), remote, ..Self::send() }
    }

    /// An atomic; see [`operand`](Self::operand) and [`swap`](Self::swap).
    #[must_use]
    pub const fn atomic(kind: Kind, remote: Remote, operand: u64, swap: u64) -> Self {
        Self { kind, length: Some(8), remote, operand, swap }
    }
}

/// What is known of a message besides when its last packet comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct End {
    /// How many bytes it has in all.
    pub length: u32,
    /// The word that came with it.
    pub immediate: Option<u32>,
    /// The key that a SEND takes back.
    pub invalidate: Option<Rkey>,
    /// Whether it wakes those who wait for solicited completions alone.
    pub solicited: bool,
}

/// Why a request cannot be executed, ever: the connection ends with it (IBTA section 9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Nak {
    /// The request is wrong in itself, or has more bytes than its receive.
    InvalidRequest,
    /// Its key, range or rights are wrong.
    RemoteAccess,
    /// The responder cannot go on, by no fault of the requester's.
    RemoteOperational,
}

impl Nak {
    /// How a packet says it.
    #[must_use]
    pub const fn code(self) -> NakCode {
        match self {
            Self::InvalidRequest => NakCode::InvalidRequest,
            Self::RemoteAccess => NakCode::RemoteAccess,
            Self::RemoteOperational => NakCode::RemoteOperational,
        }
    }

    /// How the completion of the request says it.
    #[must_use]
    pub const fn status(self) -> WcStatus {
        match self {
            Self::InvalidRequest => WcStatus::REM_INV_REQ_ERR,
            Self::RemoteAccess => WcStatus::REM_ACCESS_ERR,
            Self::RemoteOperational => WcStatus::REM_OP_ERR,
        }
    }
}

/// Why a [`Host`](crate::Host) does not go on with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// There is no receive for it: the requester is asked to try again later (RNR).
    NotReady,
    /// It cannot be executed.
    Nak(Nak),
    /// The packet is to be dropped as if it had not come. On a reliable connection it will come again.
    Drop,
}
