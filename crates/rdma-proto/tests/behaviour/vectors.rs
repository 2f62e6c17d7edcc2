//! Packets that the kernel's SoftRoCE sent, byte for byte; see `vectors/README.md` for how they were captured.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rdma_proto::wire::{
    Aeth, Headers, IpHeader, Ipv4Header, Operation, Packet, ParseError, Syndrome, UdpHeader, icrc,
};

/// The parts of a RoCEv2 IP datagram.
struct Datagram<'a> {
    ip: IpHeader,
    udp: UdpHeader,
    packet: Packet<'a>,
    /// The bytes of the packet that the ICRC covers.
    covered: &'a [u8],
}

impl<'a> Datagram<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (ip, carried) = IpHeader::parse(bytes)?;
        let (udp, packet) = carried.split_first_chunk().ok_or(ParseError::Truncated)?;
        let (covered, _) = packet.split_last_chunk::<4>().ok_or(ParseError::Truncated)?;
        let (udp, packet) = (UdpHeader::parse(udp), Packet::parse(packet)?);
        assert_eq!(udp.destination_port, UdpHeader::ROCE_V2_PORT);
        assert_eq!(usize::from(udp.length), carried.len());
        Ok(Self { ip, udp, packet, covered })
    }

    fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![0xaa; 2048];
        let rest = self.ip.emit(&mut bytes).unwrap();
        let (udp, rest) = rest.split_first_chunk_mut().unwrap();
        self.udp.emit(udp);
        let behind = rest.len() - self.packet.emit(rest).unwrap().len();
        bytes.truncate(bytes.len() - behind);
        bytes
    }

    fn icrc_is_right(&self) -> bool {
        icrc(&self.ip, &self.udp, self.covered) == self.packet.icrc
    }

    /// The same datagram with another identification, and with DF.
    fn identified(&self, identification: u16) -> Datagram<'a> {
        let IpHeader::V4(ip) = self.ip else { panic!("no IPv4") };
        let ip = IpHeader::V4(Ipv4Header { identification, dont_fragment: true, ..ip });
        Datagram { ip, ..*self }
    }
}

/// The content of a capture: packets by opcode, datagrams that are not RoCEv2, and those with a wrong ICRC.
type Census = (BTreeMap<String, usize>, Vec<ParseError>, Vec<usize>);

/// Parses every packet of a capture and writes it again.
fn census(name: &str) -> Census {
    let (mut opcodes, mut others, mut wrong) = Census::default();
    for (at, bytes) in crate::pcap::datagrams(name).into_iter().enumerate() {
        match Datagram::parse(bytes) {
            Ok(datagram) => {
                assert_eq!(datagram.emit(), bytes, "{name} {at}");
                if !datagram.icrc_is_right() {
                    wrong.push(at);
                }
                let opcode = datagram.packet.headers.bth.opcode;
                *opcodes.entry(opcode.to_string()).or_default() += 1;
            }
            Err(error) => others.push(error),
        }
    }
    (opcodes, others, wrong)
}

fn opcodes<const N: usize>(expected: [(&str, usize); N]) -> BTreeMap<String, usize> {
    expected.into_iter().map(|(opcode, count)| (opcode.to_owned(), count)).collect()
}

#[test]
fn all_packets_of_rxe_are_written_unchanged() {
    let expected = opcodes([
        ("RC SEND First", 6),
        ("RC SEND Middle", 6),
        ("RC SEND Last", 5),
        ("RC SEND Last with Immediate", 1),
        ("RC SEND Only", 7),
        ("RC SEND Only with Immediate", 1),
        ("RC RDMA WRITE First", 2),
        ("RC RDMA WRITE Middle", 4),
        ("RC RDMA WRITE Last", 1),
        ("RC RDMA WRITE Last with Immediate", 1),
        ("RC RDMA WRITE Only", 21),
        ("RC RDMA WRITE Only with Immediate", 1),
        ("RC RDMA READ Request", 8),
        ("RC RDMA READ Response First", 1),
        ("RC RDMA READ Response Middle", 3),
        ("RC RDMA READ Response Last", 1),
        ("RC RDMA READ Response Only", 6),
        ("RC Acknowledge", 41),
        ("RC ATOMIC Acknowledge", 7),
        ("RC CmpSwap", 1),
        ("RC FetchAdd", 6),
        ("RC SEND Only with Invalidate", 1),
        ("UC SEND First", 1),
        ("UC SEND Middle", 1),
        ("UC SEND Last", 1),
        ("UC SEND Only", 1),
        ("UC SEND Only with Immediate", 1),
        ("UC RDMA WRITE First", 1),
        ("UC RDMA WRITE Middle", 1),
        ("UC RDMA WRITE Last", 1),
        ("UC RDMA WRITE Only with Immediate", 1),
        ("UD SEND Only", 11),
        ("UD SEND Only with Immediate", 1),
    ]);
    assert_eq!(expected.values().sum::<usize>(), 152);
    assert_eq!(census("rxe"), (expected, vec![], vec![]));
}

