//! The link's thread, for programs that do not poll. It sleeps until something arrives, and leaves the work to the
//! program while the program polls. After the thread has found something, it spins for a moment, which finds the next
//! message sooner than a wake-up would.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, Result, pread, write};

use super::near::NEAR;
use super::watch::Pace;
use super::{Driver, EVENTS, Watched};
use crate::fabric::Polled;
use crate::fabric::poll_backoff::PollBackoff;
use crate::link::descriptor::Descriptor;
use crate::sync::{Ordering, locked_for_calls};

/// The time that the thread spins after the last message before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(50);
/// The delay after a poll of the program before the thread handles messages itself.
const POLLED: Duration = Duration::from_micros(5);
/// The number of messages that the thread handles before it looks at all sockets.
const MESSAGES: u32 = 64;

const EDGE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);

/// The events that end the thread's backoff: a notification from a peer, or a program that is about to sleep.
#[derive(Debug)]
pub(super) struct Doorbell {
    events: Descriptor,
    bell: Descriptor,
}

impl Doorbell {
    pub(super) fn new() -> Result<Self> {
        let events = Descriptor::open(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Descriptor::open(|| eventfd(0, flags))?;
        let doorbell = Self { events, bell };
        doorbell.add(&doorbell.bell)?;
        Ok(doorbell)
    }

    /// Lets a notification on this descriptor end a backoff.
    pub(super) fn add(&self, descriptor: &Descriptor) -> Result<()> {
        epoll::add(self.events.get()?, descriptor.get()?, epoll::EventData::new_u64(0), EDGE)
    }

    pub(super) fn remove(&self, descriptor: &Descriptor) {
        if let (Ok(events), Ok(descriptor)) = (self.events.get(), descriptor.get()) {
            let _ = epoll::delete(events, descriptor);
        }
    }

    /// Ends the thread's backoff.
    pub(super) fn ring(&self) {
        if let Ok(bell) = self.bell.get() {
            let _ = write(bell, &1_u64.to_ne_bytes());
        }
    }

    /// Waits for at most `most`. Returns true if an event ended the backoff.
    fn wait(&self, most: Duration) -> bool {
        let Ok(events) = self.events.get() else { return false };
        let mut found = [const { MaybeUninit::uninit() }; EVENTS];
        let most = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
        epoll::wait(events, &mut found, Some(&most)).is_ok_and(|(found, _)| !found.is_empty())
    }
}

/// Determines whether the thread may use a processor without taking it from another thread.
#[derive(Debug)]
pub(super) struct Processors {
    /// The file that contains the number of threads that run or wait for a processor.
    load: Option<Descriptor>,
    count: usize,
}

impl Processors {
    pub(super) fn new() -> Self {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let load = Descriptor::open(|| open("/proc/loadavg", flags, Mode::empty()));
        Self { load: load.ok(), count: available_parallelism().map_or(1, usize::from) }
    }

    fn is_one_spare(&self) -> bool {
        let mut text = [0; 64];
        let load = self.load.as_ref().and_then(|load| load.get().ok());
        let read = load.and_then(|load| pread(load, &mut text, 0).ok());
        read.and_then(|read| running(&text[..read])).is_some_and(|running| running <= self.count)
    }
}

/// Returns the number of threads that run or wait for a processor, including this one. This is the number before the
/// slash in the fourth field; the number after the slash counts all threads (proc_loadavg(5)).
fn running(load: &[u8]) -> Option<usize> {
    let (running, _) = str::from_utf8(load).ok()?.split(' ').nth(3)?.split_once('/')?;
    running.parse().ok()
}

impl Driver {
    /// Handles what has arrived. If this included packets for unknown receivers, sleeps for as long as the handling
    /// took. Unsolicited traffic therefore uses at most half of a processor.
    fn drive_throttled(&'static self) -> bool {
        let (begin, before) = (self.subnet.clock.now(), self.useless.load(Ordering::Relaxed));
        let found = self.drive();
        if self.useless.load(Ordering::Relaxed) != before {
            std::thread::sleep(self.subnet.clock.now().since(begin));
        }
        found
    }

