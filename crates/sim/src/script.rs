//! A workload: settings, and a list of operations that are executed one after the other.
//!
//! Any part can be removed or reduced, and the script can still be run. An operation is skipped if
//! its object no longer exists, or if there is no space for it.

use std::time::Duration;

use rdma_soft::LinkModel;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// The seed of the simulated network.
    pub(crate) seed: u64,
    pub(crate) settings: Settings,
    pub(crate) operations: Vec<Operation>,
    /// If set, the run ends after this number of packets.
    pub(crate) packets: Option<u64>,
}

/// The objects that exist at the start. Connection `n` has the queue pairs `2n` and `2n + 1`. The
/// numbers after those belong to the datagram queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) infiniband: bool,
    pub(crate) devices: usize,
    pub(crate) weather: Weather,
    /// The maximum length of a message, in bytes.
    pub(crate) longest: usize,
    pub(crate) connections: Vec<Connection>,
    /// The device of each datagram queue pair.
    pub(crate) datagrams: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Reliable,
    Unreliable,
    Datagram,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) devices: [usize; 2],
    pub(crate) service: Service,
    pub(crate) mtu: u32,
    pub(crate) psn: u32,
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) rd_atomic: u8,
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    /// Whether each of the two ends uses its device's shared receive queue.
    pub(crate) shared: [bool; 2],
}

/// The behaviour of a link. Probabilities are in units of 1/10,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weather {
    pub(crate) latency_ns: u64,
    pub(crate) jitter_ns: u64,
    pub(crate) bits_per_second: u64,
    pub(crate) loss: u32,
    pub(crate) duplication: u32,
    pub(crate) reordering: u32,
    pub(crate) corruption: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Posts a request.
    Post {
        end: usize,
        request: ScriptRequest,
    },
    /// Posts `count` receives with `elements` elements each.
    Receive {
        end: usize,
        count: usize,
        elements: usize,
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
    Port {
        device: usize,
        up: bool,
    },
    /// Destroys a device's queue pairs without notifying their peers.
    Die {
        device: usize,
    },
    /// Deregisters the target, which is the memory that peers access.
    Deregister {
        end: usize,
    },
    /// Moves a queue pair to the error state.
    Error {
        end: usize,
    },
    /// Resets and reconnects both ends of a connection.
    Reconnect {
        connection: usize,
    },
    /// Deallocates one of a queue pair's own windows.
    Deallocate {
        end: usize,
        slot: usize,
    },
    /// Makes a datagram queue pair join a group.
    Join {
        end: usize,
        group: usize,
    },
    /// Makes a datagram queue pair leave a group.
    Leave {
        end: usize,
        group: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write,
    Read,
    FetchAdd,
    CompareSwap,
    /// Binds one of the queue pair's own windows.
    Bind,
    /// Invalidates one of the queue pair's own windows.
    Invalidate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScriptRequest {
    pub(crate) kind: Kind,
    pub(crate) length: usize,
    /// For a WRITE or a READ, the offset in the target; for an atomic, the index of the word.
    pub(crate) at: usize,
    pub(crate) immediate: bool,
    pub(crate) fenced: bool,
    pub(crate) signaled: bool,
    pub(crate) inline: bool,
    pub(crate) elements: usize,
    /// The queue pair to which a datagram is sent, unless `group` is set.
    pub(crate) to: usize,
    /// The group to which a datagram is sent.
    pub(crate) group: Option<usize>,
    /// The window that the request binds, invalidates, or uses to access the target. A SEND
    /// invalidates the window at its receiver.
    pub(crate) window: Option<Window>,
}

/// A window, and which of its keys to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) slot: usize,
    /// Which key of the window to use: the one that it got this number of binds ago (0: the
    /// latest).
    pub(crate) back: usize,
    /// Whether the request is changed or skipped if it may fail.
    pub(crate) careful: bool,
    /// For a bind: the offset in the target at which the window begins.
    pub(crate) from: usize,
    /// For a bind: the number of bytes that the window covers.
    pub(crate) bytes: usize,
    /// For a bind: the rights that the window grants.
    pub(crate) rights: u8,
    /// If set, a READ or a WRITE is moved. With `false`, it ends with the last byte of the window;
    /// with `true`, one byte after that.
    pub(crate) edge: Option<bool>,
}

/// The number of windows that a queue pair has. The first one is of type 1, the others are of type
/// 2.
pub(crate) const SLOTS: usize = 3;
/// The number of multicast groups.
pub(crate) const GROUPS: usize = 2;
/// The right to read through a window.
pub(crate) const READS: u8 = 1;
/// The right to write through a window.
pub(crate) const WRITES: u8 = 2;
/// The right to execute atomics through a window.
pub(crate) const ATOMICS: u8 = 4;

/// A probability of one, in units of 1/10,000.
pub(crate) const ALWAYS: u32 = 10_000;

impl Weather {
    pub(crate) const CLEAR: Self = Self {
        latency_ns: 1_000,
        jitter_ns: 0,
        bits_per_second: 100_000_000_000,
        loss: 0,
        duplication: 0,
        reordering: 0,
        corruption: 0,
    };

    pub(crate) const CUT: Self = Self { loss: ALWAYS, ..Self::CLEAR };

    pub(crate) fn model(&self) -> LinkModel {
        let of = |n: u32| f64::from(n) / f64::from(ALWAYS);
        LinkModel::new()
            .latency(Duration::from_nanos(self.latency_ns))
            .jitter(Duration::from_nanos(self.jitter_ns))
            .bandwidth(self.bits_per_second)
            .loss(of(self.loss))
            .duplication(of(self.duplication))
            .reordering(of(self.reordering))
            .corruption(of(self.corruption))
    }

    /// Returns the probability that a packet is affected by a fault.
    pub(crate) fn faults(&self) -> u32 {
        self.loss + self.duplication + self.reordering + self.corruption
    }

    /// Returns the maximum delay of a packet if two MiB are queued ahead of it. Its answer takes
    /// at most as long.
    pub(crate) fn longest(&self) -> Duration {
        let sending = (2u64 << 23).saturating_mul(1_000_000_000);
        let sending = sending.checked_div(self.bits_per_second).unwrap_or(0);
        Duration::from_nanos(10 * (self.latency_ns + self.jitter_ns) + sending)
    }
}

impl Kind {
    /// Returns true if the request is executed without the peer.
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Self::Bind | Self::Invalidate)
    }

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Returns true if the request sends data from local memory.
    pub(crate) fn moves(self) -> bool {
        matches!(self, Self::Send | Self::Write)
    }
}

impl Connection {
    /// Returns true if the requester waits indefinitely for a missing answer, because it has no
    /// timeout.
    pub(crate) fn waits_for_ever(&self) -> bool {
        self.service == Service::Reliable && self.timeout == 0
    }
}

impl Settings {
    /// Returns the number of queue pairs.
    pub(crate) fn ends(&self) -> usize {
        2 * self.connections.len() + self.datagrams.len()
    }
}
