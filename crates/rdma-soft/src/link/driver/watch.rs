//! The watch over the link while messages arrive at a high rate. The link's thread leaves it to a completion channel, on
//! whose file a program sleeps. An arrival then wakes only the program, which executes it. Otherwise, it wakes this
//! thread, which executes it and wakes the program.
//!
//! The program may be busy with other work. So the thread checks every [`TICK`] that the program has executed arrivals,
//! and otherwise executes them itself.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{Driver, EVENTS};
use crate::fabric::Polled;
use crate::fabric::clock::Time;
use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// The interval at which the thread checks the program. If the program does other work, arrivals are executed at most
/// this much later.
const TICK: Duration = Duration::from_millis(1);
/// The number of times per [`TICK`] that the thread executes arrivals before it leaves the watch to a channel.
const RATE: u32 = 4;
/// The length of the pause in which no channel gets the watch, after a program has executed arrivals late: the first
/// time, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(16), Duration::from_millis(128)];
/// The number of checks after which the thread compares the channels again.
const COMPARISON: u32 = 16;
/// The number of checks per comparison that may find arrivals which the program did not execute.
const LATE: u32 = 2;
/// The number of successive checks without arrivals after which the thread sleeps instead. Programs often send in
/// bursts, and each change of the watch makes the first messages slower.
const IDLE: u32 = 64;

/// The watch, as far as programs and the thread share it.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Whether a channel watches the link.
    is_lent: AtomicBool,
    /// The number of times that a program has executed arrivals.
    executed: AtomicU32,
    /// Whether packets for unknown receivers were among them. The thread limits the time that they take.
    useless: AtomicBool,
}

/// The rate at which the thread executes arrivals.
#[derive(Debug)]
pub(super) struct Pace {
    /// The start of the current [`TICK`].
    start: Time,
    count: u32,
    /// The time before which no channel gets the watch.
    pause_end: Time,
    /// The length of the next pause.
    pause: Duration,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { start: Time::AT_ONCE, count: 0, pause_end: Time::AT_ONCE, pause: PAUSES[0] }
    }

    /// Counts that the thread has executed arrivals.
    pub(super) fn count(&mut self, now: Time) {
        if now.since(self.start) > TICK {
            (self.start, self.count) = (now, 0);
        }
        self.count += u32::from(now >= self.pause_end);
    }

    pub(super) fn is_high(&self) -> bool {
        self.count >= RATE
    }

    /// Called after a channel has watched the link.
    fn end(&mut self, end: End, now: Time) {
        self.count = 0;
        match end {
            End::Idle => self.pause = PAUSES[0],
            End::Refused => {
                self.pause_end = now + self.pause;
                self.pause = PAUSES[1].min(2 * self.pause);
            }
        }
    }
}

/// The reason why a channel no longer watches the link.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Few messages arrive.
    Idle,
    /// No channel can watch the link, the program did not execute arrivals in time, or the thread has to limit them.
    Refused,
}

impl Driver {
    /// Leaves the watch to a channel while the program executes the arrivals. Returns false if there is no such channel,
    /// or if the rate is too low. After this, the thread looks for arrivals again.
    pub(super) fn leave_watch(&'static self, pace: &mut Pace) -> bool {
        if !pace.is_high() {
            return false;
        }
        let Ok(events) = self.events.get() else { return false };
        // Set before the channel's file is readable, so that the thread that this wakes executes what has arrived.
        self.watch.is_lent.store(true, Ordering::Release);
        self.watch.useless.store(false, Ordering::Relaxed);
        let is_lent = self.subnet.watchers.choose(events);
        let end = if is_lent { self.check_watch(events) } else { End::Refused };
        pace.end(end, self.subnet.clock.now());
        self.subnet.watchers.end(events);
        self.watch.is_lent.store(false, Ordering::Release);
        is_lent
    }

    /// Waits while a channel watches the link, and executes what the program does not execute in time.
    fn check_watch(&'static self, events: BorrowedFd<'_>) -> End {
        let executed = || self.watch.executed.load(Ordering::Relaxed);
        let (mut before, mut polls, mut late, mut idle) = (executed(), self.polls(), 0, 0);
        let mut has_arrived = false;
        for check in (1..=COMPARISON).cycle() {
            std::thread::sleep(TICK);
            let (now, polls_now) = (executed(), self.polls());
            let polled = std::mem::replace(&mut polls, polls_now) != polls_now;
            if std::mem::replace(&mut before, now) != now {
                idle = 0;
            } else if self.drive() && !polled {
                (late, idle) = (late + 1, 0);
            } else {
                // If the program polls, it need not sleep on its file.
                idle += 1;
            }
            has_arrived |= idle == 0;
            if late > LATE || self.watch.useless.load(Ordering::Relaxed) {
                return End::Refused;
            }
            if idle == IDLE {
                return End::Idle;
            }
            if check == COMPARISON {
                late = 0;
                // Without arrivals, no channel has taken events.
                if std::mem::take(&mut has_arrived) && !self.subnet.watchers.choose(events) {
                    return End::Idle;
                }
            }
        }
        End::Idle
    }

