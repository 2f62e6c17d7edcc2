//! A builder for devices.

mod lacks;

use std::path::PathBuf;
use std::time::Duration;

use crate::abi;
use crate::abi::environment::path_variable;
use crate::device::Device;
use crate::device::gid_place::GidPlace;
use crate::device::model::Model;
use crate::device::subnet::{INSTALLED, InstallError, Subnet};
use crate::engine::adapter::faults::Injector;
#[cfg(not(loom))]
use crate::environment::variable::flag;
use crate::faults::Faults;
use crate::limits::Limits;
use crate::limits::patience::Patience;
use crate::link::Link;
#[cfg(not(loom))]
use crate::link::local::host::{LocalHost, Peers};
use crate::link::pcap::Tap;
#[cfg(not(loom))]
use crate::link::udp::{self, Listening, Loss};
#[cfg(not(loom))]
use crate::network::Network;
use crate::schedule::Schedule;
use crate::soft_device::SoftDevice;

/// The environment variable that selects whether processes map each other's regions.
#[cfg(not(loom))]
pub(crate) const MAPPED: &str = "RDMA_SOFT_MAPPED";

/// The environment variable that names a capture file for all devices.
const PCAP: &str = "RDMA_SOFT_PCAP";

/// Builds a software device with its own name, schedule and limits.
///
/// Once installed, the device stays in the device list of the process until its [`Network`] is dropped. Without a
/// network, it stays until the process exits. Devices of one process with the same [`Link`] reach each other. See
/// [`peers`](Self::peers) for other processes and [`listen`](Self::listen) for other hosts.
///
/// ```
/// use rdma_soft::{Builder, Link, Schedule};
///
/// let device = Builder::new("held0").link(Link::InfiniBand).schedule(Schedule::Held).install()?;
/// assert_eq!(device.name(), "held0");
/// # Ok::<(), rdma_soft::InstallError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `install`"]
pub struct Builder {
    name: String,
    link: Link,
    gids: Option<Vec<GidPlace>>,
    schedule: Schedule,
    limits: Limits,
    model: Model,
    force_wire: bool,
    faults: Option<Faults>,
    subnet: &'static Subnet,
    pcap: Capture,
    /// The reason why the device cannot be opened, if something that was requested is missing.
    unusable: Option<InstallError>,
    #[cfg(not(loom))]
    peers: Peers,
    #[cfg(not(loom))]
    mapped: bool,
    #[cfg(not(loom))]
    between_processes: bool,
    #[cfg(not(loom))]
    directory: Option<PathBuf>,
    #[cfg(not(loom))]
    listen: Vec<String>,
    #[cfg(not(loom))]
    loss: Option<Loss>,
}

/// The destination of a device's packet capture.
#[derive(Debug, Clone)]
enum Capture {
    OfEnvironment,
    To(PathBuf),
    Nowhere,
}

impl Builder {
    /// Creates a builder for a RoCE device that executes each request within its post.
    pub fn new(name: impl Into<String>) -> Self {
        let patience = Patience::of_environment().unwrap_or_else(|error| {
            tracing::warn!(%error, "the time limits of the environment are ignored");
            Patience::USUAL
        });
        Self {
            name: name.into(),
            link: Link::default(),
            gids: None,
            schedule: Schedule::default(),
            limits: Limits { patience, ..Limits::default() },
            model: Model::OWN,
            force_wire: false,
            faults: None,
            subnet: Subnet::of_process(),
            pcap: Capture::OfEnvironment,
            unusable: None,
            #[cfg(not(loom))]
            peers: Peers::ThisProcess,
            // `install` of this crate reports a mistake.
            #[cfg(not(loom))]
            mapped: flag(MAPPED).ok().flatten().unwrap_or(true),
            #[cfg(not(loom))]
            between_processes: false,
            #[cfg(not(loom))]
            directory: None,
            #[cfg(not(loom))]
            listen: Vec::new(),
            #[cfg(not(loom))]
            loss: None,
        }
    }

