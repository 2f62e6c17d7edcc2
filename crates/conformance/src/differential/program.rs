//! A program of verbs, as data.
//!
//! A program names objects by position (pair, side, slot), never by address or key. So it means the
//! same on every device and in every process, and keeps its meaning when a part is removed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The size of a slot's memory. A registration always starts at the beginning of the slot.
pub(super) const SLOT_BYTES: u32 = 8192;
/// The number of slots at each end.
pub(super) const SLOTS: u8 = 3;
/// The number of memory windows at each end.
pub(super) const WINDOWS: u8 = 2;

/// Pairs of connected queue pairs, and the steps to execute on them one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Program {
    pub(super) pairs: Vec<Pair>,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pair {
    pub(super) transport: Transport,
    /// Whether B uses a shared receive queue.
    pub(super) shared: bool,
    /// Whether B shares its receive queue and protection domain with the first pair's B.
    pub(super) joined: bool,
    /// Whether the pair's ends have memory windows.
    pub(super) windows: bool,
    pub(super) all_signaled: bool,
    /// The first PSN.
    pub(super) psn: u32,
    /// The rights that the queue pairs grant to their peers, as registration flags.
    pub(super) access: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Transport {
    Rc,
    Uc,
    Ud,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Side {
    A,
    B,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// One end of a pair: a queue pair and its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct QpId {
    pub(super) pair: u8,
    pub(super) side: Side,
}

impl QpId {
    pub(super) fn peer(self) -> Self {
        Self { side: self.side.other(), ..self }
    }

    /// Returns true if this window is the end's type 1 window. Only B has one: a type 1 window is
    /// bound by a separate call, and B posts its requests one by one.
    pub(super) fn is_type_1(self, window: u8) -> bool {
        self.side == Side::B && window == 1
    }
}

/// A step of a program. The device is idle after each step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Step {
    /// Posts requests whose order cannot matter, and polls all their completions.
    Phase(Vec<ProgramRequest>),
    /// Registers the first bytes of a slot that is not registered.
    Register {
        end: QpId,
        slot: u8,
        length: u32,
        access: u32,
    },
    Deregister {
        end: QpId,
        slot: u8,
    },
    /// Deallocates a window, whether or not it is bound, and allocates another in its place.
    Renew {
        end: QpId,
        window: u8,
    },
    /// Executes, at the same time, two requests that write the same bytes.
    Race(Race),
    /// Moves a queue pair to the error state.
    Fail {
        end: QpId,
    },
    /// Reallocates the type 2 windows of both queue pairs, and moves the queue pairs through RESET
    /// to RTS.
    Reconnect {
        pair: u8,
    },
    /// Makes a call that is refused and changes nothing.
    Refused {
        end: QpId,
        call: RefusedCall,
    },
}

/// A WRITE by A and a READ by B that store into the same bytes of B. Afterwards, each byte comes
/// from one of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Race {
    pub(super) pair: u8,
    pub(super) length: u32,
    /// The slot and the offset in A of the WRITE's source.
    pub(super) written: (u8, u32),
    /// The slot and the offset in A of the READ's source.
    pub(super) read: (u8, u32),
    /// The slot and the offset in B of the destination of both.
    pub(super) target: (u8, u32),
}

impl Race {
    pub(super) fn ends(self) -> (QpId, QpId) {
        let a = QpId { pair: self.pair, side: Side::A };
        (a, a.peer())
    }

    /// Returns the two requests. Each of them, without the other, is fair.
    pub(super) fn requests(self) -> [ProgramRequest; 2] {
        let (a, b) = self.ends();
        let send = |end, opcode, from: (u8, u32), to: (u8, u32)| {
            let (key, length) = (Key::Own, self.length);
            let element = Element { slot: from.0, offset: from.1, length, key };
            let remote = Remote { slot: to.0, offset: to.1, key };
            ProgramRequest::Send(Send {
                end,
                opcode,
                elements: vec![element],
                remote: Some(remote),
                signaled: true,
                inline: false,
                fenced: false,
                solicited: false,
                operands: (0, 0),
                good_qkey: true,
                bind: None,
                invalidates: None,
            })
        };
        [
            send(a, Opcode::Write, self.written, self.target),
            send(b, Opcode::Read, self.target, self.read),
        ]
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ProgramRequest {
    Receive { end: QpId, elements: Vec<Element> },
    Send(Send),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Send {
    pub(super) end: QpId,
    pub(super) opcode: Opcode,
    pub(super) elements: Vec<Element>,
    /// The location in the peer's memory, for WRITE, READ and atomics.
    pub(super) remote: Option<Remote>,
    pub(super) signaled: bool,
    pub(super) inline: bool,
    pub(super) fenced: bool,
    pub(super) solicited: bool,
    /// For atomics: the value to compare or add, and the value to swap in.
    pub(super) operands: (u64, u64),
    /// Whether a datagram has its receiver's Q_Key.
    pub(super) good_qkey: bool,
    pub(super) bind: Option<Bind>,
    /// The key to invalidate, here or at the peer. The key of a registration is always that of slot
    /// 0.
    pub(super) invalidates: Option<Key>,
}

/// The window and the target of a bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bind {
    pub(super) window: u8,
    pub(super) slot: u8,
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) access: u32,
    /// For a type 2 window: the number that is added to the low byte of the window's first key.
    pub(super) low: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Opcode {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    Bind,
    Invalidate,
    SendInvalidate,
}

impl Opcode {
    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Returns true if the operation consumes a receive.
    pub(super) fn is_received(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm | Self::SendInvalidate)
    }

    /// Returns true if the operation binds or invalidates a window.
    pub(super) fn is_of_windows(self) -> bool {
        matches!(self, Self::Bind | Self::Invalidate | Self::SendInvalidate)
    }

    pub(super) fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }

