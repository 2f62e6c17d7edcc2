//! The seeds of the fuzzer for the links: valid packets of each service, and some invalid ones.

use crate::harness::links::{Local, Packet, Post, Setting, Tag, Udp};
use crate::seeds::Seed;

const RC: u8 = 0;
const UC: u8 = 0x20;
const UD: u8 = 0x60;

/// Operations, as in the opcodes.
const SEND_FIRST: u8 = 0;
const SEND_LAST: u8 = 2;
const SEND_ONLY: u8 = 4;
const SEND_ONLY_IMM: u8 = 5;
const WRITE_FIRST: u8 = 6;
const WRITE_LAST: u8 = 8;
const WRITE_ONLY: u8 = 10;
const WRITE_ONLY_IMM: u8 = 11;
const READ_REQUEST: u8 = 12;
const READ_FIRST: u8 = 13;
const READ_LAST: u8 = 15;
const READ_ONLY: u8 = 16;
const ACKNOWLEDGE: u8 = 17;
const ATOMIC_ACKNOWLEDGE: u8 = 18;
const COMPARE_SWAP: u8 = 19;
const FETCH_ADD: u8 = 20;
const SEND_ONLY_INVALIDATE: u8 = 23;

/// The bit that requests an acknowledgement.
const ASKS: u8 = 0x80;
/// The syndromes of negative acknowledgements.
const NAKS: [u8; 5] = [0x60, 0x61, 0x62, 0x63, 0x21];

/// The kind of link between the two ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Local,
    Udp,
}

pub(crate) fn all(link: Link) -> Vec<Seed> {
    let seeds = [
        ("requests", requests(link, RC, 0)),
        ("requests-of-the-second", requests(link, RC, 1)),
        ("unreliable-requests", requests(link, UC, 2)),
        ("datagrams", datagrams(link)),
        ("answers", answers(link)),
        ("refusals", refusals(link, 0)),
        ("refusals-too-late", refusals(link, Setting::IMPATIENT)),
        ("runs", runs(link)),
        ("shapes", shapes(link)),
        ("more-than-there-is", more_than_there_is(link)),
        ("bytes", bytes(link)),
        ("specials", specials(link)),
        ("states", states(link)),
    ];
    seeds.map(|(name, program)| (name.to_owned(), program.bytes)).into()
}

struct Program {
    link: Link,
    bytes: Vec<u8>,
}

impl Program {
    fn new(link: Link, flags: u8, kinds: u16) -> Self {
        let mut bytes = Vec::new();
        Setting { flags, mtu: 0, receives: 8, sends: 4, kinds, length: 600 }.write(&mut bytes);
        Self { link, bytes }
    }

    fn tag(&mut self, tag: Tag, more: u8) -> &mut Self {
        self.bytes.extend([tag as u8, more]);
        self
    }

    fn carried(&mut self, local: &Local, udp: &Udp) -> &mut Self {
        match self.link {
            Link::Local => local.write(&mut self.bytes),
            Link::Udp => udp.write(&mut self.bytes),
        }
        self
    }

    fn packet(&mut self, packet: Packet) -> &mut Self {
        self.tag(Tag::Packet, 0);
        packet.write(&mut self.bytes);
        self.carried(&Local::default(), &Udp::default())
    }

    fn run(&mut self, packet: Packet, count: u8, last: u8) -> &mut Self {
        self.tag(Tag::Run, count - 1);
        packet.write(&mut self.bytes);
        self.bytes.push(last);
        self.carried(&Local::default(), &Udp::default())
    }

    fn poll(&mut self) -> &mut Self {
        self.tag(Tag::Poll, 3)
    }
}

fn packet(opcode: u8, to: u8) -> Packet {
    Packet { opcode, to, bits: 0x40, ack: ASKS, length: 64, ..Packet::default() }
}

/// One request of each kind that the service has.
fn requests(link: Link, service: u8, to: u8) -> Program {
    let mut program = Program::new(link, Setting::WRAPS, 0);
    let all = [
        SEND_ONLY,
        SEND_ONLY_IMM,
        WRITE_ONLY,
        WRITE_ONLY_IMM,
        READ_REQUEST,
        COMPARE_SWAP,
        FETCH_ADD,
        SEND_ONLY_INVALIDATE,
    ];
    for operation in all {
        let empty = matches!(operation, READ_REQUEST | COMPARE_SWAP | FETCH_ADD);
        let (length, dma) = if empty { (0, 500) } else { (65, 0) };
        program.packet(Packet { length, dma, ..packet(service | operation, to) }).poll();
    }
    // Memory that peers may only read, and memory that they may not access.
    for key in 1..8 {
        let read = packet(service | READ_REQUEST, to);
        program.packet(Packet { length: 0, dma: 100, key, ..read }).poll();
        program.tag(Tag::Modify, to | 8);
        program.packet(Packet { key, ..packet(service | WRITE_ONLY, to) }).poll();
        program.tag(Tag::Modify, to | 8);
    }
    program
}

fn datagrams(link: Link) -> Program {
    let mut program = Program::new(link, 0, 0);
    for (to, shape, length) in [(3, 0, 0), (3, 0, 200), (3, Packet::OWN_QKEY, 8), (4, 0, 8)] {
        program.packet(Packet { shape, length, ..packet(UD | SEND_ONLY, to) });
        program.packet(Packet { shape, length, ..packet(UD | SEND_ONLY_IMM, to) }).poll();
    }
    program.packet(Packet { length: 4096, ..packet(UD | SEND_ONLY, 3) });
    program
}

