//! One connection: its stage, and the events of the protocol.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rdma_mem::{Context, Gid};
use rdma_proto::Time;
use rdma_proto::cm::wire::{
    Answer, MAD_LEN, Mad, Message, Offer, Query, Reason, Rejection, Resolution, SidrStatus,
};
use rdma_proto::cm::{
    Address, Cause, CommId, Error as Refusal, Event, Manager, Output, ServiceId, Settings, Transmit,
};
use rustix::io::Errno;

use super::files::Watch;
use super::gateway::Gateway;
use super::line::Line;
use super::listening::Bound;
use super::path::{Request, claimed, ip_of, querier, requester};
use super::socket::receive_mad;
use crate::error::{End, Phase};
use crate::happening::{Happening, Queried, Replying, Requested};
use crate::parameters::{Answered, NO_ANSWER, Parameters, Route};

/// The messages that are received before other sockets get their turn.
const MESSAGES: u32 = 16;

/// The answer to a query for a service that has no listener at the address.
pub(super) const NO_SERVICE: Resolution<'static> =
    Resolution { status: SidrStatus::UNSUPPORTED, ..NO_ANSWER };

/// The properties of the device that all connections share.
pub(super) struct Port {
    pub(super) context: Context,
    pub(super) addresses: Vec<Address>,
}

impl Port {
    fn manager(&self) -> Manager {
        // The IDs need no slot and no secret: they are valid only on one socket.
        let mut settings = Settings::new(self.context.device().guid(), 0, 0);
        settings.max_connections = 1;
        Manager::new(&settings)
    }
}

/// The progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The peer has connected its socket, but sent no REQ or SIDR_REQ.
    Silent,
    /// This end sent a REQ.
    Connecting,
    /// This end received a REQ.
    Requested,
    /// This end sent a SIDR_REQ.
    Querying,
    /// This end received a SIDR_REQ.
    Queried,
    /// This end received a REP.
    Replied,
    /// This end sent a REP.
    Accepted,
    Established,
    /// This end sent a DREQ.
    Disconnecting,
    Over,
}

impl Stage {
    /// Returns true for a connection that a listener has not decided about, or that is not established yet.
    pub(super) const fn is_half_open(self) -> bool {
        matches!(self, Self::Silent | Self::Requested | Self::Queried | Self::Accepted)
    }
}

/// The end of a connection that this process has.
pub(super) enum Role {
    /// The end that sends the REQ.
    Active(Request),
    Passive {
        listener: u64,
        /// The addresses at which the listener accepts requests.
        bound: Bound,
        /// The parameters of the active end, once its REQ has arrived.
        requester: Option<Box<Parameters>>,
        /// Whether its REQ or SIDR_REQ has arrived.
        has_asked: bool,
    },
}

pub(crate) struct Peer {
    token: u64,
    pub(super) line: Line,
    pub(super) stage: Stage,
    pub(super) role: Role,
    id: CommId,
    from: Option<Address>,
    /// The file that the program polls if there is no socket.
    pub(super) watch: Watch,
}

impl Peer {
    /// Sends a REQ.
    pub(super) fn connect(
        token: u64,
        now: Time,
        port: &Port,
        socket: OwnedFd,
        request: Request,
    ) -> Result<Self, Refusal> {
        let mut manager = Box::new(port.manager());
        let connected = request.send(&mut manager, now)?;
        let line = Line::Socket { socket: Some(Arc::new(socket)), manager };
        Ok(Self::connecting(token, line, request, &connected))
    }

    /// Sends a REQ to another host. Also returns its communication ID.
    pub(super) fn connect_outside(
        token: u64,
        now: Time,
        gateway: &Arc<Gateway>,
        request: Request,
    ) -> Result<(CommId, Self), Refusal> {
        let connected = gateway.manage(|manager| request.send(manager, now))?;
        let line = Line::Gateway(Arc::clone(gateway));
        Ok((connected.0, Self::connecting(token, line, request, &connected)))
    }

