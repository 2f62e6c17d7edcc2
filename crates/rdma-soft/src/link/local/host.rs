//! A shared device: the state on which all its processes agree.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::geteuid;

use super::head::VERSION;
use super::listener::Admits;
use super::mapped::given::Files;
use super::names::Names;
use super::neighbor::Neighbor;
use super::{connect_to, listen_at, user_at};
use crate::abi::fork::PerProcess;
use crate::device::{Device, Host};
use crate::engine::Refusal;
use crate::engine::queue_pair::qpn::slot_of;
use crate::engine::wire::grant::Visited;
use crate::engine::wire::{Carrier as _, Outlet};
use crate::environment::variable::{Mistake, variable};
use crate::fabric::emitters::emit_one;
use crate::fabric::random::Seed;
use crate::memory::region::Region;
use crate::sync::locked;

const PEERS: &str = "RDMA_SOFT_PEERS";

/// Selects the processes of the host that share a device, so that their queue pairs reach each other. The processes
/// must be in one network namespace, as the containers of a pod are.
///
/// [`install`](crate::install) reads this setting from the environment variable `RDMA_SOFT_PEERS`, and
/// [`Builder::peers`](crate::Builder::peers) sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Peers {
    /// The device exists only in this process (`RDMA_SOFT_PEERS=none`).
    #[default]
    ThisProcess,
    /// Processes of the same user share the device (`RDMA_SOFT_PEERS=user`, or no such variable).
    SameUser,
    /// Processes of any user share the device (`RDMA_SOFT_PEERS=any`). Each of them can send to the queue pairs of all
    /// others, as on a network.
    AnyUser,
}

impl Peers {
    /// Returns the setting of `RDMA_SOFT_PEERS`, which `soft0` also uses. Pass it to a builder to share a device with a
    /// different name, unless the variable is set to `none`. An unknown value results in
    /// [`ThisProcess`](Self::ThisProcess) and a `tracing` event.
    ///
    /// ```
    /// use rdma_soft::{Builder, Peers};
    ///
    /// // Run in each process: `gpu0` is one device for all of them.
    /// let device = Builder::new("gpu0").peers(Peers::of_environment()).install()?;
    /// # assert_eq!(device.name(), "gpu0");
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    #[must_use]
    pub fn of_environment() -> Self {
        Self::in_environment().unwrap_or_else(|error| {
            tracing::warn!(%error, "other processes cannot reach the software devices");
            Self::ThisProcess
        })
    }

    /// Returns the setting of `RDMA_SOFT_PEERS`, or an error for an unknown value.
    pub(crate) fn in_environment() -> Result<Self, Mistake> {
        match variable(PEERS).as_deref() {
            None | Some("user") => Ok(Self::SameUser),
            Some("any") => Ok(Self::AnyUser),
            Some("none") => Ok(Self::ThisProcess),
            Some(other) => {
                let reason = format!("`{other}` is not one of user, any and none");
                Err(Mistake { variable: PEERS, reason })
            }
        }
    }
}

/// The processes of this host that share a device. Each one has sockets for its slots.
#[derive(Debug)]
pub(crate) struct LocalHost {
    names: Names,
    admits: Admits,
    neighbors: Mutex<Neighbors>,
    /// The number of slots in a row that this process could not claim, because other processes own them.
    taken: AtomicU32,
    /// The reason why this process has no slot that other processes can find, if it has none.
    isolation: OnceLock<Isolation>,
    /// The files of regions, which other processes may map.
    files: Arc<Files>,
}

/// The other processes to which this one sends, by slot. A child that it forks is not connected to them.
type Neighbors = PerProcess<BTreeMap<u16, Weak<Neighbor>>>;

/// The reason why no other process can reach this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Isolation {
    /// A process of another user has bound the names. This is the ID of that user.
    NamesOf(u32),
    /// This process cannot create a thread or a socket for a slot, or reachable processes own all the slots that it
    /// tried.
    System(Errno),
}

impl Isolation {
    /// Reports the reason. The caller may hold locks.
    fn report(self, device: &'static str) {
        emit_one(move || match self {
            Self::NamesOf(user) => tracing::warn!(
                device,
                user,
                "another user of this host has bound the names by which processes find each other: the device works \
                 only within this process. End the processes of that user that have them \
                 (`ss -xlp`), or start this one in a network namespace of its own"
            ),
            Self::System(errno) => tracing::warn!(
                device,
                %errno,
                "this process has no slot that other processes find: the device works only within this process"
            ),
        });
    }
}

/// The number of taken slots after which the process gives up: another user may have bound all of them.
const MOST_TAKEN: u32 = 512;

