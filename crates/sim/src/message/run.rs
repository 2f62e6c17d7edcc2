//! Executes a script of messages and streams, and checks the results.

use std::sync::Arc;
use std::time::Duration;

use rdma_async::message::{Messages, Options, Stream};
use rdma_async::{Driver, Pool};
use rdma_mem::{BufferPool, open_device};
use rdma_qp::prelude::*;
use rdma_soft::{Builder, Link, Network, Schedule, SoftDevice};
use rdma_types::{AckTimeout, MaxAckRetries};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::end::{self, End, Gate, Started};
use super::hostile;
use super::model::{Model, Shared};
use super::script::{By, Limits, Operation, Script, Settings};
use crate::campaign::Done;
use crate::faults::may_give_up;
use crate::run::{Outcome, caught, ensure};
use crate::script::Weather;
use crate::watch;

/// Runs a script.
pub(crate) fn run(script: &Script) -> Outcome<Done> {
    watch::begins(script.seed);
    let network = Arc::new(Network::simulated(script.seed));
    caught(|| {
        network.block_on(async {
            let mut world = World::new(script, &network).await;
            world.run().await
        })
    })
}

/// A device, and what its ends share.
pub(super) struct Host {
    soft: SoftDevice,
    driver: Driver,
    pub(super) pool: Pool,
    /// The memory of the frames of hostile ends, whose number has no limit.
    pub(super) of_hostile: BufferPool,
    /// The number of the pool's regions at the start.
    regions: usize,
}

pub(super) struct World<'a> {
    pub(super) script: &'a Script,
    network: &'a Network,
    pub(super) hosts: Vec<Host>,
    pub(super) ends: Vec<End>,
    links: Vec<Vec<Weather>>,
    pub(super) model: Shared,
}

/// The time after which an operation must have ended if nothing is lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time after which the connection of an end that was dropped must have ended: more than the default of
/// [`Options::linger`].
const LINGER: Duration = Duration::from_secs(6);
/// The number of receives that a hostile end posts.
const RING: usize = 4;

impl Host {
    fn new(network: &Network, script: &Script, device: usize) -> Self {
        let Script { seed, settings, .. } = script;
        let name = format!("mail-{seed:x}-{device}");
        let schedule = Schedule::Deferred { seed: seed.wrapping_add(device as u64) };
        let schedule = if settings.deferred { schedule } else { Schedule::Immediate };
        let link = if settings.infiniband { Link::InfiniBand } else { Link::Ethernet };
        let builder = Builder::new(&name).network(network).link(link).schedule(schedule);
        let soft = builder.install().unwrap();
        let context = open_device(&name).unwrap();
        let driver = Driver::spawn(&context).unwrap();
        let bytes = memory_of(script, device) + Options::new().registered_bytes();
        let pd = context.allocate_pd().unwrap();
        let pool = BufferPool::with_read_windows(&pd, bytes);
        // The pool must not grow later.
        pool.grow(bytes).unwrap();
        let regions = pool.usage().regions;
        let of_hostile = BufferPool::new(&pd);
        Self { soft, driver, pool: pool.into(), of_hostile, regions }
    }
}

/// Returns the memory that the ends of a device need. Counts each message as if it were
/// posted: a posted message is copied until it is sent.
fn memory_of(script: &Script, device: usize) -> usize {
    let Script { settings, operations, .. } = script;
    let device_of = |end: usize| settings.connections[end / 2].devices[end % 2];
    let copies = operations.iter().map(|operation| match *operation {
        Operation::Send { end, length, .. } if device_of(end) == device => length,
        _ => 0,
    });
    let ends = settings.connections.iter().flat_map(|it| it.devices.iter().zip(&it.limits));
    let ends = ends.filter(|(of, _)| **of == device).map(|(_, limits)| limits);
    let each = ends.map(|limits| {
        let lent = (limits.offer_bytes + limits.fetch_bytes + 2 * limits.window_bytes) as usize;
        limits.options().registered_bytes() + lent + (4 << 20)
    });
    2 * (each.sum::<usize>() + copies.sum::<usize>()) + (1 << 20)
}

