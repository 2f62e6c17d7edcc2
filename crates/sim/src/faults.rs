//! Deliberate faults, and the errors that they excuse.

use std::time::Duration;

use rdma_sys::Errno;

use crate::host::{self, Excuses, Sent, SimQueuePair, TARGET_ACCESS, target_iova};
use crate::memory::Target;
use crate::run::{Outcome, World, ensure};
use crate::script::{SLOTS, Service, Weather};
use crate::windows::{Use, Verdict, Windows};

/// The maximum number of packets in 10,000 that may have faults if a queue pair with eight attempts
/// must never give up.
const FEW: u32 = 200;

/// Returns true if a queue pair may get no answer in this time, after this number of retries. `ways` are
/// the links in both directions. The code `u8::MAX` is no timeout.
pub(crate) fn may_give_up(ways: [Weather; 2], timeout: u8, retries: u8) -> bool {
    let faults = ways.iter().map(Weather::faults).max().unwrap_or(0);
    let trip: Duration = ways.iter().map(Weather::longest).sum();
    let soon = timeout != u8::MAX && Duration::from_nanos(4096 << timeout) < trip;
    let patient = retries == 7 && faults <= FEW || faults == 0;
    !patient || soon
}

impl World<'_> {
    /// Records which queue pairs may fail to get an answer, given the current state of the links.
    pub(crate) fn excuse_by_weather(&mut self) {
        for end in 0..self.ends.len() {
            let Some(c) = self.script.settings.connections.get(end / 2) else { continue };
            let [a, b] = c.devices;
            let ways = [self.links[a][b], self.links[b][a]];
            let timeout = if c.waits_for_ever() { u8::MAX } else { c.timeout };
            let up = self.ports[a] && self.ports[b];
            self.ends[end].excuses.silence |= !up || may_give_up(ways, timeout, c.retries);
        }
    }

    pub(crate) fn set_link(&mut self, from: usize, to: usize, weather: Weather) {
        let (a, b) = (&self.hosts[from].soft, &self.hosts[to].soft);
        self.network.set_link(a, b, weather.model()).unwrap();
        self.links[from][to] = weather;
        self.calm &= weather.faults() == 0;
        self.unordered |= weather.duplication + weather.reordering > 0;
        self.longest = self.longest.max(weather.longest());
        self.excuse_by_weather();
    }

    pub(crate) fn set_port(&mut self, device: usize, up: bool) {
        self.calm = false;
        self.ports[device] = up;
        self.hosts[device].soft.set_port_up(up);
        self.excuse_by_weather();
    }

    pub(crate) fn die(&mut self, device: usize) -> Outcome {
        self.calm = false;
        for end in 0..self.ends.len() {
            if self.ends[end].device != device || self.ends[end].qp.is_none() {
                continue;
            }
            self.leave_all(end)?;
            let own = &mut self.ends[end];
            let peer = own.peer;
            let pending = std::mem::take(&mut own.pending);
            let bytes = pending.iter().map(|sent| sent.block_bytes).sum();
            own.release(bytes);
            own.qp = None;
            let known = &mut self.ends[peer].known;
            let certain = |used: &Use| used.verdict == Verdict::Fails;
            let refused = |sent: &Sent| sent.through.as_ref().is_some_and(certain);
            for sent in pending.iter().filter(|sent| !refused(sent)) {
                known.uncertain.extend(sent.placed);
                known.unanswered.extend(sent.atomic);
            }
            self.ends[peer].excuses.silence = true;
            pending.iter().for_each(|sent| self.linger(peer, sent));
            for slot in 0..SLOTS {
                self.deallocate(end, slot);
            }
        }
        Ok(())
    }

    pub(crate) fn deregister(&mut self, end: usize) -> Outcome {
        self.complete()?;
        let Some(target) = &self.ends[end].target else { return Ok(()) };
        if self.ends[end].windows.hold() {
            let errno = target.try_deregister();
            ensure!(
                errno == Errno::EBUSY.raw(),
                "a window is bound to it, but the errno is {errno}"
            );
        }
        for slot in 0..SLOTS {
            self.deallocate(end, slot);
        }
        let Some(target) = self.ends[end].target.take() else { return Ok(()) };
        self.calm = false;
        let own = &mut self.ends[end];
        own.last_rkey = target.rkey();
        let memory = target.deregister();
        own.frozen = Some((memory.clone(), memory));
        // On a reliable connection, refusing the peer's request moves this queue pair to the error
        // state.
        own.excuses.flushed |= own.service == Service::Reliable;
        let peer = own.peer;
        self.ends[peer].excuses.access = true;
        self.ends[peer].excuses.silence = true;
        Ok(())
    }

    pub(crate) fn set_error(&mut self, end: usize) {
        let Some(qp) = &self.ends[end].qp else { return };
        qp.to_error();
        self.calm = false;
        self.ends[end].excuses.flushed = true;
        let peer = self.ends[end].peer;
        self.ends[peer].excuses.silence = true;
    }

    pub(crate) fn reconnect(&mut self, connection: usize) -> Outcome {
        let ends = [2 * connection, 2 * connection + 1];
        if ends.iter().any(|&end| self.ends[end].qp.is_none()) {
            return Ok(());
        }
        for end in ends {
            self.set_error(end);
        }
        // After this time, no earlier packet is in flight.
        self.network.run_for(self.longest + Duration::from_millis(1));
        self.complete()?;
        for end in ends {
            self.settle(end)?;
        }
        for end in ends {
            self.check_memory(end).map_err(|why| format!("q{end}: {why}"))?;
            let left = self.ends[end].pool.posted.len();
            ensure!(left == 0, "q{end}: {left} receives were not flushed");
        }
        self.lives += 1;
        for end in ends {
            if let Some(qp) = &self.ends[end].qp {
                qp.to_reset();
            }
            self.renew(end);
        }
        let settings = &self.script.settings;
        for end in ends {
            host::connect(&self.hosts, &self.ends, settings, end, self.lives);
        }
        self.excuse_by_weather();
        Ok(())
    }

    /// Resets the expected state of a queue pair, as after a reset of the queue pair itself.
    fn renew(&mut self, end: usize) {
        let longest = self.script.settings.longest;
        let own: &mut SimQueuePair = &mut self.ends[end];
        own.windows = Windows::default();
        if own.target.is_none() {
            let (memory, _) = own.frozen.take().unwrap_or_default();
            let pd = &self.hosts[own.device].pd;
            own.target = Some(pd.register_at(memory, target_iova(end), TARGET_ACCESS));
        }
        let actual = own.target_bytes(0, own.known.known.len());
        let word = |n: usize| actual[8 * n..][..8].try_into().map_or(0, u64::from_ne_bytes);
        let words = std::array::from_fn(word);
        own.known = Target { words, known: actual, ..Target::new(end, longest) };
        own.expected.clear();
        own.failed = false;
        own.excuses = Excuses::default();
        own.starved = false;
        own.flushed_early = false;
        own.silent = 0;
    }

    /// Checks that all requests of a queue pair have completed, and accounts for the unsignaled
    /// ones.
    pub(crate) fn settle(&mut self, end: usize) -> Outcome {
        while let Some(sent) = self.ends[end].pending.pop_front() {
            self.ends[end].release(sent.block_bytes);
            let what = format!("q{end}: request {}, {}", sent.sequence, sent.request);
            let done = !sent.request.signaled && !self.ends[end].failed;
            ensure!(done, "{what}, has not completed");
            self.succeeded(end, &sent).map_err(|why| format!("{what}: {why}"))?;
        }
        Ok(())
    }
}