    fn connecting(
        token: u64,
        line: Line,
        request: Request,
        (id, req): &(CommId, Transmit),
    ) -> Self {
        line.send(req);
        let stage = if request.is_query() { Stage::Querying } else { Stage::Connecting };
        let from = Some(request.remote());
        Self {
            token,
            line,
            stage,
            role: Role::Active(request),
            id: *id,
            from,
            watch: Watch::default(),
        }
    }

    /// Prepares for the REQ of an active end that has connected its socket to a listener.
    pub(super) fn accepted(
        token: u64,
        port: &Port,
        socket: OwnedFd,
        (listener, service): (u64, ServiceId),
        bound: Bound,
    ) -> Result<Self, Refusal> {
        let mut manager = Box::new(port.manager());
        manager.listen(service)?;
        let line = Line::Socket { socket: Some(Arc::new(socket)), manager };
        Ok(Self::passive(token, line, listener, bound))
    }

    /// Prepares for a REQ of another host, which has arrived.
    pub(super) fn requested_outside(
        token: u64,
        gateway: &Arc<Gateway>,
        listener: u64,
        bound: Bound,
    ) -> Self {
        Self::passive(token, Line::Gateway(Arc::clone(gateway)), listener, bound)
    }

    fn passive(token: u64, line: Line, listener: u64, bound: Bound) -> Self {
        let role = Role::Passive { listener, bound, requester: None, has_asked: false };
        Self {
            token,
            line,
            stage: Stage::Silent,
            role,
            id: CommId::NONE,
            from: None,
            watch: Watch::default(),
        }
    }

    /// Returns the local address and the ID of a connection to another host.
    pub(super) fn place(&self) -> Option<(Gid, CommId)> {
        self.line.local().map(|local| (local, self.id))
    }

    /// Returns the listener that received the connection.
    pub(super) const fn listener(&self) -> Option<u64> {
        match self.role {
            Role::Passive { listener, .. } => Some(listener),
            Role::Active(_) => None,
        }
    }

    /// Returns true if the program has the connection, or an event with it.
    pub(super) const fn is_owned(&self) -> bool {
        matches!(self.role, Role::Active(_) | Role::Passive { has_asked: true, .. })
    }

    /// Returns the file that the program polls.
    ///
    /// The socket becomes readable for good only when the connection ends. Before that, another thread may have received
    /// a message when the program's thread looks.
    pub(super) fn file(&mut self, is_established: bool) -> Option<Arc<OwnedFd>> {
        let file = self.watch.file(is_established);
        match self.line.socket().filter(|_| is_established) {
            Some(socket) => Some(Arc::clone(socket)),
            None => file,
        }
    }

    /// Returns the deadline of a connection of this host.
    pub(super) fn deadline(&self) -> Option<Time> {
        match &self.line {
            Line::Socket { manager, .. } if self.stage != Stage::Over => manager.deadline(),
            _ => None,
        }
    }

    /// Processes messages that have arrived. Returns false if the peer has closed the socket.
    pub(super) fn receive(&mut self, now: Time, port: &Port, events: &mut Vec<Happening>) -> bool {
        for _ in 0..MESSAGES {
            let Some(socket) = self.line.socket() else { return false };
            // One byte more, so that no longer message is mistaken for a MAD.
            let mut bytes = [0; MAD_LEN + 1];
            match receive_mad(socket, &mut bytes) {
                Ok(read) => self.receive_one(now, port, bytes.get(..read).unwrap_or(&[]), events),
                Err(Errno::AGAIN) => return true,
                // If the peer closes its socket with unread messages, Linux reports `CONNRESET` once, before the
                // messages that the peer has sent.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(_) => return false,
            }
        }
        true
    }

