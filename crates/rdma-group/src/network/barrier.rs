//! Barriers by RDMA writes: each rank has a word for notices from each other rank.
//!
//! A notice is a word of eight bytes: the number of notices from that rank to this one, and a checksum of the barrier's
//! ranks. Each pair of ranks has two words in each direction, which its notices use by turns. A rank that sends notice
//! `n` has completed the barrier before the last one, which the other rank had therefore entered. So the other rank has
//! already received notice `n - 2`, and no notice replaces one that is still awaited.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::{
    MultiChannel, PeerRemoteMemoryRegion, Scope, ScopeError, ScopedPendingWork, TransportError,
};
use rdma_mem::{AccessFlags, Forked, ProtectionDomain, SharedRegion};

use crate::bootstrap::link::after;
use crate::call::checksum;
use crate::schedule::{Action, BarrierAlgorithm, Member, Schedule};

/// The length of a word, and of the two words of a rank, in bytes.
const WORD: usize = 8;
const WORDS: usize = 2 * WORD;

/// The number of reads of a word before a rank polls its own writes and yields.
const SPINS: u32 = 100;

/// The time that a rank continues to wait after one of its notices has failed. The receiver may have left because the
/// barrier was complete, and then the other notices arrive soon.
const GRACE: Duration = Duration::from_secs(5);

impl BarrierAlgorithm {
    /// Allocates the memory of a [`Barrier`] of this rank.
    ///
    /// # Errors
    /// Same errors as [`ProtectionDomain::allocate_shared_region`]; for a size of 0,
    /// [`EmptyRegion`](rdma_mem::Error::EmptyRegion).
    pub fn instance(
        &self,
        pd: &ProtectionDomain,
        rank: usize,
        world_size: usize,
    ) -> Result<PreparedBarrier, rdma_mem::Error> {
        let access = AccessFlags::new().with_local_write().with_remote_write();
        let arrivals = pd.allocate_shared_region(world_size.saturating_mul(WORDS), access)?;
        Ok(PreparedBarrier { algorithm: *self, rank, arrivals })
    }
}

/// A barrier that does not know the memory of the other ranks yet.
#[derive(Debug)]
pub struct PreparedBarrier {
    algorithm: BarrierAlgorithm,
    rank: usize,
    arrivals: SharedRegion,
}

impl PreparedBarrier {
    /// The memory to which the other ranks write. Send it to all of them.
    #[must_use]
    pub fn remote_mr(&self) -> PeerRemoteMemoryRegion {
        PeerRemoteMemoryRegion::new(self.rank, self.arrivals.remote())
    }

    /// Completes the barrier with the memory of all ranks, in rank order. The memory of this rank is also in this list.
    #[must_use]
    pub fn link_remote(self, remote_mrs: Box<[PeerRemoteMemoryRegion]>) -> Barrier {
        let Self { algorithm, rank, arrivals } = self;
        let notices = vec![Notices::default(); arrivals.len() / WORDS].into();
        Barrier { algorithm, rank, arrivals, remote_mrs, notices, is_poisoned: false }
    }
}

/// The numbers of notices between this rank and another one.
#[derive(Clone, Copy, Debug, Default)]
struct Notices {
    sent: u32,
    received: u32,
}

/// A barrier over any of the ranks that a [`MultiChannel`] connects. A [`Node`](super::Node) contains one.
///
/// All ranks of a barrier pass the same ranks, in ascending order. The barriers of two ranks must be in the same order
/// on both. Each channel must let the peer write.
///
/// The memory belongs to the barrier, and peers can write only there. If the barrier is dropped, their writes fail.
///
/// # Examples
/// Two ranks in one thread. Each is connected to itself and to the other rank:
/// ```
/// use std::time::Duration;
/// use rdma_channel::prelude::*;
/// use rdma_group::network::BarrierAlgorithm;
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let [a, b] = [0, 1].map(|_| pd.create_multi_channel().num_channels(2).build().unwrap());
/// let (a_ends, b_ends) = (a.endpoints(), b.endpoints());
/// let mut a = a.handshake([a_ends[0], b_ends[0]])?;
/// let mut b = b.handshake([a_ends[1], b_ends[1]])?;
///
/// let barriers = [0, 1].map(|rank| BarrierAlgorithm::Dissemination.instance(&pd, rank, 2).unwrap());
/// let memory = [0, 1].map(|rank: usize| barriers[rank].remote_mr());
/// let [mut first, mut second] = barriers.map(|barrier| barrier.link_remote(memory.into()));
/// std::thread::scope(|threads| {
///     let other = threads.spawn(|| second.barrier(&mut b, &[0, 1], Duration::from_secs(60)));
///     first.barrier(&mut a, &[0, 1], Duration::from_secs(60))?;
///     other.join().unwrap()
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Barrier {
    algorithm: BarrierAlgorithm,
    rank: usize,
    arrivals: SharedRegion,
    remote_mrs: Box<[PeerRemoteMemoryRegion]>,
    notices: Box<[Notices]>,
    is_poisoned: bool,
}

