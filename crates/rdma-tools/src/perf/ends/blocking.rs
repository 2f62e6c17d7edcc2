//! Blocking operations on channels. Each channel has its own thread, because its operations block.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use rdma::channel::{Channel, CreateChannel as _, PendingWork, Scope, Wait as Waiting};
use rdma::memory::{AccessFlags, RemoteMemoryRegion, ScatterElement, SharedElement, SharedRegion};
use rdma::qp::{
    AtomicWorkRequest, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest,
};

use crate::perf::ends::memory::{Target, access};
use crate::perf::ends::{End, Path, Peer, Plan, Ready, Role};
use crate::perf::protocol::PATIENCE;
use crate::perf::samples::Samples;
use crate::perf::settings::{Operation, Settings, Wait};
use crate::perf::watch::Watch;

/// A set of connected channels.
struct Channels {
    channels: Vec<Channel>,
    messages: Messages,
}

/// The memory and the settings that the operations of all channels use.
struct Messages {
    source: SharedRegion,
    /// The memory that all receives and reads write to. They may overlap, because no code uses the
    /// bytes.
    sink: SharedRegion,
    remote: RemoteMemoryRegion,
    operation: Operation,
    has_receives: bool,
    receives: usize,
}

pub(super) fn connect<'m>(
    peer: &mut Peer<'_>,
    target: &Target,
) -> anyhow::Result<(Box<dyn End + 'm>, Path)> {
    let Settings { queue_pairs, depth, operation, wait, .. } = *peer.settings;
    let (has_receives, longest) = (peer.settings.has_receives(), peer.settings.longest() as usize);
    let receives = if has_receives { peer.settings.receives() } else { 1 };
    let prepare = |_| {
        let builder = peer.pd.create_channel().max_send_wr(depth).max_recv_wr(receives);
        let waiting = if wait == Wait::Sleep { Waiting::Sleep } else { Waiting::Spin };
        let builder = builder.access(access(operation)).gid_choice(peer.gid_choice());
        let builder = builder.wait(waiting).receive_timeout(PATIENCE);
        let stream = peer.control.stream().try_clone()?;
        anyhow::Ok(builder.watch_stream(stream, PATIENCE).build()?)
    };
    let prepared = (0..queue_pairs).map(prepare).collect::<Result<Vec<_>, _>>()?;
    let local = AccessFlags::new().with_local_write();
    let source = peer.pd.allocate_shared_region(longest, local)?;
    let sink = peer.pd.allocate_shared_region(longest, local)?;
    let met = peer.meet(prepared, target)?;
    let receives = receives as usize;
    let remote = met.remote;
    let messages = Messages { source, sink, remote, operation, has_receives, receives };
    let channels = met.connections;
    Ok((Box::new(Channels { channels, messages }), Path { mtu: met.mtu, is_ordered: true }))
}

impl End for Channels {
    fn client(
        &mut self,
        plan: &Plan,
        watch: &mut Watch,
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        let Self { channels, messages } = self;
        match plan.role {
            Role::PingPong => {
                let first = channels.first_mut().context("no channel")?;
                samples.start();
                messages
                    .ping_pong(first, plan, watch, true, &mut || Ok(()), || samples.round_trip())
            }
            Role::Requests => {
                let first = channels.first_mut().context("no channel")?;
                samples.start();
                first.manual_scope(|scope| {
                    for _ in 0..plan.iterations {
                        watch.interruption()?;
                        messages.post(scope, plan.bytes)?.wait(PATIENCE)?;
                        samples.request();
                    }
                    Ok(())
                })
            }
            Role::Stream => {
                let begin = Instant::now();
                let stream =
                    |channel: &mut Channel, count, _| messages.stream(channel, plan, count, watch);
                each(channels, plan, stream, &mut || Ok(()))?;
                samples.stream(plan.iterations, begin.elapsed());
                Ok(())
            }
        }
    }

    fn server(&mut self, plan: &Plan, watch: &mut Watch, ready: Ready<'_>) -> anyhow::Result<()> {
        let Self { channels, messages } = self;
        match plan.role {
            Role::PingPong => {
                let first = channels.first_mut().context("no channel")?;
                messages.ping_pong(first, plan, watch, false, ready, || {})
            }
            Role::Stream if messages.has_receives => {
                let receive = |channel: &mut Channel, count, posted: mpsc::Sender<()>| {
                    messages.receive(channel, plan, count, watch, &posted)
                };
                each(channels, plan, receive, ready)
            }
            Role::Stream | Role::Requests => ready(),
        }
    }
}

