//! The driver of a fabric's link sockets. A program that polls drives the sockets itself. For programs that do not
//! poll, a thread drives them; it sleeps while the program polls and while nothing arrives.

use std::mem::MaybeUninit;
use std::sync::{Arc, Condvar};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::{Errno, Result};

use self::near::{Closed, Driving};
pub(super) use self::paused::Paused;
use self::serve::{Doorbell, Processors};
use self::watch::Watch;
use self::yield_timer::YieldTimer;
use super::descriptor::{self, Descriptor};
use super::executed::quiet::Quiet;
use crate::device::arrivals::{answer_all, are_left, execute_all};
use crate::device::subnet::Subnet;
use crate::fabric::Polled;
use crate::fabric::thread::{STACK, spawn};
use crate::sync::{
    AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, locked, locked_for_calls, locked_to_wait,
};

mod near;
mod paused;
mod serve;
mod watch;
mod yield_timer;

/// The maximum number of sockets of a fabric: two for each slot of two devices, `soft0` and `softib0`.
pub(super) const MOST: usize = 16_384;
/// The maximum number of events that one `epoll_wait` call fetches.
const EVENTS: usize = 32;
/// The maximum time that [`Driver::drain_at_exit`] delays the exit of the process.
const EXIT_DELAY: Duration = Duration::from_millis(100);
/// The time limit of an exit that waits for [`Driver::drain_at_exit`]. It is long, because a busy machine may not run
/// the thread for a while.
const EXIT_LIMIT: Duration = Duration::from_secs(2);
/// The maximum number of rounds of [`drive_until`](Driver::drive_until).
const MOST_ROUNDS: u32 = 64;

/// A socket of a link.
pub(super) trait Watched: Send + Sync + std::fmt::Debug {
    fn descriptor(&self) -> &Descriptor;

    /// Handles an event of the descriptor. The caller then runs the tasks that this call queues.
    fn handle_event(self: Arc<Self>, flags: epoll::EventFlags) -> SocketEvent;

    /// Returns false only if it is known, without a system call, that no message has arrived. The driver calls this before
    /// it looks, so a peer that reads nothing although it claims to look is notified here.
    fn may_have_message(&self) -> bool {
        true
    }

    /// Looks for a message, using as few system calls as possible. Returns true if there was a message.
    fn look(self: Arc<Self>) -> bool {
        false
    }

    /// Returns true if the peer uses the descriptor only to wake this process, and only when no thread is looking for
    /// the data.
    fn is_doorbell(&self) -> bool {
        false
    }

    /// Returns true if something has arrived that the descriptor will not report.
    fn has_arrived(&self) -> bool {
        false
    }

    /// Makes the driver look at this socket from now on, whether or not the descriptor reports anything.
    fn start_polling(&self) {}

    /// Ends [`start_polling`](Self::start_polling). The descriptor does not always report data that
    /// [arrived](Self::has_arrived) before this call. If `is_quiet` is set, it need not report executed requests either,
    /// until [`listen`](Self::listen).
    fn stop_polling(&self, _is_quiet: bool) {}

    /// Makes the descriptor report executed requests again. Returns true if something [has
    /// arrived](Self::has_arrived) that it will not report.
    fn listen(&self) -> bool {
        false
    }

    /// Receives all messages that have arrived so far. Other threads may still execute some of them. The caller holds no
    /// lock.
    fn read_all(self: Arc<Self>) {}

    /// Handles the exit of the other process.
    fn ended(self: Arc<Self>) {}

    /// Returns true if something is waiting to be written, or to be read by another thread.
    fn has_work(&self) -> bool {
        false
    }

    /// Returns true if packets arrive or leave on this socket from the start, so that polls must look at it.
    fn is_used(&self) -> bool;
}

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketEvent {
    /// Messages have arrived, so polls look at this socket first from now on.
    Messages,
    /// The other end has exited. This is handled after the messages of all other sockets.
    End,
    Other,
}

/// The result of a look at the recently active sockets.
#[derive(Debug, Clone, Copy)]
struct Look {
    /// Whether there was a message.
    found: bool,
    /// Whether this poll need not look at the other sockets.
    enough: bool,
}