impl Barrier {
    /// The number of ranks.
    pub(super) const fn world_size(&self) -> usize {
        self.notices.len()
    }

    /// Waits until all these ranks have called this function with the same ranks. The list includes this rank.
    ///
    /// The wait reads the words of this rank: first continuously, then with pauses of at most a millisecond. If a rank
    /// has left after the barrier was complete, this call succeeds. Later requests to that rank fail.
    ///
    /// If the send queue to a rank is full, the notice waits for a free slot. This takes at most the time limit of a
    /// [write](rdma_channel::ChannelBuilder::write_timeout), which may be longer than `timeout`.
    ///
    /// # Errors
    /// - [`UnorderedPeers`](BarrierError::UnorderedPeers), [`DuplicatePeers`](BarrierError::DuplicatePeers),
    ///   [`SelfNotInGroup`](BarrierError::SelfNotInGroup), [`NoSuchRank`](BarrierError::NoSuchRank) or
    ///   [`WorldSize`](BarrierError::WorldSize) if the ranks are wrong, and [`Forked`](BarrierError::Forked) in a forked
    ///   child; nothing was sent, and the barrier can be used again;
    /// - [`Timeout`](BarrierError::Timeout), [`Mismatch`](BarrierError::Mismatch) or
    ///   [`TransportError`](BarrierError::TransportError) if a rank did not take part; later calls then return
    ///   [`Poisoned`](BarrierError::Poisoned), because notices may still arrive.
    pub fn barrier(
        &mut self,
        multi_channel: &mut MultiChannel,
        peers: &[usize],
        timeout: Duration,
    ) -> Result<(), BarrierError> {
        check_order(peers)?;
        self.barrier_unchecked(multi_channel, peers, timeout)
    }

    /// Like [`barrier`](Self::barrier), but does not check that the ranks are in ascending order. If they are not, the
    /// call may return [`Timeout`](BarrierError::Timeout), or return too early.
    ///
    /// # Errors
    /// Same errors as [`barrier`](Self::barrier), except those for ranks in another order.
    pub fn barrier_unchecked(
        &mut self,
        multi_channel: &mut MultiChannel,
        peers: &[usize],
        timeout: Duration,
    ) -> Result<(), BarrierError> {
        match multi_channel.scope(|scope| self.within(scope, peers, timeout)) {
            Err(ScopeError::ClosureError(error)) => Err(error),
            // A notice that has failed after the barrier was complete.
            _ => Ok(()),
        }
    }

    /// Like [`barrier_unchecked`](Self::barrier_unchecked), within a scope of the channels.
    pub(super) fn within(
        &mut self,
        scope: &Scope<'_, '_, MultiChannel>,
        peers: &[usize],
        timeout: Duration,
    ) -> Result<(), BarrierError> {
        if self.is_poisoned {
            return Err(BarrierError::Poisoned);
        }
        let schedule = self.schedule(peers)?;
        self.is_poisoned = true;
        self.run(scope, peers, schedule, timeout)?;
        self.is_poisoned = false;
        Ok(())
    }

