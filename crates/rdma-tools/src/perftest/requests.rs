//! Requests that access the peer's memory, and the memory that the peer accesses.

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
use anyhow::{Context as _, Result, bail};

/// The time limit for one request, or for one step of the peer.
const LIMIT: Duration = Duration::from_secs(10);
/// The number of bytes that an atomic operation accesses.
const WORD: usize = 8;
/// The value with which memory is filled.
const FILLED: u8 = 0xa5;
/// The minimum number of perftest's random bytes that can be relied on not to be all zero.
const RANDOM: usize = 16;

/// Returns the access rights that the peer needs.
pub(super) const fn access(verb: Verb) -> AccessFlags {
    let access = AccessFlags::new().with_local_write();
    match verb {
        Verb::Send => access,
        Verb::Write => access.with_remote_write(),
        Verb::Read => access.with_remote_read(),
        Verb::FetchAdd => access.with_remote_atomic(),
    }
}

/// The memory of an end. Its own requests use the first half, and the peer's requests use the
/// second half.
#[derive(Debug)]
pub(super) struct Memory {
    region: SharedRegion,
    half: usize,
    verb: Verb,
    size: usize,
    cycle: Cycle,
}

impl Memory {
    /// Allocates memory for messages of `size` bytes. If `filled` is set, the first half is filled
    /// with nonzero bytes. The second half is filled too if the peer reads it.
    ///
    /// # Errors
    /// Returns an error if the memory cannot be registered.
    pub(super) fn allocate(
        pd: &ProtectionDomain,
        verb: Verb,
        size: usize,
        cycle: Cycle,
        filled: bool,
    ) -> Result<Self> {
        let half = size.max(cycle.buffer).next_multiple_of(cycle.line.next_multiple_of(WORD));
        let region = pd.allocate_shared_region(2 * half, access(verb))?;
        if filled {
            let lent = if verb == Verb::Read { half } else { 0 };
            region.write(0, &vec![FILLED; half + lent])?;
        }
        Ok(Self { region, half, verb, size, cycle })
    }

    /// Returns the half that is lent to the peer.
    pub(super) fn lent(&self) -> RemoteMemoryRegion {
        let all = self.region.remote();
        all.slice(self.half..2 * self.half).unwrap_or(all)
    }

    /// Returns the memory that the peer lends. It is as long as the half that this end lends.
    pub(super) fn of_peer(&self, peer: &Keys) -> RemoteMemoryRegion {
        RemoteMemoryRegion::new(peer.address, self.half, peer.rkey)
    }

    /// Returns the number of slots for messages, and the distance between them in bytes.
    fn places(&self) -> (usize, usize) {
        let Self { size, cycle, .. } = self;
        let step = (*size).max(cycle.line).next_multiple_of(cycle.line);
        if *size <= cycle.buffer / 2 { ((cycle.buffer / step).max(1), step) } else { (1, 0) }
    }

    /// Returns an element for the message at this offset in the first half.
    fn own(&self, offset: usize) -> Result<SharedElement<'_>> {
        Ok(self.region.element(offset..offset + self.size)?)
    }

    /// Checks, as far as this is possible from the memory, that the peer has executed its requests.
    ///
    /// # Errors
    /// Returns an error if the memory has unexpected contents.
    pub(super) fn check_lent(&self, times: u32) -> Result<()> {
        match self.verb {
            Verb::FetchAdd => {
                let words = (self.half..2 * self.half).step_by(WORD);
                let mut sum = 0_u64;
                for word in words {
                    sum = sum.wrapping_add(self.region.atomic_u64(word)?.load(Acquire));
                }
                if sum != u64::from(times) {
                    bail!(
                        "the words have grown by {sum}, not by {times}: give both the same `-n`, and the peer no `-A`"
                    );
                }
            }
            // An unacknowledged WRITE may arrive after the peer has reported that it is finished.
            Verb::Write if self.size >= RANDOM => {
                let mut lent = vec![0; self.half];
                let written = until(|| {
                    self.region.read(self.half, &mut lent)?;
                    Ok(lent.iter().any(|&byte| byte != 0))
                })?;
                if !written {
                    bail!("the peer wrote nothing, or only zeros");
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// A channel, and the memory that its requests use at both ends.
#[derive(Debug)]
pub(super) struct Requests<'a> {
    pub(super) channel: &'a mut Channel,
    pub(super) memory: &'a Memory,
    /// The memory that the peer lends.
    pub(super) peer: RemoteMemoryRegion,
    pub(super) verb: Verb,
}

/// For each slot of the peer's memory: its contents when it was last read.
type Seen = Vec<Option<Vec<u8>>>;

impl Requests<'_> {
    /// Executes `times` requests, and keeps `at_a_time` of them outstanding. They use one slot of
    /// the peer's memory, or all slots in turn if `around` is set.
    ///
    /// # Errors
    /// Returns an error if a request fails, takes longer than ten seconds, or returns wrong bytes.
    pub(super) fn run(&mut self, times: u32, at_a_time: u32, around: bool) -> Result<Figures> {
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
            anyhow::Ok(())
        })?;
        Ok(Figures { posts, end: Instant::now() })
    }

    /// Takes turns with the peer in writing a message and waiting for one. The last byte of a
    /// message is the low byte of the message's number, which the other end waits for. The end that
    /// `begins` writes first.
    ///
    /// # Errors
    /// Returns an error if a WRITE fails, or if the peer's WRITE does not arrive within ten seconds
    /// or contains unexpected bytes.
    pub(super) fn write_to_and_fro(&mut self, times: u32, begins: bool) -> Result<Figures> {
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
            anyhow::Ok(())
        })?;
        // Both ends send zeros before the last byte.
        let mut rest = vec![0; last];
        memory.region.read(memory.half, &mut rest)?;
        if rest.iter().any(|&byte| byte != 0) {
            bail!("the peer wrote bytes other than zeros before the last one");
        }
        Ok(Figures { posts, end: Instant::now() })
    }
}

