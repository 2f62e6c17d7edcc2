//! Who drives the sockets of a fabric's links: whoever polls in vain, and for programs that do not poll a thread, which
//! sleeps while somebody polls, and while nothing happens.

use std::mem::MaybeUninit;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::{Errno, Result};

use self::serve::{Calls, Processors};
use super::descriptor::{self, Descriptor};
use crate::device::arrivals::{answer_all, execute_all};
use crate::device::subnet::Subnet;
use crate::fabric::Polled;
use crate::fabric::thread::{STACK, spawn};
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, locked, locked_for_calls};

mod serve;

/// How many sockets a fabric has at most.
pub(super) const MOST: usize = 4096;
/// How many events are taken at a time.
const EVENTS: usize = 32;
/// How long the end of the process waits at most.
const LEAVE: Duration = Duration::from_millis(100);
/// How often who catches up looks whether something has come.
const MOST_ROUNDS: u32 = 64;
/// Who polls looks at all sockets each so many times, and in between where something came from lately.
const LOOKS_APART: u32 = 128;
/// How many places those are at most: for each process that this one talks to, where its messages come in and where it
/// says what it has executed.
const NEAR: usize = 8;

/// A socket of a link.
pub(super) trait Watched: Send + Sync + std::fmt::Debug {
    fn descriptor(&self) -> &Descriptor;

    /// Something has happened there. The caller takes what is noted to be done then.
    fn happened(self: Arc<Self>, flags: epoll::EventFlags) -> Happened;

    /// Whether there may be a message, if that can be known without a call.
    fn is_worth_a_look(&self) -> bool {
        true
    }

    /// Looks for a message, in as few calls as can be. Whether there was one.
    fn look(self: Arc<Self>) -> bool {
        false
    }

    /// Whether its peer tells by the descriptor of what it finds nobody to have looked at, and of nothing else.
    fn tells(&self) -> bool {
        false
    }

    /// Whether something has come that its descriptor does not tell of.
    fn has_come(&self) -> bool {
        false
    }

    /// The driver looks here from now on, whether the descriptor tells or not.
    fn attend(&self) {}

    /// It does so no more. What [has come](Self::has_come) before may not be told of.
    fn neglect(&self) {}

    /// Takes all messages that have come by now, and returns when they are executed. The caller holds no lock.
    fn read_all(self: Arc<Self>) {}

    /// Its other end is gone.
    fn ended(self: Arc<Self>) {}

    /// Whether something waits to be written.
    fn has_letters(&self) -> bool {
        false
    }

    /// Whether packets come or go here, so that whoever polls is to look.
    fn is_used(&self) -> bool;
}

/// What an event was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happened {
    /// Messages have come: who polls looks here first from now on.
    Messages,
    /// The other end is gone. What other sockets have to say is heard before it is told.
    End,
    Other,
}

/// What a fabric has that its devices share with other processes and hosts.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) subnet: &'static Subnet,
    /// Tells of all sockets.
    events: Descriptor,
    /// Tells the thread of `events`, once.
    wake: Descriptor,
    sockets: std::sync::Mutex<Sockets>,
    /// Held by who takes events.
    driving: Mutex<Driving>,
    /// How many threads have something in hand that has come.
    busy: AtomicU32,
    /// Moves when somebody polls.
    polls: AtomicU32,
    /// There are sockets in use.
    polls_look: AtomicBool,
    /// Nobody but who polls drives the link.
    without_thread: AtomicBool,
    /// The thread leaves all to who polls, for a moment.
    rests: AtomicBool,
    calls: Calls,
    processors: Processors,
    /// Moves with packets that are for nobody.
    useless: AtomicU32,
}

/// Where who polls looks first.
#[derive(Debug)]
struct Driving {
    /// Where something came from lately, the last one first.
    near: Vec<Weak<dyn Watched>>,
    /// How many looks there were.
    looks: u32,
    /// They are [attended](Watched::attend): as long as the thread sees to it that somebody looks.
    attended: bool,
}

impl Driving {
    fn look_at(&mut self, watched: &Arc<dyn Watched>) {
        let is_this =
            |near: &Weak<dyn Watched>| std::ptr::addr_eq(near.as_ptr(), Arc::as_ptr(watched));
        if let Some(at) = self.near.iter().position(is_this) {
            return self.near[..=at].rotate_right(1);
        }
        self.near.retain(|near| near.strong_count() > 0);
        let farthest = if self.near.len() < NEAR { None } else { self.near.pop() };
        self.near.insert(0, Arc::downgrade(watched));
        if !self.attended {
            return;
        }
        watched.attend();
        if let Some(farthest) = farthest.and_then(|farthest| farthest.upgrade()) {
            farthest.neglect();
            if farthest.has_come() {
                farthest.happened(epoll::EventFlags::empty());
            }
        }
    }

    fn near(&self) -> impl Iterator<Item = Arc<dyn Watched>> {
        self.near.iter().filter_map(Weak::upgrade)
    }

