//! Executes a script on the devices, and checks the results.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rdma_soft::Network;

use crate::campaign::Done;
use crate::groups;
use crate::host::{self, Host, Pool, SimQueuePair};
use crate::script::{Operation, SLOTS, Script, Service, Weather};
use crate::watch;

/// The result of a check. The error describes what is wrong.
pub(crate) type Outcome<T = ()> = Result<T, String>;

macro_rules! ensure {
    ($holds:expr, $($what:tt)*) => {
        if !$holds {
            return Err(format!($($what)*));
        }
    };
}
pub(crate) use ensure;

/// The prefix of an error that was a panic.
pub(crate) const PANICKED: &str = "panicked";

/// The state of a run, including the model.
pub(crate) struct World<'a> {
    pub(crate) script: &'a Script,
    pub(crate) network: &'a Network,
    pub(crate) ends: Vec<SimQueuePair>,
    pub(crate) hosts: Vec<Host>,
    /// The properties of each link, indexed by sender and receiver.
    pub(crate) links: Vec<Vec<Weather>>,
    /// Whether each device's port is up.
    pub(crate) ports: Vec<bool>,
    /// The number of times that connections were reset and reconnected.
    pub(crate) lives: u32,
    /// The number of the latest message.
    pub(crate) message: u64,
    /// Whether no deliberate fault has happened yet.
    pub(crate) calm: bool,
    /// Whether a link may have duplicated or reordered packets.
    pub(crate) unordered: bool,
    /// The longest time that a packet may have been in flight.
    pub(crate) longest: Duration,
    /// A hash of all completions.
    pub(crate) trace: DefaultHasher,
}

/// Runs a script. A panic is returned as an error, like any other finding.
pub(crate) fn run(script: &Script) -> Outcome<Done> {
    watch::begins(script.seed);
    let network = Network::simulated(script.seed);
    caught(|| {
        // After a panic the world is leaked, because dropping it would panic again.
        let mut world = ManuallyDrop::new(World::new(script, &network));
        let done = world.run();
        // After a failure the world is leaked too: dropping an object that is still in use, such as
        // a queue pair in a group, would panic.
        if done.is_ok() {
            drop(ManuallyDrop::into_inner(world));
        }
        done
    })
}

/// Returns a panic as an error.
pub(crate) fn caught<T>(run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("{PANICKED}: {}", text.unwrap_or("without a message")))
    })
}

impl<'a> World<'a> {
    fn new(script: &'a Script, network: &'a Network) -> Self {
        let settings = &script.settings;
        let weather = settings.weather;
        network.set_all_links(weather.model());
        let hosts: Vec<_> =
            (0..settings.devices).map(|device| Host::new(network, script, device)).collect();
        let mut ends: Vec<_> =
            (0..settings.ends()).map(|end| SimQueuePair::new(&hosts, settings, end)).collect();
        for end in 0..ends.len() {
            host::connect(&hosts, &ends, settings, end, 0);
        }
        find_ways(&hosts, &mut ends);
        let mut world = Self {
            script,
            network,
            ends,
            hosts,
            links: vec![vec![weather; settings.devices]; settings.devices],
            ports: vec![true; settings.devices],
            lives: 0,
            message: 0,
            calm: weather.faults() == 0,
            unordered: weather.duplication + weather.reordering > 0,
            longest: weather.longest(),
            trace: DefaultHasher::new(),
        };
        world.excuse_by_weather();
        world
    }

    fn run(&mut self) -> Outcome<Done> {
        for (n, operation) in self.script.operations.iter().enumerate() {
            if self.script.packets.is_some_and(|most| self.network.packets() >= most) {
                break;
            }
            let done = self.execute(operation);
            done.map_err(|why| format!("at operation {n} ({operation}): {why}"))?;
        }
        self.end()?;
        for end in 0..self.ends.len() {
            self.leave_all(end)?;
        }
        let packets = self.network.packets();
        (self.network.trace(), self.network.now(), packets).hash(&mut self.trace);
        let time = self.network.now();
        Ok(Done { packets, time, trace: self.trace.finish(), ..Done::default() })
    }

