//! What a workload is: settings, and a list of operations that are done one after the other.
//!
//! Each part can be taken away or made smaller and leaves a fair script: an operation that has no
//! object any more, or no space, is left out when its turn comes.

use std::time::Duration;

use rdma_soft::LinkModel;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// Of the network.
    pub(crate) seed: u64,
    pub(crate) settings: Settings,
    pub(crate) operations: Vec<Operation>,
    /// Nothing more is done when so many packets were sent.
    pub(crate) packets: Option<u64>,
}

/// What is there from the beginning. A connection has two ends: those of connection `n` are `2n` and `2n + 1`. Behind
/// them come the queue pairs for datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) infiniband: bool,
    pub(crate) devices: usize,
    pub(crate) weather: Weather,
    /// The longest message, in bytes.
    pub(crate) longest: usize,
    pub(crate) connections: Vec<Connection>,
    /// The device of each queue pair for datagrams.
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
    /// Whether the ends take receives from the queue that their device shares.
    pub(crate) shared: [bool; 2],
}

/// What a link does. Probabilities are of 10,000.
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
    /// A request is posted.
    Post {
        end: usize,
        request: ScriptRequest,
    },
    /// So many receives are posted, each of so many elements.
    Receive {
        end: usize,
        count: usize,
        elements: usize,
    },
    Pass {
        nanoseconds: u64,
    },
    /// A link changes, in one direction.
    Link {
        from: usize,
        to: usize,
        weather: Weather,
    },
    Port {
        device: usize,
        up: bool,
    },
    /// The queue pairs of a device are destroyed without a word.
    Die {
        device: usize,
    },
    /// What peers write to is deregistered.
    Deregister {
        end: usize,
    },
    /// The queue pair goes to the error state.
    Error {
        end: usize,
    },
    /// Both ends are reset and connected again.
    Reconnect {
        connection: usize,
    },
    /// A window is deallocated.
    Deallocate {
        end: usize,
        slot: usize,
    },
    /// A queue pair for datagrams joins a group.
    Join {
        end: usize,
        group: usize,
    },
    /// It leaves it.
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
    /// A window of the queue pair itself is bound.
    Bind,
    /// It is taken back.
    Invalidate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScriptRequest {
    pub(crate) kind: Kind,
    pub(crate) length: usize,
    /// Where in the target, of a WRITE or a READ; which word, of an atomic.
    pub(crate) at: usize,
    pub(crate) immediate: bool,
    pub(crate) fenced: bool,
    pub(crate) signaled: bool,
    pub(crate) inline: bool,
    pub(crate) elements: usize,
    /// To which queue pair, of a datagram.
    pub(crate) to: usize,
    /// To which group instead.
    pub(crate) group: Option<usize>,
    /// The window that is bound or taken back, or through which the target is used. A SEND invalidates it.
    pub(crate) window: Option<Window>,
}

/// Which window, and which of the keys that it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) slot: usize,
    /// How many binds ago it had the key.
    pub(crate) back: usize,
    /// It is left out if it may fail.
    pub(crate) careful: bool,
    /// What a bind makes it: from where in the target, how many bytes, and with which rights.
    pub(crate) from: usize,
    pub(crate) bytes: usize,
    pub(crate) rights: u8,
    /// Who uses it ends with its last byte, or one behind it.
    pub(crate) edge: Option<bool>,
}

/// Windows of a queue pair: the first is of type 1, the others of type 2.
pub(crate) const SLOTS: usize = 3;
/// Multicast groups.
pub(crate) const GROUPS: usize = 2;
/// The rights of a window.
pub(crate) const READS: u8 = 1;
pub(crate) const WRITES: u8 = 2;
pub(crate) const ATOMICS: u8 = 4;

/// In 10,000.
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

    /// How likely it is that something is wrong with a packet.
    pub(crate) fn faults(&self) -> u32 {
        self.loss + self.duplication + self.reordering + self.corruption
    }

    /// No packet comes later than this, nor its answer later than that once more: two megabytes may be before it.
    pub(crate) fn longest(&self) -> Duration {
        let sending = (2u64 << 23).saturating_mul(1_000_000_000);
        let sending = sending.checked_div(self.bits_per_second).unwrap_or(0);
        Duration::from_nanos(10 * (self.latency_ns + self.jitter_ns) + sending)
    }
}

impl Kind {
    /// Whether its peer hears nothing of it.
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Self::Bind | Self::Invalidate)
    }

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Whether it sends its own bytes.
    pub(crate) fn moves(self) -> bool {
        matches!(self, Self::Send | Self::Write)
    }
}

impl Connection {
    /// Whether no timer says that nobody answers.
    pub(crate) fn waits_for_ever(&self) -> bool {
        self.service == Service::Reliable && self.timeout == 0
    }
}

impl Settings {
    /// How many queue pairs there are.
    pub(crate) fn ends(&self) -> usize {
        2 * self.connections.len() + self.datagrams.len()
    }
}
