//! The IDs of calls: of this end's calls, and of the peer's requests.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::frame::CallId;
use crate::output::Operation;

#[derive(Clone, Copy, Debug)]
struct Call {
    id: CallId,
    operation: Operation,
}

/// The calls of this end that the peer has not answered. Their indices are in use.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The last serial.
    serial: u64,
    calls: Vec<Option<Call>>,
    free: Vec<u16>,
}

impl Calls {
    /// Reserves an ID. `limit` is the maximum number of calls. `Err` reports whether all IDs were
    /// used.
    pub(super) fn reserve(&mut self, limit: u32) -> Result<CallId, bool> {
        if self.serial >= CallId::MAX_SERIAL {
            return Err(true);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let next = u32::try_from(self.calls.len()).unwrap_or(u32::MAX);
                let index = u16::try_from(next).ok().filter(|_| next < limit).ok_or(false)?;
                self.calls.push(None);
                index
            }
        };
        self.serial = self.serial.saturating_add(1);
        Ok(CallId::new(self.serial, index))
    }

    /// Records the operation of a reserved ID.
    pub(super) fn begin(&mut self, id: CallId, operation: Operation) {
        if let Some(call) = self.calls.get_mut(usize::from(id.index())) {
            *call = Some(Call { id, operation });
        }
    }

    /// Removes the call with this ID, and returns its operation. The index is used again, but not
    /// the ID.
    pub(super) fn end(&mut self, id: CallId) -> Option<Operation> {
        let call = self.calls.get_mut(usize::from(id.index()))?;
        let Call { operation, .. } = call.take_if(|call| call.id == id)?;
        self.free.push(id.index());
        Some(operation)
    }

    /// Returns the number of indices that were used.
    pub(super) fn indices(&self) -> usize {
        self.calls.len()
    }

    /// Removes the call at an index, and returns its operation.
    pub(super) fn end_at(&mut self, index: usize) -> Option<Operation> {
        let id = self.calls.get(index)?.as_ref()?.id;
        self.end(id)
    }
}

/// The state of a request of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The program can reply.
    Open,
    /// The peer no longer wants a reply, and the program has not dropped the request.
    Cancelled,
    /// The answer is to be sent.
    Answered,
}

/// The peer's requests whose answer has not been sent. Their indices are in use.
#[derive(Debug)]
pub(super) struct Requests {
    /// The serial of the last request.
    last: u64,
    /// The serials and states, by index.
    requests: Vec<Option<(u64, State)>>,
    /// The requests that are to be refused.
    refusals: VecDeque<CallId>,
}

impl Requests {
    pub(super) fn new(limit: u32) -> Self {
        Self { last: 0, requests: (0..limit).map(|_| None).collect(), refusals: VecDeque::new() }
    }

    fn state(&mut self, id: CallId) -> Option<&mut State> {
        let (serial, state) = self.requests.get_mut(usize::from(id.index()))?.as_mut()?;
        (*serial == id.serial()).then_some(state)
    }

    /// Opens a request. Returns false if its ID is not new, or its index is in use or out of range.
    #[must_use]
    pub(super) fn open(&mut self, id: CallId) -> bool {
        let is_new = id.serial() > self.last;
        let request = self.requests.get_mut(usize::from(id.index()));
        let Some(request) = request.filter(|request| request.is_none() && is_new) else {
            return false;
        };
        *request = Some((id.serial(), State::Open));
        self.last = id.serial();
        true
    }

    /// Returns true if the program can reply to the request.
    pub(super) fn is_open(&mut self, id: CallId) -> bool {
        self.state(id).is_some_and(|state| *state == State::Open)
    }

    /// Returns true if the peer waits for an answer that has not been sent.
    pub(super) fn await_answer(&self) -> bool {
        self.requests.iter().flatten().any(|(_, state)| *state != State::Cancelled)
    }

    /// Returns true if the peer may have used the ID.
    pub(super) fn is_known(&self, id: CallId) -> bool {
        (1..=self.last).contains(&id.serial()) && usize::from(id.index()) < self.requests.len()
    }

    /// Records that the peer wants no reply. Returns true if the request was open.
    pub(super) fn cancel(&mut self, id: CallId) -> bool {
        let state = self.state(id).filter(|state| **state == State::Open);
        state.map(|state| *state = State::Cancelled).is_some()
    }

    /// Records that the program has replied.
    pub(super) fn answer(&mut self, id: CallId) {
        if let Some(state) = self.state(id) {
            *state = State::Answered;
        }
    }

    /// Queues the refusal of a request that was not answered.
    pub(super) fn refuse(&mut self, id: CallId) {
        if self.state(id).is_some_and(|state| *state != State::Answered) {
            self.answer(id);
            self.refusals.push_back(id);
        }
    }

    /// Queues a refusal instead of a reply that was not sent.
    pub(super) fn retract(&mut self, id: CallId) {
        if self.state(id).is_some() {
            self.refusals.push_back(id);
        }
    }

    /// Returns the request to refuse next.
    pub(super) fn next_refusal(&self) -> Option<CallId> {
        self.refusals.front().copied()
    }

    /// Removes the request to refuse next, whose refusal was sent.
    pub(super) fn refused(&mut self) {
        if let Some(id) = self.refusals.pop_front() {
            self.end(id);
        }
    }

    /// Removes a request whose answer was sent.
    pub(super) fn end(&mut self, id: CallId) {
        if let Some(request) = self.requests.get_mut(usize::from(id.index())) {
            *request = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATION: Operation = Operation { index: 3, generation: 0 };

    #[test]
    fn an_index_is_used_again_but_not_its_id() {
        let mut calls = Calls::default();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let id = calls.reserve(1).unwrap();
            calls.begin(id, OPERATION);
            assert!(seen.insert(id) && id.index() == 0);
            assert_eq!(calls.reserve(1), Err(false));
            assert_eq!(calls.end(id), Some(OPERATION));
            assert_eq!(calls.end(id), None);
        }
        assert_eq!(calls.end(CallId::new(101, 0)), None);
        calls.serial = CallId::MAX_SERIAL;
        assert_eq!(calls.reserve(1), Err(true));
    }

    #[test]
    fn requests_have_new_ids_and_free_indices() {
        let mut requests = Requests::new(2);
        assert!(requests.open(CallId::new(5, 0)));
        assert!(!requests.open(CallId::new(5, 1)), "not new");
        assert!(!requests.open(CallId::new(6, 0)), "in use");
        assert!(!requests.open(CallId::new(6, 2)), "out of range");
        assert!(!requests.cancel(CallId::new(4, 0)));
        assert!(requests.cancel(CallId::new(5, 0)));
        assert!(!requests.cancel(CallId::new(5, 0)));
        assert!(!requests.is_open(CallId::new(0, 0)));
        requests.refuse(CallId::new(5, 0));
        requests.refuse(CallId::new(5, 0));
        assert!(!requests.open(CallId::new(6, 0)), "its refusal was not sent");
        assert_eq!(requests.next_refusal(), Some(CallId::new(5, 0)));
        requests.refused();
        assert_eq!(requests.next_refusal(), None);
        assert!(requests.open(CallId::new(6, 0)));
    }
}
