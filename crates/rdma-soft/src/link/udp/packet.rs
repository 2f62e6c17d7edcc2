//! The contents of a UDP datagram: a packet with its ICRC.

use std::net::IpAddr;

use rdma_proto::wire::{
    EmitError, Headers, IdentificationSearch, IpHeader, Ipv4Header, Ipv6Header, Packet, UdpHeader,
    icrc,
};

/// The source and destination of a packet, which have the same IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) from: IpAddr,
    /// The source port. Any source port is valid in RoCEv2.
    pub(super) from_port: u16,
    pub(super) to: IpAddr,
}

impl Flow {
    /// Returns the headers before the BTH of a packet of `length` bytes, to the extent that the ICRC covers them.
    fn front(&self, length: usize, identification: u16) -> Option<(IpHeader, UdpHeader)> {
        let udp = UdpHeader::new(self.from_port, length)?;
        let ip = match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let header = Ipv4Header::new(from, to, &udp)?;
                IpHeader::V4(Ipv4Header { identification, ..header })
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => IpHeader::V6(Ipv6Header::new(from, to, &udp)),
            _ => return None,
        };
        Some((ip, udp))
    }
}

/// Appends a packet to `out`.
pub(super) fn write(
    way: &Flow,
    identification: u16,
    headers: &Headers,
    payload: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), EmitError> {
    let begin = out.len();
    let mut packet = Packet { headers: *headers, payload, icrc: 0 };
    let length = packet.wire_len();
    let (ip, udp) = way.front(length, identification).ok_or(EmitError::NoRoom)?;
    out.resize(begin + length, 0);
    let written = packet.emit(&mut out[begin..]).map(|_| ());
    if written.is_err() {
        out.truncate(begin);
        return written;
    }
    let covered = length - Packet::ICRC_LEN;
    packet.icrc = icrc(&ip, &udp, &out[begin..begin + covered]);
    out[begin + covered..].copy_from_slice(&packet.icrc.to_le_bytes());
    Ok(())
}

/// The reason why a datagram is not a valid packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoPacket {
    /// The datagram cannot be parsed.
    Malformed,
    /// The ICRC is wrong.
    Damaged,
}

/// The longest packet: headers, payload and ICRC.
const LONGEST: usize = 4096 + 64;

/// Reads packets whose IPv4 identification is unknown, because the socket does not report it.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The identification searches, by packet length in words.
    searches: Vec<Option<Box<IdentificationSearch>>>,
}

impl Reader {
    /// Reads the packet in a datagram. `identification` is the most likely IPv4 identification.
    pub(super) fn read<'a>(
        &mut self,
        way: &Flow,
        identification: u16,
        bytes: &'a [u8],
    ) -> Result<(Headers, &'a [u8]), NoPacket> {
        if bytes.len() > LONGEST {
            return Err(NoPacket::Malformed);
        }
        let packet = Packet::parse(bytes).map_err(|_| NoPacket::Malformed)?;
        let covered = &bytes[..bytes.len() - Packet::ICRC_LEN];
        let front = |identification| way.front(bytes.len(), identification);
        let (ip, udp) = front(identification).ok_or(NoPacket::Malformed)?;
        let guessed = icrc(&ip, &udp, covered);
        let is_whole = packet.icrc == guessed
            || matches!(ip, IpHeader::V4(_))
                && self.search(covered.len()).find(guessed, packet.icrc).is_some();
        is_whole.then_some((packet.headers, packet.payload)).ok_or(NoPacket::Damaged)
    }

    /// Returns the search for packets with this length, which is a multiple of 4.
    fn search(&mut self, length: usize) -> &IdentificationSearch {
        let place = length / 4;
        if self.searches.len() <= place {
            self.searches.resize(place + 1, None);
        }
        self.searches[place].get_or_insert_with(|| Box::new(IdentificationSearch::new(length)))
    }
}
