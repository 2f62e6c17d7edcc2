//! The handle by which a test or an embedding program controls a device.

use rdma_types::{Gid, Guid, Qpn};

use crate::counters::Counters;
use crate::device::Device;
use crate::device::subnet::INSTALLED;
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::drive::{release, release_half};
use crate::engine::requester::side::SendSide;

/// An installed software device, seen from outside the verbs. It has the identity, counters and port of the device. It
/// also has calls by which a test releases the requests that a [`Held`](crate::Schedule::Held) device holds.
///
/// `Copy`; it refers to a device that lives as long as the process.
#[derive(Clone, Copy)]
pub struct SoftDevice {
    device: &'static Device,
}

impl std::fmt::Debug for SoftDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftDevice").field("name", &self.device.name).finish_non_exhaustive()
    }
}

impl SoftDevice {
    pub(crate) fn of(device: &'static Device) -> Self {
        Self { device }
    }

    pub(crate) fn device(&self) -> &'static Device {
        self.device
    }

    /// Returns the installed device of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        INSTALLED.named(name).map(Self::of)
    }

    /// The name of the device, as in the device list.
    #[must_use]
    pub fn name(&self) -> &'static str {
        &self.device.name
    }

    /// The node GUID of the device.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.device.guid()
    }

    /// The GIDs of the device's port, in the order of their index.
    #[must_use]
    pub fn gids(&self) -> Vec<Gid> {
        self.device.identity.gids.iter().map(|entry| entry.gid).collect()
    }

    /// Returns the current counters of the device. While requests are executed, the counters may be of slightly
    /// different times. No counter ever decreases.
    ///
    /// ```
    /// rdma_soft::install();
    /// let soft0 = rdma_soft::SoftDevice::find("soft0").unwrap();
    /// for (name, value) in soft0.counters().iter() {
    ///     println!("{name:<24} {value}");
    /// }
    /// ```
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.device.tally.counters()
    }

    /// Brings the device's port up or down. While the port is down, nothing that the device sends arrives, and nothing
    /// arrives at the device. Every context of the device gets an event if the state changes.
    ///
    /// Requests that are in flight when the port goes down may still be executed before this returns.
    pub fn set_port_up(&self, up: bool) {
        self.device.set_port(up);
    }

    /// Returns the number of send requests of a queue pair that were posted and are not finished. A schedule may hold
    /// them back, or they may wait for the peer. A thread may also have left them to the next one at the end of its
    /// turn. Returns 0 for an unknown queue pair.
    #[must_use]
    pub fn in_flight(&self, queue_pair: Qpn) -> usize {
        self.with_send_side(queue_pair, |send| send.queue.len())
    }

    /// Returns the number of copied bytes of the oldest unfinished request of a queue pair. It is not 0 if a copy
    /// pauses: after [`release_half`](Self::release_half), or between two parts of a long message. A thread copies only
    /// one part per turn.
    #[must_use]
    pub fn half_copied(&self, queue_pair: Qpn) -> u64 {
        self.with_send_side(queue_pair, |send| send.requester.progress)
    }

    /// Executes up to `count` requests of a queue pair now, oldest first, whatever the schedule. Returns the number of
    /// requests that this has completed. If the peer is not ready for a request, it stays in the queue.
    ///
    /// Requests that are posted meanwhile are not included. A long copy sometimes lets others use the queue pair, like
    /// one within a post.
    pub fn release(&self, queue_pair: Qpn, count: u32) -> u32 {
        let found = self.device.queue_pair(queue_pair.get());
        found.map_or(0, |queue_pair| release(&queue_pair, count))
    }

    /// Copies the first half of the oldest request of a queue pair and stops there, as if it was in flight. A later
    /// release does the rest, and so does this one if the request is half-way already. Returns true if the request is
    /// half-way now; a request of less than two bytes cannot be, and completes.
    pub fn release_half(&self, queue_pair: Qpn) -> bool {
        if let Some(queue_pair) = self.device.queue_pair(queue_pair.get()) {
            release_half(&queue_pair);
        }
        self.half_copied(queue_pair) > 0
    }

    /// Executes everything that any queue pair of the device holds. Returns the number of completed requests.
    pub fn release_all(&self) -> u32 {
        let queue_pairs = self.device.all_queue_pairs();
        queue_pairs.iter().map(|queue_pair| release(queue_pair, u32::MAX)).sum()
    }

    fn with_send_side<T: Default>(
        &self,
        qpn: Qpn,
        look: impl FnOnce(&SendSide<QueuePair>) -> T,
    ) -> T {
        let found = self.device.queue_pair(qpn.get());
        found.map_or_else(T::default, |queue_pair| look(&queue_pair.send.lock()))
    }
}
