//! Runs programs on one device.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdma_sys::ibv_qp_state as State;
use test_support::rig::connect::Knobs;
use test_support::rig::post::Wr;
use test_support::rig::{Context, Cq};

use super::end::Ends;
use super::model::Model;
use super::program::*;
use super::trace::{Completion, Queue, StepTrace, Trace, changes};
use super::{refusal, settle};

/// The time limit for a completion that the contract guarantees. A completion that has not arrived
/// by then is missing from the trace.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the program, using new queue pairs and memory.
pub(super) fn run(context: &Context, program: &Program, has_events: bool) -> Trace {
    let (ends, step) = (Ends::new(context, program), StepTrace::default());
    let mut run = Run { ends, step, program, has_events };
    let mut steps = Vec::new();
    let mut model = Model::new(&program.pairs);
    for (n, step) in program.steps.iter().enumerate() {
        run.take(n, step);
        run.note_memory();
        run.note_events();
        steps.push(std::mem::take(&mut run.step));
        // If the step had a different effect than in the model, later steps would name objects that
        // do not exist.
        if model.apply(step).is_err() || !run.ends.are_registered_as(&model) {
            break;
        }
    }
    run.finish();
    run.note_events();
    steps.push(run.step);
    Trace { steps }
}

pub(super) struct Run<'a> {
    pub(super) ends: Ends<'a>,
    pub(super) step: StepTrace,
    pub(super) program: &'a Program,
    /// Whether to compare events, which requires waiting for them.
    has_events: bool,
}

