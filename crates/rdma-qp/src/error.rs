//! Errors of the control path, with hints.

use std::borrow::Cow;
use std::time::Duration;

use rdma_mem::{Context, DeviceAttributes, Errno, Gid, PortState, Recovery, VerbError};
use rdma_types::{Mtu, QpState, QpType, Qpn, TransportType};

use crate::cq::poll_error::PollError;

use crate::endpoint::connect::HandshakeError;
use crate::gid_network::GidNetwork;

use crate::post::error::PostError;

/// An error from an operation in this crate. Posting has its own error type, [`PostError`](crate::PostError).
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// A device or memory operation failed.
    #[error(transparent)]
    Memory(#[from] rdma_mem::Error),
    /// A completion queue failed.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// A queue pair could not change its state.
    #[error("queue pair {qpn}: {from} to {to}: {source}")]
    Transition {
        /// The queue pair.
        qpn: Qpn,
        /// The last state that this program set.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The error of the verb.
        source: VerbError,
    },
    /// Queue pairs have no transition between these two states.
    #[error(
        "queue pair {qpn}: it cannot move from {from} to {to}: it moves from RESET to INIT, RTR \
         and RTS, and to RESET from any state"
    )]
    NoTransition {
        /// The queue pair.
        qpn: Qpn,
        /// The queue pair's current state.
        from: QpState,
        /// The requested state.
        to: QpState,
    },
    /// The attributes do not match the transition.
    #[error("queue pair {qpn}: {from} to {to}{}", list_attributes(.lacking, .forbidden))]
    Attributes {
        /// The queue pair.
        qpn: Qpn,
        /// The queue pair's current state.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The required attributes that were not set.
        lacking: Vec<&'static str>,
        /// The attributes that were set, but that this transition does not allow.
        forbidden: Vec<&'static str>,
    },
    /// A request could not be posted, for example the last request of [`QueuePair::drain`](crate::QueuePair::drain).
    #[error(transparent)]
    Post(#[from] PostError),
    /// Requests did not complete in time, although the queue pair is in the error state.
    #[error(
        "queue pair {qpn}: its requests were not flushed within {timeout:?}: check that no other \
         code polls its completion queues; destroying the queue pair ends these requests"
    )]
    DrainTimedOut {
        /// The queue pair.
        qpn: Qpn,
        /// The time limit.
        timeout: Duration,
    },
    /// The endpoints do not match.
    #[error(transparent)]
    Handshake(#[from] Box<HandshakeError>),
    /// This library does not support this type of queue pair.
    #[error("{qp_type} queue pairs are not supported by this library: it supports RC, UC and UD")]
    UnsupportedType {
        /// The requested type.
        qp_type: QpType,
    },
    /// This library supports only devices of InfiniBand, RoCE and iWARP, and the device uses another transport.
    #[error(
        "`{device}` uses {transport}, which this library does not support: it supports InfiniBand, \
         RoCE and iWARP"
    )]
    UnsupportedTransport {
        /// The device.
        device: String,
        /// Its transport.
        transport: TransportType,
    },
    /// The device speaks iWARP, which has only reliable connections.
    #[error("`{device}` speaks iWARP, which has no {qp_type} queue pairs: use RC")]
    LackedByIwarp {
        /// The device.
        device: String,
        /// The requested type.
        qp_type: QpType,
    },
    /// The device speaks iWARP, whose queue pairs only the kernel's rdma_cm connects.
    #[error(
        "`{device}` speaks iWARP, whose queue pairs have no endpoints to exchange: connect by address \
         and port with `rdma_cm`, or `connect_cm` of a channel"
    )]
    OnlyByAddress {
        /// The device.
        device: String,
    },
    /// A datagram (UD) queue pair was passed to a function that needs a connected one.
    #[error(
        "UD queue pairs are not connected, and have neither `handshake` nor channels: build one with `create_qp`, make it \
         ready with `activate`, and give each send a destination (`SendWorkRequest::to`)"
    )]
    NotConnected,
    /// A connected queue pair was passed to a function that needs a datagram (UD) one.
    #[error(
        "this queue pair is {qp_type}, and has one peer: connect it with `handshake`; address handles, \
         multicast groups and `activate` are for UD"
    )]
    NotDatagrams {
        /// The type of the queue pair.
        qp_type: QpType,
    },
    /// The completion does not belong to a datagram that this queue pair received.
    #[error(
        "the completion does not belong to a datagram: pass the completion of a receive of queue \
         pair {qpn}"
    )]
    NoDatagram {
        /// The queue pair.
        qpn: Qpn,
    },
    /// A required option of the builder is missing.
    #[error("the queue pair needs a `{knob}`: set it with .{knob}(…)")]
    Missing {
        /// The builder's method.
        knob: &'static str,
    },
    /// The completion queue and the protection domain belong to different contexts.
    #[error("the `{knob}` and the protection domain belong to different contexts")]
    ForeignCompletionQueue {
        /// The builder's method.
        knob: &'static str,
    },
    /// The shared receive queue and the queue pair's protection domain belong to different contexts.
    #[error("the `srq` and the protection domain belong to different contexts")]
    ForeignSharedReceiveQueue,
    /// The queue pair uses a shared receive queue, but the operation requires a queue pair with its own receives.
    #[error("this queue pair needs its own receives: build it without `srq`")]
    SharedReceives,
    /// The limit is larger than the queue, so it would always be reached.
    #[error(
        "a limit of {limit} was requested, but the shared receive queue holds {max_wr} receives"
    )]
    LimitTooLarge {
        /// The requested limit.
        limit: u32,
        /// The maximum number of outstanding receives in the queue.
        max_wr: u32,
    },
    /// The completion queue is too small for the completions of all requests of its queue pairs, and
    /// [`strict_cq`](crate::QueuePairBuilder::strict_cq) is set.
    #[error(
        "the `{knob}` holds {capacity} completions, but its queue pairs, including this one, can \
         have {needed} at a time: create a larger queue, request fewer work requests, or poll it \
         in time and omit `strict_cq`"
    )]
    CompletionQueueTooSmall {
        /// The builder's method.
        knob: &'static str,
        /// The capacity of the completion queue.
        capacity: u32,
        /// The capacity that all its queue pairs together need.
        needed: u32,
    },
    /// Events were requested from a completion queue without a channel.
    #[error(
        "the completion queue has no completion channel: create it with \
         CompletionQueue::create_with_channel"
    )]
    NoCompletionChannel,
    /// The context has no completion vector with this number.
    #[error("there is no completion vector {vector}: the context has {count}, counted from 0")]
    NoSuchVector {
        /// The requested vector.
        vector: u32,
        /// The number of vectors.
        count: u32,
    },
    /// The completion channel and the completion queue belong to different contexts.
    #[error("the completion channel and the completion queue belong to different contexts")]
    ForeignChannel,
    /// The device does not support completion timestamps.
    #[error(
        "`{device}` has no completion timestamps: create the completion queue without them, and \
         read a clock after each poll"
    )]
    NoTimestamps {
        /// The device.
        device: String,
    },
    /// No port is active.
    #[error("no port of `{device}` is active: {}", list_ports(.ports))]
    NoActivePort {
        /// The device.
        device: String,
        /// The state of each port, from port 1.
        ports: Vec<PortState>,
    },
    /// The device has no port with this number.
    #[error("there is no port {port}: the device has ports 1 to {count}")]
    NoSuchPort {
        /// The requested port.
        port: u8,
        /// The number of ports.
        count: u8,
    },
    /// The port's table has no GID at this index.
    #[error("port {port} has no usable GID at index {index}; it has GIDs at {}", joined(.indexes))]
    NoSuchGid {
        /// The port.
        port: u8,
        /// The requested index.
        index: u8,
        /// The indexes of the port's GIDs.
        indexes: Vec<u8>,
    },
    /// The port has no GID in this network.
    #[error("port {port} has no usable GID in {network}; it has {}", joined(.table))]
    NoGidInNetwork {
        /// The port.
        port: u8,
        /// The requested network.
        network: GidNetwork,
        /// The port's GIDs.
        table: Vec<Gid>,
    },
    /// An environment variable has an invalid value.
    #[error("{variable} is `{value}` in the environment: set it to {expected}, or unset it")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// The requested MTU is larger than the port's.
    #[error("an MTU of {asked} was requested, but that of port {port} is {active}")]
    MtuTooLarge {
        /// The requested MTU.
        asked: Mtu,
        /// The port.
        port: u8,
        /// The port's MTU.
        active: Mtu,
    },
    /// An option of the builder exceeds the range of its packet field, the size of its table, or the device's limit.
    #[error("the `{knob}` cannot be {value}: the maximum here is {most}")]
    TooLarge {
        /// The builder's method.
        knob: &'static str,
        /// The requested value.
        value: u32,
        /// The largest possible value.
        most: u32,
    },
    /// An option of the builder is 0, which is not allowed.
    #[error("the `{knob}` is too small: it has to be at least {least}")]
    TooSmall {
        /// The builder's method.
        knob: &'static str,
        /// The smallest possible value.
        least: u32,
    },
    /// The object cannot be closed yet, because clones of it, or objects created from it, are alive.
    #[error("the {what} is still in use: first drop its clones and everything created from it")]
    StillUsed {
        /// The kind of object that was to be closed.
        what: &'static str,
    },
}

