//! Reads captures in the classic libpcap format.

/// The captures, each with its name.
pub(crate) const CAPTURES: [(&str, &[u8]); 5] = [
    ("rxe", include_bytes!("../vectors/rxe.pcap")),
    ("loss", include_bytes!("../vectors/loss.pcap")),
    ("big", include_bytes!("../vectors/big.pcap")),
    ("user", include_bytes!("../vectors/user.pcap")),
    ("v6", include_bytes!("../vectors/v6.pcap")),
];

/// The IP datagrams of a capture, in order.
pub(crate) fn datagrams(name: &str) -> Vec<&'static [u8]> {
    let (_, file) = CAPTURES.into_iter().find(|&(other, _)| other == name).unwrap();
    let (header, mut rest) = file.split_at(24);
    assert_eq!(header[..8], [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0], "{name}: little endian, 2.4");
    assert_eq!(word(header, 20), 1, "{name}: Ethernet");
    let mut found = Vec::new();
    while !rest.is_empty() {
        // Seconds, microseconds, the captured length, the original length.
        let (record, behind) = rest.split_at(16);
        assert_eq!(word(record, 8), word(record, 12), "{name}: whole frames");
        let (frame, behind) = behind.split_at(word(record, 8));
        let (ethernet, datagram) = frame.split_at(14);
        assert!(matches!(ethernet[12..], [0x08, 0x00] | [0x86, 0xdd]), "{name}: IP");
        found.push(datagram);
        rest = behind;
    }
    found
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}
