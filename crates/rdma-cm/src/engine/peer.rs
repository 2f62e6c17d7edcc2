//! One connection: its stage, and the events of the protocol.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rdma_mem::{Context, Gid};
use rdma_proto::Time;
use rdma_proto::cm::wire::{MAD_LEN, Mad, Message, Offer, Reason, Rejection};
use rdma_proto::cm::{
    Address, Cause, CommId, Error as Refusal, Event, Manager, Output, Settings, Transmit,
};
use rdma_qp::QueuePairEndpoint;
use rustix::io::Errno;

use super::gateway::Gateway;
use super::line::Line;
use super::path::{Request, answer, claimed, ip_of, requester};
use super::socket::{receive_mad, service};
use crate::error::End;
use crate::event::{Happening, IdToken, Replying, Requested};

/// The messages that are received before other sockets get their turn.
const MESSAGES: u32 = 16;

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
    /// The peer has connected its socket, but sent no REQ.
    Silent,
    /// This end sent a REQ.
    Connecting,
    /// This end received a REQ.
    Requested,
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
        matches!(self, Self::Silent | Self::Requested | Self::Accepted)
    }
}

/// The end of a connection that this process has.
pub(super) enum Role {
    /// The end that sends the REQ.
    Active(Request),
    Passive {
        listener: u64,
        /// The IP address to which the listener is bound, if to a specific one.
        bound: Option<IpAddr>,
        /// The active end's queue pair, once its REQ has arrived.
        requester: Option<QueuePairEndpoint>,
    },
}