#[test]
fn all_packets_of_loss_are_written_unchanged() {
    let expected = opcodes([
        ("RC RDMA WRITE First", 150),
        ("RC RDMA WRITE Middle", 151),
        ("RC RDMA WRITE Last", 158),
        ("RC RDMA READ Request", 10),
        ("RC RDMA READ Response First", 8),
        ("RC RDMA READ Response Middle", 24),
        ("RC RDMA READ Response Last", 8),
        ("RC Acknowledge", 31),
        ("RC ATOMIC Acknowledge", 10),
        ("RC FetchAdd", 11),
    ]);
    assert_eq!(expected.values().sum::<usize>(), 561);
    assert_eq!(census("loss"), (expected, vec![], vec![]));
}

#[test]
fn all_packets_of_big_are_written_unchanged() {
    let expected = opcodes([
        ("RC RDMA WRITE First", 1),
        ("RC RDMA WRITE Middle", 155),
        ("RC RDMA WRITE Last", 1),
        ("RC Acknowledge", 3),
    ]);
    assert_eq!(expected.values().sum::<usize>(), 160);
    assert_eq!(census("big"), (expected, vec![], vec![]));
}

/// Five have an ICRC for another header than the captured one; the tests below explain why.
#[test]
fn all_packets_of_user_are_written_unchanged() {
    let expected = opcodes([
        ("RC SEND First", 1),
        ("RC SEND Middle", 1),
        ("RC SEND Last", 1),
        ("RC SEND Only", 3),
        ("RC RDMA WRITE First", 1),
        ("RC RDMA WRITE Middle", 3),
        ("RC RDMA WRITE Last", 1),
        ("RC RDMA WRITE Only", 6),
        ("RC RDMA READ Request", 2),
        ("RC RDMA READ Response First", 1),
        ("RC RDMA READ Response Middle", 3),
        ("RC RDMA READ Response Last", 1),
        ("RC RDMA READ Response Only", 1),
        ("RC Acknowledge", 9),
        ("RC ATOMIC Acknowledge", 2),
        ("RC CmpSwap", 1),
        ("RC FetchAdd", 1),
    ]);
    assert_eq!(expected.values().sum::<usize>(), 38);
    assert_eq!(census("user"), (expected, vec![], vec![28, 29, 30, 31, 32]));
}

/// The others are ICMPv6 packets that look for routers, one of them with an option before it.
#[test]
fn all_packets_of_v6_are_written_unchanged() {
    let expected = opcodes([
        ("RC SEND Only", 1),
        ("UC SEND Only", 1),
        ("UC RDMA WRITE First", 1),
        ("UC RDMA WRITE Last", 1),
        ("UD SEND Only", 1),
    ]);
    let (opcodes, others, wrong) = census("v6");
    assert_eq!((opcodes, wrong), (expected, vec![]));
    let icmp = others.iter().filter(|&&error| error == ParseError::Protocol(58)).count();
    let option = others.iter().filter(|&&error| error == ParseError::Protocol(0)).count();
    assert_eq!((others.len(), icmp, option), (5, 4, 1));
}

/// Four packets were sealed for an identification, and a DF, that the socket then did not send.
#[test]
fn the_icrc_covers_identification_and_df() {
    let all = crate::pcap::datagrams("user");
    for (at, sealed_for) in [(28, 1), (29, 0), (30, 0), (31, 0)] {
        let datagram = Datagram::parse(all[at]).unwrap();
        assert!(!datagram.icrc_is_right(), "{at}");
        assert!(datagram.identified(sealed_for).icrc_is_right(), "{at}");
    }
}

/// The kernel numbers the segments of one UDP_SEGMENT buffer from 0.
#[test]
fn segments_of_one_buffer_are_numbered() {
    let buffer = crate::pcap::datagrams("user")[32].split_at(28).1;
    let mut segments = 0;
    for (packet, identification) in buffer.chunks(40).zip(0..) {
        let udp = UdpHeader::new(UdpHeader::ROCE_V2_PORT, packet.len()).unwrap();
        let ip = Ipv4Header::new([10, 0, 1, 2].into(), [10, 0, 1, 1].into(), &udp).unwrap();
        let ip = IpHeader::V4(Ipv4Header { identification, ..ip });
        assert_eq!(icrc(&ip, &udp, &packet[..36]), Packet::parse(packet).unwrap().icrc);
        segments += 1;
    }
    assert_eq!(segments, 3);
}

