//! A workload of messages and streams: settings, and a list of operations.
//!
//! Any operation can be removed, and the script can still be run. An operation is skipped if its object
//! no longer exists, or is of the other kind.

use std::fmt;

use rdma_async::message::Options;

use crate::script::Weather;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// The seed of the simulated network.
    pub(crate) seed: u64,
    pub(crate) settings: Settings,
    pub(crate) operations: Vec<Operation>,
}

/// The objects that exist at the start. Connection `n` has the ends `2n` and `2n + 1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) infiniband: bool,
    /// Whether the devices execute requests at later polls, in random order.
    pub(crate) deferred: bool,
    pub(crate) weather: Weather,
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) connections: Vec<Connection>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) devices: [usize; 2],
    pub(crate) is_stream: bool,
    /// Whether the second end sends frames that break the protocol.
    pub(crate) is_hostile: bool,
    pub(crate) limits: [Limits; 2],
}

/// The limits of an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) receives: u32,
    pub(crate) sends: u32,
    pub(crate) frame_bytes: u32,
    pub(crate) window_bytes: u32,
    pub(crate) max_message: u32,
    pub(crate) eager_bytes: u32,
    pub(crate) offer_bytes: u32,
    pub(crate) fetch_bytes: u32,
    pub(crate) operations: u32,
    pub(crate) calls: u32,
}

/// The function that sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Send,
    /// `send_buffer`, with a buffer of the pool.
    SendBuffer,
    Post,
}

/// An operation of an end, or a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send {
        end: usize,
        length: usize,
        by: By,
    },
    /// Sends a frame of a hostile end.
    Frame {
        end: usize,
        seed: u64,
    },
    /// Sends a request, and waits for the reply.
    Call {
        end: usize,
        length: usize,
    },
    /// Replies to an open request. Without a length, drops the request.
    Answer {
        end: usize,
        nth: usize,
        length: Option<usize>,
    },
    /// Drops the future of a send, a call or a reply.
    Cancel {
        end: usize,
        nth: usize,
    },
    /// Lets the reader receive this number of messages or chunks.
    Receive {
        end: usize,
        count: usize,
    },
    /// Lets the reader keep this number of messages or chunks.
    Keep {
        end: usize,
        count: usize,
    },
    /// Drops the futures with which an end receives, reads or writes, and begins them again.
    Interrupt {
        end: usize,
    },
    /// Lets the writer of a stream write this number of bytes.
    Write {
        end: usize,
        length: usize,
    },
    /// Waits until the peer's device has received all messages. Then destroys the queue pair if the end `exits`.
    Flush {
        end: usize,
        exits: bool,
    },
    /// Ends the messages or the stream of an end. Then destroys the queue pair if the end `exits`.
    Finish {
        end: usize,
        exits: bool,
    },
    /// Drops an end.
    Leave {
        end: usize,
    },
    /// Destroys the queue pair of an end.
    Kill {
        end: usize,
    },
    Pass {
        nanoseconds: u64,
    },
    /// Changes the behaviour of a link in one direction.
    Link {
        from: usize,
        to: usize,
        weather: Weather,
    },
    /// Loses all packets of a link in one direction. This time is so short that a queue pair with all retries does not
    /// give up.
    Blink {
        from: usize,
        to: usize,
        nanoseconds: u64,
    },
    Port {
        device: usize,
        up: bool,
    },
}

impl Settings {
    /// Returns true if this end breaks the protocol.
    pub(crate) fn is_hostile(&self, end: usize) -> bool {
        end % 2 == 1 && self.connections[end / 2].is_hostile
    }
}

impl Limits {
    pub(crate) fn options(&self) -> Options {
        Options::new()
            .receives(self.receives)
            .sends(self.sends)
            .frame_bytes(self.frame_bytes)
            .window_bytes(self.window_bytes)
            .max_message(self.max_message)
            .eager_bytes(self.eager_bytes)
            .offer_bytes(self.offer_bytes)
            .fetch_bytes(self.fetch_bytes)
            .operations(self.operations)
            .calls(self.calls)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, settings, operations } = self;
        let Settings { devices, weather, timeout, retries, .. } = settings;
        let link = if settings.infiniband { "InfiniBand" } else { "RoCE" };
        let deferred = if settings.deferred { ", deferred" } else { "" };
        writeln!(f, "{devices} devices of {link}{deferred}, seed {seed:#x}")?;
        writeln!(f, "links: {weather}; timeout {timeout}, retries {retries}")?;
        for (n, Connection { devices: [a, b], is_stream, is_hostile, limits }) in
            settings.connections.iter().enumerate()
        {
            let kind = if *is_stream { "stream" } else { "messages" };
            let kind = format!("{kind}{}", if *is_hostile { ", hostile" } else { "" });
            writeln!(f, "c{n}: {kind}, e{} of d{a} and e{} of d{b}", 2 * n, 2 * n + 1)?;
            limits.iter().try_for_each(|limits| writeln!(f, "    {limits:?}"))?;
        }
        operations.iter().try_for_each(|operation| writeln!(f, "  {operation:?}"))
    }
}
