//! The engine of an event channel: its sockets, connections and events.
//!
//! No thread belongs to a channel, except for calls in which the kernel waits for an iWARP peer, and for the files of
//! many connections. A thread that waits for an event processes the messages of all connections. If several threads
//! wait, one of them does this, and the others sleep until it is done.

mod files;
mod gateway;
pub(crate) mod groups;
mod hub;
mod line;
mod listening;
pub(crate) mod managed;
mod options;
pub(crate) mod path;
pub(crate) mod peer;
mod remote;
mod socket;
mod state;
mod time;

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rdma_mem::{Context, LinkLayer};
use rdma_proto::Time;
use rdma_proto::cm::wire::Reason;
use rdma_proto::cm::{Error as Refusal, PortSpace, ServiceId};
use rdma_qp::PreparedQueuePair;
use rdma_sys::is_installed;
use rustix::io::Errno;

use self::files::{FIRST_KEY, Files, MADS, set};
use self::hub::Member;
use self::listening::{Bound, Listening, Name};
use self::managed::Managed;
use self::path::{OwnAddresses, Request};
use self::peer::{Peer, Port};
use self::state::State;
use crate::error::{End, Error};
use crate::happening::Happening;
use crate::options::BindOptions;

/// The next token, which is unique in the process.
static NEXT: AtomicU64 = AtomicU64::new(FIRST_KEY);

/// The engines that parts of the process share, each with the addresses of its device and its provider's functions.
static SHARED: Mutex<Vec<([usize; 2], Weak<Engine>)>> = Mutex::new(Vec::new());

pub(crate) struct Engine {
    port: Port,
    files: Files,
    /// The access to queue pair 1, if the device reaches other hosts.
    member: Option<Arc<Member>>,
    /// The clock's zero.
    start: Instant,
    state: Mutex<State>,
    /// Notified when events were queued, and when no thread waits for the files.
    changed: Condvar,
    /// Whether the connections pass through the kernel's rdma_cm.
    is_managed: bool,
    /// The link layers of the device's ports, which do not change while it is open.
    link_layers: Vec<LinkLayer>,
    own: OwnAddresses,
}

/// A port that no other listener of the device can have. It is free when this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    name: Arc<Name>,
    service: ServiceId,
    pub(crate) port: u16,
    bound: Bound,
}

impl Reserved {
    /// Changes the options. A port that is shared stays shared.
    pub(crate) fn set_options(&mut self, options: BindOptions) {
        self.bound.is_one_version = options.is_one_ip_version;
        if options.is_shared {
            self.name.share();
        }
    }
}

/// A listener or connection, which ends when this is dropped.
pub(crate) struct Handle {
    pub(crate) engine: Arc<Engine>,
    pub(crate) token: u64,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Handle").field(&self.token).finish()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.engine.release(self.token);
    }
}

impl Engine {
    pub(crate) fn open(context: &Context) -> Result<Arc<Self>, Error> {
        let addresses = path::addresses(context)?;
        let link_layers = path::ports(context)?.iter().map(|port| port.link_layer).collect();
        let failed = Error::system("open an event channel");
        let (files, mut state) = (Files::open()?, State::default());
        let is_managed = is_installed(context.verbs());
        let mut member = None;
        if is_managed {
            let managed = state.managed.insert(Managed::open(context)?);
            for (file, key) in managed.files().zip(MADS) {
                files.add(file, key).map_err(&failed)?;
            }
        } else {
            member = Member::join(context)?.map(Arc::new);
            for (file, key) in member.iter().flat_map(|member| member.files()).zip(MADS) {
                files.add(file, key).map_err(&failed)?;
            }
        }
        Ok(Arc::new(Self {
            port: Port { context: context.clone(), addresses },
            files,
            member,
            start: Instant::now(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            is_managed,
            link_layers,
            own: OwnAddresses::default(),
        }))
    }

    /// Returns the engine that the process shares for a device, and opens it if necessary.
    pub(crate) fn shared(context: &Context) -> Result<Arc<Self>, Error> {
        let device = [context.device().as_raw().addr(), ptr::from_ref(context.verbs()).addr()];
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|(_, engine)| engine.strong_count() > 0);
        let of_device = shared.iter().filter(|(other, _)| *other == device);
        let mut engines = of_device.filter_map(|(_, engine)| engine.upgrade());
        let is_usable =
            |engine: &Arc<Self>| engine.check_process().is_ok() && !engine.locked().closed;
        if let Some(engine) = engines.find(is_usable) {
            return Ok(engine);
        }
        let engine = Self::open(context)?;
        shared.push((device, Arc::downgrade(&engine)));
        Ok(engine)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.port.context
    }