/// Answers to all outstanding requests, in order.
fn answers(link: Link) -> Program {
    // A SEND, a WRITE, a READ of three packets and an atomic.
    let mut program = Program::new(link, 0, 0b11_10_01_00);
    program.packet(Packet { syndrome: 0x1f, psn: 2, length: 0, ..packet(ACKNOWLEDGE, 1) }).poll();
    program.packet(Packet { syndrome: 0x1f, psn: 5, length: 0, ..packet(ACKNOWLEDGE, 1) }).poll();
    let read = Packet { syndrome: 0x1f, psn: 6, length: 256, ..packet(READ_FIRST, 1) };
    program.run(read, 2, 0x0e);
    program.packet(Packet { syndrome: 0x1f, psn: 8, length: 88, ..packet(READ_LAST, 1) }).poll();
    let atomic = packet(ATOMIC_ACKNOWLEDGE, 1);
    program.packet(Packet { syndrome: 0x1f, psn: 9, length: 0, dma: 7, ..atomic }).poll();
    program.packet(Packet { syndrome: 0x1f, psn: 6, length: 600, ..packet(READ_ONLY, 1) }).poll();
    program
}

fn refusals(link: Link, flags: u8) -> Program {
    let mut program = Program::new(link, flags, 0b10_10_01_00);
    for syndrome in NAKS {
        let refusal = Packet { syndrome, length: 0, ..packet(ACKNOWLEDGE, 1) };
        program.packet(Packet { psn: 0, ..refusal }).poll();
        program.packet(Packet { psn: 3, ..refusal }).poll();
        program.tag(Tag::Modify, 1 | 8);
        program.tag(Tag::Post, 1);
        Post { kind: 4, at: 8, length: 500 }.write(&mut program.bytes);
    }
    program
}

/// Messages of several packets.
fn runs(link: Link) -> Program {
    let mut program = Program::new(link, 0, 0);
    for (service, to) in [(RC, 0), (RC, 1), (UC, 2)] {
        for count in [2, 3, 17] {
            let send = Packet { length: 256, ..packet(service | SEND_FIRST, to) };
            if count < 17 {
                program.run(send, count, service | SEND_LAST).poll();
            }
            let write = Packet { dma: 256 * u16::from(count), ..send };
            let write = Packet { opcode: service | WRITE_FIRST, ..write };
            program.run(write, count, service | WRITE_LAST).poll();
        }
    }
    program
}

fn shapes(link: Link) -> Program {
    let mut program = Program::new(link, 0, 0);
    let all = [
        Packet::OWN_PAD,
        Packet::CUT,
        Packet::DAMAGED,
        Packet::NO_ICRC,
        Packet::LONG,
        Packet::CUT | Packet::NO_ICRC,
    ];
    for shape in all {
        for msn in [1, 4, 70] {
            program.packet(Packet { shape, msn, ..packet(SEND_ONLY, 0) });
        }
    }
    for (psn, far, p_key, to) in
        [(1, 0, 0, 0), (0xff, 0, 0, 0), (0, 0x80, 0, 0), (0, 0, 1, 0), (0, 0, 5, 0), (0, 0, 0, 7)]
    {
        program.packet(Packet { psn, far, p_key, ..packet(SEND_ONLY, to) }).poll();
    }
    for own in 0..8 {
        program.tag(Tag::Run, 2);
        Packet { length: 256, ..packet(SEND_FIRST, 0) }.write(&mut program.bytes);
        program.bytes.push(SEND_LAST);
        let local = Local { own: 1 << own, flags: 1, segment: 255, said: 9, ..Local::default() };
        let udp = Udp { from: own, identification: own.into() };
        program.carried(&local, &udp).poll();
    }
    program
}

/// Packets that claim more than they contain.
fn more_than_there_is(link: Link) -> Program {
    let mut program = Program::new(link, 0, 0);
    let local = Local { own: 0b10_0000, said: 256, ..Local::default() };
    for (opcode, to) in [(RC, 0), (UC, 2), (UD, 3), (RC, 1)] {
        program.tag(Tag::Packet, 0);
        packet(opcode | SEND_ONLY, to).write(&mut program.bytes);
        program.carried(&local, &Udp::default()).poll();
    }
    program
}

/// Raw bytes.
fn bytes(link: Link) -> Program {
    let mut program = Program::new(link, 0, 0);
    for (count, more) in [(0_u8, 0_u16), (1, 0), (16, 8), (95, 0), (96, 0), (200, 6), (8, 0xffff)] {
        program.tag(Tag::Raw, 0).bytes.push(count);
        program.bytes.extend(more.to_le_bytes());
        program.bytes.extend((0..count).map(|n| n.wrapping_mul(37)));
    }
    program
}

fn specials(link: Link) -> Program {
    let mut program = Program::new(link, 0, 0);
    for what in 0..12 {
        program.packet(packet(SEND_ONLY, 0));
        program.tag(Tag::Special, what);
        program.bytes.extend([100, 16, 0]);
        program.bytes.extend([4; 100]);
        program.bytes.extend([30, 0]);
        program.packet(packet(WRITE_ONLY, 1)).poll();
    }
    program
}

/// Each queue pair in another state while packets arrive.
fn states(link: Link) -> Program {
    let mut program = Program::new(link, 0, 0);
    for to in 0..4 {
        let opcode = [RC, RC, UC, UD][usize::from(to)] | SEND_ONLY;
        for how in [0, 4, 8] {
            program.packet(packet(opcode, to)).tag(Tag::Modify, to | how);
            program.packet(packet(opcode, to)).tag(Tag::Receive, to).poll();
        }
    }
    program
}
