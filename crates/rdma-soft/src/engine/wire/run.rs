//! Runs of packets. A copy where memory may be gone is a system call, so that what the packets of a run carry is copied by
//! one, not by one for each.

use rdma_proto::Burst;
use rdma_proto::wire::Operation;
use rdma_types::Mtu;

/// The packets of one burst, as a protocol takes them one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Run<'a> {
    /// What all of them carry but the last. Headers of those in between follow from the first: if that one is right, they
    /// are.
    payload: &'a [u8],
    /// So much of the message is there.
    upto: u32,
}

impl<'a> Run<'a> {
    pub(crate) fn of(burst: &Burst, payload: &'a [u8], mtu: Mtu) -> Self {
        use Operation as Op;
        let goes_on = matches!(
            burst.header.bth.opcode.operation(),
            Op::SendFirst
                | Op::SendMiddle
                | Op::RdmaWriteFirst
                | Op::RdmaWriteMiddle
                | Op::RdmaReadResponseFirst
                | Op::RdmaReadResponseMiddle
        );
        let before_last = usize::from(burst.segments.saturating_sub(1));
        let are_full = u32::from(burst.segment) == mtu.bytes();
        let bytes = if goes_on && are_full { before_last * usize::from(burst.segment) } else { 0 };
        Self { payload: payload.get(..bytes).unwrap_or_default(), upto: 0 }
    }

    /// Has `copy` put the payload of a packet where it belongs, `at` bytes behind the first of a message of so many bytes in
    /// all: together with that of the packets behind it, if they do not end the message, and all of it can be copied.
    pub(crate) fn place<E>(
        &mut self,
        at: u32,
        payload: &[u8],
        in_all: u64,
        mut copy: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let end =
            |bytes: &[u8]| u32::try_from(bytes.len()).ok().and_then(|len| at.checked_add(len));
        let rest = self.from(payload);
        // The last packet is none of them: it may even be of another message.
        if rest.len() >= payload.len() && end(payload).is_some_and(|end| end <= self.upto) {
            return Ok(());
        }
        if rest.len() > payload.len()
            && let Some(upto) = end(rest).filter(|&upto| u64::from(upto) < in_all)
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
    use rdma_proto::wire::{Bth, Headers, Opcode};
    use rdma_types::{Psn, Qpn};

    use super::*;

    const MTU: usize = 256;

    /// A run of `packets` of that kind, the last of which has 8 bytes.
    fn burst(operation: Operation, packets: u16) -> (Burst, Vec<u8>) {
        let bth = Bth::new(Opcode::reliable(operation), Qpn::masked(5), Psn::masked(9));
        let length = (usize::from(packets) - 1) * MTU + 8;
        let (segment, segments) = (u16::try_from(MTU).unwrap(), packets);
        let length = u32::try_from(length).unwrap();
        let burst = Burst { header: Headers::new(bth), last: None, segment, segments, length };
        (burst, (0..length).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect())
    }

    /// Takes all packets of a run whose first one is `begin` bytes behind the first of a message of so many in all, of
    /// which `fits` can be copied. Says where copies began, how long they were, and what there is then.
    fn take(
        operation: Operation,
        (begin, in_all): (u32, u64),
        fits: usize,
    ) -> (Vec<(usize, usize)>, Result<(), usize>) {
        let (burst, payload) = burst(operation, 5);
        let mut run = Run::of(&burst, &payload, Mtu::MTU256);
        let (mut copies, mut there) = (Vec::new(), vec![0; payload.len()]);
        for (number, packet) in payload.chunks(MTU).enumerate() {
            let at = begin + u32::try_from(number * MTU).unwrap();
            let placed = run.place(at, packet, in_all, |bytes| {
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
    fn what_packets_before_the_last_carry_is_copied_at_once() {
        for operation in
            [Operation::SendFirst, Operation::RdmaWriteMiddle, Operation::RdmaReadResponseMiddle]
        {
            let copies = take(operation, (512, 1 << 20), ALL);
            assert_eq!(copies, (vec![(0, 4 * MTU), (4 * MTU, 8)], Ok(())));
        }
        // The message ends with the last packet.
        let copies = take(Operation::RdmaWriteMiddle, (512, 512 + ALL as u64), ALL);
        assert_eq!(copies, (vec![(0, 4 * MTU), (4 * MTU, 8)], Ok(())));
    }

    #[test]
    fn each_packet_is_copied_by_itself_where_the_next_may_be_refused() {
        let each: Vec<_> = (0..4).map(|n| (n * MTU, MTU)).chain([(4 * MTU, 8)]).collect();
        // The message is over before the run is: the protocol refuses the rest.
        for in_all in [1, 4 * MTU as u64] {
            assert_eq!(take(Operation::SendFirst, (0, in_all), ALL), (each.clone(), Ok(())));
        }
        // Several messages in one run are of nobody who keeps to the protocol.
        assert_eq!(take(Operation::SendOnly, (0, 1 << 20), ALL), (each, Ok(())));
    }

    #[test]
    fn what_cannot_be_copied_stops_at_its_own_packet() {
        for fits in 0..4 {
            let each: Vec<_> = (0..fits).map(|n| (n * MTU, MTU)).collect();
            let found = take(Operation::RdmaWriteFirst, (0, 1 << 20), fits * MTU + 100);
            assert_eq!(found, (each, Err(fits)));
        }
    }

    /// Who keeps to no protocol sends a last packet of another message, which begins with it.
    #[test]
    fn the_last_packet_is_placed_wherever_it_belongs() {
        let (burst, payload) = burst(Operation::RdmaWriteFirst, 3);
        let mut run = Run::of(&burst, &payload, Mtu::MTU256);
        let mut copies = Vec::new();
        let mut copy = |bytes: &[u8]| {
            copies.push(bytes.len());
            Ok::<(), ()>(())
        };
        assert_eq!(run.place(0, &payload[..MTU], 1 << 20, &mut copy), Ok(()));
        assert_eq!(run.place(256, &payload[MTU..2 * MTU], 1 << 20, &mut copy), Ok(()));
        assert_eq!(run.place(0, &payload[2 * MTU..], 8, &mut copy), Ok(()));
        assert_eq!(copies, [2 * MTU, 8]);
    }

    /// The first packets of a run came before, so that they are not placed.
    #[test]
    fn a_run_may_begin_in_its_midst() {
        let (burst, payload) = burst(Operation::SendFirst, 5);
        let mut run = Run::of(&burst, &payload, Mtu::MTU256);
        let mut copies = Vec::new();
        for number in 2..4 {
            let packet = &payload[number * MTU..][..MTU];
            let at = u32::try_from(number * MTU).unwrap();
            let placed = run.place::<()>(at, packet, 1 << 20, |bytes| {
                copies.push(bytes.to_vec());
                Ok(())
            });
            assert_eq!(placed, Ok(()));
        }
        assert_eq!(copies, [payload[2 * MTU..4 * MTU].to_vec()]);
    }
}