    /// Gives those their turn where something has come. Says whether there was one.
    fn take_near(&self) -> bool {
        let mut found = false;
        for near in self.near().filter(|near| near.has_come()) {
            found |= near.happened(epoll::EventFlags::empty()) == Happened::Messages;
        }
        found
    }
}

/// The name of a socket in the driver and in its epoll: an index, which is used again, and a number, which is not, so
/// that a late event of a closed socket is not taken for another's.
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
    by_index: Vec<Option<(Token, Arc<dyn Watched>)>>,
    /// How many there were, ever.
    count: u32,
}

impl Sockets {
    fn entry(&mut self, token: Token) -> Option<&mut Option<(Token, Arc<dyn Watched>)>> {
        let entry = self.by_index.get_mut(token.index as usize)?;
        entry.as_ref().is_some_and(|(found, _)| *found == token).then_some(entry)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<dyn Watched>> {
        self.by_index.iter().flatten().map(|(_, watched)| watched)
    }
}

/// The process is about to end.
fn let_all_go() {
    let drivers = locked(&DRIVERS).clone();
    drivers.iter().for_each(|driver| driver.let_go());
}

/// Those of all fabrics that have one.
static DRIVERS: std::sync::Mutex<Vec<&'static Driver>> = std::sync::Mutex::new(Vec::new());

impl Driver {
    /// The driver of a fabric, which the first one to ask makes, with its thread.
    pub(super) fn of(subnet: &'static Subnet) -> Result<&'static Self> {
        let mut drivers = locked(&DRIVERS);
        // A forked child has none of its parent's descriptors.
        let is_this =
            |driver: &&&Self| std::ptr::eq(driver.subnet, subnet) && driver.events.get().is_ok();
        if let Some(driver) = drivers.iter().find(is_this) {
            return Ok(driver);
        }
        let driver: &'static Self = Box::leak(Box::new(Self::new(subnet)?));
        drivers.push(driver);
        let _ = subnet.polled.set(driver);
        descriptor::at_exit(let_all_go);
        // Without a thread whoever polls drives the link.
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
            driving: Mutex::new(Driving {
                near: Vec::with_capacity(NEAR),
                looks: 0,
                attended: false,
            }),
            busy: AtomicU32::new(0),
            polls: AtomicU32::new(0),
            polls_look: AtomicBool::new(false),
            without_thread: AtomicBool::new(false),
            rests: AtomicBool::new(false),
            calls: Calls::new()?,
            processors: Processors::new(),
            useless: AtomicU32::new(0),
        })
    }

