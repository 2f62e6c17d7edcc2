//! The work of the C loops, done with rdma-channel.
#![allow(unsafe_code)]

use std::array;
use std::time::Duration;

use rdma_channel::{Channel, ScopeError, ScopedPendingWork, TransportError, WorkSuccess};
use rdma_mem::{GatherList, OwnedRegion, RemoteMemoryRegion, ScatterList, SliceRef};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};
use test_support::c_loops::{DEPTH, LENGTH, PLACES, counted};

/// The channel and the memory of the loops.
pub(crate) struct Rig {
    pub(crate) channel: Channel,
    pub(crate) source: OwnedRegion,
    pub(crate) target: OwnedRegion,
    pub(crate) remote: RemoteMemoryRegion,
}

pub(crate) type Outcome<T> = Result<T, ScopeError>;

const SECOND: Duration = Duration::from_secs(1);

#[inline(always)]
fn place(id: u64) -> usize {
    (id % PLACES as u64) as usize * LENGTH
}

#[inline(always)]
fn slice(source: &OwnedRegion, id: u64) -> SliceRef<'_> {
    source.get_ref(place(id), LENGTH).expect("within the region")
}

/// The length of a received message, which goes into the sum.
#[inline(always)]
fn bytes(success: WorkSuccess) -> u64 {
    success.scattered_bytes().map_or(0, |bytes| bytes as u64)
}

pub(crate) fn blocking(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for id in 0..n {
        let list = GatherList::from([slice(&rig.source, id)]);
        rig.channel.write(WriteWorkRequest::from_list(&list, remote))?;
        sum += id;
    }
    Ok(sum)
}

pub(crate) fn scope_of_one(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for id in 0..n {
        rig.channel.scope(|s| {
            let list = GatherList::from([slice(&rig.source, id)]);
            let work = s.post_write(WriteWorkRequest::from_list(&list, remote))?;
            work.spin_poll()?;
            sum += id;
            Ok::<(), TransportError>(())
        })?;
    }
    Ok(sum)
}

/// Drops the handle, like code that was written for other crates. The scope waits for the request.
pub(crate) fn scope_of_one_ended(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for id in 0..n {
        rig.channel.scope(|s| {
            let list = GatherList::from([slice(&rig.source, id)]);
            drop(s.post_write(WriteWorkRequest::from_list(&list, remote))?);
            Ok::<(), TransportError>(())
        })?;
        sum += id;
    }
    Ok(sum)
}

