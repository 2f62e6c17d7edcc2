//! Connections of iWARP devices, which the kernel makes over TCP.
//!
//! They differ from others in these ways. The kernel moves the queue pairs to RTS, by their numbers. It establishes an
//! accepted connection without a further message. No message has the number of a queue pair, and private data is not
//! padded. A port without a listener refuses the TCP connection. The kernel's calls may wait for the peer
//! ([`apart`]).

use std::collections::BTreeSet;
use std::fs;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver};

use rdma_mem::{Context, Gid, Mtu};
use rdma_proto::cm::Address;
use rdma_proto::cm::wire::Reason;
use rdma_qp::{PreparedQueuePair, QueuePair};
use rdma_sys::cm::rdma_cm_event_type as Kind;
use rdma_sys::{Errno, interface_addresses};
use rdma_types::{AckTimeout, GidType, TransportType};

use super::apart;
use super::entry::Request;
use super::library::{Id, Received};
use crate::engine::path::ip_of;
use crate::error::{End, Error, Phase};
use crate::parameters::{Parameters, Route};

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

/// Returns the IP addresses of a device: those of its GIDs, or on iWARP those of its network interface.
pub(super) fn addresses_of(context: &Context) -> Result<BTreeSet<IpAddr>, Error> {
    let gids = context.gid_table()?;
    let gids = gids.iter().map(|entry| entry.gid);
    if !is_iwarp(context) {
        return Ok(gids.map(ip_of).collect());
    }
    let own: BTreeSet<_> = gids.map(hardware_address).collect();
    let interfaces = interface_addresses().unwrap_or_default().into_iter();
    let of_device = interfaces.filter(|entry| {
        let file = format!("/sys/class/net/{}/address", entry.interface);
        fs::read_to_string(file).is_ok_and(|address| own.contains(address.trim()))
    });
    Ok(of_device.filter_map(|entry| Some(entry.address?.ip())).collect())
}

/// Returns the hardware address of an interface, with which the GID of an iWARP device begins.
fn hardware_address(gid: Gid) -> String {
    let [a, b, c, d, e, f, ..] = gid.to_bytes();
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

/// Returns the address at which the kernel listens for a listener. At `localhost`, an iWARP device would be listened to
/// over the loopback interface, through which rdma_cm does not connect it.
pub(super) fn listening_at(context: &Context, address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(ip) if ip.is_loopback() && is_iwarp(context) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(ip) if ip.is_loopback() && is_iwarp(context) => Ipv6Addr::UNSPECIFIED.into(),
        address => address,
    }
}

/// Returns an end's parameters with the RDMA reads that the peer of a request allows. Version 1 of MPA, the protocol of
/// requests, does not state them. The kernel then reports none.
pub(super) fn within(own: Parameters, peer: &Parameters) -> Parameters {
    if (peer.responder_resources, peer.initiator_depth) == (0, 0) {
        return own;
    }
    own.within(peer)
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
            let queue_pair = Some(Box::new(queue_pair.initialize()?));
            return Ok(Self::Initialized(Initialized { queue_pair, sent: None }));
        }
        Ok(Self::Prepared(Box::new(queue_pair)))
    }

    /// Like [`new`](Self::new), for the queue pair of a request, which contains its number.
    pub(crate) fn of_request(
        queue_pair: PreparedQueuePair,
        request: &mut Request,
    ) -> Result<Self, Error> {
        let mut half = Self::new(queue_pair)?;
        if let Self::Initialized(initialized) = &mut half {
            let (unsent, sent) = mpsc::channel();
            (request.unsent, initialized.sent) = (Some(unsent), Some(Mutex::new(sent)));
        }
        Ok(half)
    }
}

/// A queue pair that the kernel moves to RTS.
///
/// If it is dropped before, it receives nothing more, and another thread destroys it. The kernel keeps it until the
/// peer has answered, or the kernel's time limit has passed.
#[derive(Debug)]
pub(crate) struct Initialized {
    queue_pair: Option<Box<QueuePair>>,
    /// Disconnected once the kernel has found the queue pair of a request, or never will.
    sent: Option<Mutex<Receiver<()>>>,
}

impl Initialized {
    /// Returns the queue pair that the kernel connects.
    pub(crate) fn into_queue_pair(mut self) -> Option<QueuePair> {
        self.queue_pair.take().map(|queue_pair| *queue_pair)
    }
}

