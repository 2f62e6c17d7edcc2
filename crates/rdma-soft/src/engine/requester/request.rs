//! A send request as the engine sees it, whatever form it was posted in.
#![allow(unsafe_code)]

use rdma_types::{AccessFlags, WcOpcode};

use crate::address::AddressVector;
use crate::engine::completion;
use crate::engine::copy::Segment;

/// In the order of `enum ibv_wr_opcode`, so that it takes nothing to get here from there.
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
    /// The opcode of the requester's completion.
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

    /// Whether its data goes where the receiver says.
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

    /// What the receiver's completion says of the number that came along.
    #[inline]
    pub(crate) fn receive_flags(self) -> u32 {
        match self {
            Self::SendWithImm | Self::WriteWithImm => completion::WITH_IMM,
            Self::SendWithInvalidate => completion::WITH_INV,
            _ => 0,
        }
    }

    /// The right that a one-sided request needs of the peer's queue pair and region; 0 for others.
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

    /// Whether it is a send or a write, and nothing more.
    #[inline]
    pub(crate) fn is_plain(self) -> bool {
        matches!(self, Self::Send | Self::SendWithImm | Self::Write | Self::WriteWithImm)
    }

    #[inline]
    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::CompareAndSwap | Self::FetchAndAdd)
    }

    /// Whether it says something else than where its data comes from and goes to.
    #[inline]
    pub(crate) fn is_special(self) -> bool {
        self.is_atomic() || self.is_local() || self == Self::SendWithInvalidate
    }

    /// Whether it is executed here, and no peer hears of it.
    #[inline]
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Self::BindWindow | Self::LocalInvalidate)
    }

    /// Whether something comes back: that is written to the local elements, and takes one of the
    /// responder's resources for reads and atomics.
    #[inline]
    pub(crate) fn fetches(self) -> bool {
        self == Self::Read || self.is_atomic()
    }
}

/// What a send request says besides its data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    pub(crate) opcode: Opcode,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    /// Network order, carried through untouched; or a key to be invalidated, in host order.
    pub(crate) imm: u32,
    pub(crate) remote_address: u64,
    pub(crate) rkey: u32,
    /// What an atomic compares with, or adds.
    pub(crate) operand: u64,
    /// What a compare-and-swap puts there.
    pub(crate) swap: u64,
    /// The queue pair that a datagram is for.
    pub(crate) destination_qpn: u32,
    /// What a datagram shows there.
    pub(crate) qkey: u32,
}

impl Request {
    /// What an unused slot holds.
    pub(crate) const EMPTY: Self = Self {
        wr_id: 0,
        opcode: Opcode::Send,
        signaled: false,
        solicited: false,
        imm: 0,
        remote_address: 0,
        rkey: 0,
        operand: 0,
        swap: 0,
        destination_qpn: 0,
        qkey: 0,
    };
}

/// A range of memory and its key, laid out as the program's (`struct ibv_sge`), so that a program's list is
/// read where it is.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// What a request refers to. Its local data: ranges of registered memory, or plain memory for inline
/// data. And where a datagram goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Payload<'a> {
    sges: &'a [Sge],
    inline: bool,
    destination: Option<&'a AddressVector>,
}

impl<'a> Payload<'a> {
    /// Ranges that are checked against their keys when the request is executed.
    #[inline]
    pub(crate) fn keyed(sges: &'a [Sge]) -> Self {
        Self { sges, inline: false, destination: None }
    }

    /// Bytes that are read without a key.
    ///
    /// # Safety
    ///
    /// Each range must be readable, with exposed provenance, while the payload is used.
    #[inline]
    pub(crate) unsafe fn inline(sges: &'a [Sge]) -> Self {
        Self { sges, inline: true, destination: None }
    }

    /// The same to that address.
    #[inline]
    pub(crate) fn to(self, destination: Option<&'a AddressVector>) -> Self {
        Self { destination, ..self }
    }

    #[inline]
    pub(crate) fn destination(&self) -> Option<&'a AddressVector> {
        self.destination
    }

    #[inline]
    pub(crate) fn is_inline(&self) -> bool {
        self.inline
    }

    #[inline]
    pub(crate) fn sges(&self) -> &'a [Sge] {
        self.sges
    }

    #[inline]
    pub(crate) fn length(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }

    /// The ranges of inline data; nothing if the payload is keyed.
    #[inline]
    pub(crate) fn inline_segments(&self) -> impl Iterator<Item = Segment> + use<'a> {
        let sges = if self.inline { self.sges } else { &[] };
        // SAFETY: readable by the contract of `inline`, the only maker of such a payload (F7, F12).
        sges.iter().map(|sge| unsafe { Segment::new(sge.addr, u64::from(sge.length)) })
    }
}