rdma_types::debug_messages!(enum Error {
    Verb(it), Memory(it), Poll(it), Transition { qpn, from, to, source },
    NoTransition { qpn, from, to }, Attributes { qpn, from, to, lacking, forbidden }, Post(it),
    DrainTimedOut { qpn, timeout }, Handshake(it), UnsupportedType { qp_type },
    UnsupportedTransport { device, transport }, LackedByIwarp { device, qp_type }, OnlyByAddress { device },
    NotConnected, NotDatagrams { qp_type },
    NoDatagram { qpn }, Missing { knob }, ForeignCompletionQueue { knob },
    ForeignSharedReceiveQueue, SharedReceives, LimitTooLarge { limit, max_wr },
    CompletionQueueTooSmall { knob, capacity, needed }, NoCompletionChannel,
    NoSuchVector { vector, count }, ForeignChannel, NoTimestamps { device },
    NoActivePort { device, ports }, NoSuchPort { port, count }, NoSuchGid { port, index, indexes },
    NoGidInNetwork { port, network, table }, Environment { variable, value, expected },
    MtuTooLarge { asked, port, active }, TooLarge { knob, value, most }, TooSmall { knob, least },
    StillUsed { what },
});

impl Error {
    /// Returns the action that may help after this error.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Verb(error) => error.recovery(),
            Self::Transition { source, .. } => source.recovery(),
            Self::Memory(error) => error.recovery(),
            Self::Post(error) => error.recovery(),
            Self::Poll(_) => Recovery::Reconnect,
            Self::DrainTimedOut { .. } | Self::NoActivePort { .. } => Recovery::Retry,
            _ => Recovery::Programming,
        }
    }
}