/// The sockets that a fabric's devices share with other processes and hosts.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) subnet: &'static Subnet,
    /// The epoll instance that contains all sockets.
    events: Descriptor,
    /// A one-shot epoll instance that contains only `events`. It wakes the thread once, and again only after the thread
    /// has armed it.
    wake: Descriptor,
    sockets: std::sync::Mutex<Sockets>,
    /// Locked by the thread that fetches events or looks at the sockets.
    driving: Mutex<Driving>,
    closed: Closed,
    /// The number of threads that are processing received data.
    busy: AtomicU32,
    /// A counter that each poll changes.
    polls: AtomicU32,
    /// Whether polls look at the sockets. They do if any socket is in use, or if there is no thread.
    polls_look: AtomicBool,
    /// Whether the thread could not be started, so that only polls drive the link.
    without_thread: AtomicBool,
    /// Whether the thread currently leaves the work to the program's polls.
    yields_to_polls: AtomicBool,
    quiet: Quiet,
    watch: Watch,
    doorbell: Doorbell,
    processors: Processors,
    /// The number of packets for unknown or destroyed receivers so far.
    useless: AtomicU32,
    yield_timer: YieldTimer,
}

/// The key of a socket in the driver and in its epoll instance: an index, which is reused, and a number, which is not.
/// The number distinguishes a late event of a closed socket from an event of its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) index: u32,
    number: u32,
}

impl Token {
    pub(super) fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(u64::from(self.number) << 32 | u64::from(self.index))
    }

    pub(super) fn of(data: epoll::EventData) -> Self {
        let [index, number] =
            [data.u64(), data.u64() >> 32].map(|half| (half & 0xffff_ffff) as u32);
        Self { index, number }
    }
}

/// All sockets.
#[derive(Debug, Default)]
struct Sockets {
    by_index: Vec<Option<Socket>>,
    /// The indices without a socket.
    free: Vec<u32>,
    /// The number of sockets added so far, including removed ones.
    count: u32,
    /// The number of sockets in use.
    used: u32,
}

#[derive(Debug)]
struct Socket {
    token: Token,
    watched: Arc<dyn Watched>,
    is_used: bool,
}

impl Sockets {
    fn get(&mut self, token: Token) -> Option<&mut Socket> {
        let socket = self.by_index.get_mut(token.index as usize)?.as_mut();
        socket.filter(|socket| socket.token == token)
    }

    /// Returns the token of the next socket, or `None` if there are too many.
    fn next_token(&self) -> Option<Token> {
        let end = self.by_index.len();
        let index = match self.free.last() {
            Some(&free) => free,
            None => u32::try_from(end).ok().filter(|_| end < MOST)?,
        };
        Some(Token { index, number: self.count })
    }

    fn put(&mut self, token: Token, watched: Arc<dyn Watched>) {
        let is_used = watched.is_used();
        self.used += u32::from(is_used);
        let socket = Some(Socket { token, watched, is_used });
        match self.free.pop() {
            Some(_) => self.by_index[token.index as usize] = socket,
            None => self.by_index.push(socket),
        }
    }