    /// Executes everything that has arrived, if a channel watches the link. What is left would be late: an edge-triggered
    /// program is not woken again for it.
    pub(super) fn execute_for_channel(&'static self) {
        if !self.watch.is_lent.load(Ordering::Acquire) {
            return;
        }
        let useless = || self.useless.load(Ordering::Relaxed);
        let before = useless();
        if self.drive_until(|events| events < EVENTS) {
            self.watch.executed.fetch_add(1, Ordering::Relaxed);
        }
        if useless() != before {
            self.watch.useless.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failing helper fails its test.
mod tests {
    use std::sync::{Arc, Mutex};

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
    use rustix::io::Errno;

    use super::*;
    use crate::device::subnet::Subnet;
    use crate::engine::events::EventQueue;
    use crate::link::descriptor::Descriptor;
    use crate::link::driver::{SocketEvent, Watched};

    #[test]
    fn the_watch_is_left_only_at_a_high_rate_and_after_pauses() {
        let mut pace = Pace::new();
        let mut now = Time::AT_ONCE + PAUSES[1];
        let mut is_high_after = |pace: &mut Pace, wait: Duration, interval: Duration| {
            now = now + wait;
            (0..RATE).for_each(|_| {
                now = now + interval;
                pace.count(now);
            });
            (pace.is_high(), now)
        };
        assert!(!is_high_after(&mut pace, TICK, TICK / 2).0);
        let (is_high, now) = is_high_after(&mut pace, 2 * TICK, TICK / RATE / 2);
        assert!(is_high);
        pace.end(End::Refused, now);
        assert!(!pace.is_high());
        let mut is_high_at_once = |pace: &mut Pace, wait| is_high_after(pace, wait, Duration::ZERO);
        assert!(!is_high_at_once(&mut pace, PAUSES[0] / 2).0);
        let (is_high, now) = is_high_at_once(&mut pace, PAUSES[0]);
        assert!(is_high);
        pace.end(End::Refused, now);
        let (is_high, now) = is_high_at_once(&mut pace, PAUSES[0] + TICK);
        assert!(!is_high, "the second pause is longer");
        (0..20).for_each(|_| pace.end(End::Refused, now));
        assert_eq!(pace.pause, PAUSES[1]);
        pace.end(End::Idle, now);
        assert_eq!(pace.pause, PAUSES[0]);
    }

    /// A socket at which messages arrive without end, until it is emptied.
    #[derive(Debug)]
    struct Socket {
        descriptor: Descriptor,
        executed: AtomicU32,
    }

    impl Watched for Socket {
        fn descriptor(&self) -> &Descriptor {
            &self.descriptor
        }

        fn handle_event(self: Arc<Self>, _: epoll::EventFlags) -> SocketEvent {
            self.executed.fetch_add(1, Ordering::Relaxed);
            SocketEvent::Other
        }

        fn is_used(&self) -> bool {
            true
        }
    }

    impl Socket {
        fn empty(&self) {
            rustix::io::read(self.descriptor.get().unwrap(), &mut [0; 8]).unwrap();
        }
    }

    struct Rig {
        driver: &'static Driver,
        socket: Arc<Socket>,
        channel: Arc<EventQueue<u32>>,
    }

    /// Adds a socket with a message.
    fn add_socket(driver: &Driver) -> Arc<Socket> {
        let descriptor = Descriptor::open(|| eventfd(1, EventfdFlags::CLOEXEC)).unwrap();
        let socket = Arc::new(Socket { descriptor, executed: AtomicU32::new(0) });
        driver.add(|_| socket).unwrap()
    }

    /// The drivers of all tests, which exist until the process exits.
    static DRIVERS: Mutex<Vec<&'static Driver>> = Mutex::new(Vec::new());

    impl Rig {
        fn new() -> Self {
            let subnet: &'static Subnet = Box::leak(Box::new(Subnet::new()));
            let driver: &'static Driver = Box::leak(Box::new(Driver::new(subnet).unwrap()));
            DRIVERS.lock().unwrap().push(driver);
            let _ = subnet.polled.set(driver);
            let socket = add_socket(driver);
            let channel = EventQueue::new(subnet).unwrap();
            channel.wake_early().unwrap();
            Self { driver, socket, channel }
        }

        /// Leaves the watch to the channel, which has taken an event meanwhile.
        fn leave_watch(&self) -> Pace {
            self.channel.push(1);
            assert_eq!(self.channel.take(|event| event), Ok(1));
            let (mut pace, now) = (Pace::new(), self.driver.subnet.clock.now());
            (0..RATE).for_each(|_| pace.count(now));
            assert!(self.driver.leave_watch(&mut pace));
            pace
        }

        fn is_readable(&self) -> bool {
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut files = [PollFd::from_borrowed_fd(self.channel.early_file(), PollFlags::IN)];
            poll(&mut files, Some(&at_once)) == Ok(1)
        }
    }

    #[test]
    fn an_arrival_makes_the_file_of_a_channel_readable_and_its_program_executes_it() {
        let (rig, seen) = (Rig::new(), AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !rig.is_readable() {
                    std::thread::yield_now();
                }
                assert_eq!(rig.channel.take(|event| event), Err(Errno::AGAIN));
                assert_ne!(rig.socket.executed.load(Ordering::Relaxed), 0);
                rig.socket.empty();
                seen.store(true, Ordering::Relaxed);
            });
            // The program may get no processor before the thread takes the watch back.
            while !seen.load(Ordering::Relaxed) {
                rig.leave_watch();
                assert!(!rig.is_readable(), "the channel no longer watches");
            }
        });
        rig.channel.end_early();
    }

