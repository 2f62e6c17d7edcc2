//! One listener or connection of the kernel's rdma_cm.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use rdma_mem::{Context, Mtu};
use rdma_proto::cm::wire::{Reason, SidrStatus};
use rdma_proto::cm::{Address, PortSpace};
use rdma_qp::{PreparedQueuePair, QueuePairEndpoint, QueuePairType};
use rdma_sys::cm::{option, rdma_cm_event_type as Kind, rdma_conn_param};
use rdma_sys::{Errno, ibv_qp_attr};
use rdma_types::{AckTimeout, Lid, Psn, Qpn};

use super::candidates::Candidates;
use super::iwarp::{self, is_iwarp};
use super::library::{Datagram, Id, Received, gid_of_path};
use super::requests::Requests;
use crate::engine::files::Watch;
use crate::engine::path::end_at;
use crate::error::{End, Error, Phase};
use crate::group::Group;
use crate::happening::{Happening, Replying};
use crate::parameters::{Answered, Parameters, Route};

/// The attempted action of a group that could not be joined.
pub(super) const JOIN: &str = "join the group";

/// A listener or connection.
pub(in crate::engine) struct Entry {
    pub(super) id: Arc<Id>,
    pub(super) stage: Stage,
    /// The REQ, until it is sent.
    pub(super) request: Option<Request>,
    /// The addresses that are tried, until one is resolved.
    pub(super) candidates: Option<Candidates>,
    /// The multicast group that is joined.
    pub(super) group: Option<SocketAddr>,
    /// The address of a listener.
    pub(super) bound: Option<IpAddr>,
    /// The listener that received the request.
    pub(super) listener: Option<u64>,
    /// The parameters of the peer that sent the request.
    pub(super) peer: Option<Parameters>,
    /// The attributes of a request's queue pair, which the kernel does not change before the program accepts it.
    pub(super) attributes: Option<Box<[ibv_qp_attr; 3]>>,
    pub(super) watch: Watch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Listening,
    /// The address or the route is being resolved.
    Resolving,
    Resolved,
    Unresolved,
    /// A REQ was sent.
    Connecting,
    /// A multicast group is being joined.
    Joining,
    Joined,
    Replied,
    Requested,
    Accepted,
    Established,
    Disconnecting,
    Over,
}

/// The contents of a REQ or SIDR_REQ.
pub(crate) struct Request {
    pub(super) space: PortSpace,
    pub(super) own: Parameters,
    pub(super) traffic_class: Option<u8>,
    pub(super) ack_timeout: AckTimeout,
    pub(super) private_data: Vec<u8>,
    /// Dropped once the kernel has found the queue pair by its number, or never will.
    pub(super) unsent: Option<Sender<()>>,
}

impl Request {
    /// Creates the request of a queue pair.
    pub(crate) fn new(queue_pair: &PreparedQueuePair, private_data: &[u8]) -> Result<Self, Error> {
        check_type(queue_pair)?;
        Ok(Self {
            space: PortSpace::Tcp,
            own: Parameters::of(queue_pair),
            traffic_class: queue_pair.traffic_class(),
            ack_timeout: queue_pair.ack_timeout(),
            private_data: private_data.to_vec(),
            unsent: None,
        })
    }

    /// Creates a query.
    pub(crate) fn query(route: &Route, private_data: &[u8]) -> Self {
        Self {
            space: PortSpace::Udp,
            own: Parameters::new(Qpn::masked(0), Psn::masked(0)),
            traffic_class: Some(route.traffic_class).filter(|&class| class != 0),
            ack_timeout: route.ack_timeout,
            private_data: private_data.to_vec(),
            unsent: None,
        }
    }
}

/// The TCP port space of the kernel's rdma_cm has queue pairs of type RC.
pub(super) fn check_type(queue_pair: &PreparedQueuePair) -> Result<(), Error> {
    match queue_pair.endpoint().qp_type() {
        QueuePairType::RC => Ok(()),
        qp_type => Err(Error::NotReliable { qp_type }),
    }
}

