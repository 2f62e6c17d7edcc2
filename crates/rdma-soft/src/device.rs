//! A software device: its identity, tables and limits.

#[cfg_attr(loom, allow(dead_code))] // models have no links to other processes
pub(crate) mod arrivals;
pub(crate) mod gid_place;
#[cfg(not(loom))]
pub(crate) mod gsi;
pub(crate) mod identity;
#[cfg(not(loom))]
pub(crate) mod mads;
pub(crate) mod model;
#[cfg_attr(loom, allow(dead_code))] // models have no networks
pub(crate) mod network;
mod recurring;
#[cfg_attr(loom, allow(dead_code))] // no model lists devices for programs
pub(crate) mod subnet;

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use rdma_types::{AccessFlags, AsyncEventKind, Gid, GidType, Guid, Lid};

use crate::address::{Address, AddressAttributes, GidEntry, Group, Path};
use crate::device::gid_place::GidPlace;
use crate::device::identity::Identity;
use crate::device::model::Model;
use crate::device::network::Network;
use crate::device::recurring::Recurring;
use crate::device::subnet::{InstallError, Subnet};
use crate::engine::Refusal;
use crate::engine::adapter::Adapter;
use crate::engine::events::EventQueue;
use crate::engine::events::report::{AsyncEvent, Element};
use crate::engine::group::Groups;
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::qpn::slot_of;
use crate::engine::queue_pair::table::QueuePairTable;
use crate::engine::requester::side::{Blocked, Peer};
use crate::engine::wire::Outlet;
use crate::engine::wire::faults::{Delay, QueuePairFaults};
use crate::engine::wire::grant::{Visited, wait_for_visits};
use crate::fabric::random::{Purpose, Seed};
use crate::limits::{Limits, Quota};
use crate::link::Link;
use crate::link::memory::{Inbox, Inboxes};
use crate::memory::budget::Budget;
use crate::memory::grace_period;
use crate::memory::region::Region;
use crate::memory::room::has_free_memory;
use crate::schedule::Schedule;
use crate::sync::locked;

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) subnet: &'static Subnet,
    pub(crate) adapter: Adapter,
    pub(crate) identity: Identity,
    pub(crate) model: Model,
    pub(crate) protection_domains: Quota,
    pub(crate) completion_queues: Quota,
    pub(crate) shared_receive_queues: Quota,
    pub(crate) address_handles: Quota,
    queue_pairs: Mutex<QueuePairTable>,
    pub(crate) groups: Groups<QueuePair>,
    /// Whether packets within this process also use the link between processes.
    pub(crate) force_link: bool,
    /// Whether packets within this process also use the networks that lead to other hosts.
    pub(crate) force_network: bool,
    /// The networks that lead to other hosts, one for each address at which the device listens.
    networks: OnceLock<Vec<Arc<dyn Network>>>,
    /// The processes of the host that share the device, if it is shared.
    pub(crate) host: Option<Box<dyn Host>>,
    /// Whether the device sends and receives everything as packets.
    pub(crate) force_wire: bool,
    /// The reason why the device cannot be opened, if something that was requested is missing.
    pub(crate) unusable: Option<InstallError>,
    inboxes: Inboxes<Device>,
    /// The contexts that receive the events of the device's port.
    contexts: Mutex<Vec<Weak<EventQueue<AsyncEvent>>>>,
    /// The packets that a fault delays, once the device has a queue pair with faults.
    delay: OnceLock<Arc<Delay>>,
    /// The faults that recur, once the device was opened.
    recurring: OnceLock<Vec<Arc<Recurring>>>,
    #[cfg(not(loom))]
    pub(crate) mads: mads::Mads,
    users: Mutex<Users>,
}

impl Deref for Device {
    type Target = Adapter;
    #[inline]
    fn deref(&self) -> &Adapter {
        &self.adapter
    }
}

/// The users that have opened the device through verbs.
#[derive(Debug, Default)]
struct Users {
    /// The number of open contexts. A context counts until everything created from it is released.
    contexts: u32,
    /// Whether the device's network was dropped, so that the device can no longer be opened.
    closed: bool,
}