    fn receive_one(&mut self, now: Time, port: &Port, mad: &[u8], events: &mut Vec<Happening>) {
        let from = self.from.unwrap_or_else(|| match Mad::parse(mad) {
            Ok(Mad { message: Message::Req(req), .. }) => claimed(&req.offer),
            // A SIDR_REQ contains no address. Both ends have that of the device.
            Ok(Mad { message: Message::SidrReq(_), .. }) if !port.addresses.is_empty() => {
                port.addresses.first().copied().unwrap_or(Address::Lid(rdma_types::Lid::NONE))
            }
            _ => Address::Lid(rdma_types::Lid::NONE),
        });
        if self.from.is_none() && !port.addresses.contains(&from) {
            return;
        }
        let Some(manager) = self.line.own() else { return };
        let output = manager.receive(now, from, mad);
        let event = self.apply(&output, port);
        // A REQ that is not for this listener is rejected after the manager has processed it.
        match event {
            Some(Ok(happening)) => events.push(happening),
            Some(Err(reason)) => {
                let _ = match self.stage {
                    Stage::Queried => self.answer(&NO_SERVICE),
                    _ => self.reject(now, &Rejection::new(reason)),
                };
                self.stage = Stage::Over;
            }
            None => {}
        }
    }

    /// Handles one expired timer. Returns true if there may be another one.
    pub(super) fn expire(&mut self, now: Time, port: &Port, events: &mut Vec<Happening>) -> bool {
        let expired = self.line.own().and_then(|manager| manager.expire(now));
        let Some(output) = expired else { return false };
        if let Some(Ok(happening)) = self.apply(&output, port) {
            events.push(happening);
        }
        true
    }

    /// Sends a MAD, and processes an event of the protocol. Returns the event for the program, or the reason to reject
    /// a REQ.
    fn apply(&mut self, output: &Output<'_>, port: &Port) -> Option<Result<Happening, Reason>> {
        if let Some(transmit) = &output.transmit {
            self.line.send(transmit);
        }
        self.handle(port, output.event.as_ref()?)
    }

    /// Processes an event of the protocol. Returns the event for the program, or the reason to reject a REQ.
    pub(super) fn handle(
        &mut self,
        port: &Port,
        event: &Event<'_>,
    ) -> Option<Result<Happening, Reason>> {
        if self.stage == Stage::Over {
            // The program has the end already, for example of a query that it has disconnected.
            return None;
        }
        match *event {
            Event::Requested { id, from, offer, .. } => {
                Some(self.requested(port, id, from, &offer))
            }
            Event::Replied { answer, .. } => {
                let Role::Active(request) = &self.role else { return None };
                self.stage = Stage::Replied;
                let (endpoint, parameters) = request.peer(&answer);
                let private_data = answer.private_data.to_vec();
                let replying = Replying { endpoint, parameters, private_data };
                Some(Ok(Happening::Replied(Box::new(replying))))
            }
            Event::Queried { id, from, query } => Some(self.queried(port, id, from, &query)),
            Event::Resolved { resolution, .. } => {
                self.stage = Stage::Over;
                let Resolution { status, qpn, qkey, private_data, .. } = resolution;
                let private_data = private_data.to_vec();
                let answered = Answered { status, qpn, qkey, private_data };
                Some(Ok(Happening::Answered(Box::new(answered))))
            }
            Event::Established { private_data, .. } => {
                self.stage = Stage::Established;
                Some(Ok(Happening::Established { private_data: private_data.to_vec() }))
            }
            Event::Ended { cause, .. } => {
                let end = end_of(self.stage, cause);
                self.stage = Stage::Over;
                Some(Ok(Happening::Ended(end)))
            }
            _ => None,
        }
    }

    fn requested(
        &mut self,
        port: &Port,
        id: CommId,
        from: Address,
        offer: &Offer<'_>,
    ) -> Result<Happening, Reason> {
        // A socket carries one connection.
        if let Some(manager) = self.line.own() {
            manager.stop_listening(offer.service_id);
        }
        (self.id, self.from, self.stage) = (id, Some(from), Stage::Requested);
        let local = self.line.local();
        let asked = requester(&port.context, (from, local), offer).ok_or(Reason::UNSUPPORTED)?;
        let (endpoint, parameters, route) = (asked.endpoint, asked.parameters, asked.route);
        self.note_asked(&route, Some(Box::new(parameters)))?;
        let (peer, private_data) = (self.token, asked.private_data.to_vec());
        let ends = match (local, from) {
            (Some(local), Address::Gid(from)) => Some((ip_of(local), ip_of(from))),
            _ => None,
        };
        let requested = Requested { peer, endpoint, ends, parameters, route, private_data };
        Ok(Happening::Requested(Box::new(requested)))
    }