/// The reaction to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reaction {
    /// The event changes nothing.
    Ignore,
    FindRoute,
    /// A multicast group was joined.
    Join,
    SendRequest,
    /// The address cannot be used. The thread that resolves it is notified.
    Unresolve,
    Reply,
    /// A query was answered.
    Answer,
    Establish,
    /// The connection ends, after this end has answered the peer's DREQ.
    Disconnect,
    End,
}

/// Returns the reaction to an event in a stage. `has_request` is true if a REQ follows the resolution,
/// or a group is joined.
const fn reaction(event: Kind, stage: Stage, has_request: bool) -> Reaction {
    match (event, stage) {
        (_, Stage::Over) => Reaction::Ignore,
        (Kind::ADDR_RESOLVED, Stage::Resolving) => Reaction::FindRoute,
        (Kind::ROUTE_RESOLVED, Stage::Resolving) => Reaction::SendRequest,
        (
            Kind::ADDR_ERROR | Kind::ROUTE_ERROR | Kind::DEVICE_REMOVAL,
            Stage::Resolving | Stage::Resolved | Stage::Unresolved,
        ) if !has_request => Reaction::Unresolve,
        (Kind::MULTICAST_JOIN, Stage::Joining) => Reaction::Join,
        (Kind::CONNECT_RESPONSE, Stage::Connecting) => Reaction::Reply,
        // A REP has another event, because the ID has no queue pair.
        (Kind::ESTABLISHED, Stage::Connecting) => Reaction::Answer,
        (Kind::ESTABLISHED, Stage::Accepted) => Reaction::Establish,
        (Kind::DISCONNECTED, Stage::Disconnecting) => Reaction::End,
        // The peer waits for the answer.
        (Kind::DISCONNECTED, _) => Reaction::Disconnect,
        (
            Kind::ADDR_ERROR
            | Kind::ROUTE_ERROR
            | Kind::CONNECT_ERROR
            | Kind::UNREACHABLE
            | Kind::REJECTED
            | Kind::MULTICAST_ERROR
            | Kind::DEVICE_REMOVAL,
            _,
        ) => Reaction::End,
        // The end of the time in which a queue pair's number is not used again, a changed hardware address of a peer, and
        // events that are too late.
        _ => Reaction::Ignore,
    }
}

impl Entry {
    pub(super) fn new(id: Id, stage: Stage) -> Self {
        Self {
            id: Arc::new(id),
            stage,
            request: None,
            candidates: None,
            group: None,
            bound: None,
            listener: None,
            peer: None,
            attributes: None,
            watch: Watch::default(),
        }
    }

    /// Returns the attributes with which a queue pair moves to INIT, RTR and RTS. A request has them since it arrived.
    pub(super) fn attributes(&mut self) -> Result<Box<[ibv_qp_attr; 3]>, Errno> {
        self.attributes.take().map_or_else(|| self.id.attributes().map(Box::new), Ok)
    }

