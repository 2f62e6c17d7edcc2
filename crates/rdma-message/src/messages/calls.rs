//! The IDs of calls: of this end's calls, and of the peer's requests.

use alloc::vec::Vec;

use crate::frame::CallId;
use crate::output::Operation;

#[derive(Clone, Copy, Debug)]
struct Call {
    id: CallId,
    operation: Operation,
    /// Whether the reply has begun to arrive, or is no longer wanted.
    is_answered: bool,
}

/// The calls of this end.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The last serial.
    serial: u64,
    calls: Vec<Option<Call>>,
    free: Vec<u16>,
}

/// The effect of a reply that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It belongs to this call.
    Wanted(Operation),
    /// Its call was cancelled.
    Late,
    /// No call has this ID, or the call was answered before.
    Invalid,
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

    fn slot(&mut self, id: CallId) -> Option<&mut Option<Call>> {
        self.calls.get_mut(usize::from(id.index()))
    }

    fn call(&mut self, id: CallId) -> Option<&mut Call> {
        self.slot(id)?.as_mut().filter(|call| call.id == id)
    }

    /// Records the operation of a reserved ID.
    pub(super) fn begin(&mut self, id: CallId, operation: Operation) {
        if let Some(slot) = self.slot(id) {
            *slot = Some(Call { id, operation, is_answered: false });
        }
    }

    /// Receives the start of a reply.
    pub(super) fn answer(&mut self, id: CallId) -> Answer {
        let is_used = (1..=self.serial).contains(&id.serial());
        match self.call(id) {
            Some(call) if call.is_answered => Answer::Invalid,
            Some(call) => {
                call.is_answered = true;
                Answer::Wanted(call.operation)
            }
            None if is_used => Answer::Late,
            None => Answer::Invalid,
        }
    }

    /// Returns the number of indices that were used.
    pub(super) fn indices(&self) -> usize {
        self.calls.len()
    }

    /// Returns the call at an index if its reply has not begun to arrive, and counts it as answered.
    pub(super) fn give_up(&mut self, index: usize) -> Option<Operation> {
        let call = self.calls.get_mut(index)?.as_mut().filter(|call| !call.is_answered)?;
        call.is_answered = true;
        Some(call.operation)
    }

    /// Removes a call. Its ID is not used again, but its index is.
    pub(super) fn end(&mut self, id: CallId) {
        if let Some(slot) = self.slot(id)
            && slot.take_if(|call| call.id == id).is_some()
        {
            self.free.push(id.index());
        }
    }
}

/// The peer's requests that were not answered.
#[derive(Debug)]
pub(super) struct Requests {
    /// The serial of the last request.
    last: u64,
    /// The serials of the open requests, by index. 0 is none.
    open: Vec<u64>,
}

impl Requests {
    pub(super) fn new(limit: u32) -> Self {
        Self { last: 0, open: (0..limit).map(|_| 0).collect() }
    }

    fn serial(&mut self, id: CallId) -> Option<&mut u64> {
        self.open.get_mut(usize::from(id.index()))
    }

    /// Opens a request. Returns false if its ID is not new, or its index is in use or out of range.
    pub(super) fn open(&mut self, id: CallId) -> bool {
        let is_new = id.serial() > self.last;
        let Some(open) = self.serial(id).filter(|open| **open == 0 && is_new) else {
            return false;
        };
        *open = id.serial();
        self.last = id.serial();
        true
    }

    /// Returns true if the request is open.
    pub(super) fn is_open(&mut self, id: CallId) -> bool {
        self.serial(id).is_some_and(|open| *open == id.serial() && id.serial() != 0)
    }

    /// Closes a request. Returns true if it was open.
    pub(super) fn close(&mut self, id: CallId) -> bool {
        let is_open = self.is_open(id);
        if let Some(open) = self.serial(id).filter(|_| is_open) {
            *open = 0;
        }
        is_open
    }

    /// Returns true if the peer may have used the ID.
    pub(super) fn is_known(&self, id: CallId) -> bool {
        (1..=self.last).contains(&id.serial()) && usize::from(id.index()) < self.open.len()
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
            assert_eq!(calls.answer(id), Answer::Wanted(OPERATION));
            assert_eq!(calls.answer(id), Answer::Invalid);
            calls.end(id);
            assert_eq!(calls.answer(id), Answer::Late);
        }
        assert_eq!(calls.answer(CallId::new(101, 0)), Answer::Invalid);
        assert_eq!(calls.answer(CallId::new(0, 0)), Answer::Invalid);
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
        assert!(!requests.close(CallId::new(4, 0)));
        assert!(requests.close(CallId::new(5, 0)));
        assert!(!requests.close(CallId::new(5, 0)));
        assert!(!requests.is_open(CallId::new(0, 0)));
        assert!(requests.open(CallId::new(6, 0)));
    }
}
