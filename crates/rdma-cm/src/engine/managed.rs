//! Connections through the kernel's rdma_cm, with the system's librdmacm.

mod apart;
mod candidates;
mod entry;
#[cfg(test)]
mod gated;
mod iwarp;
mod library;
mod listening;
mod requests;
mod resolution;
mod routes;
mod steps;

use std::collections::BTreeMap;
use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rdma_mem::Context;
use rdma_proto::cm::PortSpace;
use rdma_sys::Errno;
use rdma_types::Gid;

pub(crate) use self::entry::Request;
pub(crate) use self::iwarp::Half;

use self::entry::{Entry, JOIN, Stage, endpoint_of, parameters_of};
use self::iwarp::{check_datagrams, is_iwarp};
use self::library::{Channel, Id, RESOLVE_MS, Received, system_error};
use self::requests::Requests;
use super::files::Watch;
use super::groups::source_to;
use super::path::is_of_interface;
use super::{Engine, Handle, NEXT, State};
use crate::error::{End, Error};
use crate::happening::{Happening, Queried, Requested, Way};
use crate::options::BindOptions;
use crate::parameters::Route;

/// The events that are received before other threads get their turn.
const EVENTS: u32 = 64;
/// The time for resolving a name's addresses and their routes.
pub(crate) const RESOLVED_WITHIN: Duration =
    Duration::from_millis(3 * RESOLVE_MS.unsigned_abs() as u64);
/// The maximum number of a listener's connections that are not established.
const HALF_OPEN: usize = 128;

/// The IDs of a channel, by their tokens.
pub(super) struct Managed {
    entries: BTreeMap<u64, Entry>,
    /// The results of resolutions, until the calls that wait for them have returned.
    reached: BTreeMap<u64, Result<Way, Error>>,
    channel: Arc<Channel>,
    /// Sends the requests of an iWARP device.
    requests: Option<Requests>,
}

impl Managed {
    pub(super) fn open(context: &Context) -> Result<Self, Error> {
        let requests = is_iwarp(context).then(Requests::open).transpose()?;
        Ok(Self::with(Channel::open()?, requests))
    }

    const fn with(channel: Arc<Channel>, requests: Option<Requests>) -> Self {
        Self { entries: BTreeMap::new(), reached: BTreeMap::new(), channel, requests }
    }

    /// Returns the files that are readable when events have arrived, or requests have failed.
    pub(super) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let requests = self.requests.iter().map(AsFd::as_fd);
        iter::once(self.channel.as_fd()).chain(requests)
    }

    /// Adds an ID. Its token is new.
    fn add(&mut self, id: Id, stage: Stage) -> &mut Entry {
        let entry = Entry::new(id, stage);
        self.entries.entry(entry.id.token()).or_insert(entry)
    }

    /// Returns true if a listener has as many connections that are not established as it can have.
    fn is_full(&self, listener: u64) -> bool {
        let of_listener = |entry: &&Entry| {
            entry.listener == Some(listener)
                && matches!(entry.stage, Stage::Requested | Stage::Accepted)
        };
        self.entries.values().filter(of_listener).count() >= HALF_OPEN
    }

    /// Returns the file that the program polls for a connection, with its owner.
    pub(super) fn watch(&mut self, token: u64) -> Option<(&mut Watch, bool)> {
        let entry = self.entries.get_mut(&token)?;
        Some((&mut entry.watch, entry.stage == Stage::Over))
    }
}

impl Engine {
    /// Returns true if the device has this GID.
    pub(crate) fn has_gid(&self, gid: Gid) -> bool {
        let table = self.context().gid_table().unwrap_or_default();
        table.iter().any(|entry| entry.gid == gid)
    }

    /// Returns true if the device speaks iWARP.
    pub(crate) fn is_iwarp(&self) -> bool {
        is_iwarp(self.context())
    }

    /// Returns an error if the device has no datagrams.
    pub(crate) fn check_datagrams(&self) -> Result<(), Error> {
        check_datagrams(self.context())
    }

    /// Returns an error if connections of the device pass through the kernel's rdma_cm.
    pub(crate) fn check_unmanaged(&self) -> Result<(), Error> {
        if self.is_managed {
            return Err(Error::Managed { device: self.context().device().name().to_owned() });
        }
        Ok(())
    }

