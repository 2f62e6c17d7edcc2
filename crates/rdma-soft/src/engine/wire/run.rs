//! Runs of packets. A copy to memory that may be gone takes a system call. So the payload of a whole run is copied with
//! one call, not packet by packet.

use rdma_proto::wire::Operation;
use rdma_proto::{Burst, MAX_MESSAGE_BYTES};
use rdma_types::Mtu;

/// The packets of one burst, which a protocol receives one after another.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Run<'a> {
    /// The payload of those packets that belong to one message and that the protocol may accept. All except the last
    /// are full.
    payload: &'a [u8],
    /// Whether the message ends with the last of these packets.
    ends: bool,
    /// The end of the part that was copied, in bytes from the start of the message.
    upto: u32,
}

impl<'a> Run<'a> {
    pub(crate) fn of(burst: &Burst, payload: &'a [u8], mtu: Mtu) -> Self {
        let first = burst.header.bth.opcode.operation();
        let segment = usize::from(burst.segment);
        if first.ends_message() || u32::from(burst.segment) != mtu.bytes() {
            return Self::default();
        }
        let before_last = usize::from(burst.segments.saturating_sub(1)) * segment;
        let Some((most, rest)) = payload.split_at_checked(before_last) else {
            return Self::default();
        };
        let last = burst.last.map(|last| last.opcode.operation());
        let last = last.filter(|&last| first.goes_on_with(last));
        let ends = last.is_some_and(Operation::ends_message);
        let is_part = last.is_some() && (ends || rest.len() == segment);
        Self { payload: if is_part { payload } else { most }, ends: is_part && ends, upto: 0 }
    }

    /// Makes `copy` write the payload of a packet to its destination, `at` bytes after the start of a message. `in_all`
    /// is the length of the message, if known. Later packets of the run are copied at the same time, if all of them can
    /// be.
    pub(crate) fn place<E>(
        &mut self,
        at: u32,
        payload: &[u8],
        in_all: Option<u32>,
        mut copy: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let end =
            |bytes: &[u8]| u32::try_from(bytes.len()).ok().and_then(|len| at.checked_add(len));
        let rest = self.from(payload);
        // The last packet may lie outside the run, and may even belong to another message.
        if rest.len() >= payload.len() && end(payload).is_some_and(|end| end <= self.upto) {
            return Ok(());
        }
        // The protocol refuses packets that continue after the end of the message, and a last packet that does not end
        // it.
        let is_of_message = |&upto: &u32| match in_all {
            Some(in_all) if self.ends => upto == in_all,
            Some(in_all) => upto < in_all,
            None => upto <= MAX_MESSAGE_BYTES,
        };
        if rest.len() > payload.len()
            && let Some(upto) = end(rest).filter(is_of_message)
            && copy(rest).is_ok()
        {
            self.upto = upto;
            return Ok(());
        }
        // If the whole run cannot be copied, this packet may still be.
        self.payload = &[];
        copy(payload)
    }

