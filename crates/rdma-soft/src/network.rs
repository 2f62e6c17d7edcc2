//! Networks of software devices that run in virtual time.

#[cfg(feature = "simulation")]
mod tasks;

use std::time::Duration;

use crate::device::Device;
use crate::device::subnet::{INSTALLED, Subnet};
use crate::fabric::clock::Time;
use crate::link::model::LinkModel;
use crate::link::simulation::SentPacket;
use crate::soft_device::SoftDevice;

/// A network of software devices in virtual time. Its links can be made as slow and as unreliable as a test needs.
///
/// The devices of a network are in the device list, and programs use them like any other device, through `rdma_mem`,
/// `rdma_qp` and `rdma_channel`. They reach only each other, using RoCE or InfiniBand packets.
///
/// # Time
///
/// Nothing sleeps, and the devices start no threads, except those that report events to a `tracing` subscriber. Each
/// poll that finds its completion queue empty advances the time by 100 ns. The test also advances it, with
/// [`step`](Self::step) and [`run_for`](Self::run_for). Events that become due are executed on the calling thread, so a
/// timeout of one second does not take a second of real time. A single-threaded program behaves the same in each run:
/// with the same seed, the same packets are lost.
///
/// Runs are the same only for the same program and the same seed. The program must also read no other clock and use a
/// single thread. Compare [`trace`](Self::trace) to check that two runs were the same.
///
/// A program that requests an event of a completion queue (`ibv_req_notify_cq`) is about to sleep, so the next
/// scheduled event happens at that moment. If there was one, the file descriptor of the completion channel becomes
/// readable, with or without a completion event. A program that sleeps in `poll(2)`, as channels do, then wakes at
/// once, polls, and requests the next event. `ibv_get_cq_event` on a blocking file descriptor advances the time until
/// there is an event.
///
/// # Examples
///
/// Two machines with a latency of half a millisecond between them, on a link that loses one packet in ten:
///
/// ```
/// use std::time::Duration;
/// use rdma_soft::{Builder, LinkModel, Network};
///
/// let network = Network::simulated(7);
/// network.set_all_links(LinkModel::new().latency(Duration::from_micros(500)).loss(0.1));
/// let near = Builder::new("near").network(&network).install()?;
/// let far = Builder::new("far").network(&network).install()?;
/// // A program opens the devices by name. Then the cable is pulled, in one direction:
/// network.set_link(&far, &near, LinkModel::cut()).unwrap();
/// # Ok::<(), rdma_soft::InstallError>(())
/// ```
///
/// # Dropping a network
///
/// When a network is dropped, its devices leave the device list, and their names become free. Objects that a program
/// has open continue to work, but nothing more can be opened. Most of a device's memory is released when its last
/// object is closed. The part that handles and device pointers refer to is never released.
#[derive(Debug)]
pub struct Network {
    pub(crate) subnet: &'static Subnet,
    #[cfg(feature = "simulation")]
    tasks: tasks::Current,
}

/// The error for a device that does not belong to this network.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` does not belong to this network: install it with `Builder::network`")]
pub struct OtherNetwork(String);

rdma_types::debug_messages!(struct OtherNetwork(it));

impl Network {
    /// Creates an empty network. All its randomness comes from the seed: the fates of packets, and the QPNs and keys of
    /// its devices. Knowing the seed is therefore enough to compute the keys.
    #[must_use]
    pub fn simulated(seed: u64) -> Self {
        Self {
            subnet: Box::leak(Box::new(Subnet::simulated(seed))),
            #[cfg(feature = "simulation")]
            tasks: tasks::Current::default(),
        }
    }

    /// Sets the model of each link, in both directions, except for links with their own model
    /// ([`set_link`](Self::set_link)). Packets from a device to itself use no link.
    pub fn set_all_links(&self, model: LinkModel) {
        if let Some(links) = &self.subnet.links {
            links.set_all(model);
        }
    }

    /// Sets the model of the link from one device to another, in this direction only. Packets that are already on their
    /// way arrive according to the previous model.
    ///
    /// From then on, the link has its own model permanently, and [`set_all_links`](Self::set_all_links) no longer
    /// changes it. To heal a link that was cut, set the model that the other links have.
    ///
    /// # Errors
    ///
    /// Fails if either device does not belong to this network.
    pub fn set_link(
        &self,
        from: &SoftDevice,
        to: &SoftDevice,
        model: LinkModel,
    ) -> Result<(), OtherNetwork> {
        self.set_link_after(Duration::ZERO, from, to, model)
    }

