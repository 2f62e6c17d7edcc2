//! Successful completions.
#![allow(unsafe_code)]

use std::fmt;

use rdma_sys::{ibv_wc, ibv_wc_flags};
use rdma_types::{Rkey, WcOpcode};

/// A work request that succeeded.
///
/// It keeps the raw fields of the completion and decodes them on access, because most programs need none of them.
#[derive(Clone, Copy)]
pub struct WorkSuccess {
    opcode: WcOpcode,
    /// The byte count of a receive, read or atomic, or [`UNKNOWN`].
    bytes: u32,
    /// Immediate data or a key, depending on the flags; only for receives.
    number: u32,
    flags: u32,
}

/// A length that no message can have: the maximum is 2 GiB.
const UNKNOWN: u32 = u32::MAX;
/// The length in bytes of an atomic operation's result.
const WORD: u32 = 8;

impl WorkSuccess {
    /// Returns the outcome of a send queue request that completed successfully. Use it after polling the request's own
    /// completion or, for an [unsignaled](crate::WriteWorkRequest::signaled) request, the completion of a later one.
    #[inline]
    #[must_use]
    pub const fn of_send(opcode: WcOpcode) -> Self {
        let bytes = match opcode {
            WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD => WORD,
            _ => UNKNOWN,
        };
        Self { opcode, bytes, number: 0, flags: 0 }
    }

    /// Copies the fields of a successful completion.
    #[inline(always)]
    pub(crate) const fn of(completion: &ibv_wc) -> Self {
        Self {
            opcode: WcOpcode::from_raw(completion.opcode.0),
            bytes: completion.byte_len,
            // SAFETY: SAFETY.md F4: both variants of the union are plain integers of the same size.
            number: unsafe { completion.__bindgen_anon_1.imm_data },
            flags: completion.wc_flags,
        }
    }

    /// Returns the kind of the operation.
    #[inline]
    #[must_use]
    pub const fn opcode(&self) -> WcOpcode {
        self.opcode
    }

    /// Returns true if the request was a receive.
    #[inline]
    #[must_use]
    pub const fn is_receive(&self) -> bool {
        self.opcode.is_receive()
    }

    const fn has(&self, flag: ibv_wc_flags) -> bool {
        self.is_receive() && self.flags & flag.0 != 0
    }

    /// Returns the immediate data that the peer sent, in host byte order. `None` if the peer sent none, and for
    /// requests that are not receives.
    #[doc(alias = "imm_data")]
    #[inline]
    #[must_use]
    pub const fn immediate_data(&self) -> Option<u32> {
        if self.has(ibv_wc_flags::IBV_WC_WITH_IMM) { Some(u32::from_be(self.number)) } else { None }
    }

    /// Returns the key of the window that the peer's send invalidated
    /// ([`SendWithInvalidate`](crate::SendWithInvalidate)): the peer no longer has access through that window. `None`
    /// for other sends, and for requests that are not receives.
    #[doc(alias = "IBV_WC_WITH_INV")]
    #[inline]
    #[must_use]
    pub const fn invalidated_rkey(&self) -> Option<Rkey> {
        if self.has(ibv_wc_flags::IBV_WC_WITH_INV) && !self.has(ibv_wc_flags::IBV_WC_WITH_IMM) {
            // The key is in host byte order.
            Some(Rkey::new(self.number))
        } else {
            None
        }
    }

    /// Returns the number of bytes that a message wrote into the receive's own elements. For an RDMA write with
    /// immediate data ([`WcOpcode::RECV_RDMA_WITH_IMM`]), this counts the bytes written to the memory that the peer
    /// named. `None` for requests that are not receives; [`byte_len`](Self::byte_len) also covers reads and atomics.
    #[doc(alias = "byte_len")]
    #[inline]
    #[must_use]
    pub const fn scattered_bytes(&self) -> Option<usize> {
        if self.is_receive() { Some(self.bytes as usize) } else { None }
    }

    /// Returns the number of bytes that arrived at this end. This is the length of the message for a receive or an RDMA
    /// read, and 8 for an atomic operation. See `man ibv_poll_cq`.
    ///
    /// `None` for requests that transfer no bytes to this end, such as sends and writes, because the specification
    /// leaves their length undefined. Also `None` for an unsignaled read, because no completion reports its length.
    ///
    /// # Examples
    /// ```
    /// use rdma_qp::{WcOpcode, WorkSuccess};
    ///
    /// // For unsignaled requests:
    /// assert_eq!(WorkSuccess::of_send(WcOpcode::FETCH_ADD).byte_len(), Some(8));
    /// assert_eq!(WorkSuccess::of_send(WcOpcode::RDMA_WRITE).byte_len(), None);
    /// ```
    #[doc(alias = "gathered_length")]
    #[inline]
    #[must_use]
    pub const fn byte_len(&self) -> Option<usize> {
        match self.opcode {
            WcOpcode::RDMA_READ | WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD
                if self.bytes != UNKNOWN =>
            {
                Some(self.bytes as usize)
            }
            _ => self.scattered_bytes(),
        }
    }

    /// Returns the fields that are defined for this completion.
    const fn defined_fields(&self) -> (WcOpcode, Option<usize>, Option<u32>, Option<Rkey>) {
        (self.opcode, self.byte_len(), self.immediate_data(), self.invalidated_rkey())
    }
}

impl PartialEq for WorkSuccess {
    fn eq(&self, other: &Self) -> bool {
        self.defined_fields() == other.defined_fields()
    }
}

impl Eq for WorkSuccess {}

impl fmt::Debug for WorkSuccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkSuccess")
            .field("opcode", &self.opcode)
            .field("byte_len", &self.byte_len())
            .field("immediate_data", &self.immediate_data())
            .field("invalidated_rkey", &self.invalidated_rkey())
            .finish()
    }
}
