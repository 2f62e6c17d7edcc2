//! A device for tests. It does nothing on its own: a request stays posted until the test ends it. The device is a
//! provider of C functions below all crates, so all code above it is production code. It runs under loom and Miri. When
//! a request ends, the device reads or writes bytes through the pointer that was registered, as a NIC does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // for tests

mod provider;
mod rig;

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;

use rdma_mem::ObjectId;
use rdma_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};

pub(crate) use self::provider::Regions;
pub(crate) use self::rig::{Rig, Sleeper, block_on, poll_once};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The device: one completion queue, its channel, and any number of queue pairs.
#[derive(Default)]
pub(crate) struct Nic {
    state: Mutex<NicState>,
    /// Notified when a request is posted or an event occurs.
    changed: Condvar,
    regions: Regions,
    /// The number of live objects, that is, objects that the caller has yet to destroy.
    objects: AtomicU64,
}

#[derive(Default)]
struct NicState {
    posted: VecDeque<PostedRequest>,
    completed: VecDeque<ibv_wc>,
    /// Whether the next completion causes an event.
    is_asked: bool,
    /// Whether the queue was armed for solicited completions alone. The device sends an event for
    /// any completion, as if each were solicited.
    asked_solicited: bool,
    /// The completion queue that was armed last. All tests arm only one.
    asked_by: Option<ObjectId>,
    events: usize,
    /// Whether the first of these events has occurred since the last wait for an event.
    is_readable: bool,
    /// The number of calls for an event.
    event_calls: usize,
    /// Called once, before the next event is received.
    before_event: Option<Box<dyn FnOnce() + Send>>,
    /// Whether the test has stopped waiting for events.
    is_stopped: bool,
    newest_qp: u32,
    /// The bytes of requests that were sent or written.
    sent: Vec<Vec<u8>>,
    faults: Faults,
}

/// The faults that the device simulates.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) polls: bool,
    pub(crate) asks: bool,
    pub(crate) destroys: bool,
    /// Affects only the next post.
    pub(crate) posts: Option<PostFault>,
}

/// A failure of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostFault {
    /// The request was not posted.
    Clear,
    /// The request was posted, although the post reports a failure.
    Doubtful,
}

/// An outstanding request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedRequest {
    qpn: u32,
    wr_id: u64,
    opcode: ibv_wc_opcode,
    /// The address and length of the request's memory, if it has any.
    memory: Option<(u64, u32)>,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NicOutcome<'a> {
    /// Success. The device records outgoing bytes, and uses these bytes as the incoming ones. The result of an atomic
    /// operation is the number of these bytes.
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

    /// Returns the number of outstanding requests.
    pub(crate) fn posted(&self) -> usize {
        self.state().posted.len()
    }

    /// Returns the bytes that were sent and written, in order.
    pub(crate) fn take_sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.state().sent)
    }

    /// Returns the number of live objects.
    pub(crate) fn objects(&self) -> u64 {
        self.objects.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Ends an outstanding request; 0 is the oldest. Returns its WR ID.
    #[track_caller]
    pub(crate) fn end(&self, nth: usize, end: NicOutcome<'_>) -> u64 {
        let mut state = self.state();
        let Some(request) = state.posted.remove(nth) else { panic!("no request has this index") };
        self.finish(&mut state, request, end);
        request.wr_id
    }

    /// Ends this many requests, each as soon as it is posted.
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

    /// Ends the oldest request, if any. `buffers` returns the number of live buffers, which must include one for each
    /// outstanding request.
    #[cfg(loom)]
    pub(crate) fn serve_what_is_there(&self, buffers: impl Fn() -> usize) {
        let mut state = self.state();
        if let Some(request) = state.posted.pop_front() {
            assert!(buffers() > state.posted.len(), "memory was released while the device uses it");
            self.finish(&mut state, request, NicOutcome::Done(b"message"));
        }
    }

    /// Adds a completion of a request that does not exist or has already completed.
    pub(crate) fn invent(&self, wr_id: u64) {
        self.complete(&mut self.state(), ibv_wc { wr_id, ..ibv_wc::default() });
    }

    /// Waits until the channel's file becomes readable. Returns false if the test has stopped waiting before that.
    pub(crate) fn wait_for_event(&self) -> bool {
        let mut state = self.state();
        while !state.is_readable && !state.is_stopped {
            state = self.wait(state);
        }
        std::mem::take(&mut state.is_readable)
    }

    /// Returns true if the queue was armed for solicited completions alone.
    pub(crate) fn asked_solicited(&self) -> bool {
        self.state().asked_solicited
    }

    /// Calls `act` while the driver is about to receive the next event.
    pub(crate) fn set_before_event(&self, act: impl FnOnce() + Send + 'static) {
        self.state().before_event = Some(Box::new(act));
    }

    /// Returns the number of calls for an event since the last time.
    pub(crate) fn take_event_calls(&self) -> usize {
        std::mem::take(&mut self.state().event_calls)
    }

    /// Stops waiting for events.
    pub(crate) fn stop_waiting(&self) {
        self.state().is_stopped = true;
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
            state.is_readable |= state.events == 0;
            state.events += 1;
            self.changed.notify_all();
        }
    }
}

impl PostedRequest {
    /// Returns true if the device reads the request's memory rather than writing it.
    const fn is_source(&self) -> bool {
        matches!(self.opcode, ibv_wc_opcode::IBV_WC_SEND | ibv_wc_opcode::IBV_WC_RDMA_WRITE)
    }

    /// Returns true if the result is a single word.
    const fn is_atomic(&self) -> bool {
        matches!(self.opcode, ibv_wc_opcode::IBV_WC_COMP_SWAP | ibv_wc_opcode::IBV_WC_FETCH_ADD)
    }
}

/// The provider's functions for queue pairs and the completion queue.
impl Nic {
    fn new_qp(&self) -> u32 {
        let mut state = self.state();
        state.newest_qp += 1;
        state.newest_qp
    }

    /// Posts a request. The error states whether the request was posted although the post failed.
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

    fn ask(&self, queue: ObjectId, solicited: bool) -> bool {
        let mut state = self.state();
        // Arming for solicited completions does not undo arming for all of them.
        state.asked_solicited = solicited && (state.asked_solicited || !state.is_asked);
        state.asked_by = Some(queue);
        state.is_asked |= !state.faults.asks;
        !state.faults.asks
    }

    /// Takes an event. Returns its completion queue.
    fn take_event(&self) -> Option<ObjectId> {
        let before = self.state().before_event.take();
        if let Some(act) = before {
            act();
        }
        let mut state = self.state();
        state.event_calls += 1;
        state.events = state.events.checked_sub(1)?;
        state.asked_by
    }

    /// Destroys the queue pair, unless the test makes this fail. The device then drops the requests of the queue pair
    /// and removes its completions from the queue, as most devices do. Returns true if the queue pair was destroyed.
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