pub(crate) fn asked(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for first in (0..n).step_by(DEPTH) {
        rig.channel.scope(|s| {
            let mut pending: [Option<ScopedPendingWork<'_>>; DEPTH] = Default::default();
            for (id, place) in (first..).zip(&mut pending) {
                let list = GatherList::from([slice(&rig.source, id)]);
                *place = Some(s.post_write(WriteWorkRequest::from_list(&list, remote))?);
            }
            for (id, place) in (first..).zip(&mut pending) {
                if let Some(work) = place.take() {
                    work.spin_poll()?;
                    sum += id;
                }
            }
            Ok::<(), TransportError>(())
        })?;
    }
    Ok(sum)
}

/// Polls only the last request, and drops the other handles before.
pub(crate) fn last_asked(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for first in (0..n).step_by(DEPTH) {
        rig.channel.scope(|s| {
            let mut last = None;
            for id in first..first + DEPTH as u64 {
                let list = GatherList::from([slice(&rig.source, id)]);
                last = Some(s.post_write(WriteWorkRequest::from_list(&list, remote))?);
                sum += id;
            }
            last.map_or(Ok(()), |work| work.spin_poll().map(drop))
        })?;
    }
    Ok(sum)
}

/// Polls the last request first, which completes last.
pub(crate) fn asked_in_reverse(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for first in (0..n).step_by(DEPTH) {
        rig.channel.scope(|s| {
            let mut pending: [Option<ScopedPendingWork<'_>>; DEPTH] = Default::default();
            for (id, place) in (first..).zip(&mut pending) {
                let list = GatherList::from([slice(&rig.source, id)]);
                *place = Some(s.post_write(WriteWorkRequest::from_list(&list, remote))?);
            }
            for (place, pending) in pending.iter_mut().enumerate().rev() {
                let id = first + place as u64;
                if let Some(work) = pending.take() {
                    work.spin_poll()?;
                    sum += id;
                }
            }
            Ok::<(), TransportError>(())
        })?;
    }
    Ok(sum)
}

/// Returns true for one request in [`DEPTH`].
fn is_signaled(id: u64) -> bool {
    (id + 1).is_multiple_of(DEPTH as u64)
}

pub(crate) fn unsignaled_ended(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for first in (0..n).step_by(DEPTH) {
        rig.channel.scope(|s| {
            for id in first..first + DEPTH as u64 {
                let list = GatherList::from([slice(&rig.source, id)]);
                let write = WriteWorkRequest::from_list(&list, remote);
                drop(s.post_write(write.signaled(is_signaled(id)))?);
                sum += id;
            }
            Ok::<(), TransportError>(())
        })?;
    }
    Ok(sum)
}

pub(crate) fn unsignaled_asked(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for first in (0..n).step_by(DEPTH) {
        rig.channel.scope(|s| {
            let mut pending: [Option<ScopedPendingWork<'_>>; DEPTH] = Default::default();
            for (id, place) in (first..).zip(&mut pending) {
                let list = GatherList::from([slice(&rig.source, id)]);
                let write = WriteWorkRequest::from_list(&list, remote);
                *place = Some(s.post_write(write.signaled(is_signaled(id)))?);
            }
            for (id, place) in (first..).zip(&mut pending) {
                if let Some(work) = place.take() {
                    work.spin_poll()?;
                    sum += id;
                }
            }
            Ok::<(), TransportError>(())
        })?;
    }
    Ok(sum)
}

/// Drops the handles; the scope ends the requests.
pub(crate) fn ended(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for first in (0..n).step_by(DEPTH) {
        rig.channel.scope(|s| {
            for id in first..first + DEPTH as u64 {
                let list = GatherList::from([slice(&rig.source, id)]);
                drop(s.post_write(WriteWorkRequest::from_list(&list, remote))?);
                sum += id;
            }
            Ok::<(), TransportError>(())
        })?;
    }
    Ok(sum)
}

pub(crate) fn blocking_batches(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for first in (0..n).step_by(DEPTH) {
        let lists: [_; DEPTH] =
            array::from_fn(|i| GatherList::from([slice(&rig.source, first + i as u64)]));
        let batch: [_; DEPTH] =
            array::from_fn(|i| WriteWorkRequest::from_list(&lists[i], remote).into());
        sum += (first..).zip(rig.channel.batch(batch)?).map(|(id, _)| id).sum::<u64>();
    }
    Ok(sum)
}

pub(crate) fn batches_ended(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for first in (0..n).step_by(DEPTH) {
        rig.channel.scope(|s| {
            let lists: [_; DEPTH] =
                array::from_fn(|i| GatherList::from([slice(&rig.source, first + i as u64)]));
            let batch: [_; DEPTH] =
                array::from_fn(|i| WriteWorkRequest::from_list(&lists[i], remote).into());
            drop(s.post_batch(batch)?);
            sum += (first..first + DEPTH as u64).sum::<u64>();
            Ok::<(), TransportError>(())
        })?;
    }
    Ok(sum)
}

pub(crate) fn batches(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for first in (0..n).step_by(DEPTH) {
        rig.channel.scope(|s| {
            let lists: [_; DEPTH] = array::from_fn(|i| {
                let slice = slice(&rig.source, first + i as u64);
                GatherList::from([slice])
            });
            let batch: [_; DEPTH] =
                array::from_fn(|i| WriteWorkRequest::from_list(&lists[i], remote).into());
            for (id, work) in (first..).zip(s.post_batch(batch)?) {
                work.spin_poll()?;
                sum += id;
            }
            Ok::<(), TransportError>(())
        })?;
    }
    Ok(sum)
}

pub(crate) fn rented_one(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for id in 0..n {
        rig.channel.scope(|s| {
            s.write_from(slice(&rig.source, id), remote)?.wait(SECOND)?.result?;
            sum += id;
            Ok::<(), TransportError>(())
        })?;
    }
    Ok(sum)
}

pub(crate) fn rented(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let (remote, mut sum) = (rig.remote, 0);
    for first in (0..n).step_by(DEPTH) {
        rig.channel.scope(|s| {
            let mut pending = [const { None }; DEPTH];
            for (id, place) in (first..).zip(&mut pending) {
                let posted = s.write_from(slice(&rig.source, id), remote);
                *place = Some(posted?);
            }
            for (id, place) in (first..).zip(&mut pending) {
                if let Some(work) = place.take() {
                    work.wait(SECOND)?.result?;
                    sum += id;
                }
            }
            Ok::<(), TransportError>(())
        })?;
    }
    Ok(sum)
}

pub(crate) fn messages(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let mut sum = 0;
    for id in 0..n {
        rig.channel.scope(|s| {
            let slot = rig.target.get_mut(place(id), LENGTH).expect("within the region");
            let mut room = ScatterList::from([slot]);
            let arrival = s.post_receive(ReceiveWorkRequest::from_list(&mut room))?;
            let list = GatherList::from([slice(&rig.source, id)]);
            let sending = s.post_send(SendWorkRequest::from_list(&list))?;
            sum += bytes(arrival.spin_poll()?);
            sum += bytes(sending.spin_poll()?);
            Ok::<(), TransportError>(())
        })?;
    }
    Ok(sum)
}

/// Waits for the send first, which completes second.
pub(crate) fn messages_sent_first(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let mut sum = 0;
    for id in 0..n {
        rig.channel.scope(|s| {
            let slot = rig.target.get_mut(place(id), LENGTH).expect("within the region");
            let mut room = ScatterList::from([slot]);
            let arrival = s.post_receive(ReceiveWorkRequest::from_list(&mut room))?;
            let list = GatherList::from([slice(&rig.source, id)]);
            let sending = s.post_send(SendWorkRequest::from_list(&list))?;
            sum += bytes(sending.spin_poll()?);
            sum += bytes(arrival.spin_poll()?);
            Ok::<(), TransportError>(())
        })?;
    }
    Ok(sum)
}

/// Drops both handles; the scope ends the requests.
pub(crate) fn messages_ended(rig: &mut Rig, n: u64) -> Outcome<u64> {
    for id in 0..n {
        rig.channel.scope(|s| {
            let slot = rig.target.get_mut(place(id), LENGTH).expect("within the region");
            let mut room = ScatterList::from([slot]);
            drop(s.post_receive(ReceiveWorkRequest::from_list(&mut room))?);
            let list = GatherList::from([slice(&rig.source, id)]);
            drop(s.post_send(SendWorkRequest::from_list(&list))?);
            Ok::<(), TransportError>(())
        })?;
    }
    Ok(0)
}

/// Posts without a scope.
pub(crate) fn messages_unpolled(rig: &mut Rig, n: u64) -> Outcome<u64> {
    let mut sum = 0;
    for id in 0..n {
        let slot = rig.target.get_mut(place(id), LENGTH).expect("within the region");
        let mut room = ScatterList::from([slot]);
        let receive = ReceiveWorkRequest::from_list(&mut room);
        // SAFETY: the receive is polled to completion below, and its memory is borrowed until then.
        let arrival = unsafe { rig.channel.receive_unpolled(receive) }?;
        let list = GatherList::from([slice(&rig.source, id)]);
        // SAFETY: the send is polled to completion below, and its memory is borrowed until then.
        let sending = unsafe { rig.channel.send_unpolled(SendWorkRequest::from_list(&list)) }?;
        sum += bytes(arrival.spin_poll()?);
        sum += bytes(sending.spin_poll()?);
    }
    Ok(sum)
}

/// Performs `n` polls of a handle whose operation is in flight.
pub(crate) fn idle_polls(rig: &mut Rig, n: u64) -> Outcome<()> {
    rig.channel.scope(|s| {
        let mut room = ScatterList::from([rig.target.as_slice_mut()]);
        let arrival = s.post_receive(ReceiveWorkRequest::from_list(&mut room))?;
        let mut polls = |n| {
            for _ in 0..n {
                if arrival.poll().is_some() {
                    return 1;
                }
            }
            0
        };
        assert_eq!(counted(&mut polls, n), 0, "an unexpected message arrived");
        let list = GatherList::from([slice(&rig.source, 0)]);
        s.post_send(SendWorkRequest::from_list(&list))?.spin_poll()?;
        arrival.spin_poll()?;
        Ok::<(), TransportError>(())
    })
}
