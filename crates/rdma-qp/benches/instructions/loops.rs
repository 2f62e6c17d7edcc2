//! The work of `loops.c`, done by rdma-qp.
#![allow(unsafe_code)]

use std::array;

use rdma_mem::{
    GatherElement, GatherList, OwnedRegion, RemoteMemoryRegion, ScatterElement, ScatterList,
};
use rdma_qp::{
    CompletionQueue, PollError, PollSlot, PostError, QueuePair, ReceiveWorkRequest,
    SendWorkRequest, WorkError, WriteWorkRequest,
};
use test_support::c_loops::{DEPTH, LENGTH, PLACES};

/// The objects of the loops.
pub(crate) struct Rig<'r> {
    pub(crate) qp: &'r QueuePair,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) remote: RemoteMemoryRegion,
    /// For the checked posts.
    pub(crate) source: &'r OwnedRegion,
    pub(crate) target: &'r mut OwnedRegion,
    /// Created beforehand, for the raw posts.
    pub(crate) gather: [[GatherElement<'r>; 1]; PLACES],
    pub(crate) scatter: [[ScatterElement<'r>; 1]; PLACES],
}

/// The errors of the loops, which are returned by value. Boxing an error would cost instructions
/// even on success.
#[derive(Debug)]
pub(crate) enum Failure {
    Region,
    Post { _error: PostError },
    Poll { _error: PollError },
    Work { _error: WorkError },
    Stray,
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Self {
        Self::Post { _error: error }
    }
}

impl From<PollError> for Failure {
    fn from(error: PollError) -> Self {
        Self::Poll { _error: error }
    }
}

impl From<WorkError> for Failure {
    fn from(error: WorkError) -> Self {
        Self::Work { _error: error }
    }
}

pub(crate) type Outcome<T> = Result<T, Failure>;

/// The way of posting requests.
pub(crate) trait Level {
    fn write(rig: &Rig<'_>, id: u64) -> Outcome<()>;
    fn batch(rig: &Rig<'_>, id: u64) -> Outcome<()>;
    fn receive(rig: &mut Rig<'_>, id: u64) -> Outcome<()>;
    fn send(rig: &Rig<'_>, id: u64) -> Outcome<()>;
}

pub(crate) struct Raw;

pub(crate) struct Checked;

#[inline(always)]
fn place(id: u64) -> usize {
    (id % PLACES as u64) as usize
}

#[inline(always)]
fn slice<'a>(rig: &'a Rig<'_>, id: u64) -> Outcome<GatherList<'a, 1>> {
    let slice = rig.source.get_ref(place(id) * LENGTH, LENGTH).ok_or(Failure::Region)?;
    Ok(GatherList::from([slice]))
}

impl Level for Raw {
    #[inline(always)]
    fn write(rig: &Rig<'_>, id: u64) -> Outcome<()> {
        let request = WriteWorkRequest::new(&rig.gather[place(id)], rig.remote);
        Ok(unsafe { rig.qp.post_raw(request, id) }?)
    }

    #[inline(always)]
    fn batch(rig: &Rig<'_>, first: u64) -> Outcome<()> {
        let mut batch: [_; DEPTH] = array::from_fn(|i| {
            let id = first + i as u64;
            WriteWorkRequest::new(&rig.gather[place(id)], rig.remote).with_id(id)
        });
        Ok(unsafe { rig.qp.post_batch_raw(&mut batch) }?)
    }

    #[inline(always)]
    fn receive(rig: &mut Rig<'_>, id: u64) -> Outcome<()> {
        let request = ReceiveWorkRequest::new(&mut rig.scatter[place(id)]);
        Ok(unsafe { rig.qp.post_raw(request, id) }?)
    }

    #[inline(always)]
    fn send(rig: &Rig<'_>, id: u64) -> Outcome<()> {
        Ok(unsafe { rig.qp.post_raw(SendWorkRequest::new(&rig.gather[place(id)]), id) }?)
    }
}

impl Level for Checked {
    #[inline(always)]
    fn write(rig: &Rig<'_>, id: u64) -> Outcome<()> {
        let list = slice(rig, id)?;
        Ok(unsafe { rig.qp.post_write(WriteWorkRequest::from_list(&list, rig.remote), id) }?)
    }

    #[inline(always)]
    fn batch(rig: &Rig<'_>, first: u64) -> Outcome<()> {
        let lists: [_; DEPTH] =
            array::from_fn(|i| slice(rig, first + i as u64).expect("within the region"));
        let mut batch: [_; DEPTH] = array::from_fn(|i| {
            WriteWorkRequest::from_list(&lists[i], rig.remote).with_id(first + i as u64)
        });
        Ok(unsafe { rig.qp.post_batch(&mut batch) }?)
    }

    #[inline(always)]
    fn receive(rig: &mut Rig<'_>, id: u64) -> Outcome<()> {
        let place = place(id) * LENGTH;
        let slice = rig.target.get_mut(place, LENGTH).ok_or(Failure::Region)?;
        let mut list = ScatterList::from([slice]);
        Ok(unsafe { rig.qp.post_receive(ReceiveWorkRequest::from_list(&mut list), id) }?)
    }

    #[inline(always)]
    fn send(rig: &Rig<'_>, id: u64) -> Outcome<()> {
        let list = slice(rig, id)?;
        Ok(unsafe { rig.qp.post_send(SendWorkRequest::from_list(&list), id) }?)
    }
}

/// Polls until there is one completion, and adds its id and length to the sum.
#[inline(always)]
fn take_one(cq: &CompletionQueue, slots: &mut [PollSlot; 1], sum: &mut u64) -> Outcome<()> {
    loop {
        if let Some(completion) = cq.poll(slots)?.next() {
            let bytes = completion.result()?.scattered_bytes();
            *sum += completion.wr_id() + bytes.map_or(0, |bytes| bytes as u64);
            return Ok(());
        }
    }
}

/// Polls until all posted requests have completed.
#[inline(always)]
fn take_all(cq: &CompletionQueue, slots: &mut [PollSlot; DEPTH], sum: &mut u64) -> Outcome<()> {
    let mut left = DEPTH;
    while left > 0 {
        let completions = cq.poll(slots)?;
        left -= completions.len();
        for completion in completions {
            completion.result()?;
            *sum += completion.wr_id();
        }
    }
    Ok(())
}

pub(crate) fn one<L: Level>(rig: &mut Rig<'_>, n: u64) -> Outcome<u64> {
    let (mut sum, mut slots) = (0, [PollSlot::default()]);
    for id in 0..n {
        L::write(rig, id)?;
        take_one(&rig.send_cq, &mut slots, &mut sum)?;
    }
    Ok(sum)
}

pub(crate) fn outstanding<L: Level>(rig: &mut Rig<'_>, n: u64) -> Outcome<u64> {
    let (mut sum, mut slots) = (0, [PollSlot::default(); DEPTH]);
    for first in (0..n).step_by(DEPTH) {
        for id in first..first + DEPTH as u64 {
            L::write(rig, id)?;
        }
        take_all(&rig.send_cq, &mut slots, &mut sum)?;
    }
    Ok(sum)
}

pub(crate) fn batches<L: Level>(rig: &mut Rig<'_>, n: u64) -> Outcome<u64> {
    let (mut sum, mut slots) = (0, [PollSlot::default(); DEPTH]);
    for first in (0..n).step_by(DEPTH) {
        L::batch(rig, first)?;
        take_all(&rig.send_cq, &mut slots, &mut sum)?;
    }
    Ok(sum)
}

pub(crate) fn messages<L: Level>(rig: &mut Rig<'_>, n: u64) -> Outcome<u64> {
    let (mut sum, mut slots) = (0, [PollSlot::default()]);
    for id in 0..n {
        L::receive(rig, id)?;
        L::send(rig, id)?;
        take_one(&rig.recv_cq, &mut slots, &mut sum)?;
        take_one(&rig.send_cq, &mut slots, &mut sum)?;
    }
    Ok(sum)
}

pub(crate) fn empty_polls(rig: &mut Rig<'_>, n: u64) -> Outcome<u64> {
    let mut slots = [PollSlot::default()];
    for _ in 0..n {
        if !rig.send_cq.poll(&mut slots)?.is_empty() {
            return Err(Failure::Stray);
        }
    }
    Ok(0)
}