    fn execute(&mut self, operation: &Operation) -> Outcome {
        match *operation {
            Operation::Post { end, request } => self.post(end, request),
            Operation::Receive { end, count, elements } => {
                self.receive(end, count, elements);
                Ok(())
            }
            Operation::Pass { nanoseconds } => {
                self.network.run_for(Duration::from_nanos(nanoseconds));
                self.complete()
            }
            Operation::Link { from, to, weather } => {
                self.set_link(from, to, weather);
                Ok(())
            }
            Operation::Port { device, up } => {
                self.set_port(device, up);
                Ok(())
            }
            Operation::Die { device } => {
                self.complete()?;
                self.die(device)
            }
            Operation::Deregister { end } => self.deregister(end),
            Operation::Error { end } => {
                self.set_error(end);
                Ok(())
            }
            Operation::Reconnect { connection } => self.reconnect(connection),
            Operation::Deallocate { end, slot } => {
                self.deallocate_unused(end, slot % SLOTS);
                Ok(())
            }
            Operation::Join { end, group } => self.join(end, group),
            Operation::Leave { end, group } => self.leave(end, group),
        }
    }

    /// Returns the slots of the queue from which a queue pair consumes receives.
    pub(crate) fn pool(&mut self, end: usize) -> &mut Pool {
        let SimQueuePair { device, shares, .. } = self.ends[end];
        if shares { &mut self.hosts[device].shared } else { &mut self.ends[end].pool }
    }

    /// Posts up to `count` receives, as long as there is space.
    pub(crate) fn receive(&mut self, end: usize, count: usize, elements: usize) {
        if self.ends[end].qp.is_none() && !self.ends[end].shares {
            return;
        }
        for _ in 0..count {
            let Some((slot, sges)) = self.pool(end).take(elements) else { return };
            let SimQueuePair { device, shares, qp, .. } = &self.ends[end];
            match (&self.hosts[*device].srq, qp) {
                (Some(srq), _) if *shares => srq.post(SHARED | slot as u64, &sges),
                (_, Some(qp)) => qp.post_receive((end as u64) << 32 | slot as u64, &sges),
                _ => {}
            }
        }
    }

    /// Records which queue pairs have fewer receives than messages that may arrive.
    pub(crate) fn note_starved(&mut self, end: usize) {
        let SimQueuePair { device, shares, .. } = self.ends[end];
        let posted = self.pool(end).posted.len();
        let shares = |n: usize, other: &SimQueuePair| {
            n == end || shares && other.shares && other.device == device
        };
        let ends = self.ends.iter().enumerate();
        let messages: usize = ends
            .filter(|(n, other)| shares(*n, other))
            .map(|(_, other)| other.expected.iter().filter(|it| it.is_awaited()).count())
            .sum();
        if messages > posted {
            let ends = self.ends.iter_mut().enumerate();
            ends.filter(|(n, other)| shares(*n, other)).for_each(|(_, other)| other.starved = true);
        }
    }
}

/// The bit of a WR ID that marks the receives of a shared queue.
pub(crate) const SHARED: u64 = 1 << 63;

/// Creates the address handles of all datagram queue pairs, to each other and to the groups.
fn find_ways(hosts: &[Host], ends: &mut [SimQueuePair]) {
    let datagrams: Vec<_> =
        (0..ends.len()).filter(|&end| ends[end].service == Service::Datagram).collect();
    for &from in &datagrams {
        ends[from].group_ways = groups::ways(hosts, &ends[from]);
        for &to in &datagrams {
            let (Some(own), Some(peer)) = (ends[from].endpoint(hosts), ends[to].endpoint(hosts))
            else {
                continue;
            };
            let way = hosts[ends[from].device].pd.ah_to(&own, &peer);
            ends[from].ways.insert(to, way);
        }
    }
}