    /// Processes an event, and returns the one for the program. `requests` sends the REQ of an iWARP device.
    pub(super) fn handle(
        &mut self,
        context: &Context,
        requests: Option<&Requests>,
        received: Received,
    ) -> Option<Happening> {
        let Received { event, status, parameters, datagram, private_data, .. } = received;
        match reaction(event, self.stage, self.request.is_some() || self.group.is_some()) {
            Reaction::Ignore => {
                tracing::debug!(event = ?event.name(), "an event of rdma_cm is ignored");
                None
            }
            Reaction::FindRoute => self.find_route(context),
            Reaction::Join => {
                self.stage = Stage::Joined;
                match datagram.and_then(|datagram| self.joined(context, &datagram)) {
                    Some(group) => Some(Happening::Joined(Box::new(group))),
                    None => self.fail(JOIN, Errno::EIO),
                }
            }
            Reaction::SendRequest => {
                self.stage = Stage::Resolved;
                self.send_request(requests)
            }
            Reaction::Unresolve => {
                self.stage = Stage::Unresolved;
                None
            }
            Reaction::Reply => Some(self.replied(&parameters, private_data)),
            // The kernel has established the connection.
            Reaction::Answer if is_iwarp(context) => Some(self.replied(&parameters, private_data)),
            Reaction::Answer => {
                let Some(Datagram { qpn, qkey, .. }) = datagram else {
                    return self.fail("connect", Errno::EIO);
                };
                let status = SidrStatus::VALID;
                Some(self.answered(Answered { status, qpn: Qpn::masked(qpn), qkey, private_data }))
            }
            Reaction::Establish => {
                self.stage = Stage::Established;
                Some(Happening::Established { private_data })
            }
            Reaction::Disconnect => {
                // A thread may be sending the request of an iWARP device. The kernel would wait for it.
                if requests.is_none() || self.stage != Stage::Connecting {
                    let _ = self.id.disconnect();
                }
                self.end(end_of(event, status, self.stage, private_data))
            }
            Reaction::End => match (event, datagram, u8::try_from(status)) {
                // The service has refused the query, or does not exist.
                (Kind::UNREACHABLE, Some(_), Ok(code @ 1..)) => {
                    let status = SidrStatus::new(code);
                    let (qpn, qkey) = (Qpn::masked(0), 0);
                    Some(self.answered(Answered { status, qpn, qkey, private_data }))
                }
                _ => self.end(end_of(event, status, self.stage, private_data)),
            },
        }
    }

    fn replied(&mut self, parameters: &rdma_conn_param, private_data: Vec<u8>) -> Happening {
        self.stage = Stage::Replied;
        let parameters = parameters_of(parameters);
        let endpoint = endpoint_of(&parameters, None);
        Happening::Replied(Box::new(Replying { endpoint, parameters, private_data }))
    }

    /// Returns the group in an event.
    fn joined(&self, context: &Context, datagram: &Datagram) -> Option<Group> {
        let Datagram { address, qkey, .. } = *datagram;
        let port = context.query_port(address.port_num).ok()?;
        let (gid, lid) = (gid_of_path(&address), Lid::new(address.dlid));
        let (remote, gid_type) = end_at(port.link_layer, lid, gid);
        let [local, _] = self.id.gids();
        let [source, destination] = self.id.addresses();
        let destination = self.group.or(destination)?;
        let route = Route {
            local: Address::Gid(local),
            remote,
            gid_type,
            mtu: port.active_mtu?,
            traffic_class: address.grh.traffic_class,
            ack_timeout: AckTimeout::default(),
            source: source?,
            destination,
            is_outside: false,
        };
        let (service_level, grh) = (address.sl, address.grh);
        let (flow_label, hop_limit) = (grh.flow_label, grh.hop_limit);
        Some(Group { route, gid, lid, qkey, service_level, flow_label, hop_limit })
    }

    fn answered(&mut self, answered: Answered) -> Happening {
        self.stage = Stage::Over;
        Happening::Answered(Box::new(answered))
    }

    fn end(&mut self, end: End) -> Option<Happening> {
        self.stage = Stage::Over;
        Some(Happening::Ended(end))
    }

    fn fail(&mut self, tried: &'static str, errno: Errno) -> Option<Happening> {
        self.end(End::Kernel { tried, errno: errno.raw() })
    }

    /// Resolves the route to a resolved address.
    fn find_route(&mut self, context: &Context) -> Option<Happening> {
        let is_ours = self.id.check_device(context).is_ok();
        if let Some(class) = self.request.as_ref().and_then(|request| request.traffic_class) {
            let _ = self.id.set_byte(option::TOS, class);
        }
        if let Some(group) = self.group {
            self.stage = Stage::Joining;
            let joined = if is_ours { self.id.join(group) } else { Err(Errno::EHOSTUNREACH) };
            return joined.err().and_then(|errno| self.fail(JOIN, errno));
        }
        let found = if is_ours { self.id.resolve_route() } else { Err(Errno::EHOSTUNREACH) };
        match found {
            Ok(()) => None,
            Err(errno) if self.request.is_some() => self.fail("resolve the route", errno),
            Err(_) => {
                self.stage = Stage::Unresolved;
                None
            }
        }
    }