    /// Returns the notices that this rank sends and receives. The peers of the schedule are indices of `peers`.
    fn schedule(&self, peers: &[usize]) -> Result<Schedule, BarrierError> {
        // A forked child does not have the pages of the words.
        self.arrivals.pd().check_process()?;
        let world_size = self.world_size();
        for rank in peers.iter().copied() {
            let theirs = self.remote_mrs.get(rank).filter(|_| rank < world_size);
            let theirs = theirs.ok_or(BarrierError::NoSuchRank { rank, world_size })?;
            let length = theirs.remote().length();
            if length != self.arrivals.len() {
                let theirs = length / WORDS;
                return Err(BarrierError::WorldSize { rank, theirs, ours: world_size });
            }
        }
        let own = peers.binary_search(&self.rank);
        let rank = own.map_err(|_| BarrierError::SelfNotInGroup { rank: self.rank })?;
        Ok(Member { rank, size: peers.len() }.barrier(self.algorithm))
    }

    fn run(
        &mut self,
        scope: &Scope<'_, '_, MultiChannel>,
        peers: &[usize],
        schedule: Schedule,
        timeout: Duration,
    ) -> Result<(), BarrierError> {
        let ranks = peers.iter().map(|rank| *rank as u64);
        let sum = checksum([self.algorithm as u64].into_iter().chain(ranks));
        let mut flight = Flight::new(timeout);
        for round in schedule {
            let of = |sends: bool| {
                let each = round.iter().filter(move |it| (it.action == Action::Send) == sends);
                each.map(|transfer| peers[transfer.peer])
            };
            for rank in of(true) {
                let sent = self.notify(scope, rank, sum);
                let failed = |source| BarrierError::TransportError { rank, source };
                flight.sent.push((rank, sent.map_err(failed)?));
            }
            for rank in of(false) {
                self.await_notice(rank, sum, &mut flight)?;
            }
        }
        flight.land();
        Ok(())
    }

    fn notify<'scope>(
        &mut self,
        scope: &Scope<'scope, '_, MultiChannel>,
        rank: usize,
        sum: u64,
    ) -> Result<ScopedPendingWork<'scope>, TransportError> {
        let number = &mut self.notices[rank].sent;
        *number = number.wrapping_add(1);
        let (word, memory) = (word(*number, sum), self.remote_mrs[rank]);
        // The length was checked.
        let memory_of_word = memory.sub_region_unchecked(offset(self.rank, *number));
        scope.to(memory.peer())?.write_inline(&word.to_le_bytes(), memory_of_word.remote())
    }

    fn await_notice(
        &mut self,
        rank: usize,
        sum: u64,
        flight: &mut Flight<'_>,
    ) -> Result<(), BarrierError> {
        let number = &mut self.notices[rank].received;
        *number = number.wrapping_add(1);
        let (number, expected) = (*number, word(*number, sum));
        let world_size = self.world_size();
        let arrival = self.arrivals.atomic_u64(offset(rank, number));
        let arrival = arrival.map_err(|_| BarrierError::NoSuchRank { rank, world_size })?;
        let read = |arrival: &AtomicU64| u64::from_le(arrival.load(Ordering::Acquire));
        for _ in 0..SPINS {
            if read(arrival) == expected {
                return Ok(());
            }
            hint::spin_loop();
        }
        let mut before = expected;
        loop {
            let found = read(arrival);
            if found == expected {
                return Ok(());
            }
            // If the word arrives in two parts, it changes before the second look.
            if found == word(number, found >> 32) && found == before {
                return Err(BarrierError::Mismatch { rank });
            }
            before = found;
            flight.pause(rank)?;
        }
    }
}