impl LocalHost {
    /// Creates the host for the device with this name. Also returns the seed of the device's identity. `shape`
    /// describes properties such as the GID table, on which all processes of the device must agree.
    ///
    /// # Errors
    /// Fails if the system does not report its host or network namespace, or if the directory cannot be used. For
    /// example, other users may enter it, or `peers` is [`Peers::AnyUser`].
    pub(crate) fn new(
        device: &str,
        shape: &str,
        peers: Peers,
        directory: Option<&Path>,
    ) -> io::Result<(Self, Seed)> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let namespace = fs::read_link("/proc/self/ns/net")?;
        let user = match peers {
            Peers::AnyUser => "any".to_owned(),
            Peers::ThisProcess | Peers::SameUser => geteuid().as_raw().to_string(),
        };
        let (names, place) = match directory {
            None => {
                (Names::Abstract(format!("rdma-soft/{VERSION}/{user}/{device}/")), String::new())
            }
            Some(_) if peers == Peers::AnyUser => {
                return Err(io::Error::other(
                    "a directory works only for processes of one user: choose `Peers::SameUser` (`RDMA_SOFT_PEERS=user`)",
                ));
            }
            Some(path) => Names::in_directory(path, device)?,
        };
        let namespace = namespace.display();
        let seed =
            Seed::of_text(&format!("{} {namespace} {user} {device} {shape}{place}", boot.trim()));
        let admits = if peers == Peers::AnyUser { any_user } else { same_user };
        let (neighbors, taken) = (Mutex::default(), AtomicU32::new(0));
        let (isolation, files) = (OnceLock::new(), Arc::default());
        Ok((Self { names, admits, neighbors, taken, isolation, files }, seed))
    }
}

fn any_user(_: u32) -> bool {
    true
}

fn same_user(user: u32) -> bool {
    user == geteuid().as_raw()
}

impl LocalHost {
    /// Returns the reason why this process can get neither this slot nor another one.
    fn why_isolated(&self, slot: u16, errno: Errno) -> Isolation {
        let user =
            (errno == Errno::ADDRINUSE).then(|| user_at(&self.names.address(slot).ok()?)).flatten();
        match user {
            Some(user) if !(self.admits)(user) => Isolation::NamesOf(user),
            _ => Isolation::System(errno),
        }
    }
}

impl Host for LocalHost {
    fn claim(&self, device: &'static Device, slot: u16) -> bool {
        if self.isolation.get().is_some() {
            return true;
        }
        let listens = self
            .names
            .take(slot)
            .and_then(|()| self.names.address(slot))
            .and_then(|address| listen_at(device, &address, self.admits, &self.files));
        match listens {
            Ok(()) => {
                self.taken.store(0, Ordering::Relaxed);
                true
            }
            Err(Errno::ADDRINUSE) if self.taken.fetch_add(1, Ordering::Relaxed) < MOST_TAKEN => {
                false
            }
            Err(errno) => {
                self.isolation.get_or_init(|| {
                    let isolation = self.why_isolated(slot, errno);
                    isolation.report(&device.name);
                    isolation
                });
                true
            }
        }
    }

    fn connect(&self, device: &'static Device, number: u32) -> Result<Outlet, Refusal> {
        // Refused, because answers could not reach this process.
        match self.isolation.get() {
            Some(Isolation::NamesOf(_)) => return Err(Refusal::NotAllowed),
            Some(&Isolation::System(errno)) => return Err(Refusal::without_files(errno)),
            None => {}
        }
        let slot = slot_of(number);
        let mut neighbors = locked(&self.neighbors);
        let neighbors = neighbors.get(BTreeMap::clear);
        let found = neighbors.get(&slot).and_then(Weak::upgrade);
        if let Some(found) = found.filter(|found| !found.has_ended()) {
            return Ok(Outlet::Carrier(found));
        }
        let address = self.names.address(slot).map_err(|_| Refusal::Invalid)?;
        let Some(neighbor) = connect_to(device, &address, self.admits)? else {
            return Ok(Outlet::Nowhere);
        };
        // Dropped neighbors are removed only when the map has doubled, so that a connection costs the same with many
        // neighbors as with few.
        if neighbors.len().is_power_of_two() {
            neighbors.retain(|_, neighbor| neighbor.strong_count() > 0);
        }
        neighbors.insert(slot, Arc::downgrade(&neighbor));
        Ok(Outlet::Carrier(neighbor))
    }

    fn connected(&self, number: u32) -> Outlet {
        let neighbors = locked(&self.neighbors);
        let neighbor = neighbors.current().and_then(|all| all.get(&slot_of(number))?.upgrade());
        neighbor.map_or(Outlet::Nowhere, |neighbor| Outlet::Carrier(neighbor))
    }

    fn wants_file(&self) -> bool {
        Files::has_room()
    }

    fn keep_file(&self, key: u32, region: &Region, file: BorrowedFd<'_>) -> bool {
        self.files.keep(key, region, file)
    }

    fn end_file(&self, key: u32) -> Vec<Visited> {
        self.files.end(key)
    }
}
