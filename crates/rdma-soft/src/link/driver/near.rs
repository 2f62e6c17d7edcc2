//! The sockets at which polls look first.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll;

use super::{Driver, Look, SocketEvent, Watched};
use crate::fabric::clock::Time;
use crate::sync::{AtomicBool, MutexGuard, Ordering, locked};

/// The maximum number of recently active sockets. Each peer process accounts for two: its messages arrive on one, and
/// it reports on the other what it has executed.
pub(super) const NEAR: usize = 128;
/// The maximum number of sockets among them at which each look makes a system call.
const CALLS: usize = 8;
/// The number of sockets that remain, even if nothing has arrived there for a long time.
const FEW: usize = 8;
/// One look in this many covers all sockets. The looks in between cover only the sockets where something arrived
/// recently.
const FULL_LOOK_INTERVAL: u32 = 128;
/// While messages arrive, the time after which a look covers all sockets again.
const FULL_LOOK_PERIOD: Duration = Duration::from_micros(100);
/// The maximum number of sockets from which one look takes messages without the lock. The next look begins with the
/// others.
const READY: usize = 4;
/// The number of looks after which a socket where nothing has arrived is no longer recently active.
const QUIET: u32 = 256 * FULL_LOOK_INTERVAL;

/// The recently active sockets. Locked by the thread that fetches events or looks at them.
#[derive(Debug)]
pub(super) struct Driving {
    near: Vec<Near>,
    /// The index of the socket at which the next look begins.
    next: usize,
    /// The number of looks so far.
    looks: u32,
    /// Whether anything has arrived during the last [`FULL_LOOK_INTERVAL`] looks.
    has_traffic: bool,
    /// The time of the last look that covered all sockets although messages were arriving.
    last_full: Time,
    /// Whether these sockets are [polled](Watched::start_polling), because polls or the thread look at them.
    pub(super) polled: bool,
}

#[derive(Debug)]
struct Near {
    /// Removed when the socket is [closed](Driver::forget). A weak reference would cost each look two atomic operations.
    watched: Arc<dyn Watched>,
    /// Whether looking at the socket takes a system call.
    calls: bool,
    /// The number of the look that found the last message.
    last: u32,
}

impl Driving {
    pub(super) fn new() -> Self {
        Self {
            near: Vec::with_capacity(NEAR),
            next: 0,
            looks: 0,
            has_traffic: false,
            last_full: Time::from_nanoseconds(0),
            polled: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.near.is_empty()
    }

    pub(super) fn near(&self) -> impl Iterator<Item = &Arc<dyn Watched>> {
        self.near.iter().map(|near| &near.watched)
    }

    /// Makes a socket, at which something has arrived, a recently active one.
    pub(super) fn promote(&mut self, watched: &Arc<dyn Watched>) {
        let looks = self.looks;
        if let Some(near) = self.near.iter_mut().find(|near| near.is(watched)) {
            near.last = looks;
            return;
        }
        let calls = !watched.is_doorbell();
        let is_full = self.near.len() >= NEAR;
        if is_full || calls && self.near.iter().filter(|near| near.calls).count() >= CALLS {
            self.remove_quietest(|near| is_full || near.calls);
        }
        self.near.push(Near { watched: Arc::clone(watched), calls, last: looks });
        if self.polled {
            watched.start_polling();
        }
    }

    /// Removes the socket at which nothing has arrived for the longest time, among those that `may_go`. Returns true if
    /// something has arrived there after all, which is handled.
    fn remove_quietest(&mut self, may_go: impl Fn(&Near) -> bool) -> bool {
        let looks = self.looks;
        let candidates = self.near.iter().enumerate().filter(|(_, near)| may_go(near));
        let quietest = candidates.max_by_key(|(_, near)| looks.wrapping_sub(near.last));
        let Some((place, _)) = quietest else { return false };
        let removed = self.near.swap_remove(place).watched;
        removed.stop_polling(false);
        let has_arrived = removed.has_arrived();
        if has_arrived {
            removed.handle_event(epoll::EventFlags::empty());
        }
        has_arrived
    }

    /// Removes a socket at which nothing has arrived for a long time, if there is one and enough others remain. Returns
    /// true if something has arrived there after all, which is handled.
    pub(super) fn remove_quiet(&mut self) -> bool {
        let looks = self.looks;
        let is_quiet = |near: &Near| looks.wrapping_sub(near.last) > QUIET;
        self.near.len() > FEW && self.remove_quietest(is_quiet)
    }

    /// Counts a look. Returns false if it must cover all sockets, which takes a system call.
    pub(super) fn count_look(&mut self, now: impl FnOnce() -> Time) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if !self.looks.is_multiple_of(FULL_LOOK_INTERVAL) {
            return true;
        }
        if !mem::take(&mut self.has_traffic) {
            return false;
        }
        let now = now();
        let is_early = now.since(self.last_full) < FULL_LOOK_PERIOD;
        if !is_early {
            self.last_full = now;
        }
        is_early
    }