impl Drop for Initialized {
    fn drop(&mut self) {
        let Some(queue_pair) = self.queue_pair.take() else { return };
        // A forked child destroys nothing.
        if queue_pair.pd().context().check_process().is_ok() {
            // In the error state, the kernel does not connect it. Its receives may be those of a shared receive queue.
            let _ = queue_pair.to_error();
            end_after(self.sent.take(), queue_pair);
        }
    }
}

/// Drops a queue pair in another thread, after its request was sent. The kernel finds the queue pair by its number,
/// which must not be that of another one by then. If no thread can be started, the queue pair exists until the process
/// exits.
fn end_after<T: Send + 'static>(sent: Option<Mutex<Receiver<()>>>, queue_pair: T) {
    let queue_pair = ManuallyDrop::new(queue_pair);
    let _ = apart::spawn(move || {
        let sent = sent.and_then(|sent| sent.into_inner().ok());
        // Nothing is sent: this returns when the other end is dropped.
        let _ = sent.map(|sent| sent.recv());
        drop(ManuallyDrop::into_inner(queue_pair));
    });
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

/// Returns the end of a connection that was rejected after the TCP connection was made. The drivers disagree on the
/// error number: that of the program's rejection is `ECONNRESET` for `siw`, and `ECONNREFUSED` for `iw_cxgb4` and
/// `irdma`.
pub(super) const fn rejected(private_data: Vec<u8>) -> End {
    End::Rejected { reason: Reason::CONSUMER_DEFINED, private_data }
}

const fn no_listener() -> End {
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::Sender;

    use rdma_types::{Psn, Qpn};

    use super::*;

    /// Reports whether the request was sent before this is dropped.
    struct QueuePairOf(Arc<AtomicBool>, Sender<bool>);

    impl Drop for QueuePairOf {
        fn drop(&mut self) {
            self.1.send(self.0.load(Ordering::Acquire)).unwrap();
        }
    }

    #[test]
    fn a_queue_pair_is_kept_until_its_request_was_sent() {
        for _ in 0..100 {
            let (unsent, sent) = mpsc::channel();
            let (report, reported) = mpsc::channel();
            let is_sent = Arc::new(AtomicBool::new(false));
            end_after(Some(Mutex::new(sent)), QueuePairOf(Arc::clone(&is_sent), report));
            std::thread::yield_now();
            is_sent.store(true, Ordering::Release);
            drop::<Sender<()>>(unsent);
            assert!(reported.recv().unwrap());
        }
        let (report, reported) = mpsc::channel();
        end_after(None, QueuePairOf(Arc::default(), report));
        assert!(!reported.recv().unwrap(), "without a request, it is not kept");
    }

    #[test]
    fn the_errors_of_tcp_become_those_of_rdma_cm() {
        let reason = Reason::CONSUMER_DEFINED;
        let private_data = b"full".to_vec();
        assert_eq!(rejected(private_data.clone()), End::Rejected { reason, private_data });
        assert_eq!(end_of_request(Errno::ECONNREFUSED), Some(no_listener()));
        let unanswered = End::Unanswered { phase: Phase::Connect };
        assert_eq!(end_of_request(Errno::ETIMEDOUT), Some(unanswered));
        assert_eq!(end_of_request(Errno::EINVAL), None);
    }

    #[test]
    fn a_peer_that_states_no_reads_limits_none() {
        let reads = |responder_resources, initiator_depth| Parameters {
            responder_resources,
            initiator_depth,
            ..Parameters::new(Qpn::masked(0), Psn::masked(0))
        };
        let own = reads(4, 8);
        assert_eq!(within(own, &reads(0, 0)), own);
        assert_eq!(within(own, &reads(16, 2)), reads(2, 8));
        assert_eq!(within(own, &reads(1, 0)), reads(0, 1));
    }

    #[test]
    fn a_gid_begins_with_the_hardware_address() {
        let gid = Gid::from_bytes([2, 0, 0xab, 9, 0, 0xff, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(hardware_address(gid), "02:00:ab:09:00:ff");
    }

    #[test]
    fn other_devices_have_the_addresses_of_their_gids_and_listen_at_localhost() {
        rdma_soft::install();
        let context = rdma_mem::open_device("soft0").unwrap();
        let all = addresses_of(&context).unwrap();
        let table = context.gid_table().unwrap();
        assert!(!all.is_empty() && table.iter().all(|entry| all.contains(&ip_of(entry.gid))));
        for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            assert_eq!(listening_at(&context, ip), ip);
        }
    }
}