/// Checks that the ranks are in ascending order.
pub(super) fn check_order(peers: &[usize]) -> Result<(), BarrierError> {
    for pair in peers.windows(2) {
        match *pair {
            [first, second] if first > second => {
                return Err(BarrierError::UnorderedPeers { first, second });
            }
            [first, second] if first == second => {
                return Err(BarrierError::DuplicatePeers { rank: first });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the contents of a notice.
const fn word(number: u32, sum: u64) -> u64 {
    sum << 32 | number as u64
}

/// Returns the offset of the word for a notice from that rank.
const fn offset(rank: usize, number: u32) -> usize {
    rank * WORDS + number as usize % 2 * WORD
}

/// The notices of a barrier that this rank has sent, and the time limit.
struct Flight<'scope> {
    sent: Vec<(usize, ScopedPendingWork<'scope>)>,
    failed: Option<(usize, TransportError)>,
    start: Instant,
    until: Instant,
    timeout: Duration,
}

impl Flight<'_> {
    fn new(timeout: Duration) -> Self {
        let (start, until) = (Instant::now(), after(timeout));
        Self { sent: Vec::new(), failed: None, start, until, timeout }
    }

    /// Polls the notices in flight, and pauses before the next look at a word of that rank.
    fn pause(&mut self, rank: usize) -> Result<(), BarrierError> {
        let now = Instant::now();
        let (failed, until) = (&mut self.failed, &mut self.until);
        self.sent.retain(|(rank, notice)| match notice.poll() {
            None => true,
            Some(Ok(_)) => false,
            Some(Err(error)) => {
                if failed.is_none() {
                    *failed = Some((*rank, error));
                    *until = now.checked_add(GRACE).map_or(*until, |end| end.min(*until));
                }
                false
            }
        });
        if now >= self.until {
            return Err(match self.failed.take() {
                Some((rank, source)) => BarrierError::TransportError { rank, source },
                None => BarrierError::Timeout { rank, timeout: self.timeout },
            });
        }
        let waited = now - self.start;
        if waited < Duration::from_millis(1) {
            thread::yield_now();
        } else {
            thread::sleep((waited / 32).clamp(SHORTEST, LONGEST));
        }
        Ok(())
    }

    /// Waits for the notices that are in flight after the barrier is complete. Ignores their errors.
    fn land(self) {
        for (_, notice) in self.sent {
            let _ = notice.wait(self.until.saturating_duration_since(Instant::now()));
        }
    }
}

/// The bounds of a pause.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(1);

/// An error of a [`Barrier`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BarrierError {
    /// An earlier call has failed while notices were in flight.
    #[error("the barrier has failed before: connect the ranks again")]
    Poisoned,
    /// The list does not contain this rank.
    #[error("the ranks of the barrier do not include this rank, {rank}")]
    SelfNotInGroup {
        /// This rank.
        rank: usize,
    },
    /// The ranks are not in ascending order.
    #[error("the ranks of the barrier are not in ascending order: {second} follows {first}")]
    UnorderedPeers {
        /// A rank.
        first: usize,
        /// The next one, which is lower.
        second: usize,
    },
    /// A rank occurs twice.
    #[error("the ranks of the barrier contain {rank} twice")]
    DuplicatePeers {
        /// The rank.
        rank: usize,
    },
    /// A rank does not exist.
    #[error("the barrier has no rank {rank}, only {world_size} ranks from 0")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// The barrier of another rank was created for another number of ranks.
    #[error(
        "rank {rank} has a barrier for {theirs} ranks, but the barrier of this rank is for {ours}"
    )]
    WorldSize {
        /// The other rank.
        rank: usize,
        /// The number of ranks of its barrier.
        theirs: usize,
        /// The number of ranks of this barrier.
        ours: usize,
    },
    /// A rank did not call the barrier in time, or waits for one that did not.
    #[error(
        "no notice of rank {rank} arrived within {timeout:?}: it has not entered the barrier, or waits for another rank"
    )]
    Timeout {
        /// The rank.
        rank: usize,
        /// The time limit.
        timeout: Duration,
    },
    /// A rank has called a barrier of other ranks, or one with another algorithm.
    #[error("rank {rank} is in a barrier of other ranks or with another algorithm")]
    Mismatch {
        /// The rank.
        rank: usize,
    },
    /// A rank could not be notified.
    #[error("rank {rank} could not be notified: {source}")]
    TransportError {
        /// The rank.
        rank: usize,
        /// The error of the write.
        source: TransportError,
    },
    /// This process is a forked child of the one that created the barrier.
    #[error(transparent)]
    Forked(#[from] Forked),
}

rdma_types::debug_messages!(enum BarrierError {
    Poisoned, SelfNotInGroup { rank }, UnorderedPeers { first, second }, DuplicatePeers { rank },
    NoSuchRank { rank, world_size }, WorldSize { rank, theirs, ours }, Timeout { rank, timeout },
    Mismatch { rank }, TransportError { rank, source }, Forked(it),
});

#[cfg(test)]
mod tests;