    /// Calls a function with a listener or connection. If it has ended, returns the reason.
    fn manage<T>(
        &self,
        token: u64,
        tried: &'static str,
        call: impl FnOnce(&mut Entry) -> Result<T, Errno>,
    ) -> Result<T, Error> {
        self.check_process()?;
        let mut state = self.locked();
        let entry = state.managed.as_mut().and_then(|managed| managed.entries.get_mut(&token));
        let result = match entry {
            Some(entry) if entry.stage != Stage::Over => call(entry),
            _ => {
                let end = state.take_end(token);
                self.set_readable(&mut state);
                return Err(Error::Ended(end));
            }
        };
        result.map_err(|errno| match errno {
            // The kernel has processed a message of the peer, or the device's removal. This process may not have received
            // its event.
            Errno::EINVAL
            | Errno::ENOTCONN
            | Errno::ECONNRESET
            | Errno::EIO
            | Errno::ENXIO
            | Errno::ENODEV => {
                self.receive_managed(&mut state);
                // A thread may wait for an address that this has resolved, which causes no event.
                self.wake(&state);
                // Before an end is taken: the queue has had events meanwhile.
                self.set_readable(&mut state);
                let is_removed = matches!(errno, Errno::EIO | Errno::ENXIO | Errno::ENODEV);
                let end = match state.place_of_end(token) {
                    None if is_removed => End::DeviceRemoved,
                    _ => state.take_end(token),
                };
                self.finish(&mut state, token);
                Error::Ended(end)
            }
            errno => Error::System { tried, source: system_error(errno) },
        })
    }

    /// Adds an ID, and calls a function with it.
    fn begin(
        self: &Arc<Self>,
        space: PortSpace,
        stage: Stage,
        call: impl FnOnce(&mut Entry) -> Result<(), Errno>,
    ) -> Result<Handle, Errno> {
        let token = NEXT.fetch_add(1, Ordering::Relaxed);
        let handle = self.handle(token);
        let mut state = self.locked();
        let managed = state.managed.as_mut().ok_or(Errno::EINVAL)?;
        let id = managed.channel.create_id(token, space)?;
        call(managed.add(id, stage))?;
        drop(state);
        Ok(handle)
    }

    /// Returns the route to a datagram service. Waits for the kernel, for at most 30 s.
    pub(crate) fn route_managed(self: &Arc<Self>, to: SocketAddr) -> Result<Route, Error> {
        check_datagrams(self.context())?;
        let handle = self.reach(PortSpace::Udp, &[to], true)?;
        handle.reached(RESOLVED_WITHIN)?;
        self.manage(handle.token, "read the route", |entry| {
            self.route_of(&entry.id).ok_or(Errno::EIO)
        })
    }

    /// Binds a port at an address of this host. Also returns its number.
    pub(crate) fn bind_managed(
        self: &Arc<Self>,
        space: PortSpace,
        address: SocketAddr,
        options: BindOptions,
    ) -> Result<(Handle, u16), Error> {
        self.check_process()?;
        if space == PortSpace::Udp {
            check_datagrams(self.context())?;
        }
        let device = || self.context().device().name().to_owned();
        // A link-local address keeps its scope.
        let mut at = address;
        at.set_ip(iwarp::listening_at(self.context(), address.ip()));
        let (mut other, mut port) = (None, address.port());
        let begun = self.begin(space, Stage::Listening, |entry| {
            entry.bound = Some(address.ip());
            let id = &entry.id;
            id.set_port_options(options.is_shared, options.is_one_ip_version)?;
            id.bind(at)?;
            other = id.check_device(self.context()).err();
            let [own, _] = id.addresses();
            port = own.map_or(port, |own| own.port());
            Ok(())
        });
        match (begun, other) {
            (Ok(handle), None) => Ok((handle, port)),
            (Ok(_), Some(found)) => {
                Err(Error::OtherDevice { address: address.ip(), device: device(), found })
            }
            (Err(errno), _) => {
                let is_own = || {
                    at.set_port(0);
                    self.begin(space, Stage::Listening, |entry| entry.id.bind(at)).is_ok()
                };
                Err(listening::not_bound(errno, address, device(), is_own))
            }
        }
    }

