//! A device for tests, which does nothing by itself: requests stand until the test has one of them end. It is a provider
//! with C's functions, below all crates, so that everything above it is the real thing; it runs in loom and in miri. Bytes
//! it reads and writes through the pointer that was registered, when a request ends, as a NIC does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // for tests

mod provider;
mod rig;

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;

use rdma_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};

pub(crate) use self::provider::Regions;
pub(crate) use self::rig::{Rig, Sleeper, block_on, poll_once};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The device: one completion queue, its channel, and any number of queue pairs.
#[derive(Default)]
pub(crate) struct Nic {
    state: Mutex<NicState>,
    /// A request has come, or an event.
    changed: Condvar,
    regions: Regions,
    /// How many objects there are that C would have to destroy.
    objects: AtomicU64,
}

#[derive(Default)]
struct NicState {
    posted: VecDeque<PostedRequest>,
    completed: VecDeque<ibv_wc>,
    /// The next completion makes an event.
    is_asked: bool,
    events: usize,
    /// Nobody waits for events any more.
    is_over: bool,
    newest_qp: u32,
    /// What requests have sent and written.
    sent: Vec<Vec<u8>>,
    faults: Faults,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) polls: bool,
    pub(crate) asks: bool,
    pub(crate) destroys: bool,
    /// Of the next post alone.
    pub(crate) posts: Option<PostFault>,
}

/// How a post is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostFault {
    /// The request is not with the device.
    Clear,
    /// The request is with the device, and nobody is told.
    Doubtful,
}

/// A request that is with the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedRequest {
    qpn: u32,
    wr_id: u64,
    opcode: ibv_wc_opcode,
    /// Address and length, if it has memory.
    memory: Option<(u64, u32)>,
}

/// How a request ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NicOutcome<'a> {
    /// What it sends was sent, what it asks for is this.
    Done(&'a [u8]),
    Failed,
}

impl Nic {
    fn state(&self) -> MutexGuard<'_, NicState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// How many requests are with the device.
    pub(crate) fn posted(&self) -> usize {
        self.state().posted.len()
    }

    /// What was sent and written, in order.
    pub(crate) fn take_sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.state().sent)
    }

    /// How many objects are not destroyed.
    pub(crate) fn objects(&self) -> u64 {
        self.objects.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Ends a request that is with the device, the first of them with 0. Its WR ID.
    #[track_caller]
    pub(crate) fn end(&self, nth: usize, end: NicOutcome<'_>) -> u64 {
        let mut state = self.state();
        let Some(request) = state.posted.remove(nth) else { panic!("there is no such request") };
        self.finish(&mut state, request, end);
        request.wr_id
    }

    /// Ends so many requests, each as soon as it is there.
    pub(crate) fn serve(&self, count: usize) {
        self.serve_with(count, NicOutcome::Done(b"message"));
    }

    pub(crate) fn serve_with(&self, count: usize, end: NicOutcome<'_>) {
        for _ in 0..count {
            let mut state = self.state();
            let request = loop {
                match state.posted.pop_front() {
                    Some(request) => break request,
                    None => state = self.wait(state),
                }
            };
            self.finish(&mut state, request, end);
        }
    }

    /// Ends the first request, if one is there. Each that is there has memory of its own, of so many buffers.
    #[cfg(loom)]
    pub(crate) fn serve_what_is_there(&self, buffers: impl Fn() -> usize) {
        let mut state = self.state();
        if let Some(request) = state.posted.pop_front() {
            assert!(buffers() > state.posted.len(), "memory was given back that the device uses");
            self.finish(&mut state, request, NicOutcome::Done(b"message"));
        }
    }

    /// A completion of nothing, or of something that has completed already.
    pub(crate) fn invent(&self, wr_id: u64) {
        self.complete(&mut self.state(), ibv_wc { wr_id, ..ibv_wc::default() });
    }

    /// Waits until the file of the channel is readable. `false` if it is not, and nobody waits any more.
    pub(crate) fn wait_for_event(&self) -> bool {
        let mut state = self.state();
        while state.events == 0 && !state.is_over {
            state = self.wait(state);
        }
        state.events > 0
    }

    /// Nobody has to wait for events any more.
    pub(crate) fn wait_no_more(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    fn wait<'a>(&self, state: MutexGuard<'a, NicState>) -> MutexGuard<'a, NicState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, state: &mut NicState, request: PostedRequest, end: NicOutcome<'_>) {
        let mut completion = ibv_wc {
            wr_id: request.wr_id,
            opcode: request.opcode,
            qp_num: request.qpn,
            ..ibv_wc::default()
        };
        match end {
            NicOutcome::Failed => completion.status = ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
            NicOutcome::Done(message) => {
                let bytes = self.regions.execute(&request, message);
                if request.is_source() {
                    state.sent.push(bytes);
                } else {
                    completion.byte_len = u32::try_from(bytes.len()).unwrap_or(0);
                }
            }
        }
        self.complete(state, completion);
    }

    fn complete(&self, state: &mut NicState, completion: ibv_wc) {
        state.completed.push_back(completion);
        if std::mem::take(&mut state.is_asked) {
            state.events += 1;
            self.changed.notify_all();
        }
    }
}

impl PostedRequest {
    /// Whether the device reads its memory, and does not write it.
    const fn is_source(&self) -> bool {
        matches!(self.opcode, ibv_wc_opcode::IBV_WC_SEND | ibv_wc_opcode::IBV_WC_RDMA_WRITE)
    }

    /// Whether what it brings is one number.
    const fn is_atomic(&self) -> bool {
        matches!(self.opcode, ibv_wc_opcode::IBV_WC_COMP_SWAP | ibv_wc_opcode::IBV_WC_FETCH_ADD)
    }
}

/// What the provider's functions do, for a queue pair or the completion queue.
impl Nic {
    fn new_qp(&self) -> u32 {
        let mut state = self.state();
        state.newest_qp += 1;
        state.newest_qp
    }

    /// Takes a request. `Err` if it is refused, with whether that is said of it.
    fn post(&self, request: PostedRequest) -> Result<(), PostFault> {
        let mut state = self.state();
        let refusal = state.faults.posts.take();
        if refusal != Some(PostFault::Clear) {
            state.posted.push_back(request);
            self.changed.notify_all();
        }
        refusal.map_or(Ok(()), Err)
    }

    fn poll(&self, most: usize) -> Option<Vec<ibv_wc>> {
        let mut state = self.state();
        if state.faults.polls {
            return None;
        }
        let count = most.min(state.completed.len());
        Some(state.completed.drain(..count).collect())
    }

    fn ask(&self) -> bool {
        let mut state = self.state();
        state.is_asked |= !state.faults.asks;
        !state.faults.asks
    }

    fn take_event(&self) -> bool {
        let mut state = self.state();
        let is_there = state.events > 0;
        state.events -= usize::from(is_there);
        is_there
    }

    /// Whether the queue pair is destroyed: then the device leaves its requests alone, and takes what has completed out of
    /// the queue, as most do.
    fn destroy_qp(&self, qpn: u32) -> bool {
        let mut state = self.state();
        let is_destroyed = !state.faults.destroys;
        if is_destroyed {
            state.posted.retain(|request| request.qpn != qpn);
            state.completed.retain(|completion| completion.qp_num != qpn);
        }
        is_destroyed
    }
}
