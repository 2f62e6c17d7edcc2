//! The handle by which a test or an embedding program controls a device.

use rdma_types::{Gid, Guid, Qpn};

use crate::counters::Counters;
use crate::device::Device;
use crate::device::subnet::INSTALLED;
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::drive::{release, release_half};
use crate::engine::requester::side::SendSide;

/// An installed software device, seen from outside the verbs: its identity, its counters, its port,
/// and the calls by which a test releases the requests that a [`Held`](crate::Schedule::Held)
/// device holds.
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

    /// The installed device of that name.
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

    /// The counters of the device until now. While requests are executed the counters may be of
    /// slightly different moments; no counter ever goes back.
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

    /// Brings the device's port up or down. While the port is down nothing that the device sends
    /// arrives, and nothing arrives at the device. Every context of the device gets an event if the
    /// state changes.
    ///
    /// Requests that are in flight when the port goes down may still be executed before this
    /// returns.
    pub fn set_port_up(&self, up: bool) {
        self.device.set_port(up);
    }

    /// How many send requests of a queue pair were posted and are not finished: those that a
    /// schedule holds back, those that wait for the peer, and those that a thread has left to the
    /// next one at the end of its turn. 0 if there is no such queue pair.
    #[must_use]
    pub fn in_flight(&self, queue_pair: Qpn) -> usize {
        self.with_send_side(queue_pair, |send| send.queue.len())
    }

    /// How many bytes of the oldest unfinished request of a queue pair are copied. The count is not
    /// 0 where a copy pauses: after [`release_half`](Self::release_half), and between two parts of
    /// a long message, of which a thread copies no more in one turn.
    #[must_use]
    pub fn half_copied(&self, queue_pair: Qpn) -> u64 {
        self.with_send_side(queue_pair, |send| send.requester.progress)
    }

    /// Executes up to `count` requests of a queue pair now, oldest first, whatever the schedule; says
    /// how many completed by this. A request that the peer is not ready for stays.
    ///
    /// Requests that are posted meanwhile are not among these. A long copy lets others use the
    /// queue pair now and then, as one within a post does.
    pub fn release(&self, queue_pair: Qpn, count: u32) -> u32 {
        let found = self.device.queue_pair(queue_pair.get());
        found.map_or(0, |queue_pair| release(&queue_pair, count))
    }

    /// Copies the first half of the oldest request of a queue pair and stops there, as if it was in
    /// flight; a later release does the rest, and so does this one if the request is half-way already.
    /// Returns whether the request is half-way now; a request of less than two bytes cannot be, and
    /// completes.
    pub fn release_half(&self, queue_pair: Qpn) -> bool {
        if let Some(queue_pair) = self.device.queue_pair(queue_pair.get()) {
            release_half(&queue_pair);
        }
        self.half_copied(queue_pair) > 0
    }

    /// Executes everything that any queue pair of the device holds; says how many requests completed.
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