    fn take(&mut self, token: Token) -> Option<Arc<dyn Watched>> {
        self.get(token)?;
        let Socket { watched, is_used, .. } = self.by_index[token.index as usize].take()?;
        self.used -= u32::from(is_used);
        self.free.push(token.index);
        Some(watched)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<dyn Watched>> {
        self.by_index.iter().flatten().map(|socket| &socket.watched)
    }
}

/// Runs when the process is about to exit. The handler of a signal may exit while its thread holds locks. So another
/// thread drains the sockets, and the exit waits for it only for a limited time.
fn drain_all_at_exit() {
    static DRAINED: (std::sync::Mutex<bool>, Condvar) =
        (std::sync::Mutex::new(false), Condvar::new());
    let drain = || {
        let drivers = locked(&DRIVERS).clone();
        drivers.iter().for_each(|driver| driver.drain_at_exit());
        *locked_to_wait(&DRAINED.0) = true;
        DRAINED.1.notify_one();
    };
    if spawn("rdma-soft exit", STACK, drain).is_err() {
        return drain();
    }
    let drained = locked_to_wait(&DRAINED.0);
    drop(DRAINED.1.wait_timeout_while(drained, EXIT_LIMIT, |drained| !*drained));
}

/// The drivers of all fabrics that have one.
static DRIVERS: std::sync::Mutex<Vec<&'static Driver>> = std::sync::Mutex::new(Vec::new());

impl Driver {
    /// Returns the driver of a fabric. The first call creates the driver and its thread.
    pub(super) fn of(subnet: &'static Subnet) -> Result<&'static Self> {
        let mut drivers = locked(&DRIVERS);
        // A forked child has none of its parent's descriptors, so it needs its own driver.
        let is_this =
            |driver: &&&Self| std::ptr::eq(driver.subnet, subnet) && driver.events.get().is_ok();
        if let Some(driver) = drivers.iter().find(is_this) {
            return Ok(driver);
        }
        let driver: &'static Self = Box::leak(Box::new(Self::new(subnet)?));
        drivers.push(driver);
        let _ = subnet.polled.set(driver);
        descriptor::at_exit(drain_all_at_exit);
        // Without a thread, polls drive the link.
        let spawned = spawn("rdma-soft link", STACK, || driver.serve());
        driver.without_thread.store(spawned.is_err(), Ordering::Relaxed);
        Ok(driver)
    }

    pub(super) fn new(subnet: &'static Subnet) -> Result<Self> {
        let new = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let (events, wake) = (Descriptor::open(new)?, Descriptor::open(new)?);
        let (data, flags) = (epoll::EventData::new_u64(0), WAKES);
        epoll::add(wake.get()?, events.get()?, data, flags)?;
        Ok(Self {
            subnet,
            events,
            wake,
            sockets: std::sync::Mutex::default(),
            driving: Mutex::new(Driving::new()),
            closed: Closed::default(),
            busy: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            polls_look: AtomicBool::new(false),
            without_thread: AtomicBool::new(false),
            yields_to_polls: AtomicBool::new(false),
            quiet: Quiet::default(),
            watch: Watch::default(),
            doorbell: Doorbell::new()?,
            processors: Processors::new(),
            useless: AtomicU32::new(0),
            yield_timer: YieldTimer::default(),
        })
    }

    /// Runs when the process is about to exit. Waits until everything that other threads are processing is executed and
    /// acknowledged, but for little more than [`EXIT_DELAY`]. Without the acknowledgements, the peer would conclude
    /// that its requests failed because the process exited.
    fn drain_at_exit(&self) {
        let start = self.subnet.clock.now();
        let is_idle = || {
            self.busy.load(Ordering::Acquire) == 0
                && !locked(&self.sockets).all().any(|watched| watched.has_work())
                && !are_left(self.subnet)
        };
        loop {
            // Read before answers are sent, because the busy threads may still produce answers or queue turns.
            let was_idle = is_idle();
            answer_all(self.subnet);
            self.subnet.run_queue.run();
            if was_idle && is_idle() || self.subnet.clock.now().since(start) > EXIT_DELAY {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Adds a socket. Its events are handled from now on.
    pub(super) fn add<W: Watched + 'static>(
        &self,
        make: impl FnOnce(Token) -> Arc<W>,
    ) -> Result<Arc<W>> {
        let mut sockets = locked(&self.sockets);
        let token = sockets.next_token().ok_or(Errno::MFILE)?;
        let watched = make(token);
        let descriptor = watched.descriptor().get()?;
        // The count is incremented even if this fails, so that no other socket ever gets the same token.
        sockets.count = sockets.count.wrapping_add(1);
        epoll::add(self.events.get()?, descriptor, token.data(), epoll::EventFlags::IN)?;
        if watched.is_doorbell()
            && let Err(errno) = self.doorbell.add(watched.descriptor())
        {
            self.disable_events(watched.descriptor());
            return Err(errno);
        }
        sockets.put(token, Arc::<W>::clone(&watched) as Arc<dyn Watched>);
        self.update_polls_look(&sockets);
        Ok(watched)
    }

    /// Records that a socket is now in use.
    #[cold]
    pub(super) fn note_use(&self, token: Token) {
        let sockets = &mut *locked(&self.sockets);
        if let Some(socket) = sockets.get(token)
            && !std::mem::replace(&mut socket.is_used, true)
        {
            sockets.used += 1;
        }
        self.update_polls_look(sockets);
    }

    /// Counts a packet for an unknown or destroyed receiver.
    #[cold]
    pub(super) fn note_useless(&self) {
        self.useless.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes polls look at the sockets if some are in use, or if there is no thread. Otherwise, only the thread looks
    /// at them.
    fn update_polls_look(&self, sockets: &Sockets) {
        let look = self.without_thread.load(Ordering::Relaxed) || sockets.used > 0;
        if self.polls_look.swap(look, Ordering::Relaxed) != look {
            self.subnet.timers.set_polls_look(look);
        }
    }

    /// Removes a socket, so that its events are no longer handled. It is closed when the last thread that still holds
    /// it drops it.
    pub(super) fn close(&self, token: Token) {
        let closed = {
            let mut sockets = locked(&self.sockets);
            let closed = sockets.take(token);
            self.update_polls_look(&sockets);
            closed
        };
        if let Some(closed) = closed {
            self.disable_events(closed.descriptor());
            self.doorbell.remove(closed.descriptor());
            self.forget(closed);
        }
    }

    pub(super) fn at(&self, token: Token) -> Option<Arc<dyn Watched>> {
        locked(&self.sockets).get(token).map(|socket| Arc::clone(&socket.watched))
    }

    /// Sets which events are reported for a socket.
    pub(super) fn set_flags(&self, token: Token, socket: &Descriptor, flags: epoll::EventFlags) {
        if let (Ok(events), Ok(socket)) = (self.events.get(), socket.get()) {
            let _ = epoll::modify(events, socket, token.data(), flags);
        }
    }

    /// Disables all events of a socket, including its end.
    fn disable_events(&self, socket: &Descriptor) {
        if let (Ok(events), Ok(socket)) = (self.events.get(), socket.get()) {
            let _ = epoll::delete(events, socket);
        }
    }

    /// Fetches and handles events. Returns true if something has arrived.
    fn drive(&'static self) -> bool {
        let Ok(driving) = self.driving.try_lock() else { return false };
        self.busy.fetch_add(1, Ordering::AcqRel);
        let found = self.take_events(driving).is_some();
        self.busy.fetch_sub(1, Ordering::AcqRel);
        found
    }

    /// Like [`drive`](Self::drive), but waits while another thread fetches events. Repeats this until nothing has arrived,
    /// or `is_enough` returns true for the number of events. The number of rounds is bounded, because a peer may send
    /// endlessly.
    fn drive_until(&'static self, is_enough: impl Fn(usize) -> bool) -> bool {
        self.busy.fetch_add(1, Ordering::AcqRel);
        let mut found = false;
        for _ in 0..MOST_ROUNDS {
            let Some(events) = self.take_events(locked_for_calls(&self.driving)) else { break };
            found = true;
            if is_enough(events) {
                break;
            }
        }
        self.busy.fetch_sub(1, Ordering::AcqRel);
        found
    }

    /// Fetches up to [`EVENTS`] events, and returns their number. Returns `None` if nothing has arrived.
    fn take_events(&'static self, mut driving: MutexGuard<'_, Driving>) -> Option<usize> {
        let mut found = [const { MaybeUninit::uninit() }; EVENTS];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (found, _) = epoll::wait(self.events.get().ok()?, &mut found, Some(&at_once)).ok()?;
        let has_arrived = driving.handle_near() | driving.remove_quiet();
        if found.is_empty() && !has_arrived {
            self.unlock(driving);
            return None;
        }
        let count = found.len();
        let mut ended = Vec::new();
        for event in found {
            let Some(watched) = self.at(Token::of(event.data)) else { continue };
            match Arc::clone(&watched).handle_event(event.flags) {
                SocketEvent::Messages => driving.promote(&watched),
                SocketEvent::End => ended.push(watched),
                SocketEvent::Other => {}
            }
        }
        self.unlock(driving);
        // A program that sleeps between messages polls now and then. These polls are not a wait.
        self.yield_timer.restart();
        self.subnet.run_queue.run();
        if !ended.is_empty() {
            self.end(ended);
        }
        Some(count)
    }

    /// Returns true if the program sleeps until any completion arrives, also one of its own requests.
    fn awaits_completions(&self) -> bool {
        self.subnet.armed.load(Ordering::Relaxed) > 0
    }

    /// Makes the recently active sockets report executed requests, and handles those that were executed before.
    fn listen(&self) {
        self.busy.fetch_add(1, Ordering::AcqRel);
        let has_arrived = locked_for_calls(&self.driving).listen();
        if has_arrived {
            self.subnet.run_queue.run();
        }
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }

    /// Receives all messages that have arrived so far, and waits until they are executed.
    fn read_all(&self) {
        // Sockets are looked up one by one, because a list of them would allocate memory.
        let next = |place: usize| {
            let sockets = locked(&self.sockets);
            let entry = sockets.by_index.get(place)?;
            Some(entry.as_ref().map(|socket| Arc::clone(&socket.watched)))
        };
        (0..).map_while(next).flatten().for_each(Watched::read_all);
        // Another thread may have read a socket's last message and closed the socket, but not executed the message yet.
        execute_all(self.subnet);
    }

    /// Handles the exit of the processes at the other ends of these sockets. First handles everything that has arrived
    /// on any socket, such as their last acknowledgements.
    #[cold]
    fn end(&self, ended: Vec<Arc<dyn Watched>>) {
        self.read_all();
        ended.into_iter().for_each(Watched::ended);
        self.subnet.run_queue.run();
    }
}

const WAKES: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

impl Polled for Driver {
    fn catch_up(&'static self) {
        self.busy.fetch_add(1, Ordering::AcqRel);
        self.drive_until(|_| false);
        // Another thread may still be processing a message, or be about to queue a task that handles one.
        self.subnet.run_queue.run();
        self.read_all();
        self.subnet.run_queue.run();
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }

    fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }

    fn poller_sleeps(&self) {
        if self.yields_to_polls.swap(false, Ordering::Relaxed) {
            self.doorbell.ring();
        }
        if self.awaits_completions() && self.quiet.end() {
            self.listen();
        }
    }

    fn handle_arrivals(&'static self) {
        self.execute_for_channel();
    }

    fn poll(&'static self) {
        // If polls of several threads overlap, some are not counted, but the number still changes.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let look = self.look_near();
        let found = !look.enough && self.drive() || look.found;
        if found {
            self.yield_timer.restart();
        } else if self.yield_timer.is_over(|| self.subnet.clock.now()) {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests {
    use rdma_proto::Burst;
    use rdma_proto::wire::{Bth, Headers, Opcode, Operation};
    use rdma_types::{Psn, Qpn};

    use super::*;
    use crate::address::{Address, Path};
    use crate::device::Device;
    use crate::engine::wire::Mailbox as _;
    use crate::engine::wire::letter::Letter;
    use crate::fabric::random::Seed;
    use crate::limits::Limits;
    use crate::link::Link;
    use crate::schedule::Schedule;

    /// Another thread has read the packet and closed its socket, but has not executed the packet yet.
    #[test]
    fn received_packets_are_executed_before_an_end_is_handled() {
        static SUBNET: Subnet = Subnet::new();
        SUBNET.serve_by_polls_alone();
        let (limits, schedule) = (Limits::default(), Schedule::Immediate);
        let (link, seed) = (Link::InfiniBand, Seed::new(1));
        let device = Device::new(&SUBNET, "d".into(), link, Vec::new(), limits, schedule, &seed);
        let device = SUBNET.add(device).unwrap();
        let driver = Driver::new(&SUBNET).unwrap();
        let bth =
            Bth::new(Opcode::reliable(Operation::Acknowledge), Qpn::masked(5), Psn::masked(0));
        let path = Path { local: Address::Lid(1), remote: Address::Lid(1) };
        let burst = Burst::single(Headers::new(bth), 0);
        let buffer = device.inbox(5).buffer_at_once();
        device.inbox(5).arrive(Letter::from_outside(path, burst, None, buffer));
        let counted = || device.tally.counters().unknown_qp;
        assert_eq!(counted(), 0);
        driver.read_all();
        assert_eq!(counted(), 1);
    }
}