    /// Like [`set_link`](Self::set_link), but takes effect after `time` has passed, even if the program is waiting
    /// then.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_soft::{Builder, LinkModel, Network};
    /// # let network = Network::simulated(7);
    /// # let [a, b] = ["left", "right"].map(|name| Builder::new(name).network(&network).install().unwrap());
    /// // For one second, nothing gets from `a` to `b`.
    /// network.set_link(&a, &b, LinkModel::cut())?;
    /// network.set_link_after(Duration::from_secs(1), &a, &b, LinkModel::new())?;
    /// # Ok::<(), rdma_soft::OtherNetwork>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`set_link`](Self::set_link).
    pub fn set_link_after(
        &self,
        time: Duration,
        from: &SoftDevice,
        to: &SoftDevice,
        model: LinkModel,
    ) -> Result<(), OtherNetwork> {
        let (from, to) = (self.own(from)?, self.own(to)?);
        if let Some(links) = &self.subnet.links {
            links.set(self.subnet.clock.now() + time, from, to, model);
        }
        Ok(())
    }

    fn own(&self, device: &SoftDevice) -> Result<&'static Device, OtherNetwork> {
        let device = device.device();
        let own = std::ptr::eq(device.subnet, self.subnet);
        own.then_some(device).ok_or_else(|| OtherNetwork(device.name.clone()))
    }

    /// Returns the time that has passed in this network.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.subnet.clock.now().since(Time::BEGINNING)
    }

    /// Advances the time to the next event: a packet arrives, a deadline passes, or a link changes. Returns true if
    /// there was an event. If it returns false, nothing will happen until the program acts. Concurrent calls take
    /// turns.
    ///
    /// ```
    /// let network = rdma_soft::Network::simulated(1);
    /// assert!(!network.step());
    /// ```
    pub fn step(&self) -> bool {
        self.subnet.step()
    }

    /// Returns the time of the next event on the clock of [`now`](Self::now), or `None` if nothing will happen until
    /// the program acts. An event that is overdue happens now. The event may also be a deadline that was cancelled, and
    /// then does nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma_soft::{Builder, LinkModel, Network};
    ///
    /// let network = Network::simulated(1);
    /// assert_eq!(network.next_event(), None);
    /// let [a, b] = ["ahead", "behind"].map(|name| Builder::new(name).network(&network).install().unwrap());
    /// network.set_link_after(Duration::from_secs(1), &a, &b, LinkModel::cut())?;
    /// assert_eq!(network.next_event(), Some(Duration::from_secs(1)));
    /// # Ok::<(), rdma_soft::OtherNetwork>(())
    /// ```
    #[must_use]
    pub fn next_event(&self) -> Option<Duration> {
        let next = self.subnet.next_event()?;
        Some(next.since(Time::BEGINNING).max(self.now()))
    }

    /// Sets whether a request for a completion event (`ibv_req_notify_cq`) makes the next scheduled event happen.
    /// Default: true.
    ///
    /// A program that requests an event usually sleeps next. In a program with an event loop, other tasks may still have
    /// work. Such a program sets this to false, and calls [`step`](Self::step) when all tasks wait. For tasks of tokio,
    /// `block_on` (feature `simulation`) does this.
    pub fn set_steps_on_arming(&self, steps: bool) {
        self.subnet.set_steps_on_arming(steps);
    }

    /// Advances the time by `time`, and executes the events that become due.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let network = rdma_soft::Network::simulated(1);
    /// network.run_for(Duration::from_secs(3600));
    /// assert_eq!(network.now(), Duration::from_secs(3600));
    /// ```
    pub fn run_for(&self, time: Duration) {
        self.subnet.advance_until(self.subnet.clock.now() + time);
    }

    /// Calls a function for each packet that is sent from now on, instead of an earlier function. The function must not
    /// use the network or its devices.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU32, Ordering};
    ///
    /// let network = rdma_soft::Network::simulated(1);
    /// let lost = Arc::new(AtomicU32::new(0));
    /// let count = Arc::clone(&lost);
    /// network.observe(move |packet| {
    ///     count.fetch_add(u32::from(packet.arrives.is_none()), Ordering::Relaxed);
    /// });
    /// // A program sends packets here.
    /// assert_eq!(lost.load(Ordering::Relaxed), 0);
    /// ```
    pub fn observe(&self, observer: impl Fn(&SentPacket<'_>) + Send + Sync + 'static) {
        if let Some(links) = &self.subnet.links {
            links.observe(Box::new(observer));
        }
    }

    /// Returns the number of packets sent so far.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.subnet.links.as_ref().map_or(0, |links| links.packets())
    }

    /// Returns a hash of all sent packets: their times, senders, receivers, opcodes, destination QPNs, payloads and
    /// fates, and whether they request an acknowledgement. If all of these are equal in two runs of a program, the
    /// hashes are equal. The hash excludes memory addresses and PSNs, because they differ from process to process. The
    /// hash may differ between versions of Rust.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.subnet.links.as_ref().map_or(0, |links| links.trace())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        INSTALLED.remove_those_of(self.subnet);
    }
}