impl<'a> World<'a> {
    async fn new(script: &'a Script, network: &'a Arc<Network>) -> Self {
        let settings = &script.settings;
        let hosts: Vec<_> =
            (0..settings.devices).map(|device| Host::new(network, script, device)).collect();
        network.set_all_links(settings.weather.model());
        let model = Shared::new(script, network);
        let links = vec![vec![settings.weather; settings.devices]; settings.devices];
        let mut world = Self { script, network, hosts, ends: Vec::new(), links, model };
        for connection in 0..settings.connections.len() {
            world.connect(connection).await;
        }
        world.break_by_weather();
        // A message that waits for the peer's first frame begins later than others.
        for end in 0..world.ends.len() {
            world.send(end, 8, By::Send);
        }
        for Started { task, .. } in world.ends.iter_mut().flat_map(|end| &mut end.operations) {
            let _ = timeout(PATIENCE, task).await;
        }
        // An end that leaves must drop the unfinished ones.
        for end in &mut world.ends {
            end.operations.retain(|started| !started.task.is_finished());
        }
        world
    }

    async fn connect(&mut self, connection: usize) {
        let Settings { connections, timeout, retries, .. } = &self.script.settings;
        let connection = &connections[connection];
        let options = connection.limits.each_ref().map(|limits| limits.options());
        let prepare = |n: usize| {
            let Host { driver, pool, .. } = &self.hosts[connection.devices[n]];
            let qp = options[n].fit(pool.as_blocking().pd().create_qp());
            let qp = qp.ack_timeout(AckTimeout::limited(*timeout).unwrap());
            driver.prepare(qp.max_ack_retries(MaxAckRetries::limited(*retries).unwrap())).unwrap()
        };
        let prepared = [prepare(0), prepare(1)];
        let endpoints = prepared.each_ref().map(|end| end.endpoint());
        for (n, prepared) in prepared.into_iter().enumerate() {
            let number = self.ends.len();
            let connected = prepared.handshake(endpoints[1 - n]).unwrap();
            let pool = &self.hosts[connection.devices[n]].pool;
            let (gate, model) = (Gate::new(), self.model.clone());
            let (shared, own) = (Arc::clone(&gate), connected.clone());
            let mut messages = None;
            let tasks = if n == 1 && connection.is_hostile {
                let pool = pool.as_blocking();
                let length = connection.limits[n].frame_bytes as usize;
                let buffers = (0..RING).map(|_| pool.allocate(length).unwrap()).collect();
                vec![tokio::spawn(end::endure(own, buffers, shared))]
            } else if connection.is_stream {
                let stream = Stream::new(own, pool, options[n]).await.unwrap();
                let (reader, writer) = stream.into_split();
                let reads = end::read(number, reader, Arc::clone(&gate), model.clone());
                let writes = end::write(number, writer, connected.clone(), shared, model);
                vec![tokio::spawn(reads), tokio::spawn(writes)]
            } else {
                let mail = Arc::new(Messages::new(own, pool, options[n]).await.unwrap());
                messages = Some(Arc::clone(&mail));
                vec![tokio::spawn(end::receive(number, mail, shared, model))]
            };
            let operations = Vec::new();
            self.ends.push(End { connection: connected, messages, gate, tasks, operations });
        }
        if connection.is_hostile {
            let hello = self.send_frame(self.ends.len() - 1, &hostile::hello(connection));
            tokio::spawn(hello.expect("the pool has memory"));
        }
    }

    async fn run(&mut self) -> Outcome<Done> {
        for (n, operation) in self.script.operations.iter().enumerate() {
            self.execute(*operation).await;
            let checked = self.model.lock().check();
            checked.map_err(|why| format!("at operation {n} ({operation:?}): {why}"))?;
        }
        self.end().await.map_err(|why| format!("at the end: {why}"))?;
        let (packets, time) = (self.network.packets(), self.network.now());
        let mut model = self.model.lock();
        model.check().map_err(|why| format!("at the end: {why}"))?;
        let trace = model.trace();
        let Model { messages, bytes, stream_bytes, .. } = *model;
        Ok(Done { packets, time, trace, messages, bytes, stream_bytes })
    }