impl Memory {
    /// Polls the byte at this offset until the peer has written the expected value.
    fn wait_for(&self, offset: usize, byte: u8, n: u32) -> Result<()> {
        let mut found = [0];
        let written = until(|| {
            self.region.read(offset, &mut found)?;
            Ok(found == [byte])
        })?;
        if written {
            return Ok(());
        }
        bail!("message {n} did not arrive: give the peer the same size and iterations")
    }
}

/// Calls `look` until it returns true, for at most ten seconds. Returns false after that. Polling
/// is necessary because the arrival of a WRITE is visible only in memory.
fn until(mut look: impl FnMut() -> Result<bool>) -> Result<bool> {
    let begin = Instant::now();
    while !look()? {
        if begin.elapsed() > LIMIT {
            return Ok(false);
        }
        thread::yield_now();
    }
    Ok(true)
}

/// Returns the low byte of the number of a message.
const fn low(n: u32) -> u8 {
    n.to_le_bytes()[0]
}

/// The parameters that all requests have in common.
#[derive(Clone, Copy)]
struct One<'a> {
    memory: &'a Memory,
    peer: RemoteMemoryRegion,
    verb: Verb,
    around: bool,
    at_a_time: usize,
}

impl<'a> One<'a> {
    /// Returns the index of a slot, the slot's offset in the peer's memory, and the offset of this
    /// end's bytes.
    fn place(&self, n: usize) -> (usize, usize, usize) {
        let (places, step) = self.memory.places();
        let place = if self.around { n % places } else { 0 };
        // Each outstanding atomic needs a separate word for its result.
        let own =
            if self.verb == Verb::FetchAdd { n % self.at_a_time * WORD } else { place * step };
        (place, place * step, own)
    }

    fn post<'s>(&self, scope: &'s Scope<'s, '_>, n: usize) -> Result<PendingWork<'s>>
    where
        'a: 's,
    {
        let (_, there, here) = self.place(n);
        let own = self.memory.own(here)?;
        let peer = self
            .peer
            .slice(there..there + self.memory.size)
            .context("the peer has too little memory")?;
        let posted: Result<_, TransportError> = match self.verb {
            Verb::Send => bail!("a message needs no memory of the peer"),
            Verb::Write => scope.post_write(WriteWorkRequest::new(&[own.into()], peer)),
            Verb::Read => scope.post_read(ReadWorkRequest::new(&mut [own.into()], peer)),
            Verb::FetchAdd => {
                let mut before = ScatterElement::from(own);
                scope.post_atomic(AtomicWorkRequest::fetch_and_add(&mut before, peer, 1))
            }
        };
        Ok(posted?)
    }

    /// Waits until a request has completed, and checks its opcode and length.
    fn done(&self, work: &PendingWork<'_>) -> Result<WorkSuccess> {
        let success = work.wait(LIMIT)?;
        let (opcode, length) = match self.verb {
            Verb::Read => (WcOpcode::RDMA_READ, Some(self.memory.size)),
            Verb::FetchAdd => (WcOpcode::FETCH_ADD, Some(WORD)),
            _ => (WcOpcode::RDMA_WRITE, None),
        };
        if (success.opcode(), success.byte_len()) != (opcode, length) {
            bail!("a request completed as another operation, or with another length");
        }
        Ok(success)
    }

    /// Waits until a request has completed, and checks the bytes that it fetched.
    fn settle(&self, work: Option<(usize, PendingWork<'_>)>, seen: &mut Seen) -> Result<()> {
        let Some((n, work)) = work else { return Ok(()) };
        self.done(&work)?;
        let (place, _, here) = self.place(n);
        let before = seen.get_mut(place).context("a request has no place")?;
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
                    bail!("atomic {n} found {number}, not {expected}");
                }
                *before = Some(number.wrapping_add(1).to_ne_bytes().to_vec());
            }
            Verb::Read => {
                let mut bytes = vec![0; self.memory.size];
                self.memory.region.read(here, &mut bytes)?;
                if before.as_ref().is_some_and(|before| *before != bytes) {
                    bail!("read {n} returned other bytes than before");
                }
                *before = Some(bytes);
            }
            _ => {}
        }
        Ok(())
    }
}