    /// Sends the REQ, if there is one. `requests` sends it for an iWARP device.
    pub(super) fn send_request(&mut self, requests: Option<&Requests>) -> Option<Happening> {
        let request = self.request.take()?;
        // Kernels before Linux 5.1 do not have the option, and offer the path's timeout. The queue pair keeps its own.
        if let Err(errno) = self.id.set_byte(option::ACK_TIMEOUT, request.ack_timeout.code()) {
            tracing::debug!(%errno, "the kernel offers the peer the path's ACK timeout");
        }
        self.stage = Stage::Connecting;
        let sent = match requests {
            Some(requests) => requests.send(&self.id, request),
            None => self.id.connect(&request.own, &request.private_data),
        };
        self.end_unsent(sent.err()?)
    }

    /// Ends a connection whose REQ could not be sent.
    pub(super) fn end_unsent(&mut self, errno: Errno) -> Option<Happening> {
        match iwarp::end_of_request(errno) {
            Some(end) => self.end(end),
            None => self.fail("send the request", errno),
        }
    }
}

/// Returns the end of a connection in an event.
pub(super) fn end_of(event: Kind, status: c_int, stage: Stage, private_data: Vec<u8>) -> End {
    let errno = status.saturating_abs();
    match event {
        Kind::DEVICE_REMOVAL => End::DeviceRemoved,
        Kind::DISCONNECTED => End::Disconnected { private_data },
        Kind::REJECTED if status > 0 => {
            let reason = Reason::new(u16::try_from(status).unwrap_or_default());
            match stage {
                // The peer has withdrawn its REQ.
                Stage::Requested if reason == Reason::TIMEOUT => End::PeerGone,
                _ => End::Rejected { reason, private_data },
            }
        }
        Kind::REJECTED if status < 0 => iwarp::rejected(private_data),
        Kind::UNREACHABLE => match errno {
            libc::ECONNRESET => End::PeerGone,
            libc::EACCES => End::OtherUser,
            libc::EAGAIN => End::Busy,
            _ if stage == Stage::Accepted => End::Unanswered { phase: Phase::Accept },
            _ => End::Unanswered { phase: Phase::Connect },
        },
        Kind::ADDR_ERROR | Kind::ROUTE_ERROR if errno == libc::ETIMEDOUT => {
            End::Unanswered { phase: Phase::Resolve }
        }
        Kind::MULTICAST_ERROR => End::Kernel { tried: JOIN, errno },
        Kind::ADDR_ERROR => End::Kernel { tried: "resolve the address", errno },
        Kind::ROUTE_ERROR => End::Kernel { tried: "resolve the route", errno },
        _ => End::Kernel { tried: "connect", errno },
    }
}

/// Returns the peer's parameters in an event, which has the numbers of RDMA reads and atomics as this end sees them.
pub(super) fn parameters_of(raw: &rdma_conn_param) -> Parameters {
    Parameters {
        responder_resources: raw.initiator_depth,
        initiator_depth: raw.responder_resources,
        retry_count: raw.retry_count,
        rnr_retry_count: raw.rnr_retry_count,
        flow_control: raw.flow_control != 0,
        srq: raw.srq != 0,
        ..Parameters::new(Qpn::masked(raw.qp_num), Psn::masked(0))
    }
}

pub(super) fn endpoint_of(peer: &Parameters, mtu: Option<Mtu>) -> QueuePairEndpoint {
    let endpoint = QueuePairEndpoint::new(peer.qpn, peer.psn)
        .with_rd_atomic(peer.initiator_depth, peer.responder_resources);
    mtu.map_or(endpoint, |mtu| endpoint.with_mtu(mtu))
}

#[cfg(test)]
mod tests {
    use rdma_sys::ibv_ah_attr;
    use test_support::program::{in_own_process_with, is_emulated};

