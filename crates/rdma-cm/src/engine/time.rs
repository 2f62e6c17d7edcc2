//! The time of an engine: that of the system, or of a simulated network.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use rdma_proto::Time;

use super::gateway::Gateway;
use super::hub::Member;
use super::socket::PortOwner;
use super::{Engine, NOW, State};
use crate::error::Error;

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

    /// Sets the timer to the first deadline.
    pub(super) fn set_timer(&self, state: &State) {
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
