//! The handle with which a test or an embedding program controls a device.

use rdma_types::{Gid, Guid, Qpn};

use crate::counters::Counters;
use crate::device::Device;
use crate::device::subnet::INSTALLED;
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::drive::{release, release_half};
use crate::engine::requester::side::SendSide;

/// A handle to an installed software device, for control beyond what verbs offer. It gives access to the device's
/// identity, counters and port. A test also uses it to release the requests that a [`Held`](crate::Schedule::Held)
/// device holds.
///
/// The handle is `Copy` and refers to a device that is never freed.
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

    /// Returns the installed device with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        INSTALLED.named(name).map(Self::of)
    }

    /// Returns all installed devices, in the order of their installation.
    ///
    /// ```
    /// rdma_soft::install();
    /// let names: Vec<_> = rdma_soft::SoftDevice::all().map(|device| device.name()).collect();
    /// assert_eq!(names, ["soft0", "softib0"]);
    /// ```
    pub fn all() -> impl Iterator<Item = Self> {
        INSTALLED.all().into_iter().map(Self::of)
    }

    /// Returns the name of the device, as in the device list.
    #[must_use]
    pub fn name(&self) -> &'static str {
        &self.device.name
    }

    /// Returns the node GUID of the device.
    #[must_use]
    pub fn guid(&self) -> Guid {
        self.device.guid()
    }

    /// Returns the GIDs of the device's port, in index order.
    #[must_use]
    pub fn gids(&self) -> Vec<Gid> {
        self.device.identity.table().map(|entry| entry.gid).collect()
    }

    /// Returns the current counters of the device. They are not all read at the same instant, so they can be
    /// inconsistent while requests are executed. No counter ever decreases.
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
    /// arrives at the device. If the state changes, every context of the device gets an event.
    ///
    /// Requests that are in flight when the port goes down may still be executed before this returns.
    pub fn set_port_up(&self, up: bool) {
        self.device.set_port(up);
    }

    /// Returns how many send requests of a queue pair are posted but not finished. The schedule may hold such a
    /// request. Otherwise, the request waits for the peer, or for another turn because a thread's turn ended. Returns 0
    /// for an unknown queue pair.
    #[must_use]
    pub fn in_flight(&self, queue_pair: Qpn) -> usize {
        self.with_send_side(queue_pair, |send| send.queue.len())
    }

    /// Returns how many bytes of a queue pair's oldest unfinished request have been copied. This is not 0 while a copy
    /// pauses. A copy pauses after [`release_half`](Self::release_half), and between two parts of a long message, since
    /// a thread copies only one part per turn.
    #[must_use]
    pub fn half_copied(&self, queue_pair: Qpn) -> u64 {
        self.with_send_side(queue_pair, |send| send.requester.progress)
    }

    /// Executes up to `count` requests of a queue pair now, oldest first, whatever the schedule. Returns how many
    /// requests this completed. If the peer is not ready for a request, the request stays in the queue.
    ///
    /// Requests that are posted during the call are not included. A long copy lets other threads use the queue pair
    /// from time to time, as a copy within a post does.
    pub fn release(&self, queue_pair: Qpn, count: u32) -> u32 {
        let found = self.device.queue_pair(queue_pair.get());
        found.map_or(0, |queue_pair| release(&queue_pair, count))
    }

    /// Copies the first half of a queue pair's oldest request and stops there, as if the request were in flight. The
    /// next release, or a second call of this function, copies the rest. Returns true if the request is now half
    /// copied. A request of less than two bytes cannot be halved, so it completes.
    pub fn release_half(&self, queue_pair: Qpn) -> bool {
        if let Some(queue_pair) = self.device.queue_pair(queue_pair.get()) {
            release_half(&queue_pair);
        }
        self.half_copied(queue_pair) > 0
    }

    /// Executes all requests in the queue pairs of the device. Returns the number of completed requests.
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