impl Users {
    /// Returns true if the device has no users and cannot get any.
    fn none(&self) -> bool {
        self.closed && self.contexts == 0
    }
}

/// The processes of a host that share a device. Each one uses queue pair numbers from its own [slots](slot_of).
pub(crate) trait Host: Send + Sync + std::fmt::Debug {
    /// Claims a slot for this process. Returns true if this process may use the slot's queue pair numbers.
    fn claim(&self, device: &'static Device, slot: u16) -> bool;

    /// Connects this process to the process that uses a queue pair number. Returns [`Outlet::Nowhere`] if no process
    /// uses it: as on a network, requests then fail.
    fn connect(&self, device: &'static Device, number: u32) -> Result<Outlet, Refusal>;

    /// Returns the outlet to the process that uses a queue pair number, if this process is connected to it.
    fn connected(&self, number: u32) -> Outlet;

    /// Returns true if another region may have a file that other processes map.
    fn wants_file(&self) -> bool;

    /// Keeps the file of a region with this key, for other processes. Returns false if this process cannot open another
    /// file.
    fn keep_file(&self, key: u32, region: &Region, file: BorrowedFd<'_>) -> bool;

    /// Revokes what other processes may do with the file of a region, if it has one, and returns the visits to wait
    /// for.
    fn end_file(&self, key: u32) -> Vec<Visited>;
}

/// The transport of messages to the far end of a path.
#[derive(Debug, Clone)]
pub(crate) enum Delivery {
    /// Copied from memory to memory, to the device at the far end if there is one.
    Direct(Option<&'static Device>),
    /// Sent as packets.
    Wire(Outlet),
}

impl Device {
    pub(crate) fn new(
        subnet: &'static Subnet,
        name: String,
        link: Link,
        gids: Vec<GidPlace>,
        limits: Limits,
        schedule: Schedule,
        seed: &Seed,
    ) -> Self {
        let identity = Identity::drawn(link, gids, seed.stream(Purpose::Identity));
        let memory = Budget::new(&subnet.ids, limits, seed.stream(Purpose::Keys));
        let numbers = seed.stream(Purpose::QueuePairNumbers);
        Self {
            subnet,
            adapter: Adapter::new(subnet, name, link, limits, schedule, memory),
            identity,
            model: Model::OWN,
            protection_domains: Quota::default(),
            completion_queues: Quota::default(),
            shared_receive_queues: Quota::default(),
            address_handles: Quota::default(),
            queue_pairs: Mutex::new(QueuePairTable::new(numbers)),
            groups: Groups::default(),
            host: None,
            networks: OnceLock::new(),
            force_link: false,
            force_network: false,
            force_wire: false,
            unusable: None,
            inboxes: Inboxes::new(),
            contexts: Mutex::default(),
            delay: OnceLock::new(),
            recurring: OnceLock::new(),
            #[cfg(not(loom))]
            mads: mads::Mads::new(),
            users: Mutex::default(),
        }
    }

    pub(crate) fn guid(&self) -> Guid {
        self.identity.guid
    }

    /// Turns this device into one that several processes share. Each of them derives the same identity from the seed.
    #[cfg(not(loom))]
    pub(crate) fn join_host(&mut self, host: Box<dyn Host>, seed: &Seed) {
        self.identity.become_shared(self.adapter.link, seed.stream(Purpose::Identity));
        self.host = Some(host);
    }

    /// Counts a new context. Fails if the device's network was dropped.
    pub(crate) fn open(&'static self) -> Result<(), Refusal> {
        {
            let mut users = locked(&self.users);
            if users.closed {
                return Err(Refusal::Gone);
            }
            users.contexts += 1;
        }
        self.recurring.get_or_init(|| Recurring::begin_all(self));
        grace_period::register();
        Ok(())
    }

    /// Subtracts a context from the count, after the context and everything created from it were released.
    pub(crate) fn close(&self) {
        let last = {
            let mut users = locked(&self.users);
            users.contexts -= 1;
            users.none()
        };
        if last {
            self.retire();
        }
    }

    /// Records that the device's network was dropped. If the device has no users, releases its memory.
    pub(crate) fn leave_network(&self) {
        let nobody = {
            let mut users = locked(&self.users);
            users.closed = true;
            users.none()
        };
        if nobody {
            self.retire();
        }
    }

    /// Releases most of the device's memory and ends its capture, once the device has no users left. Keeps the data
    /// that programs may still refer to.
    #[cold]
    fn retire(&self) {
        self.memory.regions.retire();
        locked(&self.queue_pairs).end();
        self.inboxes.all().for_each(|inbox| inbox.retire());
        #[cfg(not(loom))]
        self.mads.close();
        if let Some(tap) = &self.tap {
            tap.end();
        }
        let mut devices = self.subnet.devices();
        if let Some(links) = &self.subnet.links
            && devices.all(|device| locked(&device.users).none())
        {
            links.retire();
        }
    }

    /// Reserves a queue pair number for a queue pair that is being created.
    pub(crate) fn reserve_qpn(&'static self) -> Result<u32, Refusal> {
        let mut queue_pairs = locked(&self.queue_pairs);
        if queue_pairs.len() >= self.limits.max_qp as usize {
            return Err(Refusal::NoRoom);
        }
        if let Some(deferred) = &self.deferred {
            deferred.reserve(queue_pairs.len() + 1)?;
        }
        queue_pairs.reserve(|slot| self.host.as_ref().is_none_or(|host| host.claim(self, slot)))
    }

    /// Returns the faults of a new queue pair's requests and packets, if the device has such faults.
    pub(crate) fn faults_of_queue_pair(&'static self) -> Option<QueuePairFaults> {
        let delay = || Arc::clone(self.delay.get_or_init(|| Delay::new(&self.adapter)));
        QueuePairFaults::new(&self.adapter, delay)
    }

    pub(crate) fn publish_queue_pair(&self, number: u32, queue_pair: Weak<QueuePair>) {
        locked(&self.queue_pairs).publish(number, queue_pair);
    }

    pub(crate) fn retire_queue_pair(&self, number: u32) {
        locked(&self.queue_pairs).retire(number);
    }

    pub(crate) fn queue_pair(&self, number: u32) -> Option<Arc<QueuePair>> {
        locked(&self.queue_pairs).find(number)
    }

    pub(crate) fn all_queue_pairs(&self) -> Vec<Arc<QueuePair>> {
        locked(&self.queue_pairs).all()
    }

    /// Returns the queue pair at the far end of a path, if it belongs to this subnet and the port of this device is up.
    pub(crate) fn find_peer(&self, path: Option<&Path>, number: u32) -> Option<Arc<QueuePair>> {
        self.at_far_end(path.filter(|_| self.port_is_up())?, number)
    }

    /// Like [`find_peer`](Self::find_peer), but also finds the queue pair while the port is down, when no request would
    /// arrive.
    pub(crate) fn at_far_end(&self, path: &Path, number: u32) -> Option<Arc<QueuePair>> {
        self.subnet.at(self.link, &path.remote)?.queue_pair(number)
    }

    /// Returns true if other processes could map the pages of a region with this length and access.
    pub(crate) fn wants_file(&self, length: u64, access: u32) -> bool {
        /// Below this length, packets take little longer than the processor's own copy.
        const SHORTEST: u64 = 64 << 10;
        let [reads, writes, atomics] =
            [AccessFlags::REMOTE_READ, AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC]
                .map(|right| right.bits());
        let others = AccessFlags::LOCAL_WRITE
            .union(AccessFlags::ZERO_BASED)
            .union(AccessFlags::RELAXED_ORDERING);
        let fits = self.maps
            && length >= SHORTEST
            && access & (reads | writes | atomics) != 0
            && access & !(reads | writes | atomics | others.bits()) == 0
            // A process that may write through its mapping can also read.
            && (access & writes == 0 || access & reads != 0);
        let Some(host) = self.host.as_ref().filter(|_| fits) else { return false };
        let has_room = host.wants_file() && has_free_memory(length);
        if !has_room {
            self.tally.rare.unmapped_regions.count();
        }
        has_room
    }

    /// Keeps the file of a region that other processes may map.
    pub(crate) fn keep_file(&self, key: u32, file: BorrowedFd<'_>) {
        if let (Some(host), Some(region)) = (&self.host, self.memory.regions.find(key))
            && self.maps
            && !host.keep_file(key, &region, file)
        {
            self.tally.rare.unmapped_regions.count();
        }
    }

    /// Ends the access of other processes to the file of a region. When this returns, no honest process accesses the
    /// memory without packets. The caller holds no lock.
    pub(crate) fn end_file(&self, key: u32) {
        if let Some(host) = self.host.as_ref().filter(|_| self.maps) {
            wait_for_visits(&self.fabric.clock, host.end_file(key));
        }
    }

    /// Returns the inbox for packets for the queue pair with this number, and creates it if necessary.
    pub(crate) fn inbox(&'static self, number: u32) -> &'static Arc<Inbox<Self>> {
        self.inboxes.of(self, number)
    }

    /// Returns the inbox for packets for the queue pair with this number, if it was created.
    pub(crate) fn inbox_if_any(&self, number: u32) -> Option<&Arc<Inbox<Self>>> {
        self.inboxes.existing(number)
    }

    /// Waits until all packets that have arrived so far are executed. The caller holds no lock.
    #[cfg(not(loom))]
    pub(crate) fn execute_all(&self) {
        self.inboxes.all().for_each(Inbox::execute_all);
    }

    /// Returns how messages are delivered on a path. If the local address leads to no network, a path to an unknown
    /// address uses packets only if this device sends everything as packets.
    pub(crate) fn delivery(&self, path: &Path, number: u32) -> Delivery {
        self.delivery_by(path, number, |host| host.connected(number))
    }

    /// Like [`delivery`](Self::delivery), but for a datagram: the first datagram to another process connects to that
    /// process. If no process has the queue pair number, the datagram is lost silently.
    pub(crate) fn datagram_delivery(&'static self, path: &Path, number: u32) -> Delivery {
        self.delivery_by(path, number, |host| host.connect(self, number).unwrap_or(Outlet::Nowhere))
    }

    fn delivery_by(
        &self,
        path: &Path,
        number: u32,
        process: impl FnOnce(&dyn Host) -> Outlet,
    ) -> Delivery {
        let there = self.subnet.at(self.link, &path.remote);
        if let Some(network) = self.network_towards(path, there) {
            return Delivery::Wire(Outlet::Carrier(network.outlet()));
        }
        if let Some(host) = self.host_of_other(path, there, number) {
            return Delivery::Wire(process(host));
        }
        match there {
            _ if !there.map_or(self.force_wire, |there| self.sends_packets_to(there)) => {
                Delivery::Direct(there)
            }
            Some(there) => Delivery::Wire(Outlet::Inbox(&**there.inbox(number))),
            None => Delivery::Wire(Outlet::Nowhere),
        }
    }

    /// If the queue pair at the far end of a path belongs to another process, connects this process to that one. For a
    /// path to another host, checks that packets can be sent there.
    pub(crate) fn reach(&'static self, path: &Path, number: u32) -> Result<Outlet, Refusal> {
        let there = self.subnet.at(self.link, &path.remote);
        if let Some(network) = self.network_towards(path, there) {
            return network.reach(&path.remote).map(|()| Outlet::Nowhere);
        }
        match self.host_of_other(path, there, number) {
            Some(host) => host.connect(self, number),
            // All loopback addresses belong to this host, so no packet can arrive at one that no device here has.
            None if there.is_none() && path.remote.is_loopback() => Err(Refusal::Unreachable),
            None => Ok(Outlet::Nowhere),
        }
    }

    /// Returns the host if packets on the path use the link between processes. The path must lead to this device, from
    /// and to addresses that all processes share, because the link knows no others. Another process must own the queue
    /// pair number, unless everything must use that link.
    fn host_of_other(&self, path: &Path, there: Option<&Self>, number: u32) -> Option<&dyn Host> {
        let host = self.host.as_deref()?;
        let is_own = || locked(&self.queue_pairs).has_slot(slot_of(number));
        let shared = there.is_some_and(|there| std::ptr::eq(self, there));
        let own_alone = |address| matches!(address, Address::Gid(entry) if self.identity.own().any(|own| *own == entry));
        let others = shared && (self.force_link || !is_own());
        (others && !own_alone(path.local) && !own_alone(path.remote)).then_some(host)
    }

    /// Sets the networks that lead to other hosts.
    #[cfg(not(loom))]
    pub(crate) fn open_networks(&self, networks: Vec<Arc<dyn Network>>) {
        let _ = self.networks.set(networks);
    }

    /// Receives packets from other hosts to exactly the groups that have members now. `newest` is the group that was
    /// added last.
    pub(crate) fn update_groups(&self, newest: Option<Gid>) -> Result<(), Refusal> {
        let has = |gid| self.groups.has(&Group { gid, lid: 0 });
        let mut networks = self.networks.get().into_iter().flatten();
        networks.try_for_each(|network| network.update_groups(newest, &has))
    }

    /// Returns the outlet that carries packets for a group to other hosts, if the local address of the path leads to
    /// any. The devices of this process receive such packets without it.
    pub(crate) fn outlet_from(&self, path: &Path) -> Option<Outlet> {
        self.network_of(&path.local).map(|network| Outlet::Carrier(network.outlet()))
    }

    /// Returns the networks that lead to other hosts.
    #[cfg(not(loom))]
    pub(crate) fn networks(&self) -> &[Arc<dyn Network>] {
        self.networks.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the network that leads from this local address to other hosts.
    fn network_of(&self, address: &Address) -> Option<&dyn Network> {
        let Address::Gid(entry) = address else { return None };
        let networks = self.networks.get()?;
        networks.iter().map(|network| &**network).find(|network| network.address() == *entry)
    }

    /// Returns the network of the local address if packets on the path use it. They do if no device of this process has
    /// the remote address. If everything must use the networks, they also do if the remote address leads to one.
    fn network_towards(&self, path: &Path, there: Option<&Self>) -> Option<&dyn Network> {
        let network = self.network_of(&path.local)?;
        let outside = there
            .is_none_or(|there| self.force_network && there.network_of(&path.remote).is_some());
        outside.then_some(network)
    }

    /// Returns true if messages between these two devices are sent as packets.
    pub(crate) fn sends_packets_to(&self, there: &Self) -> bool {
        self.force_wire || there.force_wire
    }

    /// Returns the devices on the same link layer that have members of a group. This device may be one of them.
    pub(crate) fn devices_of(&self, group: Group) -> impl Iterator<Item = &'static Self> {
        let devices = self.subnet.devices();
        devices.filter(move |there| there.link == self.link && there.groups.has(&group))
    }

    pub(crate) fn has_address(&self, address: &Address) -> bool {
        match address {
            Address::Lid(lid) => *lid == self.identity.lid,
            Address::Gid(entry) => self.identity.has_gid(entry),
        }
    }

    /// Adds a context that receives events of the port.
    pub(crate) fn add_context(&self, events: &Arc<EventQueue<AsyncEvent>>) {
        let mut contexts = locked(&self.contexts);
        contexts.retain(|context| context.strong_count() > 0);
        contexts.push(Arc::downgrade(events));
    }

    /// Brings the port up or down, and notifies every context of a change. Each connection verifies its peer again
    /// before its next request.
    pub(crate) fn set_port(&self, up: bool) {
        self.change_port(up);
        if self.maps {
            self.all_queue_pairs().iter().for_each(|queue_pair| queue_pair.finish_visits());
        }
        self.fabric.run_queue.run();
    }

    fn change_port(&self, up: bool) {
        let contexts = locked(&self.contexts);
        if self.adapter.swap_port(up) == up {
            return;
        }
        for queue_pair in self.all_queue_pairs() {
            let waits = {
                let mut send = queue_pair.send.lock();
                send.requester.peer = Peer::Unresolved;
                matches!(send.blocked, Blocked::NotReady { .. })
            };
            {
                let mut responder = queue_pair.responder.lock();
                responder.verified = 0;
                // A process with a grant would not notice that the port is down.
                responder.revoke();
            }
            // Wakes requests that wait for a receive request, here or at a peer: a post would no longer notify them.
            if waits {
                queue_pair.entry.wake();
            }
            queue_pair.dismiss_waiter(&mut queue_pair.receive.lock());
        }
        let kind = if up {
            AsyncEventKind::PORT_ACTIVE
        } else {
            self.tally.rare.link_downed.count();
            AsyncEventKind::PORT_ERR
        };
        for context in contexts.iter().filter_map(Weak::upgrade) {
            context.push(AsyncEvent { kind, element: Element::Port(1) });
        }
    }

    /// Moves the entries of the GID table, and notifies every context.
    fn move_gids(&self) {
        let contexts = locked(&self.contexts);
        self.identity.move_gids();
        for context in contexts.iter().filter_map(Weak::upgrade) {
            let element = Element::Port(1);
            context.push(AsyncEvent { kind: AsyncEventKind::GID_CHANGE, element });
        }
    }

    pub(crate) fn shares_address_with(&self, other: &Self) -> bool {
        let identity = &other.identity;
        self.link == other.link
            && (identity.lid != 0 && identity.lid == self.identity.lid
                || identity.gids.iter().any(|entry| self.identity.has_gid(entry)))
    }

    /// Returns the path of an address vector if it leads to a single port, as a connection requires.
    pub(crate) fn path(&self, vector: &AddressAttributes) -> Result<Path, Refusal> {
        let path = self.path_of_datagrams(vector)?;
        let to_group = match path.remote {
            Address::Lid(lid) => Lid::new(lid).is_multicast(),
            Address::Gid(entry) => entry.gid.is_multicast(),
        };
        if to_group { Err(Refusal::Invalid) } else { Ok(path) }
    }

    /// Returns the path of an address vector if it leads to a port or to a group, as a datagram requires.
    pub(crate) fn path_of_datagrams(&self, vector: &AddressAttributes) -> Result<Path, Refusal> {
        let source = self.identity.entry(usize::from(vector.source_index));
        let source = source.filter(|entry| !entry.gid.is_zero());
        if vector.port != 1 || vector.is_global != 0 && source.is_none() {
            return Err(Refusal::Invalid);
        }
        let gid = Gid::from_bytes(vector.destination);
        match self.link {
            Link::InfiniBand => {
                let lid = Lid::new(vector.destination_lid);
                // A packet to a group carries the group's GID in a global route header.
                let to_group = lid.is_multicast() && vector.is_global != 0 && gid.is_multicast();
                let remote = Address::Lid(vector.destination_lid);
                let path = Path { local: Address::Lid(self.identity.lid), remote };
                if lid.is_unicast() || to_group { Ok(path) } else { Err(Refusal::Invalid) }
            }
            Link::Ethernet => {
                // RoCE has no LIDs: every packet has a GRH, and a route uses one address family.
                let source = source.filter(|_| vector.is_global != 0).ok_or(Refusal::Invalid)?;
                let remote = GidEntry { gid, kind: source.kind };
                let same_version = gid.is_ipv4_mapped() == source.gid.is_ipv4_mapped();
                let fits = match gid.is_multicast() {
                    // The group may have any scope. RoCE v1 uses InfiniBand's route header for all addresses.
                    true => same_version || source.kind != GidType::ROCE_V2,
                    false => same_version && gid.is_link_local() == source.gid.is_link_local(),
                };
                if gid.is_zero() || !fits {
                    return Err(Refusal::Invalid);
                }
                Ok(Path { local: Address::Gid(*source), remote: Address::Gid(remote) })
            }
        }
    }

    pub(crate) fn wrong_qkeys(&self) -> u32 {
        u32::try_from(self.tally.rare.qkey_viol_cntr.get()).unwrap_or(u32::MAX)
    }

    pub(crate) fn wrong_pkeys(&self) -> u32 {
        u32::try_from(self.tally.rare.bad_pkey_cntr.get()).unwrap_or(u32::MAX)
    }
}
