//! Packet sequence numbers: 24 bits, one for each packet (IBTA volume 1, 9.7.1).

/// How many packets a message takes: one for each MTU of two to the power of `mtu_log2` bytes, at least one.
#[inline]
pub(crate) fn packets(length: u64, mtu_log2: u32) -> u32 {
    // At most 2^31 / 2^8 packets, so that the mask takes nothing away.
    let more = (length.saturating_sub(1) >> mtu_log2) & 0x00ff_ffff;
    1 + more as u32
}

/// The number behind so many packets, of which the first has `psn`.
#[inline]
pub(crate) fn after(psn: u32, packets: u32) -> u32 {
    psn.wrapping_add(packets) & 0x00ff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_takes_one_sequence_number_for_each_packet() {
        let next = |psn, length, mtu_log2| after(psn, packets(length, mtu_log2));
        assert_eq!(next(5, 0, 10), 6);
        assert_eq!(next(5, 1, 10), 6);
        assert_eq!(next(5, 1024, 10), 6);
        assert_eq!(next(5, 1025, 10), 7);
        assert_eq!(next(0x00ff_ffff, 1, 8), 0);
        assert_eq!(next(3, 1 << 31, 8), 3 + (1 << 23));
    }
}
