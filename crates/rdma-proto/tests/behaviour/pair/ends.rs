//! The two ends of a pair: a send queue, and memory with receives. All are `Vec`s.

use std::cell::Cell;
use std::collections::VecDeque;

use rdma_proto::{
    Delivered, Host, Kind, MessageEnd, MessageStart, Nak, Remote, Source, Stop, Work, Wqe,
};
use rdma_types::{Rkey, WcStatus};

/// The key of the memory, its address, and its size.
pub(crate) const RKEY: Rkey = Rkey::new(0x2f4);
pub(crate) const VA: u64 = 0x1000;
pub(crate) const BYTES: usize = 1 << 16;

/// A request and its memory.
pub(crate) struct Posted {
    pub(crate) request: Wqe,
    pub(crate) local: Vec<u8>,
    /// The result of an access to its memory.
    pub(crate) reachable: Result<(), WcStatus>,
}

/// A send queue.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) posted: Vec<Posted>,
    pub(crate) admitted: Option<u32>,
    pub(crate) completed: Vec<WcStatus>,
    /// The total number of bytes that READs and atomics delivered to the queue.
    pub(crate) delivered: usize,
    /// The number of times that a request was read.
    pub(crate) looks: Cell<usize>,
}

impl Queue {
    fn at(&mut self, n: u32) -> &mut Posted {
        assert!(n as usize >= self.completed.len(), "{n} is read after it completed");
        &mut self.posted[n as usize]
    }
}

impl Work for Queue {
    fn admitted(&self) -> u32 {
        self.admitted.unwrap_or(self.posted.len() as u32)
    }

    fn request(&self, n: u32) -> Wqe {
        assert!(n as usize >= self.completed.len(), "{n} is read after it completed");
        self.looks.set(self.looks.get() + 1);
        self.posted[n as usize].request
    }

    fn gather(&mut self, n: u32, at: u32, out: &mut [u8]) -> Result<(), WcStatus> {
        let posted = self.at(n);
        out.copy_from_slice(&posted.local[at as usize..][..out.len()]);
        posted.reachable
    }

    fn deliver(&mut self, n: u32, at: u32, payload: &[u8]) -> Result<(), WcStatus> {
        self.delivered += payload.len();
        let posted = self.at(n);
        posted.reachable?;
        posted.local[at as usize..][..payload.len()].copy_from_slice(payload);
        Ok(())
    }

    fn execute_local(&mut self, n: u32) -> Result<(), WcStatus> {
        assert_eq!(n as usize, self.completed.len(), "the requests before it have completed");
        self.at(n).reachable
    }

    fn done(&mut self, n: u32) {
        assert_eq!(n as usize, self.completed.len(), "in order, and once");
        self.completed.push(WcStatus::SUCCESS);
    }

    fn failed(&mut self, n: u32, status: WcStatus) {
        assert_eq!(n as usize, self.completed.len(), "in order, and once");
        self.completed.push(status);
    }
}

/// A receive and its message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    pub(crate) end: MessageEnd,
}

/// Memory that peers may use, and receives.
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    /// Whether peers may use it now.
    pub(crate) granted: bool,
    /// The capacities of receives.
    pub(crate) receives: VecDeque<usize>,
    /// The bytes that have arrived for the receive in use.
    taken: Option<Vec<u8>>,
    pub(crate) received: Vec<Received>,
    pub(crate) failed: Option<Nak>,
    pub(crate) abandoned: usize,
    pub(crate) atomics: usize,
    pub(crate) written: usize,
    /// Whether a READ that has begun cannot be finished.
    pub(crate) unreadable: bool,
    /// Whether a READ may have any length: nothing is copied then.
    pub(crate) endless: bool,
    /// The number of packets that it drops first.
    pub(crate) drops: usize,
    /// The number of calls that execute something.
    pub(crate) calls: usize,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; BYTES],
            granted: true,
            receives: VecDeque::new(),
            taken: None,
            received: Vec::new(),
            failed: None,
            abandoned: 0,
            atomics: 0,
            written: 0,
            unreadable: false,
            endless: false,
            drops: 0,
            calls: 0,
        }
    }

    fn range(&mut self, start: &MessageStart, at: u32, len: usize) -> Result<&mut [u8], Stop> {
        let refused = Stop::Nak(Nak::RemoteAccess);
        let Remote { va, rkey } = start.remote;
        let from =
            va.checked_sub(VA).and_then(|from| from.checked_add(at.into())).ok_or(refused)?;
        let from = usize::try_from(from).map_err(|_| refused)?;
        let whole = from.checked_add(len).and_then(|to| self.bytes.get_mut(from..to));
        match whole {
            Some(range) if self.granted && rkey == RKEY => Ok(range),
            _ => Err(refused),
        }
    }

    fn take(&mut self) -> Result<(), Stop> {
        if self.taken.is_none() {
            self.receives.front().ok_or(Stop::NotReady)?;
            self.taken = Some(Vec::new());
        }
        Ok(())
    }
}