    /// Returns the index of a socket that may have a message.
    #[inline]
    pub(super) fn first_ready(&self) -> Option<usize> {
        let next = self.next.min(self.near.len());
        let ready = |near: &Near| near.watched.may_have_message();
        let found = self.near[next..].iter().position(ready).map(|n| next + n);
        found.or_else(|| self.near[..next].iter().position(ready))
    }

    /// Adds sockets that may have a message to `ready`, from the first one on. Looks itself where this takes a system call,
    /// and returns true if it found any there.
    pub(super) fn take_ready(&mut self, first: usize, ready: &mut Ready) -> bool {
        let (looks, count, mut found) = (self.looks, self.near.len(), false);
        // Those before the first one were asked already.
        let others = count - (first + count - self.next.min(count)) % count;
        let (last, next) = self.near.split_at_mut(first);
        for (n, near) in next.iter_mut().chain(last).take(others).enumerate() {
            if n > 0 && !near.watched.may_have_message() {
                continue;
            }
            if near.calls {
                if Arc::clone(&near.watched).look() {
                    (near.last, found) = (looks, true);
                }
            } else if ready.add(&near.watched) {
                near.last = looks;
            } else {
                self.next = (first + n) % count;
                break;
            }
        }
        self.has_traffic |= found || ready.count > 0;
        found
    }

    /// Makes all sockets report executed requests. Handles those that were executed before, and returns true if there
    /// were any.
    pub(super) fn listen(&self) -> bool {
        let mut found = false;
        for near in self.near() {
            found |= near.listen() && Arc::clone(near).look();
        }
        found
    }

    /// Handles the sockets at which something has arrived. Returns true if messages arrived at any of them.
    pub(super) fn handle_near(&self) -> bool {
        let mut found = false;
        for near in self.near().filter(|near| near.has_arrived()) {
            let near = Arc::clone(near);
            found |= near.handle_event(epoll::EventFlags::empty()) == SocketEvent::Messages;
        }
        found
    }
}

/// Sockets that may have a message.
#[derive(Debug, Default)]
pub(super) struct Ready {
    sockets: [Option<Arc<dyn Watched>>; READY],
    count: usize,
}

impl Ready {
    /// Returns false if there is no space.
    fn add(&mut self, watched: &Arc<dyn Watched>) -> bool {
        let Some(place) = self.sockets.get_mut(self.count) else { return false };
        *place = Some(Arc::clone(watched));
        self.count += 1;
        true
    }

    /// Takes one message from each socket, unless another thread does. Returns true if there was any.
    fn look(&mut self) -> bool {
        let sockets = self.sockets.iter_mut().map_while(Option::take);
        sockets.map(Watched::look).fold(false, |found, has_message| found | has_message)
    }
}

impl Near {
    fn is(&self, watched: &Arc<dyn Watched>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.watched), Arc::as_ptr(watched))
    }
}

/// The closed sockets that may still be among those at which polls look.
#[derive(Debug, Default)]
pub(super) struct Closed {
    are_any: AtomicBool,
    sockets: std::sync::Mutex<Vec<Arc<dyn Watched>>>,
}

impl Closed {
    fn add(&self, closed: Arc<dyn Watched>) {
        let mut sockets = locked(&self.sockets);
        sockets.push(closed);
        self.are_any.store(true, Ordering::Relaxed);
    }

    /// Removes closed sockets from the recently active ones. Returns them, so that they are dropped without the lock.
    fn remove_from(&self, driving: &mut Driving) -> Vec<Arc<dyn Watched>> {
        let closed = {
            let mut sockets = locked(&self.sockets);
            self.are_any.store(false, Ordering::Relaxed);
            mem::take(&mut *sockets)
        };
        driving.near.retain(|near| !closed.iter().any(|closed| near.is(closed)));
        closed
    }
}

impl Driver {
    /// Looks at the recently active sockets. Meanwhile, other threads can look at the others.
    pub(super) fn look_near(&self) -> Look {
        let mut look = Look { found: false, enough: true };
        let Ok(mut driving) = self.driving.try_lock() else { return look };
        if driving.is_empty() {
            self.unlock(driving);
            return Look { enough: false, ..look };
        }
        look.enough = driving.count_look(|| self.subnet.clock.now());
        let Some(first) = driving.first_ready() else {
            self.unlock(driving);
            return look;
        };
        self.busy.fetch_add(1, Ordering::AcqRel);
        let mut ready = Ready::default();
        look.found = driving.take_ready(first, &mut ready);
        self.unlock(driving);
        // Takes one message from each socket, because small messages arrive one at a time.
        look.found |= ready.look();
        self.subnet.run_queue.run();
        self.busy.fetch_sub(1, Ordering::AcqRel);
        look
    }

