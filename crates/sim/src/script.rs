//! A workload: settings, and a list of operations that are executed in order.
//!
//! Each part can be removed or reduced, and the script stays fair. An operation is skipped if its
//! object no longer exists or if there is no space for it.

use std::time::Duration;

use rdma_soft::LinkModel;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// The seed of the network.
    pub(crate) seed: u64,
    pub(crate) settings: Settings,
    pub(crate) operations: Vec<Operation>,
    /// If set, the run ends after this many packets.
    pub(crate) packets: Option<u64>,
}

/// The objects at the start. Connection `n` has the ends `2n` and `2n + 1`. The numbers after all
/// connections belong to the datagram queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) infiniband: bool,
    pub(crate) devices: usize,
    pub(crate) weather: Weather,
    /// The longest message, in bytes.
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
    /// Whether each end uses its device's shared receive queue.
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
    /// Changes a link, in one direction.
    Link {
        from: usize,
        to: usize,
        weather: Weather,
    },
    Port {
        device: usize,
        up: bool,
    },
    /// Destroys a device's queue pairs without notice.
    Die {
        device: usize,
    },
    /// Deregisters the memory to which peers write.
    Deregister {
        end: usize,
    },
    /// Moves the queue pair to the error state.
    Error {
        end: usize,
    },
    /// Resets and reconnects both ends.
    Reconnect {
        connection: usize,
    },
    /// Deallocates a window.
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
    /// The offset in the target for a WRITE or a READ; the index of the word for an atomic.
    pub(crate) at: usize,
    pub(crate) immediate: bool,
    pub(crate) fenced: bool,
    pub(crate) signaled: bool,
    pub(crate) inline: bool,
    pub(crate) elements: usize,
    /// The queue pair to which a datagram is sent.
    pub(crate) to: usize,
    /// The group to which a datagram is sent instead.
    pub(crate) group: Option<usize>,
    /// The window that is bound or invalidated, or through which the target is accessed. A SEND
    /// invalidates it.
    pub(crate) window: Option<Window>,
}

/// A window, and one of the keys that it has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) slot: usize,
    /// The number of binds since the window had the key.
    pub(crate) back: usize,
    /// Whether to skip the request if it may fail.
    pub(crate) careful: bool,
    /// The parameters of a bind: the offset in the target, the number of bytes, and the rights.
    pub(crate) from: usize,
    pub(crate) bytes: usize,
    pub(crate) rights: u8,
    /// Moves the request so that it ends at the last byte of the window, or one byte beyond it.
    pub(crate) edge: Option<bool>,
}

/// The number of windows of a queue pair: the first is of type 1, the others of type 2.
pub(crate) const SLOTS: usize = 3;
/// The number of multicast groups.
pub(crate) const GROUPS: usize = 2;
/// The rights of a window.
pub(crate) const READS: u8 = 1;
pub(crate) const WRITES: u8 = 2;
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

    /// Returns the probability that a packet suffers a fault.
    pub(crate) fn faults(&self) -> u32 {
        self.loss + self.duplication + self.reordering + self.corruption
    }

    /// Returns the maximum delay of a packet, before which two megabytes may be queued. Its answer
    /// takes at most as long again.
    pub(crate) fn longest(&self) -> Duration {
        let sending = (2u64 << 23).saturating_mul(1_000_000_000);
        let sending = sending.checked_div(self.bits_per_second).unwrap_or(0);
        Duration::from_nanos(10 * (self.latency_ns + self.jitter_ns) + sending)
    }
}

impl Kind {
    /// Returns true if the request sends nothing to the peer.
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Self::Bind | Self::Invalidate)
    }

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Returns true if the request sends its own bytes.
    pub(crate) fn moves(self) -> bool {
        matches!(self, Self::Send | Self::Write)
    }
}

impl Connection {
    /// Returns true if no timer detects a missing answer.
    pub(crate) fn waits_for_ever(&self) -> bool {
        self.service == Service::Reliable && self.timeout == 0
    }
}

impl Settings {
    /// The number of queue pairs.
    pub(crate) fn ends(&self) -> usize {
        2 * self.connections.len() + self.datagrams.len()
    }
}
