//! Connections of iWARP devices, which the kernel makes over TCP.
//!
//! They differ from others in these ways. The kernel moves the queue pairs to RTS, by their numbers. It establishes an
//! accepted connection without a further message. No message has the number of a queue pair, and private data is not
//! padded. A port without a listener refuses the TCP connection. The kernel's calls may wait for the peer
//! ([`apart`]).

use rdma_mem::{Context, Mtu};
use rdma_proto::cm::Address;
use rdma_proto::cm::wire::Reason;
use rdma_qp::{PreparedQueuePair, QueuePair};
use rdma_sys::Errno;
use rdma_sys::cm::rdma_cm_event_type as Kind;
use rdma_types::{AckTimeout, GidType, TransportType};

use super::apart;
use super::library::{Id, Received};
use crate::error::{End, Error, Phase};
use crate::parameters::Route;

/// Returns true if the device speaks iWARP.
pub(super) fn is_iwarp(context: &Context) -> bool {
    context.device().transport_type() == TransportType::IWARP
}

/// Returns an error if the device speaks iWARP, which has no datagrams.
pub(super) fn check_datagrams(context: &Context) -> Result<(), Error> {
    if is_iwarp(context) {
        return Err(Error::NoDatagrams { device: context.device().name().to_owned() });
    }
    Ok(())
}

/// The queue pair of an active end, until the connection is established.
#[derive(Debug)]
pub(crate) enum Half {
    Prepared(Box<PreparedQueuePair>),
    Initialized(Initialized),
}

impl Half {
    /// Moves a queue pair on iWARP to INIT, before the kernel connects it.
    pub(crate) fn new(queue_pair: PreparedQueuePair) -> Result<Self, Error> {
        if is_iwarp(queue_pair.pd().context()) {
            let queue_pair = Box::new(queue_pair.initialize()?);
            return Ok(Self::Initialized(Initialized(Some(queue_pair))));
        }
        Ok(Self::Prepared(Box::new(queue_pair)))
    }
}

/// A queue pair that the kernel moves to RTS.
///
/// If it is dropped before, it receives nothing more, and another thread destroys it. The kernel keeps it until the peer
/// has answered, or the kernel's time limit has passed.
#[derive(Debug)]
pub(crate) struct Initialized(Option<Box<QueuePair>>);

impl Initialized {
    /// Returns the queue pair that the kernel connects.
    pub(crate) fn into_queue_pair(mut self) -> Option<QueuePair> {
        self.0.take().map(|queue_pair| *queue_pair)
    }
}

impl Drop for Initialized {
    fn drop(&mut self) {
        let Some(queue_pair) = self.0.take() else { return };
        // A forked child destroys nothing.
        if queue_pair.pd().context().check_process().is_ok() {
            // In the error state, the kernel does not connect it. Its receives may be those of a shared receive queue.
            let _ = queue_pair.to_error();
            let _ = apart::spawn(move || drop(queue_pair));
        }
    }
}

/// Pads private data with zeros to the length of its field in other transports.
pub(super) fn pad(received: &mut Received) {
    let length = match received.event {
        Kind::CONNECT_REQUEST => 56,
        Kind::ESTABLISHED => 196,
        Kind::REJECTED => 148,
        Kind::DISCONNECTED => 220,
        _ => 0,
    };
    let data = &mut received.private_data;
    data.resize(data.len().max(length), 0);
}

/// Returns the end of a connection whose request the kernel could not send, if the peer is the cause.
pub(super) fn end_of_request(errno: Errno) -> Option<End> {
    match errno {
        Errno::ECONNREFUSED => Some(no_listener()),
        Errno::ETIMEDOUT => Some(End::Unanswered { phase: Phase::Connect }),
        _ => None,
    }
}

/// Returns the end of a connection that was rejected with this error number.
pub(super) fn rejected(errno: i32, private_data: Vec<u8>) -> End {
    match errno {
        libc::ECONNREFUSED => no_listener(),
        _ => End::Rejected { reason: Reason::CONSUMER_DEFINED, private_data },
    }
}

fn no_listener() -> End {
    End::Rejected { reason: Reason::INVALID_SERVICE_ID, private_data: Vec::new() }
}

/// Returns the route of an ID, which has no path record.
pub(super) fn route_of(context: &Context, id: &Id, is_outside: bool) -> Option<Route> {
    let [local, remote] = id.gids().map(Address::Gid);
    let [source, destination] = id.addresses();
    let port = context.query_port(id.port()).ok()?;
    Some(Route {
        local,
        remote,
        gid_type: GidType::IB,
        mtu: port.active_mtu.unwrap_or(Mtu::MTU1024),
        traffic_class: 0,
        ack_timeout: AckTimeout::default(),
        source: source?,
        destination: destination?,
        is_outside,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errors_of_tcp_become_those_of_rdma_cm() {
        let rejected_by_program = |errno| {
            let reason = Reason::CONSUMER_DEFINED;
            assert_eq!(
                rejected(errno, b"full".to_vec()),
                End::Rejected { reason, private_data: b"full".to_vec() }
            );
        };
        rejected_by_program(libc::ECONNRESET);
        rejected_by_program(libc::EPROTO);
        for end in [
            rejected(libc::ECONNREFUSED, b"x".to_vec()),
            end_of_request(Errno::ECONNREFUSED).unwrap(),
        ] {
            assert_eq!(end, no_listener());
        }
        let unanswered = End::Unanswered { phase: Phase::Connect };
        assert_eq!(end_of_request(Errno::ETIMEDOUT), Some(unanswered));
        assert_eq!(end_of_request(Errno::EINVAL), None);
    }
}
