//! Packets that a peer could send.

use std::sync::LazyLock;

use rdma_proto::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Header, Headers, Ieth, ImmDt, Opcode, Operation,
    Packet, PadCount, Reth, Service, Syndrome,
};
use rdma_proto::{Burst, Last};
use rdma_types::{Psn, Qpn, Rkey};

use super::ends::{RKEY, VA};
use super::input::{self, Ask};

/// The queue pair numbers of the tested end and of its peer.
pub(crate) const OWN: Qpn = Qpn::masked(0x11);
pub(crate) const PEER: Qpn = Qpn::masked(0x12);

pub(crate) const QKEY: u32 = 0x1111_1111;

/// Returns the operation with this number, in this service if it has it.
pub(crate) fn opcode(service: Service, number: u8) -> Opcode {
    let operation = Operation::ALL[usize::from(number) % Operation::ALL.len()];
    Opcode::new(service, operation).unwrap_or(Opcode::reliable(operation))
}

/// The fields of all headers of a packet, except the BTH.
pub(crate) struct Fields {
    pub(crate) va: u64,
    pub(crate) rkey: Rkey,
    pub(crate) length: u32,
    pub(crate) operand: u64,
    pub(crate) syndrome: Syndrome,
    pub(crate) msn: u32,
}

impl Fields {
    /// Returns the headers that the opcode requires.
    pub(crate) fn headers(&self, bth: Bth) -> Headers {
        let mut headers = Headers::new(bth);
        let &Self { va, rkey, length, operand, syndrome, msn } = self;
        for header in bth.opcode.headers() {
            match header {
                Header::Deth => headers.deth = Some(Deth { qkey: QKEY, source: PEER }),
                Header::Reth => headers.reth = Some(Reth { va, rkey, length }),
                Header::AtomicEth => {
                    let (swap_or_add, compare) = (operand, operand / 2);
                    headers.atomic = Some(AtomicEth { va, rkey, swap_or_add, compare });
                }
                Header::Aeth => headers.aeth = Some(Aeth { syndrome, msn: msn & 0xff_ffff }),
                Header::AtomicAckEth => {
                    headers.atomic_ack = Some(AtomicAckEth { original: operand });
                }
                Header::ImmDt => headers.imm = Some(ImmDt { immediate: length }),
                Header::Ieth => headers.ieth = Some(Ieth { rkey }),
                _ => panic!("no such header"),
            }
        }
        headers
    }
}

/// Returns the request of this step, and its payload.
pub(crate) fn ask(ask: &Ask, service: Service, mtu: u32, expected: Psn) -> (Burst, Vec<u8>) {
    let has = |flag| ask.flags & flag != 0;
    let service = if has(Ask::OTHER_SERVICE) { Service::Uc } else { service };
    let fields = Fields {
        va: VA + u64::from(ask.at),
        rkey: if has(Ask::OTHER_KEY) { Rkey::new(7) } else { RKEY },
        length: input::length(ask.length),
        operand: ask.operand.into(),
        syndrome: Syndrome::from_code(ask.operand),
        msn: ask.operand.into(),
    };
    let bth = Bth {
        ack_request: has(Ask::ACK_REQUEST),
        solicited: has(Ask::SOLICITED),
        ..Bth::new(opcode(service, ask.operation), OWN, moved(expected, ask.ahead))
    };
    let more = ask.more % 8;
    let segment = if has(Ask::SHORT) { ask.operand.into() } else { mtu as usize };
    let tail = input::payload(ask.payload, mtu);
    let payload = bytes(bth.psn, usize::from(more) * segment + tail);
    let mut header = fields.headers(bth);
    let first = if more > 0 { segment } else { tail };
    header.bth.pad_count = PadCount::of(first);
    let last = match bth.opcode.operation() {
        _ if has(Ask::ANY_LAST) => opcode(service, ask.operand),
        Operation::RdmaWriteFirst | Operation::RdmaWriteMiddle => {
            opcode(service, Operation::RdmaWriteLast as u8)
        }
        _ => opcode(service, Operation::SendLast as u8),
    };
    let mut last = Last::of(&fields.headers(Bth { opcode: last, ..bth }));
    last.pad_count = PadCount::of(tail);
    let burst = Burst {
        header,
        last: (has(Ask::LAST) && more > 0).then_some(last),
        segment: u16::try_from(segment).expect("an MTU"),
        segments: u16::from(more) + 1,
        length: u32::try_from(payload.len()).expect("few"),
    };
    (burst, payload)
}

pub(crate) fn moved(psn: Psn, by: i8) -> Psn {
    psn.wrapping_add(i32::from(by).cast_unsigned() & 0xff_ffff)
}

/// Returns payload that depends on the PSN.
pub(crate) fn bytes(psn: Psn, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(psn.get() * 31, &mut bytes);
    bytes
}

/// The length of the pattern: a prime, so that each packet of a message has other bytes.
const PERIOD: usize = 4099;

/// Fills with a pattern, from this position on. Only copies: comparisons in a loop slow the fuzzer down.
pub(crate) fn fill(from: u32, bytes: &mut [u8]) {
    static TWICE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let byte = |at: usize| ((at % PERIOD) as u32).wrapping_mul(0x9e37_79b1) >> 24;
        (0..2 * PERIOD).map(|at| byte(at) as u8).collect()
    });
    let from = from as usize % PERIOD;
    for chunk in bytes.chunks_mut(PERIOD) {
        chunk.copy_from_slice(&TWICE[from..][..chunk.len()]);
    }
}

/// Returns the packets of a burst, and checks that they can be written.
pub(crate) fn packets(burst: &Burst, room: &[u8]) -> Vec<(Headers, Vec<u8>)> {
    let payload = &room[..burst.length as usize];
    let packets: Vec<_> = burst.packets(payload).map(|(h, p)| (h, p.to_vec())).collect();
    assert_eq!(packets.len(), usize::from(burst.segments));
    let mut first = None;
    for (headers, payload) in &packets {
        let mut datagram = vec![0xaa; payload.len() + 64];
        let packet = Packet { headers: *headers, payload, icrc: 0 };
        let datagram = packet.emit(&mut datagram).expect("headers of their opcode");
        assert_eq!(Packet::parse(datagram), Ok(packet));
        let first = *first.get_or_insert(datagram.len());
        assert!(datagram.len() <= first, "none is longer than the first");
    }
    packets
}
