//! Requests that reach into the peer's memory, and the memory that the peer reaches into.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Acquire;
use std::thread;
use std::time::{Duration, Instant};

use rdma::channel::{Channel, PendingWork, Scope, TransportError};
use rdma::memory::{
    AccessFlags, ProtectionDomain, RemoteMemoryRegion, ScatterElement, SharedElement, SharedRegion,
};
use rdma::qp::{AtomicWorkRequest, ReadWorkRequest, WcOpcode, WorkSuccess, WriteWorkRequest};

use super::Verb;
use super::figures::Figures;
use super::keys::Keys;
use super::talk::Cycle;
use rdma_examples_common::Failure;

/// For one request, or for what the peer does in between.
const LIMIT: Duration = Duration::from_secs(10);
/// The length of a word that atomics are for.
const WORD: usize = 8;
/// What is in memory that was filled.
const FILLED: u8 = 0xa5;
/// So many bytes of a program of C are never all zero: they are random.
const RANDOM: usize = 16;

/// What the peer may do.
#[must_use]
pub const fn access(verb: Verb) -> AccessFlags {
    let access = AccessFlags::new().with_local_write();
    match verb {
        Verb::Send => access,
        Verb::Write => access.with_remote_write(),
        Verb::Read => access.with_remote_read(),
        Verb::FetchAdd => access.with_remote_atomic(),
    }
}

/// The memory of an end: the first half is for its own requests, the other half is lent to the peer.
#[derive(Debug)]
pub struct Memory {
    region: SharedRegion,
    half: usize,
    verb: Verb,
    size: usize,
    cycle: Cycle,
}

impl Memory {
    /// For messages of so many bytes, within a page of which small ones go around. The first half is filled if that is
    /// asked for; what is lent is zero, or, for reads, filled too.
    ///
    /// # Errors
    /// If there is no such memory.
    pub fn allocate(
        pd: &ProtectionDomain,
        verb: Verb,
        size: usize,
        cycle: Cycle,
        filled: bool,
    ) -> Result<Self, Failure> {
        let half = size.max(cycle.buffer).next_multiple_of(cycle.line.next_multiple_of(WORD));
        let region = pd.allocate_shared_region(2 * half, access(verb))?;
        if filled {
            let lent = if verb == Verb::Read { half } else { 0 };
            region.write(0, &vec![FILLED; half + lent])?;
        }
        Ok(Self { region, half, verb, size, cycle })
    }

    /// What the peer may use.
    #[must_use]
    pub fn lent(&self) -> RemoteMemoryRegion {
        let all = self.region.remote();
        all.slice(self.half..2 * self.half).unwrap_or(all)
    }

    /// The same of the peer, which has as much.
    #[must_use]
    pub fn of_peer(&self, peer: &Keys) -> RemoteMemoryRegion {
        RemoteMemoryRegion::new(peer.address, self.half, peer.rkey)
    }

    /// How many places there are, and how far they are apart.
    fn places(&self) -> (usize, usize) {
        let Self { size, cycle, .. } = self;
        let step = (*size).max(cycle.line).next_multiple_of(cycle.line);
        if *size <= cycle.buffer / 2 { ((cycle.buffer / step).max(1), step) } else { (1, 0) }
    }