fn list_attributes(lacking: &[&str], forbidden: &[&str]) -> String {
    let list = |what, names: &[&str]| match names {
        [] => String::new(),
        names => format!(" {what} `{}`", names.join("`, `")),
    };
    let between = if lacking.is_empty() || forbidden.is_empty() { "" } else { " and" };
    let (lacking, forbidden) = (list("lacks", lacking), list("must not have", forbidden));
    format!("{lacking}{between}{forbidden}")
}

fn list_ports(states: &[PortState]) -> String {
    let ports = (1..).zip(states).map(|(port, state): (u32, _)| format!("port {port} is {state}"));
    ports.collect::<Vec<_>>().join(", ")
}

fn joined(items: &[impl ToString]) -> String {
    let items = items.iter().map(ToString::to_string).collect::<Vec<_>>();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

/// Returns the hint for a queue that could not be created.
pub(crate) fn create_hint(
    errno: Errno,
    asked: &str,
    device: &DeviceAttributes,
) -> Option<Cow<'static, str>> {
    let DeviceAttributes { max_qp, max_qp_wr, max_sge, max_cq, max_cqe, .. } = device;
    Some(match errno {
        Errno::EINVAL => Cow::Owned(format!(
            "requested {asked}; the device allows {max_qp_wr} work requests, {max_sge} elements, \
             {max_cqe} completions"
        )),
        Errno::ENOMEM => Cow::Owned(format!(
            "requested {asked}; the device may have reached its limits ({max_qp} queue pairs, {max_cq} \
             completion queues), or RLIMIT_MEMLOCK (`ulimit -l`) is reached: queues lock memory too"
        )),
        _ => return None,
    })
}

