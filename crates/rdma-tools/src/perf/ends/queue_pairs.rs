//! Work requests that are posted on queue pairs.
#![allow(unsafe_code)]

use std::array;
use std::cell::Cell;
use std::mem;
use std::slice;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::Context as _;
use rdma::memory::{InlineElement, RemoteMemoryRegion, ScatterElement};
use rdma::qp::{
    AtomicWorkRequest, CompletionChannel, CompletionQueue, CreateQueuePair as _, PollSlot,
    QueuePair, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WcOpcode, WriteWorkRequest,
};

use crate::perf::ends::memory::{Memory, Source, Target, access, byte};
use crate::perf::ends::{End, Path, Peer, Plan, Ready, Role};
use crate::perf::samples::Samples;
use crate::perf::settings::{Operation, Settings, Wait};
use crate::perf::watch::Watch;

/// The maximum number of completions per poll.
const POLLED: usize = 16;
/// The bit of a WR ID that marks receives. The other bits are the index of the queue pair.
const RECEIVE: u64 = 1 << 63;

/// Connected queue pairs. They borrow memory that outlives them.
struct QueuePairs<'m> {
    queue_pairs: Vec<QueuePair>,
    cq: CompletionQueue,
    slots: [Cell<PollSlot>; POLLED],
    source: &'m mut Source,
    sinks: Vec<ScatterElement<'m>>,
    target: &'m Target,
    remote: RemoteMemoryRegion,
    operation: Operation,
    wait: Wait,
    has_receives: bool,
    inline: usize,
    /// The number of requests in flight on the send queues.
    sends: u64,
    /// The number of messages that have arrived but were not yet waited for.
    arrived: u64,
    /// The queue pairs whose receives were consumed and must be reposted, by index.
    used: Vec<usize>,
    /// The queue pairs whose requests have completed, by index. A queue pair is listed once for
    /// each request.
    finished: Vec<usize>,
}

pub(super) fn connect<'m>(
    peer: &mut Peer<'_>,
    memory: &'m mut Memory,
    target: &'m Target,
) -> anyhow::Result<(Box<dyn End + 'm>, Path)> {
    let Settings { queue_pairs, depth, inline, operation, wait, .. } = *peer.settings;
    let has_receives = peer.settings.has_receives();
    let receives = if has_receives { peer.settings.receives() } else { 1 };
    let completions = depth.checked_add(receives).and_then(|sum| sum.checked_mul(queue_pairs));
    let completions = completions.context("too many requests for a completion queue")?;
    let context = peer.pd.context();
    let channel = match wait {
        Wait::Sleep => Some(CompletionChannel::create(context)?),
        Wait::Poll | Wait::Memory => None,
    };
    let cq = CompletionQueue::builder(context);
    let cq = match &channel {
        Some(channel) => cq.channel(channel),
        None => cq,
    };
    let cq = cq.build(completions)?;
    let prepare = |_| {
        let builder = peer.pd.create_qp().send_cq(&cq).recv_cq(&cq).access(access(operation));
        let builder = builder.max_send_wr(depth).max_recv_wr(receives).max_inline_data(inline);
        builder.max_send_sge(1).max_recv_sge(1).gid_choice(peer.gid_choice()).build()
    };
    let prepared = (0..queue_pairs).map(prepare).collect::<Result<Vec<_>, _>>()?;
    let Memory { source, sinks } = memory;
    let sinks = sinks.iter_mut().map(|sink| sink.element()).collect::<Result<_, _>>()?;
    let met = peer.meet(prepared, target)?;
    let first = met.connections.first().context("no queue pair")?;
    let is_ordered = first.data_order(WcOpcode::RDMA_WRITE)?.whole_message;
    let mut end = QueuePairs {
        queue_pairs: met.connections,
        cq,
        slots: array::from_fn(|_| Cell::default()),
        source,
        sinks,
        target,
        remote: met.remote,
        operation,
        wait,
        has_receives,
        inline: inline as usize,
        sends: 0,
        arrived: 0,
        used: Vec::new(),
        finished: Vec::new(),
    };
    if has_receives {
        for index in 0..end.queue_pairs.len() {
            (0..receives).try_for_each(|_| end.receive(index))?;
        }
    }
    Ok((Box::new(end), Path { mtu: met.mtu, is_ordered }))
}

