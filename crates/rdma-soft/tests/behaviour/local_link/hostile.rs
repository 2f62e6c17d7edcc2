//! Messages of a hostile process.

use super::ring::VERSION;

pub(crate) const fn slot_of(number: u32) -> u32 {
    number >> 12
}

/// The name of the socket of a slot.
pub(crate) fn name_of(slot: u32) -> String {
    name_at("soft0", slot)
}

/// The name of the socket of a slot of that device.
pub(crate) fn name_at(device: &str, slot: u32) -> String {
    let user = rustix::process::geteuid().as_raw();
    format!("rdma-soft/{VERSION}/{user}/{device}/{slot:03x}")
}

/// The length of the head before a payload, in bytes.
pub(crate) const HEAD: usize = 96;
/// Offsets of the headers of the first packet, and of those of the last packet or the route header of a datagram.
pub(crate) const FIRST: usize = 16;
pub(crate) const SECOND: usize = 56;
/// The message has several packets.
pub(crate) const WITH_LAST: u8 = 1;
/// The message is a datagram.
pub(crate) const DATAGRAM: u8 = 2;
/// The message is a datagram with a route header.
pub(crate) const ROUTED: u8 = 4;
/// The message is a void RNR NAK.
pub(crate) const VOID: u8 = 8;
/// The message is the last packet of a WRITE whose other bytes were written without packets.
pub(crate) const PLACED: u8 = 16;
/// The offset of the syndrome of an acknowledgement.
pub(crate) const SYNDROME: usize = FIRST + 12;

/// The head before a payload (`src/link/local/head.rs`).
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(crate) version: u8,
    pub(crate) flags: u8,
    pub(crate) indices: [u8; 2],
    pub(crate) segment: u16,
    pub(crate) segments: u16,
    pub(crate) said: u32,
    pub(crate) qpn: u32,
}

impl Head {
    /// Returns the head of an empty SEND.
    pub(crate) fn new(qpn: u32) -> Self {
        Self { version: VERSION, flags: 0, indices: [0; 2], segment: 0, segments: 1, said: 0, qpn }
    }

    /// Returns the bytes of a message with `length` bytes of payload.
    pub(crate) fn bytes(&self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; HEAD + length];
        bytes[..2].copy_from_slice(&[self.version, self.flags]);
        bytes[2..4].copy_from_slice(&self.indices);
        bytes[4..6].copy_from_slice(&self.segment.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.segments.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.said.to_le_bytes());
        for at in [FIRST, SECOND] {
            // RC SEND Only of the default partition; for a last packet, RC SEND Last.
            let alone = at == FIRST && self.flags & WITH_LAST == 0;
            bytes[at] = if alone { 4 } else { 2 * u8::from(at == SECOND) };
            bytes[at + 2..at + 4].fill(0xff);
            bytes[at + 4..at + 8].copy_from_slice(&self.qpn.to_be_bytes());
        }
        bytes
    }

    /// Returns an empty SEND with that PSN.
    pub(crate) fn send(&self, psn: u32) -> Vec<u8> {
        let mut bytes = self.bytes(0);
        bytes[FIRST + 8..FIRST + 12].copy_from_slice(&psn.to_be_bytes());
        bytes
    }

    /// Returns a void RNR NAK for the packet with that PSN.
    pub(crate) fn void(&self, psn: u32) -> Vec<u8> {
        let mut bytes = Self { flags: VOID, ..*self }.send(psn);
        bytes[FIRST] = 0x11;
        bytes[SYNDROME] = 0x20;
        bytes
    }
}

/// The header of a message of one packet, from the gap before the message on (`src/link/local/head/single.rs`).
#[derive(Clone, Copy)]
pub(crate) struct Single {
    pub(crate) flags: u8,
    pub(crate) reserved: u8,
    pub(crate) indices: [u8; 2],
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) word: u32,
}