    async fn execute(&mut self, operation: Operation) {
        match operation {
            Operation::Send { end, length, by } => self.send(end, length, by),
            Operation::Frame { end, seed } => self.frame(end, seed),
            Operation::Call { end, length } => self.call(end, length),
            Operation::Answer { end, nth, length } => self.answer(end, nth, length),
            Operation::Cancel { end, nth } => self.cancel(end, nth),
            Operation::Receive { end, count } => self.ends[end].gate.receives.add_permits(count),
            Operation::Keep { end, count } => self.ends[end].gate.keep(count),
            Operation::Interrupt { end } => self.ends[end].gate.interrupt(),
            Operation::Write { end, length } => self.ends[end].gate.writes.add_permits(length),
            Operation::Flush { end, exits } => self.flush(end, exits),
            Operation::Finish { end, exits } => self.finish(end, exits),
            Operation::Leave { end } => self.leave(end),
            Operation::Kill { end } => self.kill(end),
            Operation::Pass { nanoseconds } => {
                self.network.sleep(Duration::from_nanos(nanoseconds)).await;
            }
            Operation::Link { from, to, weather } => {
                let (a, b) = (&self.hosts[from].soft, &self.hosts[to].soft);
                self.network.set_link(a, b, weather.model()).unwrap();
                self.links[from][to] = weather;
                self.break_by_weather();
            }
            Operation::Blink { from, to, nanoseconds } => {
                let settings = &self.script.settings;
                for (n, connection) in settings.connections.iter().enumerate() {
                    if settings.retries < 7 && connection.devices.contains(&from) {
                        self.model.lock().break_connection(n);
                    }
                }
                let set = |weather: Weather| {
                    let (a, b) = (&self.hosts[from].soft, &self.hosts[to].soft);
                    self.network.set_link(a, b, weather.model()).unwrap();
                };
                set(Weather::CUT);
                self.network.sleep(Duration::from_nanos(nanoseconds)).await;
                set(self.links[from][to]);
            }
            Operation::Port { device, up } => {
                for (n, connection) in self.script.settings.connections.iter().enumerate() {
                    if connection.devices.contains(&device) {
                        self.model.lock().break_connection(n);
                    }
                }
                self.hosts[device].soft.set_port_up(up);
            }
        }
    }

    /// Records the connections that may fail because of their links.
    fn break_by_weather(&mut self) {
        let Settings { connections, timeout, retries, .. } = &self.script.settings;
        for (n, connection) in connections.iter().enumerate() {
            let [a, b] = connection.devices;
            if may_give_up([self.links[a][b], self.links[b][a]], *timeout, *retries) {
                self.model.lock().break_connection(n);
            }
        }
    }

    /// Lets everything end, and checks that it does.
    async fn end(&mut self) -> Outcome {
        self.linger().await?;
        for (n, End { gate, .. }) in self.ends.iter().enumerate() {
            if self.script.settings.is_hostile(n) {
                continue;
            }
            gate.receives.add_permits(Semaphore::MAX_PERMITS / 2);
            // A wait for messages goes on, because a new one would process what the old one does not.
            if let Some(most) = self.most_kept(n) {
                gate.keep(most);
                gate.interrupt();
            }
        }
        self.provoke().await?;
        let until = self.network.now() + PATIENCE;
        let shortest = Duration::from_micros(10);
        let mut pause = shortest;
        while let Some(end) = (0..self.ends.len()).find(|&end| self.is_busy(end)) {
            let is_late = self.network.now() >= until;
            ensure!(!is_late, "e{end} does not end: {}", self.left(end));
            for end in 0..self.ends.len() {
                while !self.ends[end].gate.requests.lock().expect("no panic").is_empty() {
                    self.answer(end, 0, Some(8));
                    // The peer may now send the next request.
                    pause = shortest;
                }
            }
            self.network.sleep(pause).await;
            pause = pause.mul_f64(1.1);
            self.model.lock().check()?;
        }
        for End { gate, .. } in &self.ends {
            gate.keep(0);
            gate.interrupt();
        }
        (0..self.ends.len()).for_each(|end| self.finish(end, false));
        self.join().await?;
        self.model.lock().check()?;
        self.release().await
    }

