//! A slot of this process, with the socket to which other processes connect.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Pid, Resource, geteuid, getrlimit, test_kill_process};

use super::inlet::Inlet;
use super::mapped::given::{Conduct, Files, Giver};
use super::socket::request_ring;
use crate::device::Device;
use crate::fabric::run_queue::{Entry, Task};
use crate::link::descriptor::{Descriptor, ProcessId};
use crate::link::driver::{Driver, MOST, SocketEvent, Token, Watched};
use crate::link::expendable;
use crate::sync::{AtomicBool, Ordering, locked};

/// The maximum number of connections from one other process: one to each slot, and some that have ended but have not
/// been handled yet.
const MOST_OF_PROCESS: usize = 64;
/// The maximum number of connections that one call accepts.
const ACCEPTS: u32 = 16;
/// The delay before the listener checks again for descriptors and for threads that can close files.
const RETRY: Duration = Duration::from_millis(100);

/// Returns true if processes of a user may connect to this one.
pub(super) type Admits = fn(user: u32) -> bool;

#[derive(Debug)]
pub(super) struct Listener {
    driver: &'static Driver,
    device: &'static Device,
    socket: Descriptor,
    token: Token,
    admits: Admits,
    files: Arc<Files>,
    /// Whether the last check found no thread that could close arriving files.
    held_up: AtomicBool,
    entry: Entry,
}

impl Listener {
    pub(super) fn new(
        driver: &'static Driver,
        device: &'static Device,
        socket: Descriptor,
        token: Token,
        admits: Admits,
        files: Arc<Files>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| Self {
            driver,
            device,
            socket,
            token,
            admits,
            files,
            held_up: AtomicBool::new(false),
            entry: Entry::new(device.fabric, weak.clone()),
        })
    }

    /// Accepts some of the waiting connections.
    fn accept(&self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..ACCEPTS {
            if expendable::is_full() {
                // Reported only if two checks in a row fail, because a full queue of calls may empty at any moment.
                if self.held_up.swap(true, Ordering::Relaxed) {
                    self.device.tally.rare.held_up_connections.count();
                    expendable::report();
                }
                return self.back_off();
            }
            self.held_up.store(false, Ordering::Relaxed);
            let Ok(listening) = self.socket.get() else { return };
            // A second descriptor is opened for a moment, to check that one is available for the ring of the
            // connection.
            let accepted =
                Descriptor::open(|| fcntl_dupfd_cloexec(listening, 0)).and_then(|_one_more| {
                    Descriptor::open_for_others(|| accept_with(listening, flags))
                });
            match accepted {
                Ok(connection) => {
                    if !self.admit(connection) {
                        // The connection is closed, so the other process concludes that this one has exited.
                        self.device.tally.rare.refused_connections.count();
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // For example, this process has reached its limit of open files.
                Err(_) => return self.back_off(),
            }
        }
    }

    /// Leaves the connections waiting for a while, and disables the events of the socket until then.
    fn back_off(&self) {
        self.driver.set_flags(self.token, &self.socket, epoll::EventFlags::empty());
        self.entry.set_timer(self.driver.subnet.clock.now() + RETRY);
    }

    /// If the process at the other end is admitted, starts to receive from it. Returns true if it is admitted.
    fn admit(&self, connection: Descriptor) -> bool {
        let Ok((process, user)) = connection.peer() else { return false };
        if !(self.admits)(user) {
            return false;
        }
        let Some(guest) = Guest::of(GuestId::new(process, user)) else { return false };
        if request_ring(&connection).is_err() {
            return false;
        }
        let is_ours = user == geteuid().as_raw();
        let may_map = self.device.maps && is_ours && !guest.conduct.stays_in_visits();
        let giver = || Giver::new(Arc::clone(&self.files), Arc::clone(&guest.conduct));
        let giver = may_map.then(giver);
        let new = |token| Inlet::new(self.driver, self.device, guest, connection, token, giver);
        self.driver.add(new).is_ok()
    }
}

impl Watched for Listener {
    fn descriptor(&self) -> &Descriptor {
        &self.socket
    }

    fn handle_event(self: Arc<Self>, _flags: epoll::EventFlags) -> SocketEvent {
        self.accept();
        SocketEvent::Other
    }

    fn is_used(&self) -> bool {
        false
    }
}

impl Task for Listener {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    fn expire(self: Arc<Self>) {
        self.driver.set_flags(self.token, &self.socket, epoll::EventFlags::IN);
    }
}

/// The other end of connections from other processes, as far as this process can distinguish them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GuestId {
    Process(ProcessId),
    /// All processes of a user that have no ID in this namespace. The kernel does not report which connections belong
    /// to the same one of them.
    User(u32),
}