    /// Returns the link layer of a port, whose number begins at 1.
    fn link_layer(&self, port: u8) -> Option<LinkLayer> {
        self.link_layers.get(usize::from(port).checked_sub(1)?).copied()
    }

    /// Checks that a queue pair belongs to the channel's device and provider. Their contexts may differ. Devices of two
    /// providers can have the same name and GUID, such as the software device of this process and that of a libibverbs.
    pub(crate) fn check_queue_pair(&self, queue_pair: &PreparedQueuePair) -> Result<(), Error> {
        let [own, other] = [self.context(), queue_pair.pd().context()].map(Context::device);
        let has_own_provider = ptr::eq(own.verbs(), other.verbs());
        if has_own_provider && (own.name(), own.guid()) == (other.name(), other.guid()) {
            return Ok(());
        }
        let [device, found] = [own, other].map(|device| device.name().to_owned());
        Err(Error::OtherQueuePair { device, found })
    }

    /// Returns true if the connections pass through the kernel's rdma_cm.
    pub(crate) const fn is_managed(&self) -> bool {
        self.is_managed
    }

    /// Returns an error in a child that was forked after the channel was opened.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        Ok(self.context().check_process().map_err(rdma_mem::Error::from)?)
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(self: &Arc<Self>, token: u64) -> Handle {
        Handle { engine: Arc::clone(self), token }
    }

    /// Reserves a port at an address of this host; 0 selects a free one.
    pub(crate) fn reserve(
        &self,
        space: PortSpace,
        address: SocketAddr,
        options: BindOptions,
    ) -> Result<Reserved, Error> {
        self.check_process()?;
        let port = address.port();
        let reserved = listening::bind(self.port_owner(), space, port, options.is_shared);
        let (name, port) = reserved.map_err(|errno| self.not_bound(port, errno))?;
        let bound = Bound { ip: address.ip(), is_one_version: options.is_one_ip_version };
        Ok(Reserved { name, service: space.service_id(port), port, bound })
    }

    /// Returns the error of a port that was not bound.
    fn not_bound(&self, port: u16, errno: Errno) -> Error {
        match errno {
            Errno::ADDRINUSE => {
                Error::PortInUse { port, device: self.context().device().name().to_owned() }
            }
            errno => Error::system("listen")(errno),
        }
    }

    /// Listens at a reserved port. The listener becomes an owner of the port.
    pub(crate) fn listen(self: &Arc<Self>, reserved: &Reserved) -> Result<Handle, Error> {
        self.check_process()?;
        let &Reserved { ref name, service, port, bound } = reserved;
        name.listen().map_err(|errno| self.not_bound(port, errno))?;
        let name = Arc::clone(name);
        let token = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut state = self.locked();
        if let Err(errno) = self.files.add(name.socket(), token) {
            // Clients are refused, instead of waiting for a thread that never accepts them.
            self.files.remove(name.socket());
            return Err(Error::system("listen")(errno));
        }
        state.listeners.insert(token, Listening::new(name, service, bound));
        self.listen_outside(&state, service);
        drop(state);
        Ok(self.handle(token))
    }

    /// Queues an event that needs no protocol, for a new ID.
    pub(crate) fn announce(self: &Arc<Self>, event: Happening) -> Result<Handle, Error> {
        self.check_process()?;
        let token = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut state = self.locked();
        state.push(token, event);
        self.finish(&mut state, token);
        drop(state);
        Ok(self.handle(token))
    }