    /// An edge-triggered program that has taken the event it expects does not call again, and is not woken again.
    #[test]
    fn a_call_that_takes_an_event_also_executes_arrivals() {
        let rig = Rig::new();
        rig.driver.watch.is_lent.store(true, Ordering::Relaxed);
        rig.channel.push(1);
        assert_eq!(rig.channel.take(|event| event), Ok(1));
        assert_ne!(rig.socket.executed.load(Ordering::Relaxed), 0);
        rig.channel.end_early();
    }

    /// A program that sleeps polls once or twice per message. These polls are not one long wait.
    #[test]
    fn arrivals_that_a_sleeping_program_executes_end_the_wait_of_its_polls() {
        let rig = Rig::new();
        rig.driver.watch.is_lent.store(true, Ordering::Relaxed);
        let polls = |from: Time| {
            let timer = &rig.driver.yield_timer;
            (0..31).any(|_| timer.is_over(|| from))
        };
        let begin = Time::AT_ONCE + Duration::from_secs(1);
        for round in 0..8 {
            assert!(!polls(begin + TICK * round), "round {round}");
            assert_eq!(rig.channel.take(|event| event), Err(Errno::AGAIN));
        }
        rig.channel.end_early();
    }

    /// An edge-triggered program is not woken again for what a call leaves.
    #[test]
    fn a_call_of_the_program_executes_the_arrivals_of_all_sockets() {
        let rig = Rig::new();
        let sockets: Vec<_> = (0..2 * EVENTS).map(|_| add_socket(rig.driver)).collect();
        rig.driver.watch.is_lent.store(true, Ordering::Relaxed);
        assert_eq!(rig.channel.take(|event| event), Err(Errno::AGAIN));
        assert!(sockets.iter().all(|socket| socket.executed.load(Ordering::Relaxed) > 0));
        rig.channel.end_early();
    }

    #[test]
    fn a_call_of_the_program_waits_for_the_thread_that_fetches_events() {
        let (rig, called) = (Rig::new(), AtomicBool::new(false));
        rig.driver.watch.is_lent.store(true, Ordering::Relaxed);
        std::thread::scope(|threads| {
            let driving = rig.driver.driving.lock().unwrap();
            threads.spawn(|| {
                called.store(true, Ordering::Relaxed);
                assert_eq!(rig.channel.take(|event| event), Err(Errno::AGAIN));
                assert_eq!(rig.socket.executed.load(Ordering::Relaxed), 1);
            });
            while !called.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            (0..100).for_each(|_| std::thread::yield_now());
            drop(driving);
        });
        rig.channel.end_early();
    }

    #[test]
    fn the_thread_executes_what_a_busy_program_does_not() {
        let rig = Rig::new();
        let pace = rig.leave_watch();
        assert_eq!(rig.socket.executed.load(Ordering::Relaxed), LATE + 1);
        assert_ne!(pace.pause, PAUSES[0], "the program was late");
        rig.socket.empty();
        assert_eq!(rig.leave_watch().pause, PAUSES[0], "nothing arrives");
        rig.channel.end_early();
    }

    #[test]
    fn a_channel_watches_while_its_program_pauses() {
        let rig = Rig::new();
        rig.socket.empty();
        let begin = std::time::Instant::now();
        rig.leave_watch();
        assert!(begin.elapsed() >= Duration::from_millis(50));
        rig.channel.end_early();
    }
}
