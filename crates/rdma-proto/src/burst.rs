//! A run of packets: the unit to send and to receive.

use crate::wire::{Aeth, Headers, Ieth, ImmDt, Opcode, Operation, PadCount};

/// One packet, or a run of packets of one message or response, each as long as the first, the last not
/// longer.
///
/// The payloads lie one after the other, outside. Networks carry such a run at the cost of one packet
/// (GSO, GRO), rings too. It never mixes sizes: the first packet of a WRITE is alone, since it has a RETH;
/// the first one of a READ's response since it has an AETH; and a last one with a header of its own if it
/// would be longer than the packets before it.
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
    /// What is different in those of the last one, if there are several. Those in between follow from the
    /// first: the middle of the same message, and the next PSN each.
    pub last: Option<Last>,
    /// How many bytes of payload each packet has but the last, which has the rest.
    pub segment: u16,
    /// How many packets.
    pub segments: u16,
    /// How many bytes of payload all have together.
    pub length: u32,
}

impl Burst {
    /// One packet.
    #[must_use]
    #[inline]
    pub fn single(header: Headers, payload_len: usize) -> Self {
        let length = u32::try_from(payload_len).unwrap_or(u32::MAX);
        let segment = u16::try_from(payload_len).unwrap_or(u16::MAX);
        Self { header, last: None, segment, segments: 1, length }
    }

    /// The packets, each with its payload. Of payload that is too short, what there is.
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

    /// The headers of the packet with that index, which is below [`segments`](Self::segments).
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

/// What the last packet of a [`Burst`] has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Last {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// AckReq.
    pub ack_request: bool,
    /// Of its payload.
    pub pad_count: PadCount,
    /// Of the response of a READ.
    pub aeth: Option<Aeth>,
    /// Of a message with immediate data.
    pub imm: Option<ImmDt>,
    /// Of a SEND with a key.
    pub ieth: Option<Ieth>,
}

impl Last {
    /// What a packet with such headers has of its own.
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

/// What follows within a message that begins so.
fn middle(first: Opcode) -> Opcode {
    let operation = match first.operation() {
        Operation::SendFirst => Operation::SendMiddle,
        Operation::RdmaWriteFirst => Operation::RdmaWriteMiddle,
        Operation::RdmaReadResponseFirst => Operation::RdmaReadResponseMiddle,
        other => other,
    };
    Opcode::new(first.service(), operation).unwrap_or(first)
}