impl Run<'_> {
    fn take(&mut self, n: usize, step: &Step) {
        match step {
            Step::Phase(requests) => self.phase(n, requests),
            Step::Register { end, slot, length, access } => {
                let errno = self.ends.get_mut(*end).register(*slot, *length, *access);
                self.step.calls.push(errno);
            }
            Step::Race(race) => self.race(n, *race),
            Step::Deregister { end, slot } => {
                let errno = self.ends.get_mut(*end).deregister(*slot);
                self.step.calls.push(errno);
            }
            Step::Renew { end, window } => self.ends.get_mut(*end).renew(*window),
            Step::Fail { end } => self.fail(*end),
            Step::Reconnect { pair } => {
                self.ends.reconnect(*pair, self.program.pairs[usize::from(*pair)]);
                for side in [Side::A, Side::B] {
                    self.note_state(QpId { pair: *pair, side }, State::IBV_QPS_RTS);
                }
            }
            Step::Refused { end, call } => {
                let errno = refusal::call(self.ends.context, self.ends.get(*end), *call);
                self.step.calls.push(errno);
            }
        }
    }

    fn phase(&mut self, n: usize, requests: &[ProgramRequest]) {
        for (i, request) in requests.iter().enumerate() {
            if let ProgramRequest::Receive { end, elements } = request {
                let errno = self.ends.get_mut(*end).post_receive(wr_id(n, i), elements);
                self.step.calls.push(errno);
            }
        }
        let mut accepted = BTreeMap::<QpId, Vec<(u64, &Send)>>::new();
        for (i, request) in requests.iter().enumerate() {
            if let ProgramRequest::Send(send) = request {
                accepted.entry(send.end).or_default().push((wr_id(n, i), send));
            }
        }
        for (&end, sends) in &mut accepted {
            let wrs: Vec<Wr> =
                sends.iter().map(|(id, send)| self.ends.request(*id, send)).collect();
            // A posts its requests as a list, and B posts them one by one.
            let (count, errno) = match end.side {
                Side::A => self.ends.get(end).post_list(&wrs),
                Side::B => self.ends.get(end).post_each(&wrs, sends),
            };
            self.step.calls.push(errno);
            sends.truncate(count);
        }
        settle::settle(self, &accepted);
    }

    /// Executes the two requests of a race at once. Checks that each byte comes from one of them;
    /// the trace does not show from which one.
    fn race(&mut self, n: usize, race: Race) {
        let (a, b) = race.ends();
        let bytes = |ends: &Ends<'_>, end: QpId, place: (u8, u32)| {
            let all = ends.get(end).slots[usize::from(place.0)].memory.bytes();
            all[place.1 as usize..][..race.length as usize].to_vec()
        };
        let (written, read) = (bytes(&self.ends, a, race.written), bytes(&self.ends, a, race.read));
        self.phase(n, &race.requests());
        let found = bytes(&self.ends, b, race.target);
        let (slot, offset) = race.target;
        self.ends.get(b).clear(&[Element { slot, offset, length: race.length, key: Key::Own }]);
        let mut allowed = written.iter().zip(&read).zip(&found);
        if let Some(at) = allowed.position(|((one, other), found)| found != one && found != other) {
            self.step.memory.insert(format!("race at {at}"), format!("{:02x}", found[at]));
        }
    }

    /// Moves a queue pair to the error state and polls the completions of its flushed receives.
    pub(super) fn fail(&mut self, end: QpId) {
        let errno = self.ends.get(end).qp.to_state(State::IBV_QPS_ERR);
        self.step.calls.push(errno);
        self.take_all_receives(end);
        self.note_state(end, State::IBV_QPS_ERR);
    }

    /// Records the state of a queue pair. Waits for the expected state while the queue pair is
    /// still changing.
    pub(super) fn note_state(&mut self, end: QpId, expected: State) {
        let until = Instant::now() + PATIENCE;
        let qp = &self.ends.get(end).qp;
        let mut state = qp.state();
        while state != expected && Instant::now() < until {
            std::thread::yield_now();
            state = qp.state();
        }
        self.step.states.insert(end.to_string(), state.0);
    }

    /// Polls the completions of this end's sends, up to the one with the ID `last`.
    pub(super) fn take_sent(&mut self, end: QpId, last: u64) {
        let found = wait(&self.ends.get(end).send_cq, Queue::Send, |found| {
            found.last().is_some_and(|last_found: &Completion| last_found.wr_id == last)
        });
        self.step.sent.entry(end.to_string()).or_default().extend(found);
    }

    /// Polls `count` receive completions at this end.
    pub(super) fn take_received(&mut self, end: QpId, count: usize) {
        if count > 0 {
            let found =
                wait(&self.ends.get(end).receive_cq, self.queue(end), |found| found.len() >= count);
            self.received(end, found);
        }
    }

    /// Polls this end's receive completions, up to the one with this immediate data.
    pub(super) fn take_received_until(&mut self, end: QpId, imm: u32) {
        let found = wait(&self.ends.get(end).receive_cq, self.queue(end), |found| {
            let details = found.last().and_then(|last: &Completion| last.details.as_ref());
            details.is_some_and(|details| details.imm == Some(imm))
        });
        self.received(end, found);
    }

    /// Describes the receive queue of this end.
    fn queue(&self, end: QpId) -> Queue {
        let plan = self.program.pairs[usize::from(end.pair)];
        let datagrams = plan.transport == Transport::Ud;
        let datagrams_of = datagrams.then(|| self.ends.get(end.peer()).qp.number());
        Queue::Receive { datagrams_of, windows: self.ends.get(end).window_keys() }
    }

    /// Polls all receive completions of a queue pair in error. Receives in a shared queue stay
    /// posted, so none are polled then.
    pub(super) fn take_all_receives(&mut self, end: QpId) {
        let state = self.ends.get(end);
        if state.srq.is_none() {
            self.take_received(end, state.posted.len());
        }
    }

    fn received(&mut self, end: QpId, found: Vec<Completion>) {
        let plan = self.program.pairs[usize::from(end.pair)];
        let state = self.ends.receiver(end, plan);
        for completion in &found {
            if let Some(elements) = state.posted.remove(&completion.wr_id) {
                state.clear_undefined(&elements, completion, plan.transport);
            }
        }
        self.step.received.entry(end.to_string()).or_default().extend(found);
    }

    /// Records the pending events.
    fn note_events(&mut self) {
        let events = self.ends.context.async_events();
        for (kind, object) in events {
            let object = self.ends.name(object);
            let found = self.step.events.entry(object).or_default();
            found.push(format!("{kind:?}"));
            found.sort();
        }
    }

    /// Waits until a queue pair in error has reported the event with the cause. The device may
    /// report the event only after it has changed the queue pair's state.
    pub(super) fn take_event(&mut self, end: QpId) {
        let until = Instant::now() + PATIENCE;
        while self.has_events && Instant::now() < until {
            self.note_events();
            if self.step.events.contains_key(&end.to_string()) {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn note_memory(&mut self) {
        for end in self.ends.all() {
            let state = self.ends.get_mut(end);
            for (n, slot) in state.slots.iter_mut().enumerate() {
                let now = slot.memory.bytes();
                for (at, bytes) in changes(&slot.seen, &now) {
                    self.step.memory.insert(format!("{end} slot {n} [{at}]"), bytes);
                }
                slot.seen = now;
            }
        }
    }

    /// Flushes the posted receives, and records everything else that completes.
    fn finish(&mut self) {
        for end in self.ends.all() {
            self.fail(end);
        }
        for end in self.ends.all() {
            let state = self.ends.get(end);
            let sent = poll(&state.send_cq, Queue::Send);
            let received = poll(&state.receive_cq, self.queue(end));
            self.step.sent.entry(end.to_string()).or_default().extend(sent);
            self.step.received.entry(end.to_string()).or_default().extend(received);
        }
    }
}

fn poll(cq: &Cq, queue: Queue) -> Vec<Completion> {
    let wcs = cq.try_poll::<16>().expect("the completion queue is not in error");
    wcs.iter().map(|wc| Completion::of(wc, queue)).collect()
}

/// Polls a queue until `done` returns true, or until the time limit has passed. Returns the
/// completions.
fn wait(cq: &Cq, queue: Queue, done: impl Fn(&[Completion]) -> bool) -> Vec<Completion> {
    let until = Instant::now() + PATIENCE;
    let mut found = Vec::new();
    loop {
        found.extend(poll(cq, queue));
        if done(&found) || Instant::now() > until {
            return found;
        }
        std::thread::yield_now();
    }
}

/// Returns options for a connection that is reliable even on a slow device. A message still fails
/// soon if it finds no receive.
pub(super) fn knobs(pair: Pair) -> Knobs {
    Knobs { access: pair.access, psn: pair.psn, rnr_retries: 1, ..Knobs::default() }
}