/// Runs `work` for each channel in a separate thread, with the channel's share of the operations.
/// Calls `ready` once every thread has sent its signal or ended, but not if no thread has sent one.
fn each(
    channels: &mut [Channel],
    plan: &Plan,
    work: impl Fn(&mut Channel, u64, mpsc::Sender<()>) -> anyhow::Result<()> + Sync,
    ready: Ready<'_>,
) -> anyhow::Result<()> {
    let (queue_pairs, work) = (plan.queue_pairs as u64, &work);
    thread::scope(|threads| {
        let (sender, posted) = mpsc::channel();
        let start = |(index, channel)| {
            let share = plan.iterations / queue_pairs
                + u64::from((index as u64) < plan.iterations % queue_pairs);
            let sender = sender.clone();
            threads.spawn(move || work(channel, share, sender))
        };
        let running: Vec<_> =
            channels.iter_mut().take(plan.queue_pairs).enumerate().map(start).collect();
        drop(sender);
        // A thread that fails sends no signal. Its error is returned below.
        let words = posted.iter().take(running.len()).count();
        let began = if words > 0 { ready() } else { Ok(()) };
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
        };
        running.into_iter().map(join).fold(began, Result::and)
    })
}

impl Messages {
    fn element<'m>(region: &'m SharedRegion, bytes: usize) -> anyhow::Result<SharedElement<'m>> {
        Ok(region.element(0..bytes)?)
    }

    fn post<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        bytes: usize,
    ) -> anyhow::Result<PendingWork<'s>> {
        let (source, sink) =
            (Self::element(&self.source, bytes)?, Self::element(&self.sink, bytes)?);
        let remote = || self.remote.slice(0..bytes).context("the peer lends too few bytes");
        Ok(match self.operation {
            Operation::Send => scope.post_send(SendWorkRequest::new(&[source.into()])),
            Operation::Write => {
                let data = [source.into()];
                let request = WriteWorkRequest::new(&data, remote()?);
                let request = if self.has_receives { request.with_immediate(0) } else { request };
                scope.post_write(request)
            }
            Operation::Read => scope.post_read(ReadWorkRequest::new(&mut [sink.into()], remote()?)),
            Operation::Atomic => {
                let mut before = ScatterElement::from(sink);
                scope.post_atomic(AtomicWorkRequest::fetch_and_add(&mut before, remote()?, 1))
            }
        }?)
    }

    fn post_receive<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        bytes: usize,
    ) -> anyhow::Result<PendingWork<'s>> {
        let sink = Self::element(&self.sink, bytes)?;
        Ok(scope.post_receive(ReceiveWorkRequest::new(&mut [sink.into()]))?)
    }

    /// Takes turns with the peer in sending a message and waiting for one. The end that `begins`
    /// sends first. The receive for the peer's next message is posted before this end sends.
    fn ping_pong(
        &self,
        channel: &mut Channel,
        plan: &Plan,
        watch: &Watch,
        begins: bool,
        ready: Ready<'_>,
        mut round_trip: impl FnMut(),
    ) -> anyhow::Result<()> {
        channel.manual_scope(|scope| {
            let mut next = Some(self.post_receive(scope, plan.bytes)?);
            ready()?;
            for left in (0..plan.iterations).rev() {
                watch.interruption()?;
                if begins {
                    self.post(scope, plan.bytes)?.wait(PATIENCE)?;
                }
                next.take().context("no receive")?.wait(PATIENCE)?;
                if left > 0 {
                    next = Some(self.post_receive(scope, plan.bytes)?);
                }
                round_trip();
                if !begins {
                    self.post(scope, plan.bytes)?.wait(PATIENCE)?;
                }
            }
            Ok(())
        })
    }

    /// Posts `count` requests, and keeps `depth` of them outstanding.
    fn stream(
        &self,
        channel: &mut Channel,
        plan: &Plan,
        count: u64,
        watch: &Watch,
    ) -> anyhow::Result<()> {
        channel.manual_scope(|scope| {
            let mut flight = VecDeque::with_capacity(plan.depth);
            for _ in 0..count {
                watch.interruption()?;
                if flight.len() == plan.depth {
                    finish(&mut flight)?;
                }
                flight.push_back(self.post(scope, plan.bytes)?);
            }
            while !flight.is_empty() {
                finish(&mut flight)?;
            }
            Ok(())
        })
    }

    /// Receives `count` messages. Sends a signal once the first receives are posted.
    fn receive(
        &self,
        channel: &mut Channel,
        plan: &Plan,
        count: u64,
        watch: &Watch,
        posted: &mpsc::Sender<()>,
    ) -> anyhow::Result<()> {
        channel.manual_scope(|scope| {
            let mut flight = VecDeque::with_capacity(self.receives);
            let mut unposted = count;
            while unposted > 0 && flight.len() < self.receives {
                flight.push_back(self.post_receive(scope, plan.bytes)?);
                unposted -= 1;
            }
            posted.send(())?;
            while !flight.is_empty() {
                watch.interruption()?;
                finish(&mut flight)?;
                if unposted > 0 {
                    flight.push_back(self.post_receive(scope, plan.bytes)?);
                    unposted -= 1;
                }
            }
            Ok(())
        })
    }
}

/// Waits until the oldest operation in flight has completed.
fn finish(flight: &mut VecDeque<PendingWork<'_>>) -> anyhow::Result<()> {
    if let Some(oldest) = flight.pop_front() {
        oldest.wait(PATIENCE)?;
    }
    Ok(())
}