    /// Returns the payload of the run, starting with the packet that has this payload.
    fn from(&self, payload: &[u8]) -> &'a [u8] {
        let begin = payload.as_ptr().addr().wrapping_sub(self.payload.as_ptr().addr());
        self.payload.get(begin..).unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests {
    use rdma_proto::Last;
    use rdma_proto::wire::{Bth, Headers, Opcode};
    use rdma_types::{Psn, Qpn};

    use super::*;

    const MTU: usize = 256;

    /// Returns a run of `packets` packets, the first and the last of the given kinds. The last packet has `end` bytes.
    fn burst(
        first: Operation,
        last: Option<Operation>,
        packets: u16,
        end: usize,
    ) -> (Burst, Vec<u8>) {
        let bth = |kind| Bth::new(Opcode::reliable(kind), Qpn::masked(5), Psn::masked(9));
        let length = (usize::from(packets) - 1) * MTU + end;
        let (segment, segments) = (u16::try_from(MTU).unwrap(), packets);
        let length = u32::try_from(length).unwrap();
        let last = last.map(|last| Last::of(&Headers::new(bth(last))));
        let burst = Burst { header: Headers::new(bth(first)), last, segment, segments, length };
        (burst, (0..length).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect())
    }

    /// A part of a message: the kinds of its first and last packet, the number of bytes before it, and the message's
    /// length.
    struct Part {
        kinds: (Operation, Option<Operation>),
        begin: u32,
        in_all: Option<u32>,
    }

    /// Receives five packets, the last one with `end` bytes; `fits` bytes can be copied. Returns the start and length
    /// of each copy, and the packet that could not be copied.
    fn take(part: &Part, end: usize, fits: usize) -> (Vec<(usize, usize)>, Result<(), usize>) {
        let (burst, payload) = burst(part.kinds.0, part.kinds.1, 5, end);
        let mut run = Run::of(&burst, &payload, Mtu::MTU256);
        let (mut copies, mut there) = (Vec::new(), vec![0; payload.len()]);
        for (number, packet) in payload.chunks(MTU).enumerate() {
            let at = part.begin + u32::try_from(number * MTU).unwrap();
            let placed = run.place(at, packet, part.in_all, |bytes| {
                let from = number * MTU;
                if from + bytes.len() > fits {
                    return Err(number);
                }
                there[from..from + bytes.len()].copy_from_slice(bytes);
                copies.push((from, bytes.len()));
                Ok(())
            });
            if placed.is_err() {
                return (copies, placed);
            }
        }
        assert_eq!(there, payload);
        (copies, Ok(()))
    }

    const ALL: usize = 4 * MTU + 8;

    #[test]
    fn packets_of_one_message_are_copied_at_once() {
        use Operation as Op;
        let in_all = Some(512 + u32::try_from(ALL).unwrap());
        for (kinds, in_all) in [
            ((Op::SendFirst, Op::SendLast), None),
            ((Op::SendMiddle, Op::SendLastWithInvalidate), None),
            ((Op::RdmaWriteFirst, Op::RdmaWriteLast), in_all),
            ((Op::RdmaWriteMiddle, Op::RdmaWriteLastWithImmediate), in_all),
            ((Op::RdmaReadResponseMiddle, Op::RdmaReadResponseLast), in_all),
        ] {
            let part = Part { kinds: (kinds.0, Some(kinds.1)), begin: 512, in_all };
            assert_eq!(take(&part, 8, ALL), (vec![(0, ALL)], Ok(())), "{kinds:?}");
        }
        // The rest of the message follows in another run.
        for (kind, in_all) in [(Op::SendMiddle, None), (Op::RdmaWriteMiddle, Some(1 << 20))] {
            let part = Part { kinds: (kind, Some(kind)), begin: 512, in_all };
            assert_eq!(take(&part, MTU, 5 * MTU), (vec![(0, 5 * MTU)], Ok(())), "{kind:?}");
        }
    }

    #[test]
    fn a_last_packet_of_another_message_is_copied_by_itself() {
        use Operation as Op;
        for last in [None, Some(Op::RdmaWriteLast), Some(Op::SendOnly), Some(Op::SendMiddle)] {
            // A packet in the middle of a message is full.
            let part = Part { kinds: (Op::SendFirst, last), begin: 0, in_all: None };
            assert_eq!(take(&part, 8, ALL), (vec![(0, 4 * MTU), (4 * MTU, 8)], Ok(())), "{last:?}");
        }
    }

    #[test]
    fn each_packet_is_copied_by_itself_where_the_next_may_be_refused() {
        use Operation as Op;
        let each: Vec<_> = (0..4).map(|n| (n * MTU, MTU)).chain([(4 * MTU, 8)]).collect();
        // The length of the message does not match the run: the message would end earlier, within the last packet, or
        // after it. The protocol refuses the rest.
        let in_all = [1, 4 * MTU, ALL - 1, ALL + 1].map(|length| u32::try_from(length).unwrap());
        for in_all in in_all {
            let kinds = (Op::RdmaWriteMiddle, Some(Op::RdmaWriteLast));
            let part = Part { kinds, begin: 0, in_all: Some(in_all) };
            assert_eq!(take(&part, 8, ALL), (each.clone(), Ok(())), "{in_all}");
        }
        // This run would exceed the maximum length of a message.
        let begin = MAX_MESSAGE_BYTES - 4 * 256;
        let part = Part { kinds: (Op::SendMiddle, Some(Op::SendLast)), begin, in_all: None };
        assert_eq!(take(&part, 8, ALL), (each.clone(), Ok(())));
        // A sender that follows the protocol does not put several messages into one run.
        let part = Part { kinds: (Op::SendOnly, Some(Op::SendOnly)), begin: 0, in_all: None };
        assert_eq!(take(&part, 8, ALL), (each, Ok(())));
    }

    #[test]
    fn a_failed_copy_stops_at_its_own_packet() {
        use Operation as Op;
        for fits in 0..5 {
            let each: Vec<_> = (0..fits).map(|n| (n * MTU, MTU)).collect();
            let in_all = Some(u32::try_from(4 * MTU + 200).unwrap());
            let kinds = (Op::RdmaWriteFirst, Some(Op::RdmaWriteLast));
            let found = take(&Part { kinds, begin: 0, in_all }, 200, fits * MTU + 100);
            assert_eq!(found, (each, Err(fits)));
        }
    }

    /// A sender that violates the protocol sends a last packet that begins another message.
    #[test]
    fn the_last_packet_is_placed_wherever_it_belongs() {
        let (burst, payload) = burst(Operation::RdmaWriteFirst, None, 3, 8);
        let mut run = Run::of(&burst, &payload, Mtu::MTU256);
        let mut copies = Vec::new();
        let mut copy = |bytes: &[u8]| {
            copies.push(bytes.len());
            Ok::<(), ()>(())
        };
        assert_eq!(run.place(0, &payload[..MTU], Some(1 << 20), &mut copy), Ok(()));
        assert_eq!(run.place(256, &payload[MTU..2 * MTU], Some(1 << 20), &mut copy), Ok(()));
        assert_eq!(run.place(0, &payload[2 * MTU..], Some(8), &mut copy), Ok(()));
        assert_eq!(copies, [2 * MTU, 8]);
    }

    /// The first packets of a run were received before, so they are not placed.
    #[test]
    fn a_run_may_begin_in_the_middle() {
        let (burst, payload) = burst(Operation::SendFirst, None, 5, 8);
        let mut run = Run::of(&burst, &payload, Mtu::MTU256);
        let mut copies = Vec::new();
        for number in 2..4 {
            let packet = &payload[number * MTU..][..MTU];
            let at = u32::try_from(number * MTU).unwrap();
            let placed = run.place::<()>(at, packet, None, |bytes| {
                copies.push(bytes.to_vec());
                Ok(())
            });
            assert_eq!(placed, Ok(()));
        }
        assert_eq!(copies, [payload[2 * MTU..4 * MTU].to_vec()]);
    }
}