    /// Listens at an address of this host. Also returns the port.
    pub(crate) fn listen_managed(
        self: &Arc<Self>,
        address: SocketAddr,
        options: BindOptions,
    ) -> Result<(Handle, u16), Error> {
        let (handle, port) = self.bind_managed(PortSpace::Tcp, address, options)?;
        handle.listen((address.ip(), port).into())?;
        Ok((handle, port))
    }

    /// Requests a connection, or sends a query, as soon as the kernel has the route. An event follows. `resolved` is the
    /// ID of the address, unless another connection has it.
    pub(crate) fn connect_managed(
        self: &Arc<Self>,
        resolved: Option<Handle>,
        (source, to): (Option<IpAddr>, SocketAddr),
        request: Request,
    ) -> Result<Handle, Error> {
        self.check_process()?;
        let failed = |errno| Error::System { tried: "connect", source: system_error(errno) };
        // The traffic class is part of the route.
        if let Some(handle) = resolved.filter(|_| request.traffic_class.is_none()) {
            let mut state = self.locked();
            let Managed { entries, requests, .. } = state.managed.as_mut().ok_or(Error::Closed)?;
            let entry = entries.get_mut(&handle.token);
            if let Some(entry) = entry.filter(|entry| entry.stage == Stage::Resolved) {
                entry.request = Some(request);
                // The file of the resolution is readable because of its event.
                entry.watch = Watch::default();
                let ended = entry.send_request(requests.as_ref());
                self.add_managed(&mut state, handle.token, ended);
                self.finish(&mut state, handle.token);
                drop(state);
                return Ok(handle);
            }
        }
        let begun = self.begin(request.space, Stage::Resolving, |entry| {
            entry.request = Some(request);
            entry.id.resolve_address(source, to)
        });
        let handle = begun.map_err(failed)?;
        self.wait_for(Some(RESOLVED_WITHIN), |state| {
            let entry = state.managed.as_ref()?.entries.get(&handle.token);
            (!entry.is_some_and(|entry| entry.stage == Stage::Resolving)).then_some(())
        })?;
        Ok(handle)
    }

    /// Joins a multicast group, as soon as the kernel has the route. An event follows.
    pub(crate) fn join_managed(
        self: &Arc<Self>,
        group: IpAddr,
        source: Option<IpAddr>,
    ) -> Result<Handle, Error> {
        self.check_process()?;
        check_datagrams(self.context())?;
        let group = group.to_canonical();
        if !group.is_multicast() {
            return Err(Error::NotGroup { address: group });
        }
        let source = match source {
            Some(wanted) => Some(wanted.to_canonical()),
            None => source_to(self.context(), group)?,
        };
        let to = SocketAddr::new(group, 0);
        let begun = self.begin(PortSpace::Udp, Stage::Resolving, |entry| {
            entry.group = Some(to);
            entry.id.resolve_address(source, to)
        });
        begun.map_err(|errno| Error::System { tried: JOIN, source: system_error(errno) })
    }

    /// Queues the event of a connection.
    fn add_managed(&self, state: &mut State, token: u64, event: Option<Happening>) {
        let Some(event) = event else { return };
        // A request that is withdrawn before the program receives it is not reported.
        if matches!(event, Happening::Ended(_)) && state.has_request(token) {
            return self.remove(state, token);
        }
        if let Some((watch, _)) = state.managed.as_mut().and_then(|managed| managed.watch(token)) {
            watch.ring();
        }
        state.push(token, event);
    }

    /// Receives the events that have arrived, and ends connections whose requests were not sent.
    pub(super) fn receive_managed(&self, state: &mut State) {
        self.end_unsent(state);
        for _ in 0..EVENTS {
            let Some(managed) = &mut state.managed else { return };
            let name = || NEXT.fetch_add(1, Ordering::Relaxed);
            let Some(mut received) = managed.channel.next(name) else { return };
            if self.is_iwarp() {
                iwarp::pad(&mut received);
            }
            let token = received.token;
            if let Some(id) = received.request.take() {
                if managed.requests.is_some() {
                    id.end_apart();
                }
                if let Some(requested) = self.requested(managed, token, id, received) {
                    state.push(token, requested);
                }
                continue;
            }
            let Managed { entries, requests, .. } = managed;
            let Some(entry) = entries.get_mut(&token) else { continue };
            let failure = (received.event, received.status);
            let happening = entry.handle(self.context(), requests.as_ref(), received);
            self.add_managed(state, token, happening);
            self.resolved(state, token, failure);
        }
    }