    /// Sends a request to its service. An event follows, even if the service has no listener.
    pub(crate) fn connect(self: &Arc<Self>, request: Request) -> Result<Handle, Error> {
        self.check_process()?;
        let token = NEXT.fetch_add(1, Ordering::Relaxed);
        let handle = self.handle(token);
        if let Some(local) = request.source() {
            let mut state = self.locked();
            self.connect_outside(&mut state, (token, local), request)
                .map_err(|refusal| Error::refused(refusal, || End::PeerGone))?;
            self.finish(&mut state, token);
            return Ok(handle);
        }
        let failed = match socket::connect_to(self.port_owner(), request.service()) {
            Ok(socket) => {
                let mut state = self.locked();
                self.files.add(&socket, token).map_err(Error::system("connect"))?;
                let peer = Peer::connect(token, self.now(), &self.port, socket, request)
                    .map_err(|refusal| Error::refused(refusal, || End::PeerGone))?;
                state.peers.insert(token, peer);
                self.finish(&mut state, token);
                return Ok(handle);
            }
            Err(Errno::CONNREFUSED | Errno::NOENT) => {
                let (reason, private_data) = (Reason::INVALID_SERVICE_ID, Vec::new());
                End::Rejected { reason, private_data }
            }
            Err(Errno::AGAIN) => End::Busy,
            Err(Errno::ACCESS) => End::OtherUser,
            Err(errno) => return Err(Error::system("connect")(errno)),
        };
        let mut state = self.locked();
        state.push(token, Happening::Ended(failed));
        self.finish(&mut state, token);
        Ok(handle)
    }

    /// Changes a connection. If the connection has ended, returns the reason.
    pub(crate) fn change(
        &self,
        token: u64,
        change: impl FnOnce(&mut Peer, Time) -> Result<(), Refusal>,
    ) -> Result<(), Error> {
        self.change_with(token, change, None)
    }

    /// Changes a connection, and queues an event if this succeeds.
    fn change_with(
        &self,
        token: u64,
        change: impl FnOnce(&mut Peer, Time) -> Result<(), Refusal>,
        event: Option<Happening>,
    ) -> Result<(), Error> {
        self.check_process()?;
        self.check_unmanaged()?;
        let now = self.now();
        let mut state = self.locked();
        // The communication ID of an ended connection may be that of another one.
        let peer = state.peers.get_mut(&token).filter(|peer| peer.stage != peer::Stage::Over);
        let changed = peer.map(|peer| change(peer, now));
        let result = match changed {
            Some(Ok(())) => {
                // Before the lock is released, so that it precedes the end.
                event.into_iter().for_each(|event| state.push(token, event));
                Ok(())
            }
            Some(Err(refusal)) => Err(Error::refused(refusal, || state.take_end(token))),
            None => Err(Error::Ended(state.take_end(token))),
        };
        self.finish(&mut state, token);
        result
    }

    /// Establishes an accepted connection whose queue pair has received a packet. An event follows.
    pub(crate) fn communication_established(&self, token: u64) -> Result<(), Error> {
        let event = Happening::Established { private_data: Vec::new() };
        self.change_with(token, |peer, _| peer.communication_established(), Some(event))
    }

    /// Returns a file that is readable once the connection has an event, or while a thread must process messages. The
    /// file of an established connection is its socket, if it has one, because only the end is an event then.
    pub(crate) fn file_of(
        self: &Arc<Self>,
        token: u64,
        is_established: bool,
    ) -> Result<Arc<OwnedFd>, Error> {
        self.check_process()?;
        let mut state = self.locked();
        if let Some(file) = state.file(token, is_established) {
            return Ok(file);
        }
        let is_nested = self.nests_next_file(&mut state)?;
        let (file, bell) =
            self.files.watch(is_nested).map_err(Error::system("watch a connection"))?;
        if state.events.iter().any(|(of, _)| *of == token) {
            set(&bell);
        }
        // Without a peer, nothing rings the bell again. It is readable if the end is still queued.
        let (watch, is_over) = match state.watch(token) {
            Some(found) => found,
            None => return Ok(Arc::new(bell)),
        };
        let file = Arc::new(file);
        watch.keep(Arc::clone(&file), bell);
        if is_over {
            watch.ring();
        }
        if is_nested {
            state.watching.add_nested(&file);
        }
        Ok(file)
    }

