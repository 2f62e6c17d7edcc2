//! Checks whether a packet can be the next one of a message, and whether it has the right length.

use crate::connection::Connection;
use crate::operation::{Kind, MAX_MESSAGE_BYTES, MessageEnd, MessageStart, Remote};
use crate::wire::{Headers, Operation};

/// A SEND or a WRITE that has arrived only in part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) start: MessageStart,
    /// The number of bytes received so far.
    pub(crate) at: u32,
}

/// A packet that is valid as the next one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// A packet of a SEND or a WRITE.
    Data {
        /// The state of the message before this packet.
        message: Message,
        /// Whether the message begins with this packet.
        begins: bool,
        /// The properties of the message that its last packet carries, if this is the last one.
        end: Option<MessageEnd>,
    },
    /// The request of a READ or an atomic.
    Fetch(MessageStart),
}

/// The packet is invalid here: its opcode does not continue the message, or its length is wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Invalid;

/// A packet's position in its message.
#[derive(Clone, Copy)]
struct Position {
    kind: Kind,
    begins: bool,
    ends: bool,
}

impl Position {
    #[inline]
    fn of(operation: Operation) -> Option<Self> {
        use Operation as Op;
        let (kind, begins, ends) = match operation {
            Op::SendFirst => (Kind::Send, true, false),
            Op::SendMiddle => (Kind::Send, false, false),
            Op::SendLast | Op::SendLastWithImmediate | Op::SendLastWithInvalidate => {
                (Kind::Send, false, true)
            }
            Op::SendOnly | Op::SendOnlyWithImmediate | Op::SendOnlyWithInvalidate => {
                (Kind::Send, true, true)
            }
            Op::RdmaWriteFirst => (Kind::Write, true, false),
            Op::RdmaWriteMiddle => (Kind::Write, false, false),
            Op::RdmaWriteLast | Op::RdmaWriteLastWithImmediate => (Kind::Write, false, true),
            Op::RdmaWriteOnly | Op::RdmaWriteOnlyWithImmediate => (Kind::Write, true, true),
            _ => return None,
        };
        Some(Self { kind, begins, ends })
    }
}

/// Returns true if a message begins with this packet (FIRST, ONLY, or the request of a READ or an
/// atomic).
pub(crate) fn begins(operation: Operation) -> bool {
    Position::of(operation).is_none_or(|position| position.begins)
}

/// Checks a packet with the expected PSN: the sequence of opcodes (IBTA section 9.7.4.1), and the
/// lengths (C9-92 and C9-94). If a message has several packets, those before the last must be full,
/// and the last one must not be empty. A WRITE must have the length that its RETH states.
#[inline]
pub(crate) fn check(
    connection: &Connection,
    begun: Option<&Message>,
    headers: &Headers,
    payload: &[u8],
) -> Result<Step, Invalid> {
    let operation = headers.bth.opcode.operation();
    let Some(position) = Position::of(operation) else {
        return fetch(begun, headers, payload).map(Step::Fetch);
    };
    let message = match (begun, position.begins) {
        (None, true) => Message { start: start(position.kind, headers)?, at: 0 },
        (Some(begun), false) if begun.start.kind == position.kind => *begun,
        _ => return Err(Invalid),
    };
    let mtu = connection.mtu.bytes();
    let bytes = u32::try_from(payload.len()).map_err(|_| Invalid)?;
    let fits = match (position.begins, position.ends) {
        (_, false) => bytes == mtu,
        (true, true) => bytes <= mtu,
        (false, true) => (1..=mtu).contains(&bytes),
    };
    let length = message.at.checked_add(bytes).ok_or(Invalid)?;
    let in_all = message.start.length;
    let right = match position.ends {
        true => in_all.is_none_or(|in_all| in_all == length),
        false => in_all.is_none_or(|in_all| in_all > length),
    };
    if !fits || !right || length > MAX_MESSAGE_BYTES {
        return Err(Invalid);
    }
    let end = position.ends.then(|| MessageEnd {
        length,
        immediate: headers.imm.map(|imm| imm.immediate),
        invalidate: headers.ieth.map(|ieth| ieth.rkey),
        solicited: headers.bth.solicited,
    });
    Ok(Step::Data { message, begins: position.begins, end })
}

#[inline]
fn start(kind: Kind, headers: &Headers) -> Result<MessageStart, Invalid> {
    if kind == Kind::Send {
        return Ok(MessageStart::send());
    }
    let reth = headers.reth.ok_or(Invalid)?;
    if reth.length > MAX_MESSAGE_BYTES {
        return Err(Invalid);
    }
    Ok(MessageStart::one_sided(kind, Remote { va: reth.va, rkey: reth.rkey }, reth.length))
}

/// Checks the request packet of a READ or an atomic, which has no payload and arrives between
/// messages.
pub(crate) fn fetch(
    begun: Option<&Message>,
    headers: &Headers,
    payload: &[u8],
) -> Result<MessageStart, Invalid> {
    if begun.is_some() || !payload.is_empty() {
        return Err(Invalid);
    }
    let kind = match headers.bth.opcode.operation() {
        Operation::RdmaReadRequest => return start(Kind::Read, headers),
        Operation::CompareSwap => Kind::CompareSwap,
        Operation::FetchAdd => Kind::FetchAdd,
        _ => return Err(Invalid),
    };
    let atomic = headers.atomic.ok_or(Invalid)?;
    let remote = Remote { va: atomic.va, rkey: atomic.rkey };
    let (operand, swap) = match kind {
        Kind::CompareSwap => (atomic.compare, atomic.swap_or_add),
        _ => (atomic.swap_or_add, 0),
    };
    Ok(MessageStart::atomic(kind, remote, operand, swap))
}
