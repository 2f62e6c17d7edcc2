//! The format of an input of the responder and of the requester: a [`Setting`], then steps. A step is a byte, a
//! [`Tag`], and a record: consecutive numbers with the lower bytes first.

use arbitrary::Unstructured;
use rdma_proto::wire::Packet;
use test_support::fuzz::trace;
use test_support::fuzz_record as record;

pub(crate) use test_support::fuzz::number;

record! {
    /// The initial state.
    Setting {
        /// See [`Service::of`].
        service: u8,
        mtu: u8,
        /// The number of READs and atomics that may be in flight.
        resources: u8,
        psn: u32,
        /// Only for a requester.
        timeout: u8,
        retries: u8,
        rnr_retries: u8,
        window: u8,
    }
}

record! {
    /// A request packet, or a run of them.
    Ask {
        operation: u8,
        /// [`Ask::ACK_REQUEST`] and its kin.
        flags: u8,
        /// Its PSN, relative to the expected one.
        ahead: i8,
        /// The offset in its memory.
        at: u16,
        /// The length in its headers, see [`length`].
        length: u16,
        /// The payload of its last packet, see [`payload`].
        payload: u16,
        operand: u8,
        /// The number of packets that follow it, modulo 8.
        more: u8,
    }
}

impl Ask {
    pub(crate) const ACK_REQUEST: u8 = 1;
    pub(crate) const SOLICITED: u8 = 2;
    pub(crate) const OTHER_KEY: u8 = 4;
    pub(crate) const OTHER_SERVICE: u8 = 8;
    /// The last packet of a run has headers of its own.
    pub(crate) const LAST: u8 = 16;
    /// The packets of a run are not full.
    pub(crate) const SHORT: u8 = 32;
    /// The last packet has any kind.
    pub(crate) const ANY_LAST: u8 = 64;
}

record! {
    /// Polls the end for packets this many times.
    Poll {
        times: u8,
        /// The number of packets beyond one that fit into the buffer, which is this many bytes larger.
        room: u8,
    }
}

record! {
    /// Posts a request.
    Post {
        kind: u8,
        /// [`Post::FENCE`] and its kin.
        flags: u8,
        /// See [`length`].
        length: u16,
        at: u16,
    }
}

impl Post {
    pub(crate) const FENCE: u8 = 1;
    pub(crate) const IMMEDIATE: u8 = 2;
    pub(crate) const INVALIDATE: u8 = 4;
    pub(crate) const UNREACHABLE: u8 = 8;
    pub(crate) const SOLICITED: u8 = 16;
    /// Its memory is unreachable after its first packet.
    pub(crate) const CUT: u8 = 32;
}

record! {
    /// A response packet, or a run of them.
    Answer {
        /// [`Answer::RIGHT`] is the response that the oldest request waits for.
        operation: u8,
        /// [`Answer::FROM_END`] and its kin.
        flags: u8,
        /// Its PSN, relative to the one that the flags select.
        ahead: i8,
        syndrome: u8,
        /// The MSN, relative to the number of sent messages.
        msn: i8,
        /// See [`payload`]; [`Answer::RIGHT_PAYLOAD`] is the payload that the oldest request waits for.
        payload: u16,
        more: u8,
    }
}

impl Answer {
    pub(crate) const RIGHT: u8 = 0xff;
    pub(crate) const RIGHT_PAYLOAD: u16 = 0xfffd;
    /// The PSN counts from the first that was never sent, instead of the oldest unanswered one.
    pub(crate) const FROM_END: u8 = 1;
    pub(crate) const CONGESTED: u8 = 2;
    pub(crate) const OTHER_SERVICE: u8 = 4;
}

/// The kind of a step. [`Raw`](Self::Raw) is followed by the length of a packet in two bytes, and by the packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tag {
    Packet = 0,
    Raw = 3,
    Poll = 4,
    /// A receive, or a request.
    Post = 5,
    /// Followed by a byte that selects what to switch.
    Switch = 6,
    /// Followed by a byte that selects the host's next answer, or by four bytes with the time that passes.
    Next = 7,
}

impl Tag {
    pub(crate) fn read(input: &mut Unstructured<'_>) -> Self {
        let tag = match number::<u8>(input) % 8 {
            0..=2 => Self::Packet,
            3 => Self::Raw,
            4 => Self::Poll,
            5 => Self::Post,
            6 => Self::Switch,
            _ => Self::Next,
        };
        trace(&tag);
        tag
    }
}

/// Reads the packet of [`Tag::Raw`].
pub(crate) fn raw<'a>(input: &mut Unstructured<'a>) -> &'a [u8] {
    let length = usize::from(number::<u16>(input)).min(input.len());
    let bytes = input.bytes(length).expect("at most the rest of the input");
    trace(&Packet::parse(bytes));
    bytes
}

/// Returns the length of a message: all short lengths, and some around the maximum.
pub(crate) fn length(code: u16) -> u32 {
    match code {
        0xffff => u32::MAX,
        0xfffe => 1 << 31,
        0xfffd => (1 << 31) + 1,
        0xfffc => 1 << 23,
        short => short.into(),
    }
}

/// Returns the length of a payload: a full packet, or anything slightly longer.
pub(crate) fn payload(code: u16, mtu: u32) -> usize {
    let length = match code {
        0xffff => mtu,
        0xfffe => mtu + 1,
        other => u32::from(other) % (mtu + 8),
    };
    length as usize
}