    /// Sets which processes share the device. These are the processes that install a device with the same name, link
    /// layer, GID table, [`Peers`] and [directory](Self::directory). The device has one identity in all of them, so
    /// each can address any of its queue pairs by GID or LID and QPN.
    ///
    /// With [`between_processes`](Self::between_processes) or [`force_wire`](Self::force_wire), requests within one
    /// process use the same link as requests between processes.
    ///
    /// The identity is derived from the five properties above, the host's boot ID, the network namespace and the user
    /// (except with [`Peers::AnyUser`]). A device of a [`Network`] is not shared. Without this call, the device exists
    /// only in this process. Pass [`Peers::of_environment`] to follow `RDMA_SOFT_PEERS`, as `soft0` does.
    ///
    /// ```
    /// use rdma_soft::{Builder, Peers};
    ///
    /// let shared = Builder::new("shared").peers(Peers::SameUser).install()?;
    /// assert_eq!(shared.gids().len(), 5);
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    #[cfg(not(loom))]
    pub fn peers(mut self, peers: Peers) -> Self {
        self.peers = peers;
        self
    }

    /// Sets whether processes of this user that share the device may map each other's regions. It is the default, unless
    /// the environment variable `RDMA_SOFT_MAPPED` is 0.
    ///
    /// A process then executes WRITEs, READs and atomics on such a region itself, without the processor of the region's
    /// process. This applies to regions of at least 64 KiB that `allocate_shared_region` of rdma-mem has made, if peers
    /// may read them or change words of them. It has no effect with [`Peers::AnyUser`], on devices that send everything
    /// as packets, that execute requests later, or that inject faults or losses. The page on the software
    /// device describes what a hostile process can do.
    ///
    /// ```
    /// use rdma_soft::{Builder, Peers};
    ///
    /// Builder::new("packets0").peers(Peers::SameUser).mapped(false).install()?;
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    #[cfg(not(loom))]
    pub fn mapped(mut self, mapped: bool) -> Self {
        self.mapped = mapped;
        self
    }

    /// Makes requests between queue pairs of this device in this process use the link between processes, for tests and
    /// measurements. Regions are [mapped](Self::mapped) as between processes. With [`force_wire`](Self::force_wire),
    /// these requests also use that link, but nothing is mapped.
    ///
    /// Has no effect unless the device is [shared](Self::peers), nor on addresses that only this process has. Like
    /// another process, this one gets no grants any longer after a copy has delayed a deregistration by 10 ms.
    ///
    /// ```
    /// use rdma_soft::{Builder, Peers};
    ///
    /// Builder::new("apart0").peers(Peers::SameUser).between_processes().install()?;
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    #[cfg(not(loom))]
    pub fn between_processes(mut self) -> Self {
        self.between_processes = true;
        self
    }

    /// Sets how long a process of this host may go without reading or answering. After that, requests to the process
    /// fail with `RETRY_EXC_ERR`. The default is 60 seconds, or the number of seconds in the environment variable
    /// `RDMA_SOFT_PEER_LIMIT`.
    ///
    /// The limit applies to a process that is stopped (by SIGSTOP or a debugger) or is not scheduled. Hardware would
    /// answer on behalf of the process, so the timeout and retries of a queue pair do not count during this time. They
    /// count while the process runs but does not answer. If a process exits, its connections fail at once. A `tracing`
    /// event is sent after half of the limit.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rdma_soft::{Builder, Peers};
    ///
    /// Builder::new("hasty0").peers(Peers::SameUser).peer_limit(Duration::from_secs(5)).install()?;
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    pub fn peer_limit(mut self, limit: Duration) -> Self {
        self.limits.patience.process = limit;
        self
    }

    /// Sets the minimum time before a retried request to another host fails with `RETRY_EXC_ERR`. The default is two
    /// seconds, or the number of seconds in the environment variable `RDMA_SOFT_RETRY_TIME`. With zero, only the
    /// timeout and retry count of the queue pair apply.
    ///
    /// A peer that is a software device needs a processor to answer, and a busy host may make it wait half a second for
    /// one. If a queue pair's timeout and retries would end too early, the shortest sufficient timeout is used instead.
    /// Lost packets are still retransmitted early: once the peer has answered anything, probes detect the loss.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rdma_soft::Builder;
    ///
    /// Builder::new("strict0").listen("127.5.6.9").retry_time(Duration::ZERO).install()?;
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    pub fn retry_time(mut self, least: Duration) -> Self {
        self.limits.patience.host = least;
        self
    }