impl GuestId {
    fn new(process: Option<ProcessId>, user: u32) -> Self {
        process.map_or(Self::User(user), Self::Process)
    }

    /// Returns true if the process may still be running.
    fn may_run(self) -> bool {
        let Self::Process(process) = self else { return true };
        Pid::from_raw(process.get()).is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
    }

    /// Returns the maximum number of connections, if this process accepts `most` from all others.
    fn limit(self, most: usize) -> usize {
        match self {
            Self::Process(_) => MOST_OF_PROCESS,
            // There may be many processes.
            Self::User(_) => most.div_ceil(2),
        }
    }
}

/// A connection from another process, counted until it is dropped.
#[derive(Debug)]
pub(super) struct Guest {
    id: GuestId,
    /// The conduct of all connections with the same ID.
    conduct: Arc<Conduct>,
}

/// The open connections from other processes.
static GUESTS: std::sync::Mutex<Guests> =
    std::sync::Mutex::new(Guests { all: 0, by_id: BTreeMap::new(), remembered: BTreeMap::new() });

struct Guests {
    all: usize,
    /// The number of connections with each ID, and its conduct.
    by_id: BTreeMap<GuestId, (usize, Arc<Conduct>)>,
    /// IDs without connections whose processes may still run, and that get no grants.
    remembered: BTreeMap<GuestId, Arc<Conduct>>,
}

/// The maximum number of IDs without connections that are remembered.
const MOST_REMEMBERED: usize = 1024;

impl Guests {
    /// Returns the connections with an ID, and its conduct.
    fn of(&mut self, id: GuestId) -> &mut (usize, Arc<Conduct>) {
        // The ID of a process that has ended may belong to another one now.
        self.remembered.retain(|id, _| id.may_run());
        let conduct = self.remembered.remove(&id).unwrap_or_default();
        self.by_id.entry(id).or_insert((0, conduct))
    }
}

/// Returns the maximum number of connections from other processes: half of this process's limit of open files.
fn most_guests() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files / 2).unwrap_or(usize::MAX).min(MOST / 2)
}

impl Guest {
    /// Counts another connection with an ID. Returns `None` if there are too many.
    pub(super) fn of(id: GuestId) -> Option<Self> {
        let most = most_guests();
        let guests = &mut *locked(&GUESTS);
        if guests.all >= most {
            return None;
        }
        let (count, conduct) = guests.of(id);
        if *count >= id.limit(most) {
            return None;
        }
        *count += 1;
        let conduct = Arc::clone(conduct);
        guests.all += 1;
        Some(Self { id, conduct })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let guests = &mut *locked(&GUESTS);
        guests.all -= 1;
        let Some((count, _)) = guests.by_id.get_mut(&self.id) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        guests.by_id.remove(&self.id);
        if self.conduct.stays_in_visits() && guests.remembered.len() < MOST_REMEMBERED {
            guests.remembered.insert(self.id, Arc::clone(&self.conduct));
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests {
    use super::*;

    /// Otherwise a process outside this PID namespace could begin again as another one with each connection.
    #[test]
    fn processes_of_a_user_without_ids_share_their_conduct_and_a_limit() {
        let [user, other] = [u32::MAX - 1, u32::MAX - 2].map(|user| GuestId::new(None, user));
        let guest = |id| Guest::of(id).unwrap();
        let guests: Vec<_> = std::iter::from_fn(|| Guest::of(user)).collect();
        assert_eq!(guests.len(), most_guests().div_ceil(2));
        assert!(!guest(other).conduct.stays_in_visits());
        guests[0].conduct.note_long_visit();
        assert!(guests.iter().all(|guest| guest.conduct.stays_in_visits()));
        assert!(!guest(other).conduct.stays_in_visits());
        drop(guests);
        assert!(guest(user).conduct.stays_in_visits(), "without a connection meanwhile");
    }
}
