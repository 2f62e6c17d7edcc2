//! A send request as the engine sees it, independent of the form in which it was posted.
#![allow(unsafe_code)]

use crate::address::AddressVector;
use crate::engine::operation::Operation;
use crate::memory::copy::Segment;
use crate::memory::sge::Sge;

/// The parameters of a send request, besides its data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
    /// Whether the request waits for the READs and atomics before it. With direct execution, each request waits for all
    /// earlier ones anyway.
    pub(crate) fence: bool,
    pub(crate) operation: Operation,
    /// The queue pair that a datagram is for.
    pub(crate) destination_qpn: u32,
    /// The Q_Key that a datagram carries.
    pub(crate) qkey: u32,
}

impl Request {
    /// The content of an unused slot.
    pub(crate) const EMPTY: Self = Self {
        wr_id: 0,
        signaled: false,
        fence: false,
        operation: Operation::EMPTY,
        destination_qpn: 0,
        qkey: 0,
    };
}

/// The memory that a request refers to. Its local data consists of ranges of registered memory or, if the data is
/// inline, of plain memory. A datagram also has a destination.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Payload<'a> {
    sges: &'a [Sge],
    inline: bool,
    destination: Option<&'a AddressVector>,
}

impl<'a> Payload<'a> {
    /// Creates a payload of ranges that are checked against their keys when the request is executed.
    #[inline]
    pub(crate) fn keyed(sges: &'a [Sge]) -> Self {
        Self { sges, inline: false, destination: None }
    }

    /// Creates a payload of bytes that are read without a key.
    ///
    /// # Safety
    ///
    /// Each range must be readable and have exposed provenance while the payload is used.
    #[inline]
    pub(crate) unsafe fn inline(sges: &'a [Sge]) -> Self {
        Self { sges, inline: true, destination: None }
    }

    /// Returns the same payload with this destination.
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

    /// Returns the ranges of inline data; none if the payload is keyed.
    #[inline]
    pub(crate) fn inline_segments(&self) -> impl Iterator<Item = Segment> + use<'a> {
        let sges = if self.inline { self.sges } else { &[] };
        // SAFETY: the ranges are readable by the contract of `inline`, which alone creates such a payload (F7, F12).
        sges.iter().map(|sge| unsafe { Segment::new(sge.addr, u64::from(sge.length)) })
    }
}