impl Single {
    /// The number of bytes of the header.
    pub(crate) const HEAD: usize = 24;
    /// The flag of such a message, and that of immediate data.
    pub(crate) const FLAG: u8 = 1;
    pub(crate) const WITH_IMMEDIATE: u8 = 2;

    /// Returns the header of a SEND with this PSN.
    pub(crate) fn new(qpn: u32, psn: u32) -> Self {
        Self { flags: Self::FLAG, reserved: 0, indices: [0; 2], qpn, psn, word: 1024 }
    }

    /// Returns the bytes of a message with this data, apart from its length.
    pub(crate) fn bytes(&self, data: &[u8]) -> Vec<u8> {
        let [own, other] = self.indices;
        let mut bytes = vec![0, 0, 0, 0, self.flags, self.reserved, own, other];
        for number in [self.qpn, self.psn, self.word, 0] {
            bytes.extend(number.to_le_bytes());
        }
        [&bytes, data].concat()
    }
}

/// A random number generator (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns the numbers that `RDMA_TEST_SEED` selects, and prints the seed.
    pub(crate) fn of_environment() -> Self {
        let seed = std::env::var("RDMA_TEST_SEED").map_or(1, |seed| seed.parse::<u64>().unwrap());
        println!("RDMA_TEST_SEED={seed}");
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Returns a message that usually reaches a queue pair, with random contents.
pub(crate) fn plausible(random: &mut Random, qpn: u32) -> Vec<u8> {
    let (several, datagram) = (random.below(2) == 0, random.below(4) == 0);
    let segment = [0, 1, 256, 1024, 1024, 1024, 4096][random.below(7) as usize];
    let length = match several {
        true => random.below(u64::from(segment) * 16 + 2).min(16 << 10),
        false => u64::from(segment),
    };
    let length = u32::try_from(length).unwrap();
    let segments = if several { length.div_ceil(u32::from(segment).max(1)) } else { 1 };
    let service: u8 = if datagram { 3 << 5 } else { (random.below(2) as u8) << 5 };
    let head = Head {
        flags: u8::from(several && !datagram)
            | if datagram { DATAGRAM | ROUTED } else { 0 }
            | if random.below(64) == 0 { VOID } else { 0 }
            | if random.below(16) == 0 { PLACED } else { 0 },
        indices: [random.below(5) as u8, random.below(5) as u8],
        segment,
        segments: u16::try_from(segments).unwrap_or(u16::MAX),
        said: length,
        ..Head::new(qpn)
    };
    let mut bytes = head.bytes(length as usize);
    // The flags and the pad of the header, the acknowledge request, and sequence numbers near the expected ones.
    for at in [FIRST, SECOND] {
        bytes[at] = service | random.below(24) as u8;
        bytes[at + 1] = (random.next() as u8) & 0xb0;
        bytes[at + 8] = random.next() as u8;
        bytes[at + 9..at + 11].fill(if random.below(2) == 0 { 0 } else { 0xff });
        bytes[at + 11] = random.below(40) as u8;
        for byte in &mut bytes[at + 12..at + 40] {
            *byte = [0, 0xff, random.next() as u8, 1][random.below(4) as usize];
        }
    }
    for byte in &mut bytes[HEAD..] {
        *byte = random.next() as u8;
    }
    bytes
}

/// Returns a message of one packet that usually reaches a queue pair, with random contents.
pub(crate) fn plausible_single(random: &mut Random, qpn: u32) -> Vec<u8> {
    let single = Single {
        flags: Single::FLAG | (random.below(4) as u8) << 1,
        indices: [random.below(3) as u8, random.below(3) as u8],
        word: (random.next() as u32 & 3) << 10 | random.below(4) as u32,
        // Near the expected ones.
        ..Single::new(qpn, [0, 0x00ff_ff00][random.below(2) as usize] | random.below(256) as u32)
    };
    let length = [0, 1, 40, 41, 1024, 1025, 4096][random.below(7) as usize];
    let data: Vec<_> = (0..length).map(|_| random.next() as u8).collect();
    single.bytes(&data)
}
