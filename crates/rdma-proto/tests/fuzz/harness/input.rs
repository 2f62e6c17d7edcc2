//! What an input of the responder and of the requester is made of: a [`Setting`], then steps. A step is a byte,
//! a [`Tag`], and a record: its numbers one after the other, the lower bytes first.

use arbitrary::Unstructured;
use rdma_proto::wire::Packet;
use test_support::fuzz::trace;
use test_support::fuzz_record as record;

pub(crate) use test_support::fuzz::number;

record! {
    /// Where all begins.
    Setting {
        /// See [`Service::of`].
        service: u8,
        mtu: u8,
        /// How many READs and atomics may be in flight.
        resources: u8,
        psn: u32,
        /// Of a requester.
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
        /// Its PSN, from the expected one.
        ahead: i8,
        /// Where its memory begins.
        at: u16,
        /// What it says of its length, see [`length`].
        length: u16,
        /// How much payload its last packet has, see [`payload`].
        payload: u16,
        operand: u8,
        /// How many packets follow it, modulo 8.
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
    /// The last packet is one of any kind.
    pub(crate) const ANY_LAST: u8 = 64;
}

record! {
    /// The end is asked for what it has to send, so often.
    Poll {
        times: u8,
        /// How many packets more than one the room holds, and a bit.
        room: u8,
    }
}

record! {
    /// A request is posted.
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
    /// Its memory is unreachable behind its first packet.
    pub(crate) const CUT: u8 = 32;
}

record! {
    /// A response packet, or a run of them.
    Answer {
        /// [`Answer::RIGHT`] is what the oldest request waits for.
        operation: u8,
        /// [`Answer::FROM_END`] and its kin.
        flags: u8,
        /// Its PSN, from what the flags say.
        ahead: i8,
        syndrome: u8,
        /// From the number of messages that were sent.
        msn: i8,
        /// See [`payload`]; [`Answer::RIGHT_PAYLOAD`] is what the oldest request waits for.
        payload: u16,
        more: u8,
    }
}

impl Answer {
    pub(crate) const RIGHT: u8 = 0xff;
    pub(crate) const RIGHT_PAYLOAD: u16 = 0xfffd;
    /// The PSN counts from the first that was never sent, instead of the oldest that has no answer.
    pub(crate) const FROM_END: u8 = 1;
    pub(crate) const CONGESTED: u8 = 2;
    pub(crate) const OTHER_SERVICE: u8 = 4;
}

/// What a step does. [`Raw`](Self::Raw) is followed by two bytes, how many others follow these: the packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tag {
    Packet = 0,
    Raw = 3,
    Poll = 4,
    /// A receive, or a request.
    Post = 5,
    /// A byte follows: what it switches.
    Switch = 6,
    /// A byte or four follow: what the host says next, or how much time goes by.
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

/// The packet of [`Tag::Raw`].
pub(crate) fn raw<'a>(input: &mut Unstructured<'a>) -> &'a [u8] {
    let length = usize::from(number::<u16>(input)).min(input.len());
    let bytes = input.bytes(length).expect("so many are there");
    trace(&Packet::parse(bytes));
    bytes
}

/// A length of a message: all that are short, and those about the longest that may be.
pub(crate) fn length(code: u16) -> u32 {
    match code {
        0xffff => u32::MAX,
        0xfffe => 1 << 31,
        0xfffd => (1 << 31) + 1,
        0xfffc => 1 << 23,
        short => short.into(),
    }
}

/// A length of a payload: a full one, or any that is not much longer.
pub(crate) fn payload(code: u16, mtu: u32) -> usize {
    let length = match code {
        0xffff => mtu,
        0xfffe => mtu + 1,
        other => u32::from(other) % (mtu + 8),
    };
    length as usize
}
