//! Runs of packets. A copy where memory may be gone is a system call, so that what the packets of a run carry is copied by
//! one, not by one for each.

use rdma_proto::wire::Operation;
use rdma_proto::{Burst, MAX_MESSAGE_BYTES};
use rdma_types::Mtu;

/// The packets of one burst, as a protocol takes them one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Run<'a> {
    /// What those carry that are of one message, if the protocol takes them. All but the first and the last one are full.
    payload: &'a [u8],
    /// Whether the message ends with the last of them.
    ends: bool,
    /// So much of the message is there.
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

    /// Has `copy` put the payload of a packet where it belongs, `at` bytes behind the first of a message of so many bytes in
    /// all, if that is known: together with that of the packets behind it, if all of it can be copied.
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
        // A last packet that is none of them may even be of another message.
        if rest.len() >= payload.len() && end(payload).is_some_and(|end| end <= self.upto) {
            return Ok(());
        }
        // The protocol refuses packets that go on where the message ends, and a last one that does not end it.
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
        // Of what cannot be copied as a whole, some may.
        self.payload = &[];
        copy(payload)
    }

    /// What the packets carry from the one on that has this payload.
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

    /// A run of `packets`, the first and the last of these kinds. The last one has `end` bytes.
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

    /// A part of a message: the kinds of its first and its last packet, how many bytes precede it, and how many the
    /// message has.
    struct Part {
        kinds: (Operation, Option<Operation>),
        begin: u32,
        in_all: Option<u32>,
    }

    /// Takes five packets, the last of which has `end` bytes, and of which `fits` bytes can be copied. Returns where copies
    /// began and how long they were, and which packet could not be copied.
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
        // The rest of the message comes by another run.
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
        // The message ends before the run does, or with another packet, or goes on behind its last packet: the protocol
        // refuses the rest.
        let in_all = [1, 4 * MTU, ALL - 1, ALL + 1].map(|length| u32::try_from(length).unwrap());
        for in_all in in_all {
            let kinds = (Op::RdmaWriteMiddle, Some(Op::RdmaWriteLast));
            let part = Part { kinds, begin: 0, in_all: Some(in_all) };
            assert_eq!(take(&part, 8, ALL), (each.clone(), Ok(())), "{in_all}");
        }
        // Nothing is longer than a message can be.
        let begin = MAX_MESSAGE_BYTES - 4 * 256;
        let part = Part { kinds: (Op::SendMiddle, Some(Op::SendLast)), begin, in_all: None };
        assert_eq!(take(&part, 8, ALL), (each.clone(), Ok(())));
        // Several messages in one run are of nobody who keeps to the protocol.
        let part = Part { kinds: (Op::SendOnly, Some(Op::SendOnly)), begin: 0, in_all: None };
        assert_eq!(take(&part, 8, ALL), (each, Ok(())));
    }

    #[test]
    fn what_cannot_be_copied_stops_at_its_own_packet() {
        use Operation as Op;
        for fits in 0..5 {
            let each: Vec<_> = (0..fits).map(|n| (n * MTU, MTU)).collect();
            let in_all = Some(u32::try_from(4 * MTU + 200).unwrap());
            let kinds = (Op::RdmaWriteFirst, Some(Op::RdmaWriteLast));
            let found = take(&Part { kinds, begin: 0, in_all }, 200, fits * MTU + 100);
            assert_eq!(found, (each, Err(fits)));
        }
    }

    /// Who keeps to no protocol sends a last packet of another message, which begins with it.
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

    /// The first packets of a run came before, so that they are not placed.
    #[test]
    fn a_run_may_begin_in_its_midst() {
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
