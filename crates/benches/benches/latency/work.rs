//! The measured operations, in each form.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rdma_channel::{Channel, ScopeError, TransportError};
use rdma_mem::{GatherList, OwnedRegion, RemoteMemoryRegion, ScatterList};
use rdma_qp::{
    AtomicWorkRequest, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest,
};

use crate::end::{DEPTH, Echo, End, Outcome};

const WAIT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    PingPong,
    Write,
    Read,
    CompareAndSwap,
    FetchAdd,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Blocking,
    /// This number of operations is outstanding in one scope.
    Scoped(usize),
}

impl Operation {
    pub(crate) const ALL: [Self; 5] =
        [Self::PingPong, Self::Write, Self::Read, Self::CompareAndSwap, Self::FetchAdd];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::PingPong => "send and receive, there and back",
            Self::Write => "write",
            Self::Read => "read",
            Self::CompareAndSwap => "compare and swap",
            Self::FetchAdd => "fetch and add",
        }
    }

    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareAndSwap | Self::FetchAdd)
    }

    pub(crate) const fn lengths(self) -> &'static [usize] {
        match self {
            Self::CompareAndSwap | Self::FetchAdd => &[8],
            _ => &[8, 64, 512, 4 << 10, 64 << 10, 1 << 20],
        }
    }
}

impl Form {
    pub(crate) const ALL: [Self; 3] = [Self::Blocking, Self::Scoped(1), Self::Scoped(DEPTH)];

    pub(crate) const fn depth(self) -> usize {
        match self {
            Self::Blocking => 1,
            Self::Scoped(depth) => depth,
        }
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Blocking => "blocking".to_owned(),
            Self::Scoped(depth) => format!("scope of {depth}"),
        }
    }
}

/// The memory of the measuring end.
pub(crate) struct Memory {
    pub(crate) source: OwnedRegion,
    pub(crate) target: OwnedRegion,
}

/// Each iteration is a blocking operation, or a scope with the number of operations of the form. Returns the total
/// time, and adds each operation's share of its iteration to the histogram.
pub(crate) fn run(
    end: &mut End,
    memory: &mut Memory,
    (operation, form, length): (Operation, Form, usize),
    iterations: u64,
    histogram: &mut Histogram<u64>,
) -> Outcome<Duration> {
    let depth = form.depth();
    if operation == Operation::PingPong {
        let (messages, depth) = (iterations * depth as u64, depth as u64);
        end.ask(Echo { length: length as u64, messages, depth })?;
    }
    let remote = end.peer.slice(0..length).ok_or("the peer's memory is too short")?;
    let mut sum = Duration::ZERO;
    for _ in 0..iterations {
        let start = Instant::now();
        match form {
            Form::Blocking => block(&mut end.channel, memory, remote, operation)?,
            Form::Scoped(_) => {
                scope(&mut end.channel, memory, remote, operation, depth).map_err(|error| {
                    match error {
                        ScopeError::ClosureError(error) => error.to_string(),
                        other => other.to_string(),
                    }
                })?;
            }
        }
        let took = start.elapsed();
        sum += took;
        let share = u64::try_from(took.as_nanos())? / depth as u64;
        histogram.record_n(share.max(1), depth as u64)?;
    }
    Ok(sum)
}

fn block(
    channel: &mut Channel,
    memory: &mut Memory,
    remote: RemoteMemoryRegion,
    operation: Operation,
) -> Outcome<()> {
    let length = remote.length();
    let Memory { source, target } = memory;
    let data = GatherList::from([source.get_ref(0, length).ok_or("short")?]);
    let mut room = ScatterList::from([target.get_mut(0, length).ok_or("short")?]);
    match operation {
        // The answer may arrive before the receive is posted, and is then retransmitted.
        Operation::PingPong => {
            channel.send(SendWorkRequest::from_list(&data))?;
            channel.receive(ReceiveWorkRequest::from_list(&mut room))?
        }
        Operation::Write => channel.write(WriteWorkRequest::from_list(&data, remote))?,
        Operation::Read => channel.read(ReadWorkRequest::from_list(&mut room, remote))?,
        Operation::CompareAndSwap => {
            channel.atomic(AtomicWorkRequest::compare_and_swap(&mut room, remote, 0, 0))?
        }
        Operation::FetchAdd => {
            channel.atomic(AtomicWorkRequest::fetch_and_add(&mut room, remote, 1))?
        }
    };
    Ok(())
}

fn scope(
    channel: &mut Channel,
    memory: &mut Memory,
    remote: RemoteMemoryRegion,
    operation: Operation,
    depth: usize,
) -> Result<(), ScopeError> {
    let length = remote.length();
    let Memory { source, target } = memory;
    channel.scope(|s| {
        let (mut rest, mut from) = (target.as_slice_mut(), source.as_slice());
        let mut rooms = [const { None }; DEPTH];
        let mut pending = [const { None }; DEPTH];
        for (room, work) in rooms.iter_mut().zip(&mut pending).take(depth) {
            let (slot, after) = rest.split_at(length);
            let (data, behind) = from.split_at(length);
            (rest, from) = (after, behind);
            let data = GatherList::from([data]);
            *work = Some(match operation {
                Operation::PingPong => {
                    *room = Some(s.receive_into(slot)?);
                    s.post_send(SendWorkRequest::from_list(&data))?
                }
                Operation::Write => s.post_write(WriteWorkRequest::from_list(&data, remote))?,
                Operation::Read => {
                    let mut list = ScatterList::from([slot]);
                    s.post_read(ReadWorkRequest::from_list(&mut list, remote))?
                }
                Operation::CompareAndSwap => {
                    let mut list = ScatterList::from([slot]);
                    s.post_atomic(AtomicWorkRequest::compare_and_swap(&mut list, remote, 0, 0))?
                }
                Operation::FetchAdd => {
                    let mut list = ScatterList::from([slot]);
                    s.post_atomic(AtomicWorkRequest::fetch_and_add(&mut list, remote, 1))?
                }
            });
        }
        for work in pending.iter().flatten() {
            work.wait(WAIT)?;
        }
        for room in rooms.into_iter().flatten() {
            let (operation, timeout) = (room.operation(), WAIT);
            let late = |_| TransportError::Timeout { operation, timeout, peer: None };
            room.wait(WAIT).map_err(late)?.result?;
        }
        Ok(())
    })
}
