//! The link between processes of one host: sockets of the kind `SOCK_SEQPACKET` with abstract names.
//!
//! A device of the host is one device for all its processes, with one identity. The upper 12 bits of a queue pair
//! number are the slot of its process, which has bound the socket that is named after the device and the slot: the
//! kernel sees to it that nobody else has. Who sends to a slot connects to that socket, and only sends there; who owns
//! the slot only reads. The end of a connection is the end of its process.
//!
//! Whoever polls in vain drives the link. For programs that do not poll there is a thread, which sleeps while somebody
//! polls, and while nothing happens.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::{Errno, Result};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use rustix::process::{Resource, getrlimit};

use self::descriptor::Descriptor;
use self::inlet::Inlet;
use self::neighbor::Neighbor;
use crate::device::Device;
use crate::engine::Refusal;
use crate::engine::wire::answer_all;
use crate::fabric::thread;
use crate::fabric::timers::{Alarm, Alarmed};
use crate::fabric::{Fabric, Polled};
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, locked, locked_for_calls};

mod descriptor;
mod head;
pub(crate) mod host;
mod inlet;
pub(crate) mod neighbor;
#[cfg(test)]
mod tests;

/// How many processes may connect before they are seen.
const BACKLOG: i32 = 1024;
/// How many connections a process has at most. Those that others have made are half of them at most.
const MOST: usize = 4096;
/// How many one other process may make: one to each slot, and some that have ended and were not looked at yet.
const MOST_OF_PROCESS: usize = 64;
/// How many bytes wait in the socket of a connection, if the system allows so many.
const SEND_BUFFER: usize = 1 << 20;
/// How many are taken at a time.
const ACCEPTS: u32 = 16;
/// After what time it looks again whether there are descriptors for connections that wait.
const RETRY: Duration = Duration::from_millis(100);
/// How many events are taken at a time.
const EVENTS: usize = 32;
/// How long the thread sleeps while others poll.
const NAP: Duration = Duration::from_micros(200);
/// So many polls in the time of a nap are those of a program that does nothing else. One that waits for events polls
/// once or twice for each.
const SPINNING: u32 = 16;
/// How long the end of the process waits at most.
const LEAVE: Duration = Duration::from_millis(100);
/// How often who catches up looks whether something has come.
const MOST_ROUNDS: u32 = 64;
/// Who polls looks at all connections each so many times, and at the last one that a message came from in between.
const LOOKS_APART: u32 = 16;

/// What a fabric has that its devices share with other processes.
#[derive(Debug)]
pub(crate) struct LocalLink {
    fabric: &'static Fabric,
    /// Tells of all connections.
    events: Descriptor,
    /// Tells the thread of `events`, once.
    wake: Descriptor,
    ends: std::sync::Mutex<Ends>,
    /// Held by who takes events.
    driving: Mutex<Driving>,
    /// How many threads have something in hand that has come.
    busy: AtomicU32,
    /// Moves when somebody polls.
    polls: AtomicU32,
    /// There are connections.
    polls_look: AtomicBool,
    /// Nobody but who polls drives the link.
    without_thread: AtomicBool,
    retry: Arc<Retry>,
}

/// Where who polls looks first.
#[derive(Debug, Default)]
struct Driving {
    /// Where the last message came from.
    last: Weak<Inlet>,
    /// How many looks in a row have found nothing there.
    in_vain: u32,
}

/// Has the link look at its slots again.
#[derive(Debug)]
struct Retry {
    fabric: &'static Fabric,
    alarm: Alarm,
}

impl Alarmed for Retry {
    fn alarm_rings(self: Arc<Self>) {
        if let Ok(link) = LocalLink::of(self.fabric) {
            link.listen_again();
        }
    }
}

/// A connection: its place in the link's list, and which one it is of all that there were, so that a late event of one
/// that is closed is not taken for another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    place: u32,
    number: u32,
}

impl End {
    fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(u64::from(self.number) << 32 | u64::from(self.place))
    }

    fn of(data: epoll::EventData) -> Self {
        let [place, number] =
            [data.u64(), data.u64() >> 32].map(|half| (half & 0xffff_ffff) as u32);
        Self { place, number }
    }
}