impl Host for Memory {
    fn begin(&mut self, start: &MessageStart) -> Result<(), Stop> {
        self.calls += 1;
        assert_eq!(self.failed, None, "nothing is executed after a failure");
        if self.drops > 0 {
            self.drops -= 1;
            return Err(Stop::Drop);
        }
        match (start.kind, start.length) {
            // The receive may belong to a message that was abandoned.
            (Kind::Send, _) => self.take().map(|()| self.taken = Some(Vec::new())),
            (_, Some(0)) => Ok(()),
            (Kind::Read, _) if self.endless => Ok(()),
            (_, length) => self.range(start, 0, length.unwrap() as usize).map(drop),
        }
    }

    fn place(&mut self, start: &MessageStart, at: u32, payload: &[u8]) -> Result<(), Stop> {
        self.calls += 1;
        if start.kind == Kind::Write {
            self.written += payload.len();
            self.range(start, at, payload.len())?.copy_from_slice(payload);
            return Ok(());
        }
        let taken = self.taken.as_mut().expect("begun");
        taken.truncate(at as usize);
        assert_eq!(taken.len(), at as usize, "without gaps");
        taken.extend(payload);
        if taken.len() > self.receives[0] {
            return Err(Stop::Nak(Nak::InvalidRequest));
        }
        Ok(())
    }

    fn fetch(&mut self, start: &MessageStart, at: u32, out: &mut [u8]) -> Result<(), Stop> {
        assert!(at as usize + out.len() <= start.length.unwrap() as usize);
        if self.unreadable {
            return Err(Stop::Drop);
        }
        if self.endless {
            return Ok(());
        }
        out.copy_from_slice(self.range(start, at, out.len())?);
        Ok(())
    }

    fn atomic(&mut self, start: &MessageStart) -> Result<u64, Stop> {
        self.calls += 1;
        if !start.remote.va.is_multiple_of(8) {
            return Err(Stop::Nak(Nak::InvalidRequest));
        }
        let word: &mut [u8; 8] = self.range(start, 0, 8)?.try_into().unwrap();
        let original = u64::from_ne_bytes(*word);
        let new = match start.kind {
            Kind::CompareSwap if original != start.operand => original,
            Kind::CompareSwap => start.swap,
            _ => original.wrapping_add(start.operand),
        };
        *word = new.to_ne_bytes();
        self.atomics += 1;
        Ok(original)
    }

    fn take_receive(&mut self, start: &MessageStart) -> Result<(), Stop> {
        self.calls += 1;
        assert_eq!(start.kind, Kind::Write);
        self.take()
    }

    fn finish(&mut self, start: &MessageStart, end: &MessageEnd) -> Result<(), Stop> {
        self.calls += 1;
        if start.kind == Kind::Write && end.immediate.is_none() {
            return Ok(());
        }
        self.receives.pop_front();
        let bytes = self.taken.take().expect("begun");
        if start.kind == Kind::Send {
            assert_eq!(bytes.len(), end.length as usize);
        }
        self.received.push(Received { bytes, end: *end });
        Ok(())
    }

    fn abandon(&mut self) {
        self.abandoned += 1;
    }

    fn fail(&mut self, nak: Nak) {
        assert_eq!(self.failed.replace(nak), None, "once");
    }

    fn datagram(&mut self, _: &Source, end: &MessageEnd, payload: &[u8]) -> Delivered {
        if self.receives.front().is_none_or(|&room| room < payload.len() + 40) {
            return Delivered::Dropped;
        }
        self.receives.pop_front();
        self.received.push(Received { bytes: payload.to_vec(), end: *end });
        Delivered::Whole
    }
}