    use super::*;
    use crate::engine::managed::gated::over_library;
    use crate::engine::managed::library::{Channel, parameters};

    const STAGES: [Stage; 13] = [
        Stage::Listening,
        Stage::Resolving,
        Stage::Resolved,
        Stage::Unresolved,
        Stage::Connecting,
        Stage::Joining,
        Stage::Joined,
        Stage::Replied,
        Stage::Requested,
        Stage::Accepted,
        Stage::Established,
        Stage::Disconnecting,
        Stage::Over,
    ];

    /// The reactions in each of [`STAGES`], without a REQ that follows. `.` ignores, `U` unresolves, `D` answers the DREQ
    /// and ends, `E` ends.
    const REACTIONS: [(Kind, &str); 16] = [
        (Kind::ADDR_RESOLVED, ".F..........."),
        (Kind::ADDR_ERROR, "EUUUEEEEEEEE."),
        (Kind::ROUTE_RESOLVED, ".S..........."),
        (Kind::ROUTE_ERROR, "EUUUEEEEEEEE."),
        (Kind::CONNECT_REQUEST, "............."),
        (Kind::CONNECT_RESPONSE, "....R........"),
        (Kind::CONNECT_ERROR, "EEEEEEEEEEEE."),
        (Kind::UNREACHABLE, "EEEEEEEEEEEE."),
        (Kind::REJECTED, "EEEEEEEEEEEE."),
        (Kind::ESTABLISHED, "....A....C..."),
        (Kind::DISCONNECTED, "DDDDDDDDDDDE."),
        (Kind::DEVICE_REMOVAL, "EUUUEEEEEEEE."),
        (Kind::MULTICAST_JOIN, ".....J......."),
        (Kind::MULTICAST_ERROR, "EEEEEEEEEEEE."),
        (Kind::ADDR_CHANGE, "............."),
        (Kind::TIMEWAIT_EXIT, "............."),
    ];

    fn letter(reaction: Reaction) -> char {
        match reaction {
            Reaction::Ignore => '.',
            Reaction::FindRoute => 'F',
            Reaction::SendRequest => 'S',
            Reaction::Join => 'J',
            Reaction::Unresolve => 'U',
            Reaction::Reply => 'R',
            Reaction::Answer => 'A',
            Reaction::Establish => 'C',
            Reaction::Disconnect => 'D',
            Reaction::End => 'E',
        }
    }

    #[test]
    fn each_event_has_its_reaction_in_each_stage() {
        for (number, (event, expected)) in (0..).zip(REACTIONS) {
            assert_eq!(event, Kind(number), "each event has its row");
            let of = |has_request| {
                STAGES.map(|stage| letter(reaction(event, stage, has_request))).into_iter()
            };
            assert_eq!(of(false).collect::<String>(), expected, "{:?}", event.name());
            // The program waits for a connection, so a failed resolution ends it.
            assert_eq!(of(true).collect::<String>(), expected.replace('U', "E"));
        }
        let unknown = STAGES.map(|stage| letter(reaction(Kind(16), stage, false)));
        assert_eq!(unknown, ['.'; 13], "events of later versions are ignored");
    }

    /// Processes an event for a new ID in a stage, which has resolved a group.
    fn handled(
        context: &Context,
        event: Kind,
        stage: Stage,
        datagram: Option<Datagram>,
    ) -> Happening {
        let channel = Channel::open().unwrap();
        let id = channel.create_id(1, PortSpace::Udp).unwrap();
        id.resolve_address(None, "239.1.2.3:0".parse().unwrap()).unwrap();
        let parameters = parameters(&Parameters::new(Qpn::masked(0), Psn::masked(0)), &[]);
        let (token, status, request, private_data) = (1, 0, None, Vec::new());
        let received =
            Received { token, event, status, request, parameters, datagram, private_data };
        Entry::new(id, stage).handle(context, None, received).expect("an event")
    }