/// All connections.
#[derive(Debug, Default)]
struct Ends {
    places: Vec<Option<(End, Connected)>>,
    /// How many there were, ever.
    count: u32,
}

impl Ends {
    fn place(&mut self, end: End) -> Option<&mut Option<(End, Connected)>> {
        let place = self.places.get_mut(end.place as usize)?;
        place.as_ref().is_some_and(|(found, _)| *found == end).then_some(place)
    }

    fn all(&self) -> impl Iterator<Item = &(End, Connected)> {
        self.places.iter().flatten()
    }
}

#[derive(Debug, Clone)]
enum Connected {
    Listener(Arc<Listener>),
    Inlet(Arc<Inlet>),
    Neighbor(Arc<Neighbor>),
}

/// A slot of this process.
#[derive(Debug)]
struct Listener {
    device: &'static Device,
    socket: Descriptor,
    admits: Admits,
}

/// Whether the processes of a user may talk to this one.
type Admits = fn(user: u32) -> bool;

impl Connected {
    fn inlet(&self) -> Option<Arc<Inlet>> {
        if let Self::Inlet(inlet) = self { Some(Arc::clone(inlet)) } else { None }
    }

    fn connection(&self) -> &Descriptor {
        match self {
            Self::Listener(listener) => &listener.socket,
            Self::Inlet(inlet) => inlet.connection(),
            Self::Neighbor(neighbor) => neighbor.connection(),
        }
    }
}

/// Why a queue pair cannot be connected to a number of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreachable {
    /// No process has that number.
    Nobody,
    /// Another user's process has it.
    OtherUser,
    /// It has so many connections to take that there is no space for this one now.
    Busy,
    /// This process cannot make a connection.
    System(Errno),
}

impl From<Unreachable> for Refusal {
    fn from(why: Unreachable) -> Self {
        match why {
            Unreachable::Nobody => Self::NobodyThere,
            Unreachable::OtherUser => Self::NotAllowed,
            Unreachable::Busy => Self::Busy,
            Unreachable::System(errno) => Self::without_files(errno),
        }
    }
}

fn socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The process is about to end.
fn let_all_go() {
    let links = locked(&LINKS).clone();
    links.iter().for_each(|link| link.let_go());
}

/// Those of all fabrics that have one.
static LINKS: std::sync::Mutex<Vec<&'static LocalLink>> = std::sync::Mutex::new(Vec::new());

