//! The structure of an input: a [`Setting`], then steps. A step is a [`Tag`] byte, another byte, and records.

use arbitrary::Unstructured;
use test_support::fuzz::{number, trace};
use test_support::fuzz_record as record;

record! {
    /// The initial configuration.
    Setting {
        /// [`Setting::IMPATIENT`] and the other flags.
        flags: u8,
        mtu: u8,
        /// The number of receives that each queue pair has.
        receives: u8,
        /// The number of outstanding requests, and their kinds.
        sends: u8,
        kinds: u16,
        length: u16,
    }
}

impl Setting {
    /// Unanswered requests fail soon.
    pub(crate) const IMPATIENT: u8 = 1;
    /// Packet sequence numbers wrap soon.
    pub(crate) const WRAPS: u8 = 2;
}

record! {
    /// A packet, or several of a message, that a device might send. Zeros give a valid one.
    Packet {
        opcode: u8,
        /// The destination, see [`super::world::World::number`].
        to: u8,
        /// [`Packet::OWN_PAD`] and the other flags.
        shape: u8,
        /// The second byte of the BTH.
        bits: u8,
        /// The distance from the next expected packet.
        psn: u8,
        /// The higher bits of that distance.
        far: u8,
        /// The byte before the PSN.
        ack: u8,
        p_key: u8,
        /// The key, and the memory that it refers to, see [`super::memory`].
        key: u8,
        at: u16,
        /// The length in a RETH, relative to the actual one.
        dma: u16,
        syndrome: u8,
        msn: u8,
        length: u16,
        fill: u8,
    }
}

impl Packet {
    /// The pad count is taken from `bits` instead of the payload.
    pub(crate) const OWN_PAD: u8 = 1;
    /// The packet lacks the last `msn` bytes.
    pub(crate) const CUT: u8 = 2;
    /// A bit of the finished packet is flipped, chosen by `msn` and `fill`.
    pub(crate) const DAMAGED: u8 = 4;
    /// The Q_Key is `dma`.
    pub(crate) const OWN_QKEY: u8 = 8;
    /// The ICRC is wrong.
    pub(crate) const NO_ICRC: u8 = 16;
    /// The packet is followed by 4 KiB of zeros.
    pub(crate) const LONG: u8 = 32;
}

record! {
    /// The head of a message between processes that carries packets. Zeros give a valid one.
    Local {
        /// A bit mask of the following fields whose values are used unchanged. With the highest bit, the first packet is
        /// sent as a message of one packet.
        own: u8,
        version: u8,
        flags: u8,
        indices: u16,
        segment: u16,
        segments: u16,
        said: u32,
        service_level: u8,
    }
}

record! {
    /// The datagrams that carry packets. Zeros give valid ones.
    Udp {
        /// The sender.
        from: u8,
        /// The identification of the first datagram.
        identification: u16,
    }
}

record! {
    /// A request of the queue pairs themselves.
    Post {
        kind: u8,
        at: u16,
        length: u16,
    }
}

/// The action of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tag {
    /// Send arbitrary bytes.
    Raw = 0,
    Packet = 1,
    /// Send packets of one message.
    Run = 2,
    /// Post a request of a queue pair.
    Post = 3,
    Receive = 4,
    /// Move a queue pair to another state.
    Modify = 5,
    Poll = 6,
    /// An action specific to each link.
    Special = 7,
}

impl Tag {
    pub(crate) fn read(input: &mut Unstructured<'_>) -> (Self, u8) {
        let tag = match number::<u8>(input) % 8 {
            0 => Self::Raw,
            1 => Self::Packet,
            2 => Self::Run,
            3 => Self::Post,
            4 => Self::Receive,
            5 => Self::Modify,
            6 => Self::Poll,
            _ => Self::Special,
        };
        let more = number(input);
        trace(&(tag, more));
        (tag, more)
    }
}

/// Returns some bytes of the input, followed by zeros.
pub(crate) fn bytes(input: &mut Unstructured<'_>) -> Vec<u8> {
    let (count, more): (u8, u16) = (number(input), number(input));
    let count = usize::from(count).min(input.len());
    let mut bytes = input.bytes(count).unwrap_or_default().to_vec();
    let zeros = match more % 8 {
        0..6 => usize::from(more / 8 % 64),
        _ => usize::from(more),
    };
    bytes.resize(count + zeros, 0);
    bytes
}
