//! What an input is made of: a [`Setting`], then steps. A step is a byte, a [`Tag`], one more, and records.

use arbitrary::Unstructured;
use test_support::fuzz::{number, trace};
use test_support::fuzz_record as record;

record! {
    /// Where all begins.
    Setting {
        /// [`Setting::IMPATIENT`] and its kin.
        flags: u8,
        mtu: u8,
        /// How many receives each queue pair has.
        receives: u8,
        /// How many requests are outstanding, and what they are.
        sends: u8,
        kinds: u16,
        length: u16,
    }
}

impl Setting {
    /// Requests that nobody answers fail soon.
    pub(crate) const IMPATIENT: u8 = 1;
    /// Packet sequence numbers begin anew soon.
    pub(crate) const WRAPS: u8 = 2;
}

record! {
    /// A packet, or several of a message, that a device might send. Zeros are what is right.
    Packet {
        opcode: u8,
        /// Whom it is for, see [`super::world::World::number`].
        to: u8,
        /// [`Packet::OWN_PAD`] and its kin.
        shape: u8,
        /// The second byte of the BTH.
        bits: u8,
        /// How far it is from the packet that comes next.
        psn: u8,
        /// The bits above these.
        far: u8,
        /// The byte in front of the PSN.
        ack: u8,
        p_key: u8,
        /// The key, and the memory that it is about, see [`super::memory`].
        key: u8,
        at: u16,
        /// What a RETH says of the length, beside what is there.
        dma: u16,
        syndrome: u8,
        msn: u8,
        length: u16,
        fill: u8,
    }
}

impl Packet {
    /// The pad count is that of `bits`, and not what the payload needs.
    pub(crate) const OWN_PAD: u8 = 1;
    /// It lacks bytes at its end: as many as `msn` says.
    pub(crate) const CUT: u8 = 2;
    /// A bit is changed when all is done: that of `msn` and `fill`.
    pub(crate) const DAMAGED: u8 = 4;
    /// The Q_Key is `dma`.
    pub(crate) const OWN_QKEY: u8 = 8;
    /// The ICRC is wrong.
    pub(crate) const NO_ICRC: u8 = 16;
    /// It is followed by 4 KiB of nothing.
    pub(crate) const LONG: u8 = 32;
}

record! {
    /// How a message between processes carries packets. Zeros are what is right.
    Local {
        /// Which of the following are as they stand here, by their bits.
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
    /// How datagrams carry packets. Zeros are what is right.
    Udp {
        /// Who sends them.
        from: u8,
        /// Of the first one.
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

/// What a step does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tag {
    /// Any bytes.
    Raw = 0,
    Packet = 1,
    /// Packets of one message.
    Run = 2,
    /// A request of a queue pair.
    Post = 3,
    Receive = 4,
    /// A queue pair comes to another state.
    Modify = 5,
    Poll = 6,
    /// What is another one on each link.
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

/// Some bytes of the input, and zeros behind them.
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