    /// Ends connections whose requests a thread could not send.
    fn end_unsent(&self, state: &mut State) {
        let requests = state.managed.as_ref().and_then(|managed| managed.requests.as_ref());
        for (token, errno) in requests.map(Requests::take_unsent).unwrap_or_default() {
            let managed = state.managed.as_mut();
            let entry = managed.and_then(|managed| managed.entries.get_mut(&token));
            let entry = entry.filter(|entry| entry.stage == Stage::Connecting);
            let ended = entry.and_then(|entry| entry.end_unsent(errno));
            self.add_managed(state, token, ended);
        }
    }

    /// Adds the connection of a request. The ID of a request that is not accepted is destroyed, which rejects it.
    fn requested(
        &self,
        managed: &mut Managed,
        listener: u64,
        id: Id,
        received: Received,
    ) -> Option<Happening> {
        if managed.is_full(listener) {
            return None;
        }
        id.check_device(self.context()).ok()?;
        if received.datagram.is_some() {
            return self.queried(managed, listener, id, received.private_data);
        }
        let bound = managed.entries.get(&listener)?.bound?;
        let (route, attributes) = if self.is_iwarp() {
            let [_, other] = id.addresses();
            let is_outside = !is_of_interface(other?.ip());
            (iwarp::route_of(self.context(), &id, is_outside)?, None)
        } else {
            let attributes = id.attributes().ok()?;
            (self.route_of_request(&id, &attributes)?, Some(Box::new(attributes)))
        };
        // For the kernel's rdma_cm, the loopback addresses stand for all addresses.
        if bound.is_loopback() && route.is_outside {
            return None;
        }
        let (mtu, parameters) = (route.mtu, parameters_of(&received.parameters));
        let peer = id.token();
        let entry = managed.add(id, Stage::Requested);
        (entry.listener, entry.peer) = (Some(listener), Some(parameters));
        entry.attributes = attributes;
        Some(Happening::Requested(Box::new(Requested {
            peer,
            endpoint: endpoint_of(&parameters, Some(mtu)),
            ends: None,
            parameters,
            route,
            private_data: received.private_data,
        })))
    }

    /// Adds a query.
    fn queried(
        &self,
        managed: &mut Managed,
        listener: u64,
        id: Id,
        private_data: Vec<u8>,
    ) -> Option<Happening> {
        let route = self.route_of(&id)?;
        let bound = managed.entries.get(&listener)?.bound?;
        if bound.is_loopback() && route.is_outside {
            return None;
        }
        let peer = id.token();
        managed.add(id, Stage::Requested).listener = Some(listener);
        Some(Happening::Queried(Box::new(Queried { peer, route, private_data })))
    }

    /// Disconnects. Returns true if its end follows.
    pub(super) fn disconnect_managed(state: &mut State, token: u64) -> bool {
        let managed = state.managed.as_mut();
        let entry = managed.and_then(|managed| managed.entries.get_mut(&token));
        entry.is_some_and(|entry| match entry.stage {
            Stage::Disconnecting => true,
            Stage::Established if entry.id.disconnect().is_ok() => {
                entry.stage = Stage::Disconnecting;
                true
            }
            // The kernel ends another one when its ID is destroyed.
            _ => {
                entry.stage = Stage::Over;
                false
            }
        })
    }

    /// Removes a listener or connection, and the requests to a listener that the program has not received. They end
    /// when the result is dropped. The kernel may need time for this.
    pub(super) fn remove_managed(state: &mut State, token: u64) -> Vec<Entry> {
        let queued = state.events.iter().filter(|(of, _)| *of == token);
        let requests: Vec<_> = queued.filter_map(|(_, event)| event.requester()).collect();
        let Some(managed) = &mut state.managed else { return Vec::new() };
        let tokens = requests.into_iter().chain([token]);
        tokens
            .filter_map(|token| {
                managed.reached.remove(&token);
                managed.entries.remove(&token)
            })
            .collect()
    }
}
