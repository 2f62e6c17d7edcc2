//! Recovers the identification of an IPv4 header, for receivers that cannot read the header.

use crc32fast::Hasher;

/// The effect of the IPv4 identification on the [ICRC](crate::wire::icrc), for packets of one
/// length.
///
/// The ICRC covers the identification, because routers do not change this field (IBTA volume 1,
/// annex A17), but a UDP socket does not report it. A CRC is linear: flipping one of the 16 bits
/// changes it in the same way, whatever the rest of the packet contains. The difference between a
/// packet's ICRC and its ICRC with identification 0 therefore determines the identification. One in
/// 65,536 randomly damaged packets is mistaken for a packet with a different identification. Such
/// packets add to the one in 2^32 that any checksum of this size misses.
///
/// # Examples
///
/// ```
/// use rdma_proto::wire::{IdentificationSearch, IpHeader, Ipv4Header, UdpHeader, icrc};
///
/// let packet = [7; 40];
/// let udp = UdpHeader::new(0xc000, packet.len() + 4).unwrap();
/// let ip = Ipv4Header::new([10, 0, 1, 1].into(), [10, 0, 1, 2].into(), &udp).unwrap();
/// let of = |identification| icrc(&IpHeader::V4(Ipv4Header { identification, ..ip }), &udp, &packet);
///
/// let search = IdentificationSearch::new(packet.len());
/// assert_eq!(search.find(of(0), of(0xa2b2)), Some(0xa2b2));
/// assert_eq!(search.find(of(0), of(0) ^ 1), None);
/// ```
#[derive(Clone, Debug)]
pub struct IdentificationSearch {
    /// One row per checksum bit: a difference of two checksums in which this bit is the highest,
    /// and the identification bits that cause the difference. A row is zero if no such difference
    /// is possible.
    rows: [(u32, u16); 32],
}

/// The number of bytes between the identification and the BTH: the rest of the IPv4 header, and the
/// UDP header.
const BETWEEN: usize = 14 + 8;

impl IdentificationSearch {
    /// Prepares a search for packets with `length` bytes from the BTH to the end of the pad.
    #[must_use]
    pub fn new(length: usize) -> Self {
        let behind = BETWEEN.saturating_add(length);
        let none = checksum(0, behind);
        let mut rows = [(0, 0); 32];
        for bit in 0..16 {
            let identification = 1 << bit;
            insert(&mut rows, checksum(identification, behind) ^ none, identification);
        }
        Self { rows }
    }

    /// Returns the identification of a packet whose ICRC is `found`, and would be `with_zero` with
    /// identification 0. Returns `None` if no identification matches, which means that the packet
    /// is damaged.
    #[must_use]
    pub fn find(&self, with_zero: u32, found: u32) -> Option<u16> {
        let (left, identification) = reduced(&self.rows, with_zero ^ found, 0);
        (left == 0).then_some(identification)
    }
}

/// Returns the checksum of an identification that is followed by `behind` zero bytes.
fn checksum(identification: u16, mut behind: usize) -> u32 {
    let zeroes = [0; 256];
    let mut crc = Hasher::new();
    crc.update(&identification.to_be_bytes());
    while behind > 0 {
        let part = zeroes.get(..behind).unwrap_or(&zeroes);
        crc.update(part);
        behind = behind.saturating_sub(part.len());
    }
    crc.finalize()
}

/// Subtracts the rows that match the highest bits of a difference (Gaussian elimination). Returns
/// the rest of the difference, and the identification with the bits of these rows flipped.
fn reduced(rows: &[(u32, u16); 32], mut difference: u32, mut identification: u16) -> (u32, u16) {
    for &(row, bits) in rows.iter().rev() {
        if row != 0 && difference.leading_zeros() == row.leading_zeros() {
            difference ^= row;
            identification ^= bits;
        }
    }
    (difference, identification)
}

fn insert(rows: &mut [(u32, u16); 32], difference: u32, identification: u16) {
    let (left, bits) = reduced(rows, difference, identification);
    let place = left.checked_ilog2().and_then(|bit| rows.get_mut(bit as usize));
    if let Some(place) = place {
        *place = (left, bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{IpHeader, Ipv4Header, UdpHeader, icrc};

    /// All identifications are found for the shortest packet, and a sample of them for longer
    /// packets.
    #[test]
    fn each_identification_is_found() {
        for length in [12_usize, 16, 40, 1036, 4116] {
            let mut packet = [0; 4116];
            packet.iter_mut().zip(1..).for_each(|(byte, n): (_, u32)| *byte = (n * 7 % 251) as u8);
            let packet = &packet[..length];
            let udp = UdpHeader::new(4791, length + 4).unwrap();
            let ip = Ipv4Header::new([10, 0, 1, 1].into(), [10, 0, 1, 2].into(), &udp).unwrap();
            let of = |identification| {
                icrc(&IpHeader::V4(Ipv4Header { identification, ..ip }), &udp, packet)
            };
            let search = IdentificationSearch::new(length);
            let zero = of(0);
            for identification in (0..=u16::MAX).step_by(if length == 12 { 1 } else { 257 }) {
                assert_eq!(search.find(zero, of(identification)), Some(identification));
            }
        }
    }

    /// One damaged packet in 65,536 goes unnoticed: 2^16 of 2^32 checksums match an identification.
    #[test]
    fn all_but_one_in_65536_damaged_packets_are_detected() {
        let search = IdentificationSearch::new(40);
        let mut state = 1_u32;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        };
        let passed = (0..1_000_000).filter(|_| search.find(0, random()).is_some()).count();
        assert!((3..40).contains(&passed), "{passed}");
    }
}
