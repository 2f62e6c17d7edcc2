//! Runs of packets, the unit of sending and receiving.

use crate::wire::{Aeth, Headers, Ieth, ImmDt, Opcode, Operation, PadCount};

/// One packet, or a run of packets from one message or response. All packets have the same length,
/// except that the last may be shorter.
///
/// The payloads are contiguous and stored separately. A network (with GSO and GRO) or a ring
/// carries such a run at the cost of one packet. The first packet of a WRITE is alone because of
/// its RETH, and the first packet of a READ response because of its AETH. The last packet is alone
/// if an extra header would make it longer than the packets before it.
///
/// # Examples
///
/// A SEND of 600 bytes at an MTU of 256:
///
/// ```
/// use rdma_proto::{Burst, Last};
/// use rdma_proto::wire::{Bth, Headers, Opcode, Operation, PadCount, Service};
/// use rdma_types::{Psn, Qpn};
///
/// let opcode = |operation| Opcode::new(Service::Rc, operation).unwrap();
/// let first = Bth::new(opcode(Operation::SendFirst), Qpn::masked(0x11), Psn::masked(7));
/// let last = Bth { opcode: opcode(Operation::SendLast), ack_request: true, ..first };
/// let burst = Burst {
///     header: Headers::new(first),
///     last: Some(Last::of(&Headers::new(last))),
///     segment: 256,
///     segments: 3,
///     length: 600,
/// };
/// let payload = [0; 600];
/// let packets: Vec<_> = burst
///     .packets(&payload)
///     .map(|(headers, payload)| (headers.bth.opcode.operation(), headers.bth.psn.get(), payload.len()))
///     .collect();
/// let expected = [
///     (Operation::SendFirst, 7, 256),
///     (Operation::SendMiddle, 8, 256),
///     (Operation::SendLast, 9, 88),
/// ];
/// assert_eq!(packets, expected);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// The headers of the first packet.
    pub header: Headers,
    /// The headers in which the last packet differs, if there are several packets. The headers of
    /// the packets in between are derived from the first: these packets are the middle of the same
    /// message, with consecutive PSNs.
    pub last: Option<Last>,
    /// The number of payload bytes in each packet except the last, which carries the remainder.
    pub segment: u16,
    /// The number of packets.
    pub segments: u16,
    /// The total number of payload bytes.
    pub length: u32,
}

impl Burst {
    /// Creates a run of one packet.
    #[must_use]
    #[inline]
    pub fn single(header: Headers, payload_len: usize) -> Self {
        let length = u32::try_from(payload_len).unwrap_or(u32::MAX);
        let segment = u16::try_from(payload_len).unwrap_or(u16::MAX);
        Self { header, last: None, segment, segments: 1, length }
    }

    /// Iterates over the packets, each with its payload. If `payload` is too short, the last
    /// payloads are truncated or empty.
    pub fn packets<'a>(&self, payload: &'a [u8]) -> impl Iterator<Item = (Headers, &'a [u8])> {
        let (burst, mut rest) = (*self, payload);
        (0..self.segments).map(move |index| {
            let is_last = index == burst.segments.wrapping_sub(1);
            let len = if is_last { rest.len() } else { rest.len().min(burst.segment.into()) };
            let (packet, behind) = rest.split_at_checked(len).unwrap_or((rest, &[]));
            rest = behind;
            (burst.headers(index), packet)
        })
    }

    /// Returns the headers of the packet with this index, which must be below [`segments`](Self::segments).
    #[must_use]
    pub fn headers(&self, index: u16) -> Headers {
        if index == 0 {
            return self.header;
        }
        let mut headers = Headers::new(self.header.bth);
        let bth = &mut headers.bth;
        bth.psn = bth.psn.wrapping_add(index.into());
        match self.last {
            Some(last) if index == self.segments.wrapping_sub(1) => {
                let Last { opcode, solicited, ack_request, pad_count, aeth, imm, ieth } = last;
                (bth.opcode, bth.pad_count) = (opcode, pad_count);
                (bth.solicited, bth.ack_request) = (solicited, ack_request);
                (headers.aeth, headers.imm, headers.ieth) = (aeth, imm, ieth);
            }
            _ => {
                (bth.opcode, bth.pad_count) = (middle(bth.opcode), PadCount::NONE);
                (bth.solicited, bth.ack_request) = (false, false);
            }
        }
        headers
    }
}

/// The headers in which the last packet of a [`Burst`] differs from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Last {
    /// The opcode of the last packet.
    pub opcode: Opcode,
    /// Whether the solicited event bit is set.
    pub solicited: bool,
    /// Whether an acknowledgement is requested (AckReq).
    pub ack_request: bool,
    /// The pad of the last packet's payload.
    pub pad_count: PadCount,
    /// The AETH, in a READ response.
    pub aeth: Option<Aeth>,
    /// The immediate data, in a message that has any.
    pub imm: Option<ImmDt>,
    /// The key to invalidate, in a SEND with invalidate.
    pub ieth: Option<Ieth>,
}

impl Last {
    /// Copies the fields in which the last packet can differ.
    #[must_use]
    pub const fn of(headers: &Headers) -> Self {
        let bth = &headers.bth;
        Self {
            opcode: bth.opcode,
            solicited: bth.solicited,
            ack_request: bth.ack_request,
            pad_count: bth.pad_count,
            aeth: headers.aeth,
            imm: headers.imm,
            ieth: headers.ieth,
        }
    }
}

/// Returns the opcode of the middle packets in a message that begins with `first`.
fn middle(first: Opcode) -> Opcode {
    let operation = match first.operation() {
        Operation::SendFirst => Operation::SendMiddle,
        Operation::RdmaWriteFirst => Operation::RdmaWriteMiddle,
        Operation::RdmaReadResponseFirst => Operation::RdmaReadResponseMiddle,
        other => other,
    };
    Opcode::new(first.service(), operation).unwrap_or(first)
}