    /// Ensures that polls no longer look at a closed socket. If a thread is looking, it removes the socket afterwards. It
    /// may be the calling thread. At the latest, the next poll or event removes the socket.
    pub(super) fn forget(&self, closed: Arc<dyn Watched>) {
        self.closed.add(closed);
        if let Ok(driving) = self.driving.try_lock() {
            self.unlock(driving);
        }
    }

    /// Removes closed sockets, and releases the lock. Only then drops them, because that closes their descriptors.
    #[inline]
    pub(super) fn unlock(&self, driving: MutexGuard<'_, Driving>) {
        if self.closed.are_any.load(Ordering::Relaxed) {
            self.unlock_without_closed(driving);
        }
    }

    #[cold]
    fn unlock_without_closed(&self, mut driving: MutexGuard<'_, Driving>) {
        let closed = self.closed.remove_from(&mut driving);
        drop(driving);
        drop(closed);
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::link::descriptor::Descriptor;
    use crate::sync::{AtomicBool, Ordering};

    /// A socket with at most one message.
    #[derive(Debug)]
    struct Socket {
        descriptor: Descriptor,
        calls: bool,
        polled: AtomicBool,
        /// Whether it need not report executed requests.
        quiet: AtomicBool,
        message: AtomicBool,
    }

    impl Socket {
        fn new(calls: bool) -> Arc<Self> {
            let descriptor = Descriptor::open(|| eventfd(0, EventfdFlags::CLOEXEC)).unwrap();
            let [polled, quiet, message] = [(); 3].map(|()| AtomicBool::new(false));
            Arc::new(Self { descriptor, calls, polled, quiet, message })
        }

        fn is_polled(&self) -> bool {
            self.polled.load(Ordering::Relaxed)
        }
    }

    impl Watched for Socket {
        fn descriptor(&self) -> &Descriptor {
            &self.descriptor
        }

        fn handle_event(self: Arc<Self>, _: epoll::EventFlags) -> SocketEvent {
            self.message.store(false, Ordering::Relaxed);
            SocketEvent::Messages
        }

        fn may_have_message(&self) -> bool {
            self.has_arrived()
        }

        fn look(self: Arc<Self>) -> bool {
            self.message.swap(false, Ordering::Relaxed)
        }

        fn is_doorbell(&self) -> bool {
            !self.calls
        }

        fn has_arrived(&self) -> bool {
            self.message.load(Ordering::Relaxed)
        }

        fn start_polling(&self) {
            self.polled.store(true, Ordering::Relaxed);
        }

        fn stop_polling(&self, is_quiet: bool) {
            self.polled.store(false, Ordering::Relaxed);
            self.quiet.store(is_quiet, Ordering::Relaxed);
        }

        fn listen(&self) -> bool {
            self.quiet.store(false, Ordering::Relaxed);
            self.has_arrived()
        }

        fn is_used(&self) -> bool {
            true
        }
    }

    /// Adds a socket that was active at this look.
    fn add(driving: &mut Driving, calls: bool, look: u32) -> Arc<Socket> {
        let socket = Socket::new(calls);
        driving.looks = look;
        driving.promote(&(Arc::<Socket>::clone(&socket) as Arc<dyn Watched>));
        socket
    }

    fn driving() -> Driving {
        Driving { polled: true, ..Driving::new() }
    }

    /// Takes one message from each of some sockets. Returns how many were ready, and whether any had a message.
    fn look(driving: &mut Driving) -> (usize, bool) {
        let mut ready = Ready::default();
        let first = driving.first_ready();
        let found = first.is_some_and(|first| driving.take_ready(first, &mut ready));
        (ready.count, found | ready.look())
    }

    /// A message of each of 64 peers is found, and no socket is looked at a second time before all others were.
    #[test]
    fn the_sockets_of_many_peers_are_polled() {
        let mut driving = driving();
        let sockets: Vec<_> = (1..).take(NEAR).map(|look| add(&mut driving, false, look)).collect();
        assert!(sockets.iter().all(|socket| socket.is_polled()));
        for round in 0..3 {
            let all = || sockets.iter().filter(|socket| socket.has_arrived()).count();
            sockets.iter().for_each(|socket| socket.message.store(true, Ordering::Relaxed));
            for looks in 1..=NEAR / READY {
                // The first one always has a message.
                sockets[0].message.store(true, Ordering::Relaxed);
                assert_eq!(look(&mut driving), (READY, true));
                let left = NEAR - READY * looks + usize::from(looks > 1);
                assert_eq!(all(), left, "round {round}, look {looks}");
            }
            assert_eq!(look(&mut driving), (1, true));
            assert_eq!(all(), 0);
        }
        assert_eq!(look(&mut driving), (0, false));
    }

    /// Returns true if one of the next looks covers all sockets, at this time after the start.
    fn covers_all(driving: &mut Driving, microseconds: u64) -> bool {
        let now = || Time::from_nanoseconds(1_000_000 + 1000 * microseconds);
        (0..FULL_LOOK_INTERVAL).any(|_| !driving.count_look(now))
    }

    #[test]
    fn few_looks_take_a_system_call_while_messages_arrive() {
        let mut driving = driving();
        let socket = add(&mut driving, false, 0);
        let after_a_message = |driving: &mut Driving, microseconds| {
            socket.message.store(true, Ordering::Relaxed);
            assert!(look(driving).1);
            covers_all(driving, microseconds)
        };
        let times = [0, 50, 99, 100, 150, 200];
        let found = times.map(|time| after_a_message(&mut driving, time));
        assert_eq!(found, [true, false, false, true, false, true]);
        assert_eq!([201, 202].map(|time| covers_all(&mut driving, time)), [true; 2]);
        assert!(!after_a_message(&mut driving, 203));
    }

    /// A message that has arrived at the socket that gives way is handled.
    #[test]
    fn the_quietest_socket_gives_way() {
        let mut driving = driving();
        let sockets: Vec<_> = (1..).take(NEAR).map(|look| add(&mut driving, false, look)).collect();
        // The first one has a message now, so the second one has been quiet for longest.
        sockets[0].message.store(true, Ordering::Relaxed);
        assert!(look(&mut driving).1);
        sockets[1].message.store(true, Ordering::Relaxed);
        let another = add(&mut driving, false, 1000);
        let polled = |place: usize| sockets[place].is_polled();
        assert_eq!(
            (polled(0), polled(1), polled(2), another.is_polled()),
            (true, false, true, true)
        );
        assert!(!sockets[1].has_arrived());
        assert_eq!(driving.near().count(), NEAR);
    }

    /// Neither polls nor armings look at the socket that gives way, so it reports executed requests again.
    #[test]
    fn no_socket_gives_way_without_reports_of_executed_requests() {
        let mut driving = Driving::new();
        let sockets: Vec<_> = (1..).take(NEAR).map(|look| add(&mut driving, false, look)).collect();
        driving.near().for_each(|near| near.stop_polling(true));
        sockets[0].message.store(true, Ordering::Relaxed);
        let another = add(&mut driving, false, 1000);
        let is_quiet = |socket: &Socket| socket.quiet.load(Ordering::Relaxed);
        assert_eq!(
            [&sockets[0], &sockets[1], &another].map(|socket| is_quiet(socket)),
            [false, true, false]
        );
        assert!(!sockets[0].has_arrived());
        // An arming handles what has arrived at the others.
        sockets[2].message.store(true, Ordering::Relaxed);
        assert_eq!([driving.listen(), driving.listen()], [true, false]);
        assert!(!sockets.iter().any(|socket| is_quiet(socket) || socket.has_arrived()));
    }

    /// Its descriptor is closed when the last reference is dropped.
    #[test]
    fn closed_sockets_are_neither_polled_nor_kept() {
        let (mut driving, closed) = (driving(), Closed::default());
        let sockets = [1, 2, 3].map(|look| add(&mut driving, false, look));
        drop(closed.remove_from(&mut driving));
        assert_eq!(driving.near().count(), 3);
        for place in [0, 2] {
            closed.add(Arc::<Socket>::clone(&sockets[place]));
        }
        drop(closed.remove_from(&mut driving));
        assert_eq!(driving.near().count(), 1);
        let references = sockets.each_ref().map(Arc::strong_count);
        assert_eq!(references, [1, 2, 1]);
    }

    #[test]
    fn few_sockets_cost_a_system_call() {
        let mut driving = driving();
        let other = add(&mut driving, false, 1);
        let sockets: Vec<_> =
            (2..).take(CALLS + 1).map(|look| add(&mut driving, true, look)).collect();
        assert!(other.is_polled() && !sockets[0].is_polled());
        assert!(sockets[1..].iter().all(|socket| socket.is_polled()));
    }

    #[test]
    fn sockets_that_stay_quiet_are_no_longer_polled() {
        let mut driving = driving();
        let sockets: Vec<_> =
            (1..).take(2 * FEW).map(|look| add(&mut driving, false, look)).collect();
        driving.looks = QUIET;
        assert!(!driving.remove_quiet());
        assert!(sockets.iter().all(|socket| socket.is_polled()));
        driving.looks = u32::try_from(2 * FEW).unwrap() + QUIET + 1;
        (0..2 * FEW).for_each(|_| assert!(!driving.remove_quiet()));
        assert!(!sockets[..FEW].iter().any(|socket| socket.is_polled()));
        assert!(sockets[FEW..].iter().all(|socket| socket.is_polled()));
    }
}
