//! Networks of software devices in virtual time.

use std::time::Duration;

use crate::device::Device;
use crate::device::subnet::{INSTALLED, Subnet};
use crate::fabric::clock::Time;
use crate::link::model::LinkModel;
use crate::soft_device::SoftDevice;

/// A network of software devices, whose time is virtual and whose links are as slow and as
/// unreliable as a test wants.
///
/// The devices of a network are in the device list as all others, and a program uses them as all
/// others, by `rdma_mem`, `rdma_qp` and `rdma_channel`. They reach only each other, by packets of
/// RoCE or InfiniBand.
///
/// # Time
///
/// Nothing sleeps, and the devices make no thread, but for one that tells a subscriber of `tracing`
/// of dropped packets. Each poll of a completion queue that finds nothing lets 100 ns pass, and
/// the test lets time pass by [`step`](Self::step) and [`run_for`](Self::run_for); then what is due
/// happens, on the thread that called. So a timeout of a second costs no second, and what one
/// thread does is the same each time: with one seed, the same packets get lost.
///
/// The program and the seed have to be the same for that; it must not look at other clocks, nor use
/// several threads. [`trace`](Self::trace) shows whether two runs were the same.
///
/// A program that asks for an event of a completion queue (`ibv_req_notify_cq`) is about to sleep: what is
/// due next happens then, and if there was something, the file of the completion channel is readable,
/// with an event or without. So one that sleeps in `poll(2)`, as channels do, wakes at once, and polls
/// and asks again. `ibv_get_cq_event` on a blocking file lets time pass until there is an event.
///
/// # Examples
///
/// Two machines that are half a millisecond apart, where one packet in ten is lost:
///
/// ```
/// use std::time::Duration;
/// use rdma_soft::{Builder, LinkModel, Network};
///
/// let network = Network::simulated(7);
/// network.set_all_links(LinkModel::new().latency(Duration::from_micros(500)).loss(0.1));
/// let near = Builder::new("near").network(&network).install()?;
/// let far = Builder::new("far").network(&network).install()?;
/// // A program opens them by their names. Then the cable is pulled, in one direction:
/// network.set_link(&far, &near, LinkModel::cut()).unwrap();
/// # Ok::<(), rdma_soft::InstallError>(())
/// ```
///
/// # Its end
///
/// When it is dropped, its devices leave the device list, and their names are free. What a program has still open
/// of them goes on as before, and nothing more is opened. Most of a device's memory is given back when nothing of it
/// is open; what names it stays as long as the process.
#[derive(Debug)]
pub struct Network {
    pub(crate) subnet: &'static Subnet,
}

/// A device is not of the network that was asked.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no device of this network: install it with `Builder::network`")]
pub struct OtherNetwork(String);

rdma_types::debug_messages!(struct OtherNetwork(it));

impl Network {
    /// An empty network. All its randomness comes from the seed: what becomes of packets, and which
    /// QPNs and keys its devices give out. So whoever knows the seed can guess the keys.
    #[must_use]
    pub fn simulated(seed: u64) -> Self {
        Self { subnet: Box::leak(Box::new(Subnet::simulated(seed))) }
    }

    /// What each link does from now on, in both directions, unless it has a model of its own
    /// ([`set_link`](Self::set_link)). What a device sends to
    /// itself is on no link.
    pub fn set_all_links(&self, model: LinkModel) {
        if let Some(links) = &self.subnet.links {
            links.set_all(model);
        }
    }

    /// What the link from one device to another does from now on, in this direction alone. Packets that are on
    /// their way arrive as they would have.
    ///
    /// From then on the link has a model of its own, and [`set_all_links`](Self::set_all_links) no longer changes it;
    /// there is no way back. To heal a link that was cut, set the model that the others have.
    ///
    /// # Errors
    ///
    /// If one of them is not of this network.
    pub fn set_link(
        &self,
        from: &SoftDevice,
        to: &SoftDevice,
        model: LinkModel,
    ) -> Result<(), OtherNetwork> {
        self.set_link_after(Duration::ZERO, from, to, model)
    }

    /// As [`set_link`](Self::set_link), when so much time has passed: also while the program waits
    /// for something.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_soft::{Builder, LinkModel, Network};
    /// # let network = Network::simulated(7);
    /// # let [a, b] = ["left", "right"].map(|name| Builder::new(name).network(&network).install().unwrap());
    /// // For one second nothing gets from `a` to `b`.
    /// network.set_link(&a, &b, LinkModel::cut())?;
    /// network.set_link_after(Duration::from_secs(1), &a, &b, LinkModel::new())?;
    /// # Ok::<(), rdma_soft::OtherNetwork>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`set_link`](Self::set_link).
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

    /// How much time has passed in this network.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.subnet.clock.now().since(Time::BEGINNING)
    }

    /// Lets time pass until the next event: a packet arrives, or a deadline passes. Returns whether
    /// there was one; if not, nothing happens any more unless the program does something. Threads
    /// take turns.
    ///
    /// ```
    /// let network = rdma_soft::Network::simulated(1);
    /// assert!(!network.step());
    /// ```
    pub fn step(&self) -> bool {
        self.subnet.step()
    }

    /// Lets so much time pass; what is due meanwhile happens.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let network = rdma_soft::Network::simulated(1);
    /// network.run_for(Duration::from_secs(3600));
    /// assert_eq!(network.now(), Duration::from_secs(3600));
    /// ```
    pub fn run_for(&self, time: Duration) {
        self.subnet.pass_until(self.subnet.clock.now() + time);
    }

    /// How many packets were sent.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.subnet.links.as_ref().map_or(0, |links| links.packets())
    }

    /// A number made of all packets that were sent, when, from where, to where, and what became of
    /// them. It is the same for two runs of one program if these were; addresses of memory and
    /// PSNs, which differ from process to process, do not count. Another version of Rust may make
    /// another number.
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
