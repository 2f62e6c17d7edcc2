//! The time of an engine: that of the system, or of a simulated network. Threads wait until they find something.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_proto::Time;

use super::gateway::Gateway;
use super::hub::Member;
use super::socket::PortOwner;
use super::{Engine, NOW, State};
use crate::error::Error;

/// Updates the program's file when this is dropped.
struct Update<'a> {
    engine: &'a Engine,
    state: &'a mut State,
}

impl Drop for Update<'_> {
    fn drop(&mut self) {
        self.engine.set_readable(self.state);
    }
}

impl Engine {
    /// Returns the access to queue pair 1 if its device has a clock of its own, because its network is simulated.
    fn simulated(&self) -> Option<&Member> {
        self.member.as_deref().filter(|member| member.time().is_some())
    }

    /// Returns true if the device's network is simulated.
    pub(crate) fn is_simulated(&self) -> bool {
        self.simulated().is_some()
    }

    pub(super) fn now(&self) -> Time {
        match self.member.as_ref().and_then(|member| member.time()) {
            Some(time) => Time::from_nanos(time),
            None => Time::default().after(self.start.elapsed()),
        }
    }

    /// Returns the time that is left until `end`.
    pub(super) fn until(&self, end: Time) -> Duration {
        Duration::from_nanos(end.as_nanos().saturating_sub(self.now().as_nanos()))
    }

    /// Waits until something happens, for at most `limit`, and returns the keys of readable files. In a simulated
    /// network, this thread makes the next event happen. It waits for another thread only if nothing is left to happen.
    pub(super) fn wait_for_files(&self, limit: Option<Duration>) -> Result<Vec<u64>, Error> {
        let Some(member) = self.simulated() else { return self.files.wait(limit) };
        let end = limit.map_or(u64::MAX, |limit| self.now().after(limit).as_nanos());
        // Otherwise, the time does not pass.
        let has_passed = member.pass_time(end) || end < u64::MAX;
        self.files.wait(NOW.filter(|_| has_passed))
    }

    /// Waits until a function finds something in the state; returns `None` if it does not within the limit.
    pub(super) fn wait_for<T>(
        &self,
        limit: Option<Duration>,
        mut find: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        self.check_process()?;
        let mut state = self.locked();
        // The kernel's rdma_cm answers messages by itself, so nothing else needs to be done before an event that is
        // queued.
        let queued = if self.is_managed { self.find(&mut state, &mut find) } else { None };
        if queued.is_some() {
            return Ok(queued);
        }
        let end = limit.map(|limit| self.now().after(limit));
        // With the kernel's rdma_cm, the wait itself finds what has arrived.
        let is_polled = !self.is_managed || state.closed || limit.is_some_and(|it| it.is_zero());
        let mut ready =
            if state.has_waiter || !is_polled { Vec::new() } else { self.files.wait(NOW)? };
        let mut left = limit;
        loop {
            self.process(&mut state, &ready);
            let found = self.find(&mut state, &mut find);
            if found.is_some() {
                return Ok(found);
            }
            if state.closed {
                return Err(Error::Closed);
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            (state, ready) = self.sleep(state, left)?;
            left = end.map(|end| self.until(end));
        }
    }

    /// Calls a function, and then updates the program's file, even if the function panics. So an event that is found at
    /// once does not make the file readable.
    fn find<T>(&self, state: &mut State, find: impl FnOnce(&mut State) -> T) -> T {
        let update = Update { engine: self, state };
        find(&mut *update.state)
    }

    /// Waits until something may have happened, and returns the sockets to receive from.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        limit: Option<Duration>,
    ) -> Result<(MutexGuard<'a, State>, Vec<u64>), Error> {
        if state.has_waiter {
            state.sleepers += 1;
            let mut state = match limit {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(limit) => {
                    let waited = self.changed.wait_timeout(state, limit);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.sleepers -= 1;
            return Ok((state, Vec::new()));
        }
        state.has_waiter = true;
        drop(state);
        let ready = self.wait_for_files(limit);
        let mut state = self.locked();
        state.has_waiter = false;
        // Another thread may wait next.
        self.wake_sleepers(&state);
        let mut ready = ready?;
        // A file that became readable since then may have woken a thread that left it to this one. With the kernel's
        // rdma_cm, any file makes this thread receive all events that have arrived.
        if !self.is_managed || ready.is_empty() {
            ready.extend(self.files.wait(NOW)?);
        }
        Ok((state, ready))
    }

    /// Sets the timer to the first deadline. With the kernel's rdma_cm, the kernel has the timers.
    pub(super) fn set_timer(&self, state: &State) {
        if self.is_managed {
            return;
        }
        let of_gateway = |gateway: &Arc<Gateway>| gateway.manage(|manager| manager.deadline());
        let outside = state.gateways.values().filter_map(of_gateway).min();
        let own = state.deadlines.first().map(|(at, _)| *at);
        let first = own.into_iter().chain(outside).min();
        match self.simulated() {
            Some(member) => first.into_iter().for_each(|at| member.set_alarm(at.as_nanos())),
            None => self.files.set_timer(first.map(|at| self.until(at))),
        }
    }

    /// Returns the owner of the device's ports.
    pub(super) fn port_owner(&self) -> PortOwner {
        let device = self.context().device();
        PortOwner::new(device.guid(), self.is_simulated().then(|| device.as_raw().addr()))
    }

    /// Returns a number that communication IDs begin with. It is random, except in a simulated network, whose runs can
    /// be repeated.
    pub(super) fn secret(&self) -> u32 {
        let bytes = if self.is_simulated() {
            let guid = u64::from_be_bytes(self.context().device().guid().to_bytes());
            // Another one for each channel, which is opened later.
            (guid ^ self.now().as_nanos()).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
        } else {
            RandomState::new().hash_one(()).to_be_bytes()
        };
        let [a, b, c, d, ..] = bytes;
        u32::from_be_bytes([a, b, c, d])
    }
}