impl LocalLink {
    /// The link of a fabric, which the first one to ask makes, with its thread.
    fn of(fabric: &'static Fabric) -> Result<&'static Self> {
        let mut links = locked(&LINKS);
        if let Some(link) = links.iter().find(|link| std::ptr::eq(link.fabric, fabric)) {
            return Ok(link);
        }
        let link: &'static Self = Box::leak(Box::new(Self::new(fabric)?));
        links.push(link);
        let _ = fabric.polled.set(link);
        descriptor::at_exit(let_all_go);
        // Without a thread whoever polls drives the link.
        let spawned = thread::spawn("rdma-soft link", thread::STACK, || link.serve());
        link.without_thread.store(spawned.is_err(), Ordering::Relaxed);
        Ok(link)
    }

    /// The process is about to end: what another thread has in hand is executed and answered before, if that is soon. The
    /// peer would take the end of the process for that of what it has asked for.
    fn let_go(&self) {
        let start = self.fabric.clock.now();
        loop {
            answer_all(self.fabric);
            self.fabric.unsettled.settle();
            let waits = |(_, end): &(End, Connected)| match end {
                Connected::Neighbor(neighbor) => neighbor.has_letters(),
                _ => false,
            };
            let ready =
                self.busy.load(Ordering::Acquire) == 0 && !locked(&self.ends).all().any(waits);
            if ready || self.fabric.clock.now().since(start) > LEAVE {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Binds the socket of a slot of this process.
    fn listen(device: &'static Device, address: &SocketAddrUnix, admits: Admits) -> Result<()> {
        let link = Self::of(device.fabric)?;
        let listener = Descriptor::open(socket)?;
        bind(listener.get()?, address)?;
        listen(listener.get()?, BACKLOG)?;
        let listener = Listener { device, socket: listener, admits };
        link.add(|_| Connected::Listener(Arc::new(listener)), epoll::EventFlags::IN)
    }

    /// Connects to the socket of a slot of another process.
    fn connect(
        device: &'static Device,
        address: &SocketAddrUnix,
        admits: Admits,
    ) -> std::result::Result<Arc<Neighbor>, Unreachable> {
        let connected = || {
            let connection = Descriptor::open(socket)?;
            // As much as is in flight of one connection: what the system does not allow is not needed.
            let _ = set_socket_send_buffer_size(connection.get()?, SEND_BUFFER);
            connect(connection.get()?, address)?;
            Ok(connection)
        };
        let connection = connected().map_err(|errno| match errno {
            Errno::CONNREFUSED => Unreachable::Nobody,
            Errno::AGAIN => Unreachable::Busy,
            errno => Unreachable::System(errno),
        })?;
        if !connection.peer().is_ok_and(|(_, user)| admits(user)) {
            return Err(Unreachable::OtherUser);
        }
        let link = Self::of(device.fabric).map_err(Unreachable::System)?;
        let mut made = None;
        let new = |end| {
            let neighbor = Neighbor::new(link, device, connection, end);
            made = Some(Arc::clone(&neighbor));
            Connected::Neighbor(neighbor)
        };
        link.add(new, epoll::EventFlags::IN).map_err(Unreachable::System)?;
        made.ok_or(Unreachable::System(Errno::NOMEM))
    }

    fn new(fabric: &'static Fabric) -> Result<Self> {
        let new = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let (events, wake) = (Descriptor::open(new)?, Descriptor::open(new)?);
        let (data, flags) = (epoll::EventData::new_u64(0), WAKES);
        epoll::add(wake.get()?, events.get()?, data, flags)?;
        Ok(Self {
            fabric,
            events,
            wake,
            ends: std::sync::Mutex::default(),
            driving: Mutex::default(),
            busy: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            polls_look: AtomicBool::new(false),
            without_thread: AtomicBool::new(false),
            retry: Arc::new_cyclic(|weak: &Weak<Retry>| Retry {
                fabric,
                alarm: Alarm::new(fabric, weak.clone()),
            }),
        })
    }

    /// Adds a connection, and is told of it from now on.
    fn add(&self, make: impl FnOnce(End) -> Connected, flags: epoll::EventFlags) -> Result<()> {
        let mut ends = locked(&self.ends);
        let free = ends.places.iter().position(Option::is_none);
        let place = free.unwrap_or(ends.places.len());
        if place >= MOST {
            return Err(Errno::MFILE);
        }
        let end = End { place: u32::try_from(place).unwrap_or(u32::MAX), number: ends.count };
        let connected = make(end);
        epoll::add(self.events.get()?, connected.connection().get()?, end.data(), flags)?;
        ends.count = ends.count.wrapping_add(1);
        match free {
            Some(free) => ends.places[free] = Some((end, connected)),
            None => ends.places.push(Some((end, connected))),
        }
        self.see_to_polls(&ends);
        Ok(())
    }

    /// Whoever polls looks here only if there are connections: for who waits at the slots of this process alone there is
    /// the thread, if it could be started.
    fn see_to_polls(&self, ends: &Ends) {
        let listens = |(_, end): &(End, Connected)| matches!(end, Connected::Listener(..));
        let look = self.without_thread.load(Ordering::Relaxed) || !ends.all().all(listens);
        if self.polls_look.swap(look, Ordering::Relaxed) != look {
            self.fabric.timers.have_polls_look(look);
        }
    }

    /// Closes a connection.
    fn close(&self, end: End) {
        let closed = {
            let mut ends = locked(&self.ends);
            let closed = ends.place(end).and_then(Option::take);
            self.see_to_polls(&ends);
            closed
        };
        // Who still has it does not use it any more; it is closed when the last one is done.
        if let Some((_, closed)) = closed
            && let (Ok(events), Ok(connection)) = (self.events.get(), closed.connection().get())
        {
            let _ = epoll::delete(events, connection);
        }
    }

    /// A process has ended to which this one sends. Only those who have connections there keep its descriptor.
    fn forget(&self, neighbor: &Arc<Neighbor>) {
        self.close(neighbor.end);
        neighbor.leave();
    }

    fn at(&self, end: End) -> Option<Connected> {
        locked(&self.ends).place(end)?.as_ref().map(|(_, connected)| connected.clone())
    }

    /// Has a neighbor get a turn when its process takes more.
    fn wait_until_writable(&self, neighbor: &Neighbor) {
        self.set_flags(neighbor, epoll::EventFlags::IN | epoll::EventFlags::OUT);
    }

    fn set_flags(&self, neighbor: &Neighbor, flags: epoll::EventFlags) {
        self.set_events(neighbor.end, neighbor.connection(), flags);
    }

    /// Says whether it is to be told of messages on a connection.
    fn hear_of(&self, end: End, connection: &Descriptor, messages: bool) {
        let flags = if messages { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        self.set_events(end, connection, flags);
    }

    fn set_events(&self, end: End, connection: &Descriptor, flags: epoll::EventFlags) {
        if let (Ok(events), Ok(connection)) = (self.events.get(), connection.get()) {
            let _ = epoll::modify(events, connection, end.data(), flags);
        }
    }

    /// Whether there is no need to look at all connections.
    fn look_at_last(&self) -> bool {
        self.busy.fetch_add(1, Ordering::AcqRel);
        let enough = self.take_last();
        self.busy.fetch_sub(1, Ordering::AcqRel);
        enough
    }

    fn take_last(&self) -> bool {
        let Ok(mut driving) = self.driving.try_lock() else { return true };
        let Some(last) = driving.last.upgrade() else { return false };
        if last.look() {
            driving.in_vain = 0;
            drop(driving);
            self.fabric.unsettled.settle();
            return true;
        }
        driving.in_vain = driving.in_vain.wrapping_add(1);
        !driving.in_vain.is_multiple_of(LOOKS_APART)
    }

    /// Says whether something has come.
    fn drive(&'static self) -> bool {
        let Ok(driving) = self.driving.try_lock() else { return false };
        self.busy.fetch_add(1, Ordering::AcqRel);
        let found = self.take_events(driving);
        self.busy.fetch_sub(1, Ordering::AcqRel);
        found
    }

    fn take_events(&'static self, mut driving: MutexGuard<'_, Driving>) -> bool {
        let Ok(events) = self.events.get() else { return false };
        let mut found = [const { MaybeUninit::uninit() }; EVENTS];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((found, _)) = epoll::wait(events, &mut found, Some(&at_once)) else { return false };
        if found.is_empty() {
            return false;
        }
        let mut ended = Vec::new();
        for event in found {
            let (end, flags) = (End::of(event.data), event.flags);
            match self.at(end) {
                Some(Connected::Listener(listener)) => self.accept(end, &listener),
                Some(Connected::Inlet(inlet)) => {
                    self.fabric.unsettled.note_turn(&inlet);
                    driving.last = Arc::downgrade(&inlet);
                }
                // Nothing is ever sent back: all but that it takes more is its end.
                Some(Connected::Neighbor(neighbor))
                    if flags.intersects(!epoll::EventFlags::OUT) =>
                {
                    ended.push(neighbor);
                }
                Some(Connected::Neighbor(neighbor)) => {
                    self.set_flags(&neighbor, epoll::EventFlags::IN);
                    self.fabric.unsettled.note_turn(&neighbor);
                }
                None => {}
            }
        }
        drop(driving);
        self.fabric.unsettled.settle();
        if !ended.is_empty() {
            self.end(&ended);
        }
        true
    }

    fn inlets(&self) -> Vec<Arc<Inlet>> {
        let inlet = |(_, connected): &(End, Connected)| connected.inlet();
        locked(&self.ends).all().filter_map(inlet).collect()
    }

    /// These have ended. What they have said before is heard first: an acknowledgement, for one.
    #[cold]
    fn end(&self, ended: &[Arc<Neighbor>]) {
        self.inlets().iter().for_each(Inlet::read_all);
        ended.iter().for_each(|neighbor| self.forget(neighbor));
        self.fabric.unsettled.settle();
    }

    /// Takes some of the connections that other processes have made.
    fn accept(&'static self, end: End, listener: &Listener) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..ACCEPTS {
            let Ok(listening) = listener.socket.get() else { return };
            match Descriptor::open(|| accept_with(listening, flags)) {
                Ok(connection) => {
                    if !self.admit(listener, connection) {
                        // It is closed, which its process takes for the end of this one.
                        listener.device.tally.rare.refused_connections.count();
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    // This process has as many files open as it may. The connections wait, and nobody is to look at
                    // them all the time.
                    self.hear_of(end, &listener.socket, false);
                    self.retry.alarm.set(self.fabric.clock.now() + RETRY);
                    return;
                }
            }
        }
    }

    /// Takes what another process sends by a connection, if it may.
    fn admit(&'static self, listener: &Listener, connection: Descriptor) -> bool {
        let Ok((process, user)) = connection.peer() else { return false };
        let (mut all, mut of_process) = (0, 0);
        for (_, connected) in locked(&self.ends).all() {
            if let Connected::Inlet(inlet) = connected {
                all += 1;
                of_process += usize::from(inlet.process == process);
            }
        }
        // Of what the process may open others have half at most.
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(files / 2).unwrap_or(usize::MAX).min(MOST / 2);
        let too_many = all >= most || process.is_some() && of_process >= MOST_OF_PROCESS;
        if too_many || !(listener.admits)(user) {
            return false;
        }
        let device = listener.device;
        let inlet = |end| Connected::Inlet(Inlet::new(self, device, process, connection, end));
        self.add(inlet, epoll::EventFlags::IN).is_ok()
    }

    /// Looks at the slots of this process again, at which it may not have looked for a while.
    fn listen_again(&self) {
        let is_listener =
            |(_, connected): &&(End, Connected)| matches!(connected, Connected::Listener(..));
        let listeners: Vec<_> = locked(&self.ends).all().filter(is_listener).cloned().collect();
        for (end, listener) in listeners {
            self.hear_of(end, listener.connection(), true);
        }
    }

    /// What the thread does.
    fn serve(&'static self) {
        let mut polls = self.polls.load(Ordering::Relaxed);
        loop {
            let mut event = [MaybeUninit::uninit()];
            let Ok(wake) = self.wake.get() else { return };
            match epoll::wait(wake, &mut event, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            loop {
                while self.drive() {}
                let now = self.polls.load(Ordering::Relaxed);
                let count = now.wrapping_sub(std::mem::replace(&mut polls, now));
                // A poll that takes long messages takes long itself.
                let in_one = self.busy.load(Ordering::Relaxed) != 0;
                if count < if in_one { SPINNING / 4 } else { SPINNING } {
                    break;
                }
                std::thread::sleep(NAP);
            }
            let (Ok(wake), Ok(events)) = (self.wake.get(), self.events.get()) else { return };
            if epoll::modify(wake, events, epoll::EventData::new_u64(0), WAKES).is_err() {
                return;
            }
        }
    }
}

const WAKES: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

impl Polled for LocalLink {
    fn catch_up(&'static self) {
        // Who sends without end is not waited for.
        for _ in 0..MOST_ROUNDS {
            if !self.take_events(locked_for_calls(&self.driving)) {
                break;
            }
        }
        if self.busy.load(Ordering::Acquire) != 0 {
            // Another thread may have a message in hand.
            self.inlets().iter().for_each(Inlet::read_all);
        }
    }

    fn poll(&'static self) {
        self.polls.fetch_add(1, Ordering::Relaxed);
        if !self.look_at_last() {
            self.drive();
        }
    }
}