    /// Returns true if the operation stores bytes in the requester's elements.
    pub(super) fn fetches(self) -> bool {
        self.is_atomic() || self == Self::Read
    }
}

/// A range of a slot, and the key to use for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Element {
    pub(super) slot: u8,
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) key: Key,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remote {
    pub(super) slot: u8,
    pub(super) offset: u32,
    pub(super) key: Key,
}

/// The key that a request uses for a location in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Key {
    /// The key of the slot's registration.
    Own,
    /// The key of the slot's previous registration, which no longer exists.
    Stale,
    /// The key of a second registration of the slot, in another protection domain.
    Foreign,
    /// A key that was never assigned.
    Unknown,
    /// The key of this window, as of its last bind or, if it was never bound, its allocation.
    Window(u8),
}

/// A call that every device refuses immediately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RefusedCall {
    /// A SEND with one element more than the queue pair supports.
    SendElements,
    /// A receive with one element more than the queue pair supports.
    ReceiveElements,
    /// A send with one more byte of inline data than the queue pair supports.
    InlineBytes,
    /// A registration with remote write but without local write.
    RemoteWriteAlone,
    /// A registration with remote atomics but without local write.
    RemoteAtomicAlone,
    /// A registration of memory that may not be accessed.
    Unmapped,
    /// A transition from RTS back to INIT.
    Backwards,
    /// A transition with an attribute that it does not accept.
    ForeignAttribute,
    /// Posting one more receive than the queue has space for.
    FullReceiveQueue,
    /// Posting one more send than the queue has space for.
    FullSendQueue,
    /// Creating a queue pair that can hold more requests than the device supports.
    HugeQueuePair,
    /// Creating a completion queue with more entries than the device supports.
    HugeCompletionQueue,
    /// Creating a completion queue without entries.
    EmptyCompletionQueue,
    /// Destroying a protection domain that has regions.
    DomainInUse,
    /// Destroying a completion queue that a queue pair uses.
    CompletionQueueInUse,
}

impl Program {
    pub(super) fn from_json(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a program is plain data")
    }
}

impl fmt::Display for QpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.pair, self.side)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} [{}; {}]", self.slot, self.offset, self.length)?;
        if self.key == Key::Own { Ok(()) } else { write!(f, " by {:?} key", self.key) }
    }
}

impl fmt::Display for ProgramRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |elements: &[Element]| {
            elements.iter().map(Element::to_string).collect::<Vec<_>>().join(" + ")
        };
        let send = match self {
            Self::Receive { end, elements } => {
                return write!(f, "{end}: receive into {}", list(elements));
            }
            Self::Send(send) => send,
        };
        write!(f, "{}: {:?} {}", send.end, send.opcode, list(&send.elements))?;
        if let Some(remote) = send.remote {
            write!(f, ", slot {} [{}] by {:?} key there", remote.slot, remote.offset, remote.key)?;
        }
        if send.opcode.is_atomic() {
            write!(f, ", operands {:?}", send.operands)?;
        }
        if let Some(bind) = send.bind {
            write!(f, " {bind:?}")?;
        }
        if let Some(key) = send.invalidates {
            write!(f, ", invalidates {key:?} key")?;
        }
        let flags = [
            (!send.signaled, "unsignaled"),
            (send.inline, "inline"),
            (send.fenced, "fenced"),
            (send.solicited, "solicited"),
            (!send.good_qkey, "wrong Q_Key"),
        ];
        flags.iter().filter(|flag| flag.0).try_for_each(|flag| write!(f, ", {}", flag.1))
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, pair) in self.pairs.iter().enumerate() {
            writeln!(f, "pair {n}: {pair:?}")?;
        }
        for (n, step) in self.steps.iter().enumerate() {
            match step {
                Step::Phase(requests) => {
                    writeln!(f, "step {n}: phase")?;
                    for (i, request) in requests.iter().enumerate() {
                        writeln!(f, "    {}: {request}", wr_id(n, i))?;
                    }
                }
                Step::Register { end, slot, length, access } => {
                    writeln!(
                        f,
                        "step {n}: {end}: register slot {slot} [{length}], access {access:#x}"
                    )?;
                }
                Step::Deregister { end, slot } => {
                    writeln!(f, "step {n}: {end}: deregister slot {slot}")?;
                }
                Step::Fail { end } => writeln!(f, "step {n}: {end}: to error")?,
                Step::Renew { end, window } => writeln!(f, "step {n}: {end}: new window {window}")?,
                Step::Race(race) => writeln!(f, "step {n}: {race:?}")?,
                Step::Reconnect { pair } => writeln!(f, "step {n}: {pair}: reset and reconnect")?,
                Step::Refused { end, call } => writeln!(f, "step {n}: {end}: refused {call:?}")?,
            }
        }
        Ok(())
    }
}

/// Returns the ID of a request. The same number is its immediate data.
pub(super) fn wr_id(step: usize, request: usize) -> u64 {
    1000 * (step as u64 + 1) + request as u64
}