    fn queried(
        &mut self,
        port: &Port,
        id: CommId,
        from: Address,
        query: &Query<'_>,
    ) -> Result<Happening, Reason> {
        // A socket carries one query.
        if let Some(manager) = self.line.own() {
            manager.stop_listening(query.service_id);
        }
        (self.id, self.from, self.stage) = (id, Some(from), Stage::Queried);
        let ends = (from, self.line.local());
        let (route, data) = querier(&port.context, ends, query).ok_or(Reason::UNSUPPORTED)?;
        self.note_asked(&route, None)?;
        let (peer, private_data) = (self.token, data.to_vec());
        Ok(Happening::Queried(Box::new(Queried { peer, route, private_data })))
    }

    /// Notes that a REQ or SIDR_REQ has arrived. Fails if it is not for the listener's address.
    fn note_asked(&mut self, route: &Route, from: Option<Box<Parameters>>) -> Result<(), Reason> {
        let Role::Passive { bound, requester, has_asked, .. } = &mut self.role else {
            return Err(Reason::UNSUPPORTED);
        };
        if !bound.covers(route.source.ip()) {
            return Err(Reason::INVALID_SERVICE_ID);
        }
        (*requester, *has_asked) = (from, true);
        Ok(())
    }

    /// Processes the end of the socket. Returns the event for the program, if it expects one.
    pub(super) fn hang_up(&mut self) -> Option<Happening> {
        self.line.close();
        let end = match self.stage {
            Stage::Silent | Stage::Over => None,
            Stage::Connecting
            | Stage::Requested
            | Stage::Querying
            | Stage::Queried
            | Stage::Replied
            | Stage::Accepted => Some(End::PeerGone),
            Stage::Established | Stage::Disconnecting => {
                Some(End::Disconnected { private_data: Vec::new() })
            }
        };
        self.stage = Stage::Over;
        end.map(Happening::Ended)
    }

    pub(crate) fn accept(&mut self, now: Time, answer: &Answer<'_>) -> Result<(), Refusal> {
        let id = self.id;
        self.line.call(|manager| manager.accept(now, id, answer))?;
        self.stage = Stage::Accepted;
        Ok(())
    }

    /// Accepts with a queue pair that serves at most what its peer may request.
    pub(crate) fn accept_with(
        &mut self,
        now: Time,
        own: Parameters,
        private_data: &[u8],
    ) -> Result<(), Refusal> {
        let Role::Passive { requester: Some(requester), .. } = &self.role else {
            return Err(Refusal::State(self.id));
        };
        let own = own.within(requester);
        self.accept(now, &own.answer(private_data))
    }

    /// Answers a query.
    pub(crate) fn answer(&mut self, resolution: &Resolution<'_>) -> Result<(), Refusal> {
        let id = self.id;
        self.line.call(|manager| manager.answer(id, resolution))?;
        self.stage = Stage::Over;
        Ok(())
    }

    /// Establishes an accepted connection, because its queue pair has received a packet.
    pub(super) fn communication_established(&mut self) -> Result<(), Refusal> {
        let id = self.id;
        self.line.manage(|manager| manager.communication_established(id))?;
        self.stage = Stage::Established;
        Ok(())
    }

    pub(crate) fn ready(&mut self) -> Result<(), Refusal> {
        let id = self.id;
        self.line.call(|manager| manager.ready(id, &[]))?;
        self.stage = Stage::Established;
        Ok(())
    }

