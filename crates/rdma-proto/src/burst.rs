//! A run of packets: the unit to send and to receive.

use crate::wire::{Headers, Opcode, Operation, PadCount};

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
/// use rdma_proto::Burst;
/// use rdma_proto::wire::{Bth, Headers, Opcode, Operation, PadCount, Service};
/// use rdma_types::{Psn, Qpn};
///
/// let opcode = |operation| Opcode::new(Service::Rc, operation).unwrap();
/// let first = Bth::new(opcode(Operation::SendFirst), Qpn::masked(0x11), Psn::masked(7));
/// let last = Bth { psn: Psn::masked(9), ack_request: true, ..first };
/// let last = Bth { opcode: opcode(Operation::SendLast), ..last };
/// let burst = Burst {
///     header: Headers::new(first),
///     last: Some(Headers::new(last)),
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
    /// Those of the last one, if there are several. Those in between follow from the first: the same
    /// service, the middle of the same message, and the next PSN each.
    pub last: Option<Headers>,
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

    /// The headers of the packet with that index.
    fn headers(&self, index: u16) -> Headers {
        if index == 0 {
            return self.header;
        }
        match self.last {
            Some(last) if index == self.segments.wrapping_sub(1) => last,
            _ => {
                let mut headers = Headers::new(self.header.bth);
                headers.bth.opcode = middle(self.header.bth.opcode);
                headers.bth.psn = self.header.bth.psn.wrapping_add(index.into());
                headers.bth.ack_request = false;
                headers.bth.solicited = false;
                headers.bth.pad_count = PadCount::NONE;
                headers
            }
        }
    }

    /// The headers of the last packet.
    pub(crate) fn last_mut(&mut self) -> &mut Headers {
        self.last.as_mut().unwrap_or(&mut self.header)
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
