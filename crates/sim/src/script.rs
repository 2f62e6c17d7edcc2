//! What a workload is: settings, and a list of operations that are done one after the other.
//!
//! Each part can be taken away or made smaller and leaves a fair script: an operation that has no object any more, or
//! no room, is left out when its turn comes.

use std::fmt;
use std::time::Duration;

use rdma_soft::LinkModel;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// Of the network.
    pub(crate) seed: u64,
    pub(crate) settings: Settings,
    pub(crate) operations: Vec<Operation>,
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
        request: Request,
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write,
    Read,
    FetchAdd,
    CompareSwap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
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
}

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

impl Settings {
    /// How many queue pairs there are.
    pub(crate) fn ends(&self) -> usize {
        2 * self.connections.len() + self.datagrams.len()
    }
}

impl fmt::Display for Weather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.loss >= ALWAYS {
            return write!(f, "cut");
        }
        write!(f, "{} ns", self.latency_ns)?;
        let rest = [
            (self.jitter_ns, "jitter"),
            (self.bits_per_second, "bit/s"),
            (self.loss.into(), "loss"),
            (self.duplication.into(), "duplication"),
            (self.reordering.into(), "reordering"),
            (self.corruption.into(), "corruption"),
        ];
        rest.iter().filter(|(n, _)| *n > 0).try_for_each(|(n, what)| write!(f, ", {what} {n}"))
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, length, at, elements, .. } = self;
        match kind {
            Kind::Send | Kind::Write | Kind::Read => write!(f, "{kind:?} {length} bytes")?,
            Kind::FetchAdd | Kind::CompareSwap => write!(f, "{kind:?}")?,
        }
        if *kind != Kind::Send {
            write!(f, " at {at}")?;
        }
        if *elements > 1 {
            write!(f, ", {elements} elements")?;
        }
        let flags = [
            (self.immediate, "immediate"),
            (self.fenced, "fenced"),
            (self.inline, "inline"),
            (!self.signaled, "unsignaled"),
        ];
        flags.iter().filter(|(is, _)| *is).try_for_each(|(_, what)| write!(f, ", {what}"))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Post { end, request } => {
                write!(f, "q{end}: {request}")?;
                if request.to != usize::MAX { write!(f, ", to q{}", request.to) } else { Ok(()) }
            }
            Self::Receive { end, count, elements } => {
                write!(f, "q{end}: {count} receives of {elements} elements")
            }
            Self::Pass { nanoseconds } => write!(f, "{nanoseconds} ns pass"),
            Self::Link { from, to, weather } => write!(f, "link d{from} to d{to}: {weather}"),
            Self::Port { device, up } => {
                write!(f, "d{device}: port {}", if *up { "up" } else { "down" })
            }
            Self::Die { device } => write!(f, "d{device}: its queue pairs are destroyed"),
            Self::Deregister { end } => write!(f, "q{end}: its target is deregistered"),
            Self::Error { end } => write!(f, "q{end}: to error"),
            Self::Reconnect { connection } => write!(f, "c{connection}: reset and connected again"),
        }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, settings, operations } = self;
        let link = if settings.infiniband { "InfiniBand" } else { "RoCE" };
        writeln!(f, "{} devices of {link}, seed {seed:#x}", settings.devices)?;
        writeln!(f, "links: {}", settings.weather)?;
        writeln!(f, "messages of up to {} bytes", settings.longest)?;
        for (n, c) in settings.connections.iter().enumerate() {
            let [a, b] = c.devices;
            let shared = c.shared.map(|shared| if shared { " (shared receives)" } else { "" });
            let (first, second) = (2 * n, 2 * n + 1);
            write!(
                f,
                "c{n}: {:?}, q{first} of d{a}{} and q{second} of d{b}{}",
                c.service, shared[0], shared[1]
            )?;
            write!(f, ", MTU {}, PSN {:#x}, timeout {}", c.mtu, c.psn, c.timeout)?;
            write!(f, ", retries {} and {} by {}", c.retries, c.rnr_retries, c.min_rnr_timer)?;
            writeln!(f, ", {} READs, queues of {} and {}", c.rd_atomic, c.sends, c.receives)?;
        }
        for (n, device) in settings.datagrams.iter().enumerate() {
            writeln!(f, "q{}: Datagram, of d{device}", 2 * settings.connections.len() + n)?;
        }
        operations.iter().try_for_each(|operation| writeln!(f, "  {operation}"))
    }
}