    /// Sets the directory through which the processes that share the device find each other. It replaces abstract
    /// sockets, which every user of the host can bind and connect to. The directory must belong to this user, be closed
    /// to other users (mode 0700), and be in a local file system. Processes that name a different directory get a
    /// different device.
    ///
    /// The directory applies to [`Peers::SameUser`]. A device that is not shared ignores it, and a device for
    /// [`Peers::AnyUser`] cannot be installed with it.
    ///
    /// ```
    /// use std::os::unix::fs::DirBuilderExt;
    ///
    /// use rdma_soft::{Builder, Peers};
    ///
    /// let directory = std::env::temp_dir().join(format!("devices-{}", std::process::id()));
    /// std::fs::DirBuilder::new().mode(0o700).create(&directory)?;
    /// Builder::new("private0").peers(Peers::SameUser).directory(&directory).install()?;
    /// # std::fs::remove_dir_all(&directory)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(not(loom))]
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.directory = Some(path.into());
        self
    }

    /// Sets the link layer of the device's port.
    pub fn link(mut self, link: Link) -> Self {
        self.link = link;
        self
    }

    /// Sets the entries of the port's GID table, in index order. By default, an InfiniBand port has one entry. An
    /// Ethernet port has a link-local and an IPv4-mapped address, each for RoCE v1 and v2. Its last entry is an address
    /// of the loopback interface, unless the device belongs to a [`Network`].
    ///
    /// A table may be empty, have holes, and contain unknown types or types of another link layer, because programs can
    /// encounter all of these. Only indexes up to 255 can be used.
    ///
    /// ```
    /// use rdma_soft::{Builder, GidPlace};
    /// use rdma_types::GidType;
    ///
    /// let places = [GidPlace::Empty, GidPlace::Global(GidType::ROCE_V2)];
    /// let device = Builder::new("global0").gids(places).install()?;
    /// assert!(device.gids()[0].is_zero() && !device.gids()[1].is_link_local());
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    pub fn gids(mut self, places: impl IntoIterator<Item = GidPlace>) -> Self {
        self.gids = Some(places.into_iter().collect());
        self
    }

    /// Sets when the device executes posted requests.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Sends and receives everything as packets, as a NIC does, even between queue pairs of this process. Messages are
    /// split at the path MTU, acknowledged, and retransmitted if necessary.
    ///
    /// Programs see the same results, only later: a post returns before its request is executed. Packets are moved by
    /// posts, by polls, and by the device's thread. A connection uses packets if either end has this setting. This is
    /// decided when the connection becomes ready to receive, and does not change until it is reset.
    ///
    /// ```
    /// use rdma_soft::Builder;
    ///
    /// let device = Builder::new("wire0").force_wire().install()?;
    /// assert_eq!(device.name(), "wire0");
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    pub fn force_wire(mut self) -> Self {
        self.force_wire = true;
        self
    }

    /// Writes the packets that the device sends and receives to a file in pcapng format, which Wireshark reads. The
    /// device then sends everything as packets, as with [`force_wire`](Self::force_wire). Without this call, the
    /// environment variable `RDMA_SOFT_PCAP` names the file, if it is set when the device is installed.
    ///
    /// An existing file is overwritten. `%p` in the file name is replaced by the process ID. Devices of a process may
    /// share a file; a packet from one of them to another then appears once, as it was sent. Before a call returns, it
    /// writes the packets that it has moved. If the file cannot grow, the capture ends with one `tracing` event, and
    /// the device continues. Pipes and sockets are refused, since a device never waits for a reader.
    ///
    /// ```
    /// use rdma_soft::Builder;
    ///
    /// let path = std::env::temp_dir().join("rdma-soft-%p.pcapng");
    /// let device = Builder::new("captured0").pcap(path).install()?;
    /// // ... later: wireshark /tmp/rdma-soft-*.pcapng
    /// # let name = format!("rdma-soft-{}.pcapng", std::process::id());
    /// # std::fs::remove_file(std::env::temp_dir().join(name)).unwrap();
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    pub fn pcap(mut self, path: impl Into<PathBuf>) -> Self {
        self.pcap = Capture::To(path.into());
        self
    }

    /// Lets the device communicate with other hosts, using RoCE v2 over UDP. The other host can run a software device
    /// or kernel SoftRoCE, or use a NIC (untested). `place` is an address of this host, or an interface (which means
    /// all its addresses), or several of these separated by commas. For `soft0`, the environment variable
    /// `RDMA_SOFT_LISTEN` takes the same text.
    ///
    /// Each address becomes an additional entry of the GID table, before the entry of the loopback interface. A queue
    /// pair that uses such an entry can reach addresses outside this process. If no device of this process has the
    /// destination address, packets are sent to UDP port 4791 of that address. A device with
    /// [`force_wire`](Self::force_wire) also sends packets to listening devices of this process in this way. The MTU of
    /// the interface limits the packet size (`active_mtu`). Only one process can listen at an address.
    ///
    /// Every host that can send UDP datagrams to the address is then a peer, as on a RoCE network. Nothing is
    /// encrypted, and source addresses can be forged. Unreliable connections and datagrams have no protection against
    /// that. A reliable connection is protected by its QPN and its initial PSN, which an attacker has to guess.
    ///
    /// ```
    /// use rdma_soft::Builder;
    ///
    /// let device = Builder::new("networked0").listen("127.5.6.7").install()?;
    /// assert_eq!(device.gids()[4].to_string(), "::ffff:127.5.6.7");
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    #[cfg(not(loom))]
    pub fn listen(mut self, place: impl Into<String>) -> Self {
        self.listen.push(place.into());
        self
    }

    /// Drops a fraction (between 0 and 1) of the packets that the device sends [to other hosts](Self::listen), for
    /// tests. The seed and the order of the packets determine which ones are dropped.
    ///
    /// ```
    /// use rdma_soft::Builder;
    ///
    /// let device = Builder::new("lossy0").listen("127.5.6.8").lossy(0.01, 7).install()?;
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    #[cfg(not(loom))]
    pub fn lossy(mut self, probability: f64, seed: u64) -> Self {
        self.loss = Some(Loss { probability, seed });
        self
    }

    /// Injects faults, so that a test shows how a program copes with them. The environment variable `RDMA_SOFT_FAULTS`
    /// sets those of the devices that [`install`](crate::install) makes.
    ///
    /// ```
    /// use rdma_soft::Builder;
    ///
    /// let faults = "seed=7; fail=0.1%:RNR_RETRY_EXC; port_flap=10s".parse()?;
    /// let device = Builder::new("faulty1").faults(faults).install()?;
    /// assert_eq!(device.counters().injected_faults, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Marks the device as one that cannot be opened, because something that was requested is missing. It does not
    /// listen and captures nothing.
    pub(crate) fn unusable(mut self, error: InstallError) -> Self {
        self.pcap = Capture::Nowhere;
        #[cfg(not(loom))]
        self.listen.clear();
        self.unusable = Some(error);
        self
    }

    /// Sets the capacities of the device. These limits replace the limits of a [profile](Self::like).
    pub fn limits(mut self, limits: Limits) -> Self {
        let Limits { features, patience, .. } = self.limits;
        self.limits = Limits { features, patience, ..limits };
        self
    }

    /// Removes compare-and-swap and fetch-and-add. `atomic_cap` then reports none, posting an atomic fails with
    /// `EINVAL`, and an atomic from a peer is refused as an invalid request.
    ///
    /// ```
    /// use rdma_soft::Builder;
    ///
    /// let device = Builder::new("plain0").without_atomics().install()?;
    /// assert_eq!(device.name(), "plain0");
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    pub fn without_atomics(mut self) -> Self {
        self.limits.features.atomics = false;
        self
    }

    /// Removes memory windows of type 1: allocating one fails with `EOPNOTSUPP`.
    pub fn without_window_type_1(mut self) -> Self {
        self.limits.features.window_type_1 = false;
        self
    }

    /// Removes memory windows of type 2: allocating one fails with `EOPNOTSUPP`.
    pub fn without_window_type_2(mut self) -> Self {
        self.limits.features.window_type_2 = false;
        self
    }

    /// Removes extended queue pairs (`ibv_wr_*`), extended completion queues and timestamps. Creating such a queue, or
    /// a completion queue with timestamps, fails with `EOPNOTSUPP`, as with an older provider that does not implement
    /// them.
    ///
    /// ```
    /// use rdma_soft::Builder;
    ///
    /// Builder::new("classic0").without_extended().without_window_type_2().install()?;
    /// # Ok::<(), rdma_soft::InstallError>(())
    /// ```
    pub fn without_extended(self) -> Self {
        self.without_extended_queue_pairs().without_extended_completions().without_timestamps()
    }

    /// Puts the device into a network. It then reaches only the devices of that network, and sends everything as
    /// packets.
    #[cfg(not(loom))]
    pub fn network(mut self, network: &Network) -> Self {
        self.subnet = network.subnet;
        self
    }

    /// Installs the device in this process.
    ///
    /// # Errors
    ///
    /// Fails if the name is taken or invalid, if there are already 4096 devices, or if the system returns no random
    /// numbers. Also fails if the capture file cannot be written, or if the device cannot [listen](Self::listen) at a
    /// given place or be [shared](Self::peers) with other processes.
    pub fn install(self) -> Result<SoftDevice, InstallError> {
        if !is_name(&self.name) {
            return Err(InstallError::BadName(self.name));
        }
        #[cfg(not(loom))]
        let on_loopback = self.gids.is_none() && self.link == Link::Ethernet;
        let gids = self.gids.unwrap_or_else(|| GidPlace::usual(self.link));
        let subnet = self.subnet;
        let seed = subnet.seeds.draw().map_err(|_| InstallError::NoRandomness)?;
        let Self { name, link, limits, schedule, force_wire, pcap, .. } = self;
        // Checked first, so that no capture file is created if the name is taken.
        if INSTALLED.named(&name).is_some() {
            return Err(InstallError::NameTaken(name));
        }
        let tap = match pcap {
            Capture::To(path) => Some(path),
            Capture::OfEnvironment => path_variable(PCAP).map(PathBuf::from),
            Capture::Nowhere => None,
        };
        #[cfg(not(loom))]
        let listening = match (link, subnet.simulation.is_some()) {
            _ if self.listen.is_empty() => None,
            (Link::Ethernet, false) => Some(Listening::at(subnet, &self.listen)?),
            _ => {
                let reason = "a device of InfiniBand or of a simulated network has no addresses of this host";
                let place = self.listen.join(",");
                return Err(InstallError::CannotListen { place, reason: reason.to_owned() });
            }
        };
        let tap = tap.map(|path| {
            Tap::new(subnet, &name, link, &path)
                .map_err(|error| InstallError::NoCapture { path, reason: error.to_string() })
        });
        let tap = tap.transpose()?;
        let mut device = Device::new(subnet, name, link, gids, limits, schedule, &seed);
        device.model = self.model;
        let needs_packets = self.faults.as_ref().is_some_and(Faults::need_packets);
        device.force_wire =
            force_wire || tap.is_some() || subnet.simulation.is_some() || needs_packets;
        device.adapter.injector = self.faults.map(|faults| Injector::new(&device.name, faults));
        (device.adapter.tap, device.unusable) = (tap, self.unusable);
        #[cfg(not(loom))]
        if on_loopback
            && subnet.simulation.is_none()
            && let Some(interface) = udp::loopback()
        {
            device.identity.add_loopback(interface);
        }
        #[cfg(not(loom))]
        if self.peers != Peers::ThisProcess && subnet.simulation.is_none() {
            let shape = format!("{link:?} {:?} {on_loopback}", device.identity.places());
            let (host, seed) =
                LocalHost::new(&device.name, &shape, self.peers, self.directory.as_deref())
                    .map_err(|error| InstallError::NotShared { reason: error.to_string() })?;
            device.force_link = force_wire || self.between_processes;
            device.adapter.maps = self.mapped
                && self.peers == Peers::SameUser
                && schedule == Schedule::Immediate
                && !device.force_wire
                && device.injector.is_none()
                && self.loss.is_none();
            device.join_host(Box::new(host), &seed);
        }
        #[cfg(not(loom))]
        if let Some(listening) = &listening {
            device.force_network = force_wire;
            device.identity.add(listening.addresses());
            device.adapter.mtu = listening.mtu().unwrap_or(device.mtu);
        }
        // A thread that learns that the name is taken must find the device in the list.
        abi::register();
        let device = INSTALLED.add(device)?;
        #[cfg(not(loom))]
        if let Some(listening) = listening {
            listening.begin(device, self.loss);
        }
        Ok(SoftDevice::of(device))
    }
}

/// Returns true if a device may have this name. It must fit into `struct ibv_device`, and be usable on a command line
/// and as the name of a folder.
pub(crate) fn is_name(name: &str) -> bool {
    let typeable = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    (1..64).contains(&name.len()) && name.chars().all(typeable) && name != "." && name != ".."
}