/// Returns the hint for a completion queue that could not be moderated.
pub(crate) fn moderate_hint(
    errno: Errno,
    (max_count, max_period_us): (u16, u16),
    context: &Context,
) -> Option<Cow<'static, str>> {
    let name = context.device().name();
    Some(Cow::Owned(match errno {
        Errno::EOPNOTSUPP | Errno::ENOSYS => format!(
            "`{name}` does not moderate events: poll until the queue is empty before the next request for one"
        ),
        Errno::EINVAL => {
            let device = context.query_device_extended().ok()?;
            format!(
                "requested {max_count} completions and {max_period_us} us; `{name}` allows {} and {} us",
                device.cq_moderation_max_count, device.cq_moderation_max_us
            )
        }
        _ => return None,
    }))
}

/// Returns the hint for a shared receive queue that could not be created.
pub(crate) fn srq_hint(
    errno: Errno,
    max_wr: u32,
    max_sge: u32,
    device: &DeviceAttributes,
) -> Option<Cow<'static, str>> {
    let DeviceAttributes { max_srq, max_srq_wr, max_srq_sge, .. } = device;
    Some(match errno {
        Errno::EINVAL => Cow::Owned(format!(
            "requested {max_wr} receives of {max_sge} elements; the device allows 1 to {max_srq_wr} \
             receives, {max_srq_sge} elements"
        )),
        Errno::ENOMEM => Cow::Owned(format!(
            "the device may have reached its limit ({max_srq} shared receive queues), or RLIMIT_MEMLOCK \
             (`ulimit -l`) is reached: queues lock memory too"
        )),
        Errno::EOPNOTSUPP | Errno::ENOSYS => {
            Cow::Borrowed("the device has no shared receive queues: post to each queue pair")
        }
        _ => return None,
    })
}

/// Returns the hint for an address handle that could not be created.
pub(crate) fn address_hint(errno: Errno) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(match errno {
        Errno::EINVAL => {
            "the port number, the LID, the source GID index or the peer's GID is not valid for \
             this port; on Ethernet, a route to the peer must exist"
        }
        Errno::ENOMEM => "the limit of address handles (`max_ah`) may be reached: share them",
        Errno::ENOENT => {
            "the header does not name a GID of this port: it may be undefined, or have arrived at \
             another port"
        }
        Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH => {
            "the peer's GID could not be resolved: is its network reachable from the GID's interface?"
        }
        _ => return None,
    }))
}

/// Returns the hint for a refused transition.
pub(crate) fn modify_hint(errno: Errno) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(match errno {
        Errno::EINVAL => {
            "the state does not allow it, or the device does not support the value of an \
             attribute: port, GID index, MTU, partition key, depth of reads"
        }
        Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH => {
            "the peer's address cannot be reached: check that its host is up, and that the GID or LID is \
             that of the peer's endpoint. The GID must be reachable from this queue pair's interface; a \
             software device reaches the processes of its host that share it, and other hosts from an \
             address at which it listens"
        }
        Errno::EACCES => {
            "another user of this host has bound the peer's name, or the names by which processes \
             find each other: run both ends as the same user, or share the device with all users \
             at both ends"
        }
        _ => return None,
    }))
}
