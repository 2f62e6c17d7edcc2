//! A listener, and its half-open connections.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rdma_proto::Time;
use rdma_proto::cm::{Manager, PortSpace, ServiceId};
use rdma_sys::Process;
use rustix::io::{Errno, Result};

use super::files::Files;
use super::peer::{Peer, Stage};
use super::socket::{PortOwner, accept_from, listen_on, reserve};
use super::{Engine, NEXT, State};

/// The connections that are accepted before other sockets get their turn.
const ACCEPTS: u32 = 16;
/// The delay before a listener accepts again after the process had no free file.
const RETRY: Duration = Duration::from_millis(100);
/// The time that a connection has for its REQ before a full listener closes it.
const SILENCE: Duration = Duration::from_millis(100);
/// The first port of the range from which port 0 selects, and the size of the range, as in Linux by default.
const FREE: (u16, u16) = (32_768, 28_232);

/// A port of a device.
type Key = (PortOwner, ServiceId);

/// Shared ports.
static SHARED: Mutex<BTreeMap<Key, Weak<Name>>> = Mutex::new(BTreeMap::new());

/// The socket whose name stands for a port.
#[derive(Debug)]
pub(crate) struct Name {
    socket: OwnedFd,
    key: Key,
    /// The process that bound the socket. The ports of a parent are not shared with a child that it forks.
    process: Process,
    /// Whether the socket listens, or has listened. It cannot do so twice.
    has_listened: AtomicBool,
}

impl Name {
    /// Listens. Fails with `ADDRINUSE` if the port has other owners, or has had a listener.
    pub(super) fn listen(self: &Arc<Self>) -> Result<()> {
        if Arc::strong_count(self) > 1 || self.has_listened.swap(true, Ordering::Relaxed) {
            return Err(Errno::ADDRINUSE);
        }
        listen_on(&self.socket).inspect_err(|_| self.has_listened.store(false, Ordering::Relaxed))
    }

    pub(super) const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Lets later owners share the port.
    pub(super) fn share(self: &Arc<Self>) {
        shared().insert(self.key, Arc::downgrade(self));
    }
}

/// Returns the shared ports that have owners.
fn shared() -> MutexGuard<'static, BTreeMap<Key, Weak<Name>>> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.retain(|_, name| name.strong_count() > 0);
    shared
}

/// The destinations of the requests that a listener accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(super) ip: IpAddr,
    pub(super) is_one_version: bool,
}

impl Bound {
    /// Returns true if requests for this address are accepted.
    pub(super) fn covers(self, to: IpAddr) -> bool {
        if self.is_one_version && self.ip.is_ipv4() != to.is_ipv4() {
            return false;
        }
        self.ip.is_unspecified() || is_same(self.ip, to)
    }
}