    /// Checks that a connection whose end was dropped does not wait for its peer without a limit.
    async fn linger(&self) -> Outcome {
        let has_left = |end: &usize| self.model.lock().end(*end).has_left;
        let left: Vec<_> = (0..self.ends.len()).filter(has_left).collect();
        if !left.is_empty() {
            self.network.sleep(LINGER).await;
        }
        for end in left {
            ensure!(self.ends[end].connection.closed().is_some(), "e{end} has left, and lingers");
        }
        Ok(())
    }

    /// Sends bytes that are no frame from each hostile end. The connection of a peer that has them must end.
    async fn provoke(&self) -> Outcome {
        for end in (0..self.ends.len()).filter(|&end| self.script.settings.is_hostile(end)) {
            self.ends[end].gate.receives.close();
            let Some(sending) = self.send_frame(end, b"not a frame") else { continue };
            let sending = tokio::spawn(sending);
            // An end that has left has no tasks.
            let receiver = self.ends[end - 1].tasks.first();
            let has_ended = || receiver.is_none_or(JoinHandle::is_finished);
            self.rouse(end - 1, || sending.is_finished() || has_ended()).await;
            if sending.is_finished() && sending.await.is_ok_and(|has_arrived| has_arrived) {
                self.rouse(end - 1, has_ended).await;
                ensure!(has_ended(), "e{} accepts what is not a frame", end - 1);
            }
        }
        Ok(())
    }