impl End for QueuePairs<'_> {
    fn client(
        &mut self,
        plan: &Plan,
        watch: &mut Watch,
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        watch.begin();
        match plan.role {
            Role::PingPong => {
                self.clear(plan);
                samples.start();
                self.ping_pong(plan, true, watch, || samples.round_trip())
            }
            Role::Requests => {
                samples.start();
                for _ in 0..plan.iterations {
                    watch.interruption()?;
                    self.post(0, plan)?;
                    self.complete(watch)?;
                    samples.request();
                }
                Ok(())
            }
            Role::Stream => {
                let begin = Instant::now();
                self.stream(plan, watch)?;
                samples.stream(plan.iterations, begin.elapsed());
                Ok(())
            }
        }
    }

    fn server(&mut self, plan: &Plan, watch: &mut Watch, ready: Ready<'_>) -> anyhow::Result<()> {
        self.clear(plan);
        ready()?;
        watch.begin();
        match plan.role {
            Role::PingPong => self.ping_pong(plan, false, watch, || {}),
            Role::Stream if self.has_receives => {
                let mut left = plan.iterations;
                while left > 0 {
                    self.progress(watch)?;
                    left = left.saturating_sub(mem::take(&mut self.arrived));
                    self.replenish()?;
                }
                Ok(())
            }
            Role::Stream | Role::Requests => Ok(()),
        }
    }
}