    /// Sets whether polls or this thread look at the recently active sockets without being notified. If they do not,
    /// and no one waits for completions, these sockets do not report executed requests: otherwise each acknowledgement
    /// would wake this thread. Polls find them, because they look at these sockets first. Returns true if something has
    /// arrived there, possibly without a notification.
    fn set_near_polled(&self, polled: bool) -> bool {
        let mut driving = locked_for_calls(&self.driving);
        driving.polled = polled;
        let is_quiet = !polled && self.quiet.begin(|| self.awaits_completions());
        driving.near().fold(false, |has_arrived, near| {
            if polled {
                near.start_polling();
            } else {
                near.stop_polling(is_quiet);
            }
            near.has_arrived() | has_arrived
        })
    }

    /// If a processor is spare, spins on the recently active sockets until nothing has arrived for a moment. Returns
    /// early when the program begins to poll, unless the doorbell was `rung`. After that, the program polls only
    /// occasionally, and the thread handles the messages between these polls. Returns true if more may arrive, because
    /// the thread stops after [`MESSAGES`] messages.
    fn spin_on_near(&self, rung: bool) -> bool {
        let mut near: [Option<Arc<dyn Watched>>; NEAR] = [const { None }; NEAR];
        let found = {
            let driving = locked_for_calls(&self.driving);
            let those = driving.near().filter(|near| near.is_doorbell());
            near.iter_mut()
                .zip(those.map(Arc::clone))
                .map(|(place, watched)| *place = Some(watched))
                .count()
        };
        if found == 0 || !self.processors.is_one_spare() {
            return false;
        }
        self.set_near_polled(true);
        let has_arrived = || near.iter().flatten().any(|near| near.has_arrived());
        let (mut last, mut polls, mut polled) = (self.subnet.clock.now(), self.polls(), None);
        let mut taken = 0;
        while taken < MESSAGES {
            std::hint::spin_loop();
            let now = self.subnet.clock.now();
            if self.polls() != polls {
                if !rung {
                    return false;
                }
                (polls, polled) = (self.polls(), Some(now));
            }
            if !has_arrived() {
                if now.since(last) >= SPIN_TIME {
                    return false;
                }
            } else if polled.is_none_or(|polled| now.since(polled) >= POLLED) {
                self.look_near();
                taken += 1;
                last = self.subnet.clock.now();
            }
        }
        true
    }

    /// The main loop of the thread.
    pub(super) fn serve(&'static self) {
        let (mut backoff, mut pace) = (PollBackoff::default(), Pace::new());
        loop {
            let mut event = [MaybeUninit::uninit()];
            let Ok(wake) = self.wake.get() else { return };
            match epoll::wait(wake, &mut event, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            self.stay_awake(&mut backoff, &mut pace);
            let (Ok(wake), Ok(events)) = (self.wake.get(), self.events.get()) else { return };
            if epoll::modify(wake, events, epoll::EventData::new_u64(0), super::WAKES).is_err() {
                return;
            }
        }
    }

    /// Handles messages until there is nothing left to do and peers will notify this process of new messages.
    fn stay_awake(&'static self, backoff: &mut PollBackoff, pace: &mut Pace) {
        let (mut rung, mut more) = (false, false);
        loop {
            let found = self.drive_throttled() | more;
            if found {
                pace.count(self.subnet.clock.now());
            }
            more = found && !pace.is_high() && self.spin_on_near(rung);
            if more {
                continue;
            }
            let delay = backoff.next(self.polls(), self.busy.load(Ordering::Relaxed) != 0);
            if delay.is_zero() {
                if found || self.set_near_polled(false) || self.leave_watch(pace) {
                    continue;
                }
                return;
            }
            // Discards earlier notifications, so that they do not end the backoff.
            self.doorbell.wait(Duration::ZERO);
            self.set_near_polled(true);
            self.yields_to_polls.store(true, Ordering::Relaxed);
            rung = self.doorbell.wait(delay);
            if !self.yields_to_polls.swap(false, Ordering::Relaxed) || rung {
                backoff.end(self.polls());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_running_threads_is_read_from_the_load() {
        assert_eq!(running(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        for other in [&b""[..], b"0.20 0.18 0.12", b"0.20 0.18 0.12 80 7", b"a b c d/e f", b"\xff"]
        {
            assert_eq!(running(other), None);
        }
    }
}