    #[test]
    fn events_of_groups_are_passed_on_or_fail() {
        const NAME: &str = "engine::managed::entry::tests::events_of_groups_are_passed_on_or_fail";
        if is_emulated() {
            return println!("SKIP: the libraries are not for the emulated machine");
        }
        in_own_process_with(NAME, over_library, || {
            let context = rdma_mem::open_device("soft0").unwrap();
            let ended = |event, stage, datagram| match handled(&context, event, stage, datagram) {
                Happening::Ended(End::Kernel { tried, errno: libc::EIO }) => tried,
                _ => panic!("{event:?}"),
            };
            assert_eq!(ended(Kind::MULTICAST_JOIN, Stage::Joining, None), JOIN);
            assert_eq!(ended(Kind::ESTABLISHED, Stage::Connecting, None), "connect");
            let at_port = |port_num| {
                let mut address = ibv_ah_attr { port_num, sl: 3, ..ibv_ah_attr::default() };
                (address.grh.flow_label, address.grh.hop_limit) = (0x12345, 7);
                address.grh.traffic_class = 0x68;
                Some(Datagram { address, qpn: 0xff_ffff, qkey: 5 })
            };
            // The device has one port.
            assert_eq!(ended(Kind::MULTICAST_JOIN, Stage::Joining, at_port(9)), JOIN);
            let joined = handled(&context, Kind::MULTICAST_JOIN, Stage::Joining, at_port(1));
            let Happening::Joined(group) = joined else { panic!() };
            let vector = group.address_vector(&context).unwrap();
            assert_eq!((vector.service_level, vector.traffic_class), (3, 0x68));
            assert_eq!((vector.flow_label, vector.hop_limit), (0x12345, 7));
        });
    }

    #[test]
    fn ends_name_their_reasons() {
        let end = |event, status, stage| end_of(event, status, stage, b"data".to_vec());
        let data = || b"data".to_vec();
        for stage in STAGES {
            assert_eq!(end(Kind::DEVICE_REMOVAL, 0, stage), End::DeviceRemoved);
            let disconnected = End::Disconnected { private_data: data() };
            assert_eq!(end(Kind::DISCONNECTED, 0, stage), disconnected);
            let (reason, timeout) = (Reason::CONSUMER_DEFINED, Reason::TIMEOUT);
            let rejected = |reason| End::Rejected { reason, private_data: data() };
            assert_eq!(end(Kind::REJECTED, reason.get().into(), stage), rejected(reason));
            let withdrawn = end(Kind::REJECTED, timeout.get().into(), stage);
            let is_request = stage == Stage::Requested;
            assert_eq!(withdrawn, if is_request { End::PeerGone } else { rejected(timeout) });
        }
        let unreachable = |errno: c_int| end(Kind::UNREACHABLE, -errno, Stage::Connecting);
        assert_eq!(unreachable(libc::ECONNRESET), End::PeerGone);
        assert_eq!(unreachable(libc::EACCES), End::OtherUser);
        assert_eq!(unreachable(libc::EAGAIN), End::Busy);
        let late = |event, stage| end(event, -libc::ETIMEDOUT, stage);
        for (event, stage, phase) in [
            (Kind::ADDR_ERROR, Stage::Resolving, Phase::Resolve),
            (Kind::ROUTE_ERROR, Stage::Resolving, Phase::Resolve),
            (Kind::UNREACHABLE, Stage::Connecting, Phase::Connect),
            (Kind::UNREACHABLE, Stage::Accepted, Phase::Accept),
        ] {
            assert_eq!(late(event, stage), End::Unanswered { phase });
        }
        for (event, tried) in [
            (Kind::ADDR_ERROR, "resolve the address"),
            (Kind::ROUTE_ERROR, "resolve the route"),
            (Kind::MULTICAST_ERROR, JOIN),
            (Kind::CONNECT_ERROR, "connect"),
        ] {
            let (status, errno) = (-libc::ENODEV, libc::ENODEV);
            assert_eq!(end(event, status, Stage::Resolving), End::Kernel { tried, errno });
        }
    }
}