    pub(crate) fn reject(&mut self, now: Time, rejection: &Rejection<'_>) -> Result<(), Refusal> {
        let id = self.id;
        self.line.call(|manager| manager.reject(now, id, rejection))?;
        self.stage = Stage::Over;
        Ok(())
    }

    /// Ends the connection. Returns true if its end follows, because the peer has to answer.
    pub(super) fn disconnect(&mut self, now: Time, private_data: &[u8]) -> bool {
        let is_sent = self.stage == Stage::Established && self.send_dreq(now, private_data).is_ok();
        if is_sent || self.stage == Stage::Disconnecting {
            return true;
        }
        // Otherwise the peer could still establish the connection.
        self.leave(now);
        self.stage = Stage::Over;
        false
    }

    fn send_dreq(&mut self, now: Time, private_data: &[u8]) -> Result<(), Refusal> {
        let id = self.id;
        match self.line.call(|manager| manager.disconnect(now, id, private_data)) {
            // The peer has forgotten the connection, so the manager has sent a DREQ already.
            Err(Refusal::State(_)) => {}
            sent => sent?,
        }
        self.stage = Stage::Disconnecting;
        Ok(())
    }

    /// Ends the connection, without waiting for the peer.
    pub(super) fn leave(&mut self, now: Time) {
        let _ = match self.stage {
            // A query that is not answered in time ends without a message.
            Stage::Silent | Stage::Querying | Stage::Disconnecting | Stage::Over => Ok(()),
            Stage::Queried => self.answer(&NO_ANSWER),
            Stage::Established => self.send_dreq(now, &[]),
            Stage::Connecting | Stage::Requested | Stage::Replied | Stage::Accepted => {
                self.reject(now, &Rejection::new(Reason::CONSUMER_DEFINED))
            }
        };
    }
}

fn rejected(rejection: &Rejection<'_>) -> End {
    End::Rejected { reason: rejection.reason, private_data: rejection.private_data.to_vec() }
}

/// Returns the end of a connection in a stage, by its cause.
fn end_of(stage: Stage, cause: Cause<'_>) -> End {
    match cause {
        // The peer has withdrawn its REQ.
        Cause::Rejected(Rejection { reason: Reason::TIMEOUT, .. }) if stage == Stage::Requested => {
            End::PeerGone
        }
        Cause::Rejected(rejection) => rejected(&rejection),
        Cause::Refused(reason) => End::Refused { reason },
        Cause::Disconnected(data) => End::Disconnected { private_data: data.to_vec() },
        Cause::Unanswered if stage == Stage::Disconnecting => {
            End::Disconnected { private_data: Vec::new() }
        }
        _ if stage == Stage::Accepted => End::Unanswered { phase: Phase::Accept },
        _ => End::Unanswered { phase: Phase::Connect },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_names_its_phase() {
        let of = |stage| end_of(stage, Cause::Unanswered);
        let connect = End::Unanswered { phase: Phase::Connect };
        assert_eq!((of(Stage::Connecting), of(Stage::Querying)), (connect.clone(), connect));
        let accept = of(Stage::Accepted);
        assert_eq!(accept, End::Unanswered { phase: Phase::Accept });
        assert!(
            accept.to_string().starts_with("the peer did not confirm the accepted connection: ")
        );
        assert!(matches!(of(Stage::Disconnecting), End::Disconnected { .. }));
    }

    #[test]
    fn a_withdrawn_request_is_not_a_rejection() {
        let of = |stage, reason| end_of(stage, Cause::Rejected(Rejection::new(reason)));
        assert_eq!(of(Stage::Requested, Reason::TIMEOUT), End::PeerGone);
        for (stage, reason) in [
            (Stage::Accepted, Reason::TIMEOUT),
            (Stage::Requested, Reason::CONSUMER_DEFINED),
            (Stage::Connecting, Reason::TIMEOUT),
        ] {
            let rejected = End::Rejected { reason, private_data: Vec::new() };
            assert_eq!(of(stage, reason), rejected, "{stage:?}");
        }
    }
}