impl QueuePairs<'_> {
    /// Clears the byte that a ping-pong waits for. Without this, a value from an earlier block
    /// could be mistaken for the first message.
    fn clear(&self, plan: &Plan) {
        if let (Wait::Memory, Some(word)) = (self.wait, self.target.word(plan.bytes - 1)) {
            word.store(0, Ordering::Release);
        }
    }

    /// Takes turns with the peer in sending a message and waiting for one. The end that `begins`
    /// sends first.
    fn ping_pong(
        &mut self,
        plan: &Plan,
        begins: bool,
        watch: &mut Watch,
        mut round_trip: impl FnMut(),
    ) -> anyhow::Result<()> {
        for n in 0..plan.iterations {
            watch.interruption()?;
            // The mark is never 0, because the memory is initially 0.
            let mark = u8::try_from(n % 255 + 1)?;
            if begins {
                self.send_marked(mark, plan, watch)?;
            }
            self.arrival(mark, plan, watch)?;
            round_trip();
            if !begins {
                self.send_marked(mark, plan, watch)?;
            }
        }
        self.complete(watch)
    }

    fn send_marked(&mut self, mark: u8, plan: &Plan, watch: &mut Watch) -> anyhow::Result<()> {
        self.complete(watch)?; // the previous request still uses the memory and a slot
        self.source.set(plan.bytes - 1, mark);
        self.post(0, plan)?;
        self.replenish()
    }

    /// Waits until the peer's next message has arrived.
    fn arrival(&mut self, mark: u8, plan: &Plan, watch: &mut Watch) -> anyhow::Result<()> {
        if self.wait == Wait::Memory {
            let last = plan.bytes - 1;
            let word = self.target.word(last).context("a message is longer than the memory")?;
            while byte(word, last) != Some(mark) {
                watch.idle()?;
            }
            watch.begin();
            return Ok(());
        }
        while self.arrived == 0 {
            self.progress(watch)?;
        }
        self.arrived -= 1;
        Ok(())
    }

    /// Posts the block's requests, and keeps `depth` of them outstanding on each queue pair.
    fn stream(&mut self, plan: &Plan, watch: &mut Watch) -> anyhow::Result<()> {
        let (mut unposted, mut finished) = (plan.iterations, Vec::with_capacity(POLLED));
        for _ in 0..plan.depth {
            for index in 0..plan.queue_pairs {
                if unposted > 0 {
                    unposted -= 1;
                    self.post(index, plan)?;
                }
            }
        }
        while self.sends > 0 {
            watch.interruption()?;
            self.progress(watch)?;
            mem::swap(&mut finished, &mut self.finished);
            for index in finished.drain(..) {
                if unposted > 0 {
                    unposted -= 1;
                    self.post(index, plan)?;
                }
            }
        }
        Ok(())
    }

    /// Waits until no send request is in flight.
    fn complete(&mut self, watch: &mut Watch) -> anyhow::Result<()> {
        while self.sends > 0 {
            self.progress(watch)?;
        }
        self.finished.clear();
        Ok(())
    }

    /// Polls. If nothing has completed, spins once or, with a completion channel, sleeps until an
    /// event or for [`Watch::INTERVAL`].
    #[inline]
    fn progress(&mut self, watch: &mut Watch) -> anyhow::Result<()> {
        let mut count = self.cq.poll_into(&self.slots)?;
        if let (0, Some(channel)) = (count, self.cq.channel()) {
            self.cq.req_notify(false)?;
            count = self.cq.poll_into(&self.slots)?; // completions before the call send no event
            if count == 0 {
                channel.get_event_timeout(Watch::INTERVAL)?;
                return Ok(watch.check()?);
            }
        }
        if count == 0 {
            return Ok(watch.idle()?);
        }
        watch.begin();
        for slot in self.slots.iter().take(count) {
            let completion = slot.get().last();
            completion.result()?;
            let (id, index) = (completion.wr_id(), completion.wr_id() & !RECEIVE);
            let index = usize::try_from(index)?;
            if id & RECEIVE == 0 {
                self.sends -= 1;
                self.finished.push(index);
            } else {
                self.arrived += 1;
                self.used.push(index);
            }
        }
        Ok(())
    }

    /// Reposts the receives that messages have consumed.
    #[inline]
    fn replenish(&mut self) -> anyhow::Result<()> {
        while let Some(index) = self.used.pop() {
            self.receive(index)?;
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, index: usize) -> anyhow::Result<()> {
        let element = self.sinks.first_mut().context("no memory for receives")?;
        let qp = self.queue_pairs.get(index).context("no such queue pair")?;
        let request = ReceiveWorkRequest::new(slice::from_mut(element));
        // SAFETY: SAFETY.md F8: the memory of the sink outlives the queue pairs. Its element was created before any
        // request was posted, and no reference to its bytes is created after that. Other receives use the same bytes,
        // which are never read.
        Ok(unsafe { qp.post_receive(request, RECEIVE | index as u64) }?)
    }

    /// Posts one request of the operation that is measured.
    #[inline]
    fn post(&mut self, index: usize, plan: &Plan) -> anyhow::Result<()> {
        let qp = self.queue_pairs.get(index).context("no such queue pair")?;
        let (bytes, id) = (plan.bytes, index as u64);
        let remote = || self.remote.slice(0..bytes).context("the peer lends too few bytes");
        let data = [self.source.element(bytes).context("a message is longer than the memory")?];
        let inline = [InlineElement::new(self.source.get(..bytes).unwrap_or_default())];
        let is_inline = bytes <= self.inline;
        let posted = match self.operation {
            Operation::Send => {
                let request = match is_inline {
                    true => SendWorkRequest::inline(&inline),
                    false => SendWorkRequest::new(&data),
                };
                // SAFETY: SAFETY.md F8: the memory of the source outlives the queue pairs, and changes only while no
                // request of the send queues is in flight. The sinks are used as described in `receive`.
                unsafe { qp.post(request, id) }
            }
            Operation::Write => {
                let request = match is_inline {
                    true => WriteWorkRequest::inline(&inline, remote()?),
                    false => WriteWorkRequest::new(&data, remote()?),
                };
                let request = if self.has_receives { request.with_immediate(0) } else { request };
                // SAFETY: as above.
                unsafe { qp.post(request, id) }
            }
            Operation::Read => {
                let sink = self.sinks.get_mut(plan.size).context("no memory to read into")?;
                // SAFETY: as above.
                unsafe { qp.post(ReadWorkRequest::new(slice::from_mut(sink), remote()?), id) }
            }
            Operation::Atomic => {
                let sink = self.sinks.get_mut(plan.size).context("no memory to read into")?;
                // SAFETY: as above.
                unsafe { qp.post(AtomicWorkRequest::fetch_and_add(sink, remote()?, 1), id) }
            }
        };
        posted?;
        self.sends += 1;
        Ok(())
    }
}