pub(crate) struct Peer {
    token: u64,
    pub(super) line: Line,
    pub(super) stage: Stage,
    pub(super) role: Role,
    id: CommId,
    from: Option<Address>,
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
        let connected = manager.connect(now, request.remote(), &request.offer())?;
        let line = Line::Socket { socket: Some(socket), manager };
        Ok(Self::connecting(token, line, request, &connected))
    }

    /// Sends a REQ to another host. Also returns its communication ID.
    pub(super) fn connect_outside(
        token: u64,
        now: Time,
        gateway: &Arc<Gateway>,
        request: Request,
    ) -> Result<(CommId, Self), Refusal> {
        let connect =
            |manager: &mut Manager| manager.connect(now, request.remote(), &request.offer());
        let connected = gateway.manage(connect)?;
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
        let (stage, from) = (Stage::Connecting, Some(request.remote()));
        Self { token, line, stage, role: Role::Active(request), id: *id, from }
    }

    /// Prepares for the REQ of an active end that has connected its socket to a listener.
    pub(super) fn accepted(
        token: u64,
        port: &Port,
        socket: OwnedFd,
        (listener, number): (u64, u16),
        bound: Option<IpAddr>,
    ) -> Result<Self, Refusal> {
        let mut manager = Box::new(port.manager());
        manager.listen(service(number))?;
        let line = Line::Socket { socket: Some(socket), manager };
        Ok(Self::passive(token, line, listener, bound))
    }

    /// Prepares for a REQ of another host, which has arrived.
    pub(super) fn requested_outside(
        token: u64,
        gateway: &Arc<Gateway>,
        listener: u64,
        bound: Option<IpAddr>,
    ) -> Self {
        Self::passive(token, Line::Gateway(Arc::clone(gateway)), listener, bound)
    }

    const fn passive(token: u64, line: Line, listener: u64, bound: Option<IpAddr>) -> Self {
        let role = Role::Passive { listener, bound, requester: None };
        Self { token, line, stage: Stage::Silent, role, id: CommId::NONE, from: None }
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
        matches!(self.role, Role::Active(_) | Role::Passive { requester: Some(_), .. })
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
                let _ = self.reject(now, &Rejection::new(reason));
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
        match *event {
            Event::Requested { id, from, offer, .. } => {
                Some(self.requested(port, id, from, &offer))
            }
            Event::Replied { answer, .. } => {
                let Role::Active(request) = &self.role else { return None };
                self.stage = Stage::Replied;
                let endpoint = Box::new(request.peer(&answer));
                let private_data = answer.private_data.to_vec();
                Some(Ok(Happening::Replied(Replying { endpoint, private_data })))
            }
            Event::Established { private_data, .. } => {
                self.stage = Stage::Established;
                Some(Ok(Happening::Established { private_data: private_data.to_vec() }))
            }
            Event::Ended { cause, .. } => {
                let end = self.end(cause);
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
        let (endpoint, ip, data) =
            requester(&port.context, (from, local), offer).ok_or(Reason::UNSUPPORTED)?;
        let Role::Passive { bound, requester, .. } = &mut self.role else {
            return Err(Reason::UNSUPPORTED);
        };
        if bound.is_some_and(|bound| !is_same(bound, ip)) {
            return Err(Reason::INVALID_SERVICE_ID);
        }
        *requester = Some(endpoint);
        let (peer, private_data) = (IdToken::new(self.token), data.to_vec());
        let endpoint = Box::new(endpoint);
        let ends = match (local, from) {
            (Some(local), Address::Gid(from)) => Some((ip_of(local), ip_of(from))),
            _ => None,
        };
        Ok(Happening::Requested(Requested { peer, endpoint, ends, private_data }))
    }

    fn end(&self, cause: Cause<'_>) -> End {
        match cause {
            Cause::Rejected(rejection) if self.stage == Stage::Requested => {
                // The peer has withdrawn its REQ.
                if rejection.reason == Reason::TIMEOUT {
                    End::PeerGone
                } else {
                    rejected(&rejection)
                }
            }
            Cause::Rejected(rejection) => rejected(&rejection),
            Cause::Refused(reason) => End::Refused { reason },
            Cause::Disconnected(data) => End::Disconnected { private_data: data.to_vec() },
            Cause::Unanswered if self.stage == Stage::Disconnecting => {
                End::Disconnected { private_data: Vec::new() }
            }
            _ => End::Unanswered,
        }
    }

    /// Processes the end of the socket. Returns the event for the program, if it expects one.
    pub(super) fn hang_up(&mut self) -> Option<Happening> {
        self.line.close();
        let end = match self.stage {
            Stage::Silent | Stage::Over => None,
            Stage::Connecting | Stage::Requested | Stage::Replied | Stage::Accepted => {
                Some(End::PeerGone)
            }
            Stage::Established | Stage::Disconnecting => {
                Some(End::Disconnected { private_data: Vec::new() })
            }
        };
        self.stage = Stage::Over;
        end.map(Happening::Ended)
    }

    pub(crate) fn accept(
        &mut self,
        now: Time,
        own: &QueuePairEndpoint,
        private_data: &[u8],
    ) -> Result<(), Refusal> {
        let Role::Passive { requester: Some(requester), .. } = &self.role else {
            return Err(Refusal::State(self.id));
        };
        let (id, answer) = (self.id, answer(own, requester, private_data));
        self.line.call(|manager| manager.accept(now, id, &answer))?;
        self.stage = Stage::Accepted;
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

    pub(crate) fn disconnect(&mut self, now: Time, private_data: &[u8]) -> Result<(), Refusal> {
        let id = self.id;
        self.line.call(|manager| manager.disconnect(now, id, private_data))?;
        self.stage = Stage::Disconnecting;
        Ok(())
    }

    /// Ends the connection, without waiting for the peer.
    pub(super) fn leave(&mut self, now: Time) {
        let _ = match self.stage {
            Stage::Silent | Stage::Disconnecting | Stage::Over => Ok(()),
            Stage::Established => self.disconnect(now, &[]),
            Stage::Connecting | Stage::Requested | Stage::Replied | Stage::Accepted => {
                self.reject(now, &Rejection::new(Reason::CONSUMER_DEFINED))
            }
        };
    }
}

/// Returns true if both addresses lead to the same listener. The two addresses of `localhost` do, as either may be the
/// first one that the name resolves to.
fn is_same(one: IpAddr, other: IpAddr) -> bool {
    const LOCALHOST: [IpAddr; 2] =
        [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    one == other || [one, other].iter().all(|ip| LOCALHOST.contains(ip))
}

fn rejected(rejection: &Rejection<'_>) -> End {
    End::Rejected { reason: rejection.reason, private_data: rejection.private_data.to_vec() }
}