    /// Lets an end process what arrives until the condition holds. The frames of a hostile end wake no task, because
    /// they are not solicited.
    async fn rouse(&self, end: usize, is_over: impl Fn() -> bool) {
        let until = self.network.now() + PATIENCE;
        while !is_over() && self.network.now() < until {
            self.ends[end].gate.interrupt();
            self.network.sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the number of chunks that the reader of a stream can keep without stopping its peer, or `None` for
    /// messages.
    fn most_kept(&self, end: usize) -> Option<usize> {
        let connection = &self.script.settings.connections[end / 2];
        let Limits { receives, frame_bytes, window_bytes, .. } = connection.limits[end % 2];
        // The reader has one more chunk, and the peer needs memory for the next one.
        let most = receives.min(window_bytes / frame_bytes).saturating_sub(2);
        connection.is_stream.then_some(most as usize)
    }

    /// Returns true if an end has operations that must end without further help.
    fn is_busy(&self, end: usize) -> bool {
        if self.model.lock().may_end(end) {
            return false;
        }
        let End { gate, operations, .. } = &self.ends[end];
        gate.writes.available_permits() > 0 && !gate.writes.is_closed()
            || operations.iter().any(|started| !started.task.is_finished())
    }

    fn left(&self, end: usize) -> String {
        let End { gate, operations, .. } = &self.ends[end];
        let left = operations.iter().filter(|started| !started.task.is_finished());
        let left: Vec<_> = left.map(|started| started.number).collect();
        format!("operations {left:?}, {} bytes", gate.writes.available_permits())
    }

    /// Waits for the ends of all tasks. An end that waits for messages of a dead peer never learns of its
    /// death, so it is killed after some time.
    async fn join(&mut self) -> Outcome {
        for is_last in [false, true] {
            let until = self.network.now() + PATIENCE;
            for end in 0..self.ends.len() {
                let End { tasks, operations, .. } = &mut self.ends[end];
                let started = operations.iter_mut().map(|started| &mut started.task);
                for task in tasks.iter_mut().chain(started) {
                    if task.is_finished() && is_last {
                        continue;
                    }
                    let left = until.saturating_sub(self.network.now());
                    match timeout(left, &mut *task).await {
                        Ok(Err(error)) if error.is_panic() => {
                            std::panic::resume_unwind(error.into_panic());
                        }
                        Err(_) if is_last => return Err(format!("e{end}: a task hangs")),
                        _ => {}
                    }
                }
            }
            let busy = |end: &End| {
                let started = end.operations.iter().map(|started| &started.task);
                end.tasks.iter().chain(started).any(|task| !task.is_finished())
            };
            let busy: Vec<_> = (0..self.ends.len()).filter(|&end| busy(&self.ends[end])).collect();
            for end in busy {
                let is_excused = self.model.lock().is_broken(end);
                ensure!(is_excused, "e{end} hangs: {}", self.left(end));
                self.kill(end);
            }
        }
        Ok(())
    }

    /// Drops everything, and checks that no memory is in use.
    async fn release(&mut self) -> Outcome {
        self.ends.clear();
        // A connection that was dropped may linger.
        sleep(PATIENCE).await;
        for (n, host) in self.hosts.drain(..).enumerate() {
            host.driver.shutdown().await;
            let usage = host.pool.usage();
            ensure!(usage.buffers == 0, "d{n} has {} buffers in use", usage.buffers);
            ensure!(usage.regions == host.regions, "the pool of d{n} has grown");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::script::Connection;
    use crate::script::ALWAYS;

    /// A script for two devices with a connection for messages, on a link without faults.
    fn script_of(calls: u32, operations: Vec<Operation>) -> Script {
        let limits = Limits {
            receives: 8,
            sends: 8,
            frame_bytes: 1_024,
            window_bytes: 8_192,
            max_message: 10_000,
            eager_bytes: 1_024,
            offer_bytes: 0,
            fetch_bytes: 0,
            operations: 200,
            calls,
        };
        let limits = [limits.clone(), limits];
        let settings = Settings {
            devices: 2,
            infiniband: false,
            deferred: false,
            weather: Weather::CLEAR,
            timeout: 14,
            retries: 7,
            connections: vec![Connection {
                devices: [0, 1],
                is_stream: false,
                is_hostile: false,
                limits,
            }],
        };
        // The devices are named after the seed, so each test has its own.
        Script { seed: calls.into(), settings, operations }
    }

    #[test]
    fn many_calls_end_although_the_peer_accepts_one_at_a_time() {
        run(&script_of(1, vec![Operation::Call { end: 0, length: 100 }; 150])).unwrap();
    }

    /// An end sends no message before the first frame of its peer. For some of these seeds, only that frame is lost, so
    /// the end waits for a dead peer.
    #[test]
    fn an_end_that_waits_for_a_dead_peer_can_leave() {
        for seed in 0..40 {
            let mut script = script_of(2, vec![Operation::Leave { end: 0 }]);
            script.seed += seed << 32;
            script.settings.retries = 0;
            script.settings.weather.loss = ALWAYS / 2;
            run(&script).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
    }

    /// The acknowledgement of a request is lost, and the reply arrives before it is repeated.
    #[test]
    fn a_call_ends_although_its_reply_arrives_before_the_acknowledgement() {
        let link = |weather| Operation::Link { from: 1, to: 0, weather };
        let operations = vec![
            // The first message is that of the start.
            Operation::Receive { end: 1, count: 2 },
            Operation::Pass { nanoseconds: 1_000_000 },
            Operation::Call { end: 0, length: 100 },
            link(Weather::CUT),
            Operation::Pass { nanoseconds: 20_000 },
            link(Weather::CLEAR),
            Operation::Answer { end: 1, nth: 0, length: Some(8) },
        ];
        let script = script_of(8, operations);
        let network = Arc::new(Network::simulated(script.seed));
        network.block_on(async {
            let mut world = World::new(&script, &network).await;
            for operation in &script.operations {
                world.execute(*operation).await;
            }
            let [call] = &mut world.ends[0].operations[..] else { panic!("a pending call") };
            timeout(PATIENCE, &mut call.task).await.expect("it ends").unwrap();
            world.model.lock().check().unwrap();
            assert_eq!(world.model.lock().messages, 3, "two messages and a reply");
        });
    }
}