    /// The process is about to end: what another thread has in hand is executed and answered before, if that is soon. The
    /// peer would take the end of the process for that of what it has asked for.
    fn let_go(&self) {
        let start = self.subnet.clock.now();
        loop {
            // Before what they have to answer is answered.
            let busy = self.busy.load(Ordering::Acquire) != 0;
            answer_all(self.subnet);
            self.subnet.run_queue.run();
            let ready = !busy
                && self.busy.load(Ordering::Acquire) == 0
                && !locked(&self.sockets).all().any(|watched| watched.has_letters());
            if ready || self.subnet.clock.now().since(start) > LEAVE {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Adds a socket, and is told of messages there from now on.
    pub(super) fn add<W: Watched + 'static>(
        &self,
        make: impl FnOnce(Token) -> Arc<W>,
    ) -> Result<Arc<W>> {
        let mut sockets = locked(&self.sockets);
        let free = sockets.by_index.iter().position(Option::is_none);
        let index = free.unwrap_or(sockets.by_index.len());
        if index >= MOST {
            return Err(Errno::MFILE);
        }
        let token =
            Token { index: u32::try_from(index).unwrap_or(u32::MAX), number: sockets.count };
        let watched = make(token);
        let descriptor = watched.descriptor().get()?;
        // Also if this fails: no other socket is ever taken for this one.
        sockets.count = sockets.count.wrapping_add(1);
        epoll::add(self.events.get()?, descriptor, token.data(), epoll::EventFlags::IN)?;
        if watched.tells()
            && let Err(errno) = self.calls.add(watched.descriptor())
        {
            self.look_away(watched.descriptor());
            return Err(errno);
        }
        let added: Arc<dyn Watched> = Arc::<W>::clone(&watched);
        match free {
            Some(free) => sockets.by_index[free] = Some((token, added)),
            None => sockets.by_index.push(Some((token, added))),
        }
        self.see_to_polls(&sockets);
        Ok(watched)
    }

    /// One of the sockets is used from now on.
    #[cold]
    pub(super) fn note_use(&self) {
        self.see_to_polls(&locked(&self.sockets));
    }

    /// A packet has come that is for nobody.
    #[cold]
    pub(super) fn note_useless(&self) {
        self.useless.fetch_add(1, Ordering::Relaxed);
    }

    /// Whoever polls looks here only if there are sockets in use: for others there is the thread, if it could be started.
    fn see_to_polls(&self, sockets: &Sockets) {
        let look = self.without_thread.load(Ordering::Relaxed)
            || sockets.all().any(|watched| watched.is_used());
        if self.polls_look.swap(look, Ordering::Relaxed) != look {
            self.subnet.timers.have_polls_look(look);
        }
    }

    /// Forgets a socket. Who still has it does not use it any more; it is closed when the last one is done.
    pub(super) fn close(&self, token: Token) {
        let closed = {
            let mut sockets = locked(&self.sockets);
            let closed = sockets.entry(token).and_then(Option::take);
            self.see_to_polls(&sockets);
            closed
        };
        if let Some((_, closed)) = closed {
            self.look_away(closed.descriptor());
            self.calls.remove(closed.descriptor());
        }
    }

    pub(super) fn at(&self, token: Token) -> Option<Arc<dyn Watched>> {
        locked(&self.sockets).entry(token)?.as_ref().map(|(_, watched)| Arc::clone(watched))
    }

    /// Says what it is to be told of a socket.
    pub(super) fn set_flags(&self, token: Token, socket: &Descriptor, flags: epoll::EventFlags) {
        if let (Ok(events), Ok(socket)) = (self.events.get(), socket.get()) {
            let _ = epoll::modify(events, socket, token.data(), flags);
        }
    }

    /// A socket has nothing to tell until it is [looked at again](Self::look_again), not even its end.
    pub(super) fn look_away(&self, socket: &Descriptor) {
        if let (Ok(events), Ok(socket)) = (self.events.get(), socket.get()) {
            let _ = epoll::delete(events, socket);
        }
    }

    pub(super) fn look_again(&self, token: Token, socket: &Descriptor) {
        if let (Ok(events), Ok(socket)) = (self.events.get(), socket.get()) {
            let _ = epoll::add(events, socket, token.data(), epoll::EventFlags::IN);
        }
    }

    /// Whether there is no need to look at all sockets.
    fn look_near(&self) -> bool {
        let Ok(mut driving) = self.driving.try_lock() else { return true };
        if driving.near.is_empty() {
            return false;
        }
        driving.looks = driving.looks.wrapping_add(1);
        let enough = !driving.looks.is_multiple_of(LOOKS_APART);
        if driving.near().any(|near| near.is_worth_a_look()) {
            self.busy.fetch_add(1, Ordering::AcqRel);
            // Each in its turn: small messages come one at a time.
            let found = driving.near().fold(false, |found, near| near.look() | found);
            drop(driving);
            if found {
                self.subnet.run_queue.run();
            }
            self.busy.fetch_sub(1, Ordering::AcqRel);
        }
        enough
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
        let has_come = driving.take_near();
        if found.is_empty() && !has_come {
            return false;
        }
        let mut ended = Vec::new();
        for event in found {
            let Some(watched) = self.at(Token::of(event.data)) else { continue };
            match Arc::clone(&watched).happened(event.flags) {
                Happened::Messages => driving.look_at(&watched),
                Happened::End => ended.push(watched),
                Happened::Other => {}
            }
        }
        drop(driving);
        self.subnet.run_queue.run();
        if !ended.is_empty() {
            self.end(ended);
        }
        true
    }

    /// Takes all messages that have come by now, and returns when they are executed.
    fn read_all(&self) {
        // Without a list of them, which would take memory: each is looked up when it is its turn.
        let next = |place: usize| {
            let sockets = locked(&self.sockets);
            let entry = sockets.by_index.get(place)?;
            Some(entry.as_ref().map(|(_, watched)| Arc::clone(watched)))
        };
        (0..).map_while(next).flatten().for_each(Watched::read_all);
        // Another thread may have read the last message of a socket, and closed that, and execute it in a moment.
        execute_all(self.subnet);
    }

    /// These have ended. What they have said before is heard first: an acknowledgement, for one.
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
        // Who sends without end is not waited for.
        for _ in 0..MOST_ROUNDS {
            if !self.take_events(locked_for_calls(&self.driving)) {
                break;
            }
        }
        // Another thread may have a message in hand, or be about to give who has some its turn.
        self.subnet.run_queue.run();
        self.read_all();
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }

    fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }

    fn poller_sleeps(&self) {
        if self.rests.swap(false, Ordering::Relaxed) {
            self.calls.ring();
        }
    }

    fn poll(&'static self) {
        self.polls.fetch_add(1, Ordering::Relaxed);
        if !self.look_near() {
            self.drive();
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

    /// Another thread has read it, has closed the socket where it came from, and has not executed it yet.
    #[test]
    fn what_was_read_is_executed_before_an_end_is_told() {
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
        let buffer = device.inbox().buffer_at_once();
        device.inbox().arrive(Letter::from_outside(path, burst, None, buffer));
        let counted = || device.tally.counters().unknown_qp;
        assert_eq!(counted(), 0);
        driver.read_all();
        assert_eq!(counted(), 1);
    }
}