    /// The place of so many bytes at that offset of the first half.
    fn own(&self, offset: usize) -> Result<SharedElement<'_>, Failure> {
        Ok(self.region.element(offset..offset + self.size)?)
    }

    /// Whether the peer has done so many of what it was to do, as far as that can be seen.
    ///
    /// # Errors
    /// If it has not.
    pub fn check_lent(&self, times: u32) -> Result<(), Failure> {
        match self.verb {
            Verb::FetchAdd => {
                let words = (self.half..2 * self.half).step_by(WORD);
                let mut sum = 0_u64;
                for word in words {
                    sum = sum.wrapping_add(self.region.atomic_u64(word)?.load(Acquire));
                }
                if sum != times.into() {
                    return Err(format!(
                        "the words have grown by {sum}, not by {times}: give both the same `-n`, and the peer no `-A`"
                    )
                    .into());
                }
            }
            // What is written without acknowledgement may come later than the peer's word that it is done.
            Verb::Write if self.size >= RANDOM => {
                let mut lent = vec![0; self.half];
                let written = until(|| {
                    self.region.read(self.half, &mut lent)?;
                    Ok(lent.iter().any(|&byte| byte != 0))
                })?;
                if !written {
                    return Err("the peer has written nothing, or only zeros".into());
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// A channel, and the memory at both ends.
#[derive(Debug)]
pub struct Requests<'a> {
    /// The channel.
    pub channel: &'a mut Channel,
    /// This end's memory.
    pub memory: &'a Memory,
    /// The peer's.
    pub peer: RemoteMemoryRegion,
    /// What is done.
    pub verb: Verb,
}

/// What each place of the peer's had when it was last read.
type Seen = Vec<Option<Vec<u8>>>;

impl Requests<'_> {
    /// Does it so many times, so many at a time, at one place, or around many of them.
    ///
    /// # Errors
    /// If one fails, takes longer than ten seconds, or brings back what it should not.
    pub fn run(&mut self, times: u32, at_a_time: u32, around: bool) -> Result<Figures, Failure> {
        let Self { channel, memory, peer, verb } = self;
        let one = One { memory, peer: *peer, verb: *verb, around, at_a_time: at_a_time as usize };
        let (places, _) = memory.places();
        let mut seen: Seen = vec![None; places];
        let mut posts = Vec::with_capacity(times as usize);
        channel.manual_scope(|scope| {
            let mut flight: VecDeque<(usize, PendingWork<'_>)> = VecDeque::new();
            for n in 0..times as usize {
                if flight.len() == one.at_a_time {
                    one.settle(flight.pop_front(), &mut seen)?;
                }
                posts.push(Instant::now());
                flight.push_back((n, one.post(scope, n)?));
            }
            while !flight.is_empty() {
                one.settle(flight.pop_front(), &mut seen)?;
            }
            Ok::<_, Failure>(())
        })?;
        Ok(Figures { posts, end: Instant::now() })
    }

    /// Writes the number of the message to the last of its bytes at the peer, and waits for the peer's, so many
    /// times. Who serves begins.
    ///
    /// # Errors
    /// If a write fails, or the peer's does not come within ten seconds.
    pub fn write_to_and_fro(&mut self, times: u32, begins: bool) -> Result<Figures, Failure> {
        let Self { channel, memory, peer, verb } = self;
        let one = One { memory, peer: *peer, verb: *verb, around: false, at_a_time: 1 };
        let last = memory.size - 1;
        let arrives = |n: u32| memory.wait_for(memory.half + last, low(n), n);
        let mut posts = Vec::with_capacity(times as usize);
        channel.manual_scope(|scope| {
            for n in 1..=times {
                if !begins {
                    arrives(n)?;
                }
                memory.region.write(last, &[low(n)])?;
                posts.push(Instant::now());
                one.done(&one.post(scope, 0)?)?;
                if begins {
                    arrives(n)?;
                }
            }
            Ok::<_, Failure>(())
        })?;
        // The bytes before are zero at both ends.
        let mut rest = vec![0; last];
        memory.region.read(memory.half, &mut rest)?;
        if rest.iter().any(|&byte| byte != 0) {
            return Err("the peer has written other bytes than zeros before the last one".into());
        }
        Ok(Figures { posts, end: Instant::now() })
    }
}

impl Memory {
    /// Looks at a byte until the peer has written it.
    fn wait_for(&self, offset: usize, byte: u8, n: u32) -> Result<(), Failure> {
        let mut found = [0];
        let written = until(|| {
            self.region.read(offset, &mut found)?;
            Ok(found == [byte])
        })?;
        if written {
            return Ok(());
        }
        Err(format!("message {n} does not come: was the peer given the same size and iterations?")
            .into())
    }
}

/// Looks until something is so, and says whether it was within ten seconds. Nothing tells of a write but the memory.
fn until(mut look: impl FnMut() -> Result<bool, Failure>) -> Result<bool, Failure> {
    let begin = Instant::now();
    while !look()? {
        if begin.elapsed() > LIMIT {
            return Ok(false);
        }
        thread::yield_now();
    }
    Ok(true)
}

/// What a message says: its number, as far as a byte holds it.
const fn low(n: u32) -> u8 {
    n.to_le_bytes()[0]
}

/// How one request is made.
#[derive(Clone, Copy)]
struct One<'a> {
    memory: &'a Memory,
    peer: RemoteMemoryRegion,
    verb: Verb,
    around: bool,
    at_a_time: usize,
}

impl<'a> One<'a> {
    /// The number of its place, the offset of that there, and of its own bytes here.
    fn place(&self, n: usize) -> (usize, usize, usize) {
        let (places, step) = self.memory.places();
        let place = if self.around { n % places } else { 0 };
        // A word of its own for each that is outstanding: each brings back another number.
        let own =
            if self.verb == Verb::FetchAdd { n % self.at_a_time * WORD } else { place * step };
        (place, place * step, own)
    }

    fn post<'s>(&self, scope: &'s Scope<'s, '_>, n: usize) -> Result<PendingWork<'s>, Failure>
    where
        'a: 's,
    {
        let (_, there, here) = self.place(n);
        let own = self.memory.own(here)?;
        let peer = self.peer.slice(there..there + self.memory.size).ok_or("too little memory")?;
        let posted: Result<_, TransportError> = match self.verb {
            Verb::Send => return Err("a message needs no memory of the peer".into()),
            Verb::Write => scope.post_write(WriteWorkRequest::new(&[own.into()], peer)),
            Verb::Read => scope.post_read(ReadWorkRequest::new(&mut [own.into()], peer)),
            Verb::FetchAdd => {
                let mut before = ScatterElement::from(own);
                scope.post_atomic(AtomicWorkRequest::fetch_and_add(&mut before, peer, 1))
            }
        };
        Ok(posted?)
    }

    /// Waits for it, and sees that it is what it should be.
    fn done(&self, work: &PendingWork<'_>) -> Result<WorkSuccess, Failure> {
        let success = work.wait(LIMIT)?;
        let (opcode, length) = match self.verb {
            Verb::Read => (WcOpcode::RDMA_READ, Some(self.memory.size)),
            Verb::FetchAdd => (WcOpcode::FETCH_ADD, Some(WORD)),
            _ => (WcOpcode::RDMA_WRITE, None),
        };
        if (success.opcode(), success.byte_len()) != (opcode, length) {
            return Err("a request ended as another operation, or with another length".into());
        }
        Ok(success)
    }

    /// The same, and looks at what it has brought back: nobody else writes there.
    fn settle(
        &self,
        work: Option<(usize, PendingWork<'_>)>,
        seen: &mut Seen,
    ) -> Result<(), Failure> {
        let Some((n, work)) = work else { return Ok(()) };
        self.done(&work)?;
        let (place, _, here) = self.place(n);
        let before = seen.get_mut(place).ok_or("no such place")?;
        match self.verb {
            Verb::FetchAdd => {
                let mut bytes = [0; WORD];
                self.memory.region.read(here, &mut bytes)?;
                let number = u64::from_ne_bytes(bytes);
                let expected = match before {
                    Some(before) => u64::from_ne_bytes(before[..].try_into()?),
                    None => number,
                };
                if number != expected {
                    return Err(format!("atomic {n} has found {number}, and not {expected}").into());
                }
                *before = Some(number.wrapping_add(1).to_ne_bytes().to_vec());
            }
            Verb::Read => {
                let mut bytes = vec![0; self.memory.size];
                self.memory.region.read(here, &mut bytes)?;
                if before.as_ref().is_some_and(|before| *before != bytes) {
                    return Err(format!("read {n} has brought other bytes than before").into());
                }
                *before = Some(bytes);
            }
            _ => {}
        }
        Ok(())
    }
}
