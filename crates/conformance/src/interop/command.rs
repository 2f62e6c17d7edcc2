//! The commands that a device executes, and its answers.

use serde::{Deserialize, Serialize};

/// The transport service of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Service {
    Rc,
    Uc,
    Ud,
}

/// A range of an end's memory, given as offset and length.
pub(super) type Piece = (usize, usize);

/// A command to a station, which has at most one end at a time: a queue pair, its completion
/// queues, and a region. The answer is named if it is not [`Answer::Done`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Command {
    /// Describes the station. Answer: [`Answer::Facts`]
    Describe,
    /// Creates an end in place of the previous one. Answer: [`Answer::Destination`]
    Create {
        service: Service,
        bytes: usize,
        remote_rights: bool,
    },
    /// Moves the end's queue pair to RTS, and creates the address handle if the service is UD.
    Connect {
        peer: Destination,
        tuning: Tuning,
    },
    /// Fills each range with the pattern of the seed given for it.
    Fill {
        ranges: Vec<(Piece, u64)>,
    },
    /// Finds the first byte that matches none of the patterns allowed for its range. Answer:
    /// [`Answer::Wrong`]
    Compare {
        ranges: Vec<(Piece, Vec<u64>)>,
    },
    /// Reads a few bytes. Answer: [`Answer::Bytes`]
    Read {
        piece: Piece,
    },
    /// Writes a few bytes.
    Write {
        at: usize,
        bytes: Vec<u8>,
    },
    Receive {
        wr_id: u64,
        pieces: Vec<Piece>,
    },
    /// Posts a list of send requests in one call.
    Post {
        requests: Vec<SendWr>,
    },
    /// Polls until there are `count` completions or the time limit has passed. Answer:
    /// [`Answer::Completions`]
    Take {
        queue: Queue,
        count: usize,
        limit_ms: u64,
    },
    /// Binds a type 2 window to a range. Answer: [`Answer::Key`]
    Bind {
        piece: Piece,
    },
    DestroyQueuePair,
    /// Drops the station's end.
    Drop,
    /// Closes the connection between the processes. This is the last command.
    Leave,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Facts(Facts),
    Destination(Destination),
    Wrong(Option<usize>),
    Bytes(Vec<u8>),
    Completions(Vec<Completion>),
    Key(u32),
    Failed(String),
}

/// The properties of a station.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) device: String,
    pub(super) rxe: bool,
    pub(super) ethernet: bool,
    /// The GID in text form.
    pub(super) gid: String,
    /// The port's MTU, in bytes.
    pub(super) mtu: u32,
    /// Whether the device has type 2 windows.
    pub(super) windows: bool,
}

/// The address of an end, and that of its region.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Destination {
    pub(super) qpn: u32,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    pub(super) address: u64,
    pub(super) rkey: u32,
}

/// The options of a connection.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Tuning {
    /// The MTU, in bytes.
    pub(super) mtu: u32,
    /// The code of the timeout: 4.096 µs · 2^code.
    pub(super) timeout: u8,
    pub(super) retries: u8,
    pub(super) rnr_retries: u8,
    pub(super) min_rnr_timer: u8,
}

impl Tuning {
    /// Returns options for a connection that should survive delays and losses: a timeout of 67 ms,
    /// and as many retries as possible.
    pub(super) const fn patient(mtu: u32) -> Self {
        Self { mtu, timeout: 14, retries: 7, rnr_retries: 7, min_rnr_timer: 12 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Queue {
    Send,
    Receive,
}

/// A send request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) operation: Operation,
    pub(super) pieces: Vec<Piece>,
    /// The remote address and key, for operations that need them.
    pub(super) remote: (u64, u32),
    /// The immediate data, in host order.
    pub(super) imm: Option<u32>,
    pub(super) inline: bool,
    /// The Q_Key, for datagrams.
    pub(super) qkey: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Operation {
    Send,
    Write,
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
    SendInvalidate { key: u32 },
}

/// A completion, with C's numeric codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Completion {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) bytes: u32,
    /// The immediate data, in host order; valid only if its flag is set.
    pub(super) imm: u32,
    /// The invalidated key; valid only if its flag is set.
    pub(super) invalidated: u32,
    pub(super) flags: u32,
    pub(super) source: u32,
}