    /// Returns true if the next file of a connection contains the channel's epoll instance. Otherwise, starts a thread
    /// that processes messages, unless there is one. The time of a simulated network passes only in threads of the
    /// program.
    fn nests_next_file(self: &Arc<Self>, state: &mut State) -> Result<bool, Error> {
        if state.watching.may_nest() || self.is_simulated() {
            return Ok(true);
        }
        let engine = Arc::downgrade(self);
        let process = move || {
            let engine = engine.upgrade()?;
            match engine.next(|_| false, NOW) {
                // A closed channel still processes messages.
                Ok(_) | Err(Error::Closed) => Some(engine.locked().has_waiter),
                Err(_) => None,
            }
        };
        let started = state.watching.process_by_thread(&self.files, process);
        started.map_err(Error::system("watch a connection"))?;
        Ok(false)
    }

    /// Disconnects. Exactly one event follows, even if the connection has ended before. A connection that is not
    /// established ends at once.
    pub(crate) fn disconnect(&self, token: u64, private_data: &[u8]) -> Result<(), Error> {
        self.check_process()?;
        let now = self.now();
        let mut state = self.locked();
        let follows = match state.peers.get_mut(&token) {
            Some(peer) => peer.disconnect(now, private_data),
            None => Self::disconnect_managed(&mut state, token),
        };
        if !follows && state.place_of_end(token).is_none() {
            let end = End::Disconnected { private_data: Vec::new() };
            state.push(token, Happening::Ended(end));
        }
        self.finish(&mut state, token);
        Ok(())
    }

    /// Removes a listener or connection, with its events. Never waits for a peer, and lets no other thread wait for the
    /// kernel. Does nothing in a forked child: the connection belongs to the parent.
    fn release(&self, token: u64) {
        if self.check_process().is_err() {
            return;
        }
        let mut state = self.locked();
        let ended = Self::remove_managed(&mut state, token);
        self.remove(&mut state, token);
        self.finish(&mut state, token);
        drop(state);
        // The kernel may need time to destroy their IDs.
        drop(ended);
    }

    pub(crate) fn close(&self) {
        if self.check_process().is_err() {
            return;
        }
        let mut state = self.locked();
        state.closed = true;
        self.set_readable(&mut state);
        self.wake(&state);
    }

    /// Returns the next event of a wanted listener or connection; `None` if there is none within the limit.
    pub(crate) fn next(
        &self,
        wants: impl Fn(u64) -> bool,
        limit: Option<Duration>,
    ) -> Result<Option<(u64, Happening)>, Error> {
        self.wait_for(limit, |state| state.take(&wants))
    }

    /// Wakes the threads that wait.
    fn wake(&self, state: &State) {
        if state.has_waiter {
            self.files.wake();
        }
        self.wake_sleepers(state);
    }