/// Returns true if both addresses lead to the same listener. The two addresses of `localhost` do, as either may be the
/// first one that the name resolves to.
fn is_same(one: IpAddr, other: IpAddr) -> bool {
    const LOCALHOST: [IpAddr; 2] =
        [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    one == other || [one, other].iter().all(|ip| LOCALHOST.contains(ip))
}

pub(super) struct Listening {
    name: Arc<Name>,
    service: ServiceId,
    bound: Bound,
    /// The connections of this host that are not established, and the times at which they were accepted.
    half_open: BTreeMap<u64, Time>,
    /// The connections of other hosts that are not established. A `Manager` limits their number.
    requested: BTreeSet<u64>,
    /// Whether new connections are left waiting.
    is_paused: bool,
}

/// Reserves a port; 0 selects a free one. Also returns the port. A shared one may have other owners that share it.
pub(super) fn bind(
    owner: PortOwner,
    space: PortSpace,
    port: u16,
    is_shared: bool,
) -> Result<(Arc<Name>, u16)> {
    if !is_shared {
        return bind_name(owner, space, port);
    }
    let mut shared = shared();
    let found = shared.get(&(owner, space.service_id(port))).and_then(Weak::upgrade);
    if let Some(name) = found.filter(|name| name.process.is_current()) {
        return Ok((name, port));
    }
    let (name, port) = bind_name(owner, space, port)?;
    shared.insert(name.key, Arc::downgrade(&name));
    Ok((name, port))
}

fn bind_name(owner: PortOwner, space: PortSpace, port: u16) -> Result<(Arc<Name>, u16)> {
    let bind = |port| {
        let key = (owner, space.service_id(port));
        let (socket, process) = (reserve(owner, key.1)?, Process::current());
        Ok((Arc::new(Name { socket, key, process, has_listened: AtomicBool::new(false) }), port))
    };
    if port != 0 {
        return bind(port);
    }
    let (first, count) = FREE;
    for _ in 0..count {
        match bind(first + next_turn() % count) {
            Err(Errno::ADDRINUSE) => {}
            result => return result,
        }
    }
    Err(Errno::ADDRINUSE)
}

/// Returns consecutive numbers. Processes begin at different numbers, so a port is not reused soon after it was freed.
fn next_turn() -> u16 {
    static TURNS: AtomicU16 = AtomicU16::new(0);
    let [low, high, ..] = process::id().wrapping_mul(40_503).to_le_bytes();
    u16::from_le_bytes([low, high]).wrapping_add(TURNS.fetch_add(1, Ordering::Relaxed))
}

impl Listening {
    pub(super) const fn new(name: Arc<Name>, service: ServiceId, bound: Bound) -> Self {
        let half_open = BTreeMap::new();
        Self { name, service, bound, half_open, requested: BTreeSet::new(), is_paused: false }
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.name.socket
    }

    /// Returns the connections that are not established.
    pub(super) fn undecided(&self) -> Vec<u64> {
        self.half_open.keys().chain(&self.requested).copied().collect()
    }

    pub(super) const fn service(&self) -> ServiceId {
        self.service
    }

    /// Returns the addresses at which the listener accepts requests.
    pub(super) const fn bound(&self) -> Bound {
        self.bound
    }

    /// Adds a connection of another host.
    pub(super) fn add_requested(&mut self, peer: u64) {
        self.requested.insert(peer);
    }

    fn is_full(&self) -> bool {
        self.half_open.len() >= Manager::MAX_HALF_OPEN as usize
    }

    fn pause(&mut self, files: &Files, token: u64) {
        self.is_paused = true;
        files.set_reported(self.socket(), token, false);
    }

    pub(super) fn resume(&mut self, files: &Files, token: u64) {
        if self.is_paused {
            self.is_paused = false;
            files.set_reported(self.socket(), token, true);
        }
    }

    /// Ends the half-open state of a connection.
    pub(super) fn decided(&mut self, files: &Files, token: u64, peer: u64) {
        self.requested.remove(&peer);
        if self.half_open.remove(&peer).is_some() {
            self.resume(files, token);
        }
    }
}

impl Engine {
    /// Accepts some of the connections that wait for a listener.
    pub(super) fn accept(&self, state: &mut State, token: u64) {
        for _ in 0..ACCEPTS {
            let later = self.make_room(state, token);
            let Some(listening) = state.listeners.get_mut(&token) else { return };
            if listening.is_full() {
                listening.pause(&self.files, token);
                return state.set_deadline(token, later);
            }
            let (of, bound) = ((token, listening.service), listening.bound);
            let socket = match accept_from(listening.socket()) {
                Ok(Some(socket)) => socket,
                Ok(None) | Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    listening.pause(&self.files, token);
                    let at = self.now().after(RETRY);
                    return state.set_deadline(token, Some(at));
                }
            };
            let peer = NEXT.fetch_add(1, Ordering::Relaxed);
            if self.files.add(&socket, peer).is_err() {
                continue;
            }
            let Ok(accepted) = Peer::accepted(peer, &self.port, socket, of, bound) else {
                continue;
            };
            listening.half_open.insert(peer, self.now());
            state.peers.insert(peer, accepted);
            self.receive(state, peer, self.now());
        }
    }

    /// If a listener is full, closes the oldest connection that has sent no REQ in time. Returns the time at which there
    /// will be one.
    fn make_room(&self, state: &mut State, token: u64) -> Option<Time> {
        let listening = state.listeners.get(&token).filter(|it| it.is_full())?;
        let is_silent = |(peer, _): &(&u64, &Time)| {
            state.peers.get(peer).is_some_and(|peer| peer.stage == Stage::Silent)
        };
        let (&oldest, accepted) = listening.half_open.iter().find(is_silent)?;
        let late = accepted.after(SILENCE);
        if late > self.now() {
            return Some(late);
        }
        self.remove(state, oldest);
        None
    }
}