/// Another program, which shares no code with this crate, wrote a line for each packet of `rxe.pcap`.
#[test]
fn fields_equal_those_of_another_decoder() {
    let lines: Vec<_> = include_str!("../vectors/rxe.txt").lines().collect();
    let datagrams = crate::pcap::datagrams("rxe");
    assert_eq!((lines.len(), datagrams.len()), (152, 152));
    for (line, bytes) in lines.into_iter().zip(datagrams) {
        let (_time, fields) = line.trim_start().split_once(' ').unwrap();
        assert_eq!(describe(&Datagram::parse(bytes).unwrap()), fields);
    }
}

/// The names in the order of [`Operation::ALL`].
const NAMES: [&str; 23] = [
    "SEND_FIRST",
    "SEND_MID",
    "SEND_LAST",
    "SEND_LAST_IMM",
    "SEND_ONLY",
    "SEND_ONLY_IMM",
    "WR_FIRST",
    "WR_MID",
    "WR_LAST",
    "WR_LAST_IMM",
    "WR_ONLY",
    "WR_ONLY_IMM",
    "RD_REQ",
    "RD_RSP_FIRST",
    "RD_RSP_MID",
    "RD_RSP_LAST",
    "RD_RSP_ONLY",
    "ACK",
    "ATOMIC_ACK",
    "CMP_SWAP",
    "FETCH_ADD",
    "SEND_LAST_INV",
    "SEND_ONLY_INV",
];

fn describe(datagram: &Datagram<'_>) -> String {
    let Datagram { ip: IpHeader::V4(ip), udp, packet, .. } = datagram else { panic!("no IPv4") };
    let [_, _, _, from] = ip.source.octets();
    let [_, _, _, to] = ip.destination.octets();
    let flags = if ip.dont_fragment { 0x4000 } else { 0 };
    let bth = &packet.headers.bth;
    let at = Operation::ALL.iter().position(|&known| known == bth.opcode.operation()).unwrap();
    let mut line = format!("{from}>{to} sp={} id={:04x} ", udp.source_port, ip.identification);
    let mut add = |text: std::fmt::Arguments<'_>| line.write_fmt(text).unwrap();
    add(format_args!("fl={flags:04x} tos={:02x} ttl={} ", ip.tos, ip.ttl));
    add(format_args!("udpck={:04x} {:?} ", udp.checksum, bth.opcode.service()));
    add(format_args!("{:13} ", NAMES[at]));
    add(format_args!("se={} m={} ", u8::from(bth.solicited), u8::from(bth.migration)));
    add(format_args!("pad={} pk={:04x} ", bth.pad_count.get(), bth.p_key));
    add(format_args!("qpn={:06x} ar={} ", bth.destination.get(), u8::from(bth.ack_request)));
    add(format_args!("psn={:06x} {}", bth.psn.get(), extended(&packet.headers)));
    let icrc = packet.icrc.swap_bytes();
    add(format_args!("pl={} icrc={icrc:08x}", packet.payload.len()));
    line.replacen(" Rc ", " RC ", 1).replacen(" Uc ", " UC ", 1).replacen(" Ud ", " UD ", 1)
}

fn extended(headers: &Headers) -> String {
    let Headers { bth: _, deth, reth, atomic, aeth, atomic_ack, imm, ieth } = headers;
    let deth = deth.map(|h| format!("DETH qkey={:08x} sqp={:06x} ", h.qkey, h.source.get()));
    let reth =
        reth.map(|h| format!("RETH va={:x} rkey={:08x} len={} ", h.va, h.rkey.get(), h.length));
    let atomic = atomic.map(|h| {
        let words = format!("swap/add={:x} cmp={:x} ", h.swap_or_add, h.compare);
        format!("ATMETH va={:x} rkey={:08x} {words}", h.va, h.rkey.get())
    });
    let aeth = aeth.map(|Aeth { syndrome, msn }| {
        let meaning = match syndrome {
            Syndrome::Ack(credits) => format!("ACK credit={}", credits.code()),
            Syndrome::RnrNak(timer) => format!("RNR timer={}", timer.code()),
            Syndrome::Nak(code) => format!("NAK code={}", code as u8),
            _ => panic!("{syndrome:?}"),
        };
        format!("AETH synd={:02x}({meaning}) msn={msn} ", syndrome.code())
    });
    let atomic_ack = atomic_ack.map(|h| format!("orig={:016x} ", h.original));
    let imm = imm.map(|h| format!("IMM={:08x} ", h.immediate));
    let ieth = ieth.map(|h| format!("IETH rkey={:08x} ", h.rkey.get()));
    [deth, reth, atomic, aeth, atomic_ack, imm, ieth].into_iter().flatten().collect()
}