    /// Wakes the threads that leave the files to another one. Without such threads, makes no system call.
    fn wake_sleepers(&self, state: &State) {
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Receives from sockets, and handles expired timers.
    fn process(&self, state: &mut State, ready: &[u64]) {
        if self.is_managed {
            // The kernel has the timers.
            if !ready.is_empty() {
                self.receive_managed(state);
            }
            return;
        }
        let now = self.now();
        for &token in ready {
            if MADS.contains(&token) {
                self.receive_mads(state, now);
            } else if state.listeners.contains_key(&token) {
                self.accept(state, token);
            } else {
                self.receive(state, token, now);
            }
        }
        while let Some(&(_, token)) = state.deadlines.first().filter(|(at, _)| *at <= now) {
            self.expire(state, token, now);
        }
        self.expire_outside(state, now);
        self.set_timer(state);
        // The timer no longer wakes the thread that waits for it.
        if state.has_new {
            self.wake(state);
        }
    }

    fn receive(&self, state: &mut State, token: u64, now: Time) {
        let Some(peer) = state.peers.get_mut(&token) else { return };
        let mut events = Vec::new();
        if !peer.receive(now, &self.port, &mut events) {
            if let Some(socket) = peer.line.socket() {
                self.files.remove(socket);
            }
            events.extend(peer.hang_up());
        }
        self.add_events(state, token, events);
    }

    fn expire(&self, state: &mut State, token: u64, now: Time) {
        if let Some(listening) = state.listeners.get_mut(&token) {
            listening.resume(&self.files, token);
        }
        let mut events = Vec::new();
        if let Some(peer) = state.peers.get_mut(&token) {
            while peer.expire(now, &self.port, &mut events) {}
        }
        self.add_events(state, token, events);
    }

    /// Queues events of a connection, and updates what depends on its stage.
    fn add_events(&self, state: &mut State, token: u64, events: Vec<Happening>) {
        let Some(peer) = state.peers.get(&token) else { return state.set_deadline(token, None) };
        let (listener, stage) = (peer.listener(), peer.stage);
        let (deadline, is_owned) = (peer.deadline(), peer.is_owned());
        let peer_socket = peer.line.socket().map(Arc::clone);
        if !events.is_empty() {
            peer.watch.ring();
        }
        for event in events {
            let is_request = event.requester().is_some();
            let of = listener.filter(|_| is_request).unwrap_or(token);
            state.push(of, event);
        }
        if !stage.is_half_open() {
            self.end_half_open(state, listener, token);
        }
        state.set_deadline(token, deadline);
        if stage == peer::Stage::Over {
            state.forget_place(token);
        }
        // The program may poll the socket, so this makes it readable for good.
        if let Some(socket) = peer_socket.filter(|_| stage == peer::Stage::Over) {
            self.files.remove(&socket);
        }
        // A request that is withdrawn before the program receives it is not reported.
        if stage == peer::Stage::Over && (!is_owned || state.has_request(token)) {
            self.remove(state, token);
        }
    }

    /// Completes a call that changed a connection or queued an event.
    fn finish(&self, state: &mut State, token: u64) {
        self.add_events(state, token, Vec::new());
        self.set_timer(state);
        self.set_readable(state);
        if !state.events.is_empty() {
            self.wake(state);
        }
    }

    fn remove(&self, state: &mut State, token: u64) {
        state.set_deadline(token, None);
        drop(Self::remove_managed(state, token));
        if let Some(listening) = state.listeners.remove(&token) {
            self.files.remove(listening.socket());
            Self::stop_listening_outside(state, listening.service());
            // Connections that wait to be accepted end now, even if a forked child keeps the socket open.
            while socket::accept_from(listening.socket()).is_ok() {}
            // Requests that the program has received stay, as do accepted ones.
            for peer in listening.undecided() {
                let is_queued = state.has_request(peer);
                let is_silent = state.peers.get(&peer).is_some_and(|peer| !peer.is_owned());
                if is_queued || is_silent {
                    self.remove(state, peer);
                }
            }
        }
        state.forget_place(token);
        if let Some(mut peer) = state.peers.remove(&token) {
            peer.leave(self.now());
            if let Some(socket) = peer.line.socket() {
                self.files.remove(socket);
            }
            self.end_half_open(state, peer.listener(), token);
        }
        state.events.retain(|(of, event)| *of != token && !event.is_request_of(token));
    }

    fn end_half_open(&self, state: &mut State, listener: Option<u64>, peer: u64) {
        let found = listener.and_then(|token| Some((token, state.listeners.get_mut(&token)?)));
        if let Some((token, listening)) = found {
            listening.decided(&self.files, token, peer);
        }
    }

    /// Updates the program's file after the events have changed.
    fn set_readable(&self, state: &mut State) {
        let is_readable = state.closed || !state.events.is_empty();
        if is_readable != state.is_readable || is_readable && state.has_new {
            self.files.set_queued(is_readable);
        }
        (state.is_readable, state.has_new) = (is_readable, false);
    }
}

const NOW: Option<Duration> = Some(Duration::ZERO);

impl AsFd for Engine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.files.as_fd()
    }
}
