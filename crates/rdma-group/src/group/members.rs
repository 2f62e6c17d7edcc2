//! The members of a group, and the collectives that one of them calls with valid arguments.

use crate::call::{Call, Kind, checksum};
use crate::collective::Collective;
use crate::error::Error;
use crate::group::buffer::Elements;
use crate::reduction::{Combine, Number, Reduction};
use crate::run::{Prepared, Run};
use crate::schedule::{BarrierAlgorithm, Blocks, Member};

use bytemuck::Pod;

/// The members of a group, and its calls so far.
pub(crate) struct Members {
    /// The ranks of the launcher's group that are members, in the order of their ranks in this group.
    pub(crate) ranks: Vec<usize>,
    pub(crate) member: Member,
    /// The identity of the group, which is the same on all its ranks.
    id: u64,
    /// The number of calls.
    generation: u64,
    /// The last collectives, so that repeated ones need no new schedule.
    recent: Vec<Recent>,
}

/// A collective with its schedule, for buffers of this length.
struct Recent {
    collective: Collective,
    len: usize,
    element_bytes: usize,
    prepared: Prepared,
}

/// The maximum number of recent collectives.
const MOST_RECENT: usize = 4;

/// A collective, and the parts of its [`Call`] that depend on the buffer and the reduction.
pub(crate) struct Plan {
    collective: Collective,
    variant: u8,
    number: u8,
    element_bytes: usize,
    elements: usize,
    counts: u64,
}

impl Plan {
    /// A collective that only copies. `counts` are the lengths of the blocks if they differ.
    fn copy<T>(collective: Collective, buffer: &[T], counts: Option<&[usize]>) -> Self {
        Self {
            collective,
            variant: 0,
            number: 0,
            element_bytes: size_of::<T>(),
            elements: buffer.len(),
            counts: counts.map_or(0, |counts| checksum(counts.iter().map(|count| *count as u64))),
        }
    }

    pub(crate) fn barrier(algorithm: BarrierAlgorithm) -> Self {
        let collective = Collective::Barrier(algorithm);
        let (variant, number, element_bytes, elements, counts) = (algorithm as u8, 0, 0, 0, 0);
        Self { collective, variant, number, element_bytes, elements, counts }
    }

    /// A collective that combines the elements of all ranks.
    pub(crate) fn reduce<T: Number>(
        collective: Collective,
        buffer: &[T],
        reduction: Reduction<'_, T>,
    ) -> Self {
        let (variant, number) = (reduction.code(), T::CODE);
        Self { variant, number, ..Self::copy(collective, buffer, None) }
    }
}

impl Members {
    /// Returns all ranks of the launcher's group.
    pub(crate) fn all(rank: usize, size: usize) -> Self {
        Self::new((0..size).collect(), Member { rank, size }, 0)
    }

    const fn new(ranks: Vec<usize>, member: Member, id: u64) -> Self {
        Self { ranks, member, id, generation: 0, recent: Vec::new() }
    }

    /// Returns a pair for each rank, for [`split`](Self::split). Only the pair of this rank is set.
    pub(crate) fn pairs(&self, colour: u64, key: u64) -> Vec<[u64; 2]> {
        let mut pairs = vec![[0; 2]; self.member.size];
        if let Some(own) = pairs.get_mut(self.member.rank) {
            *own = [colour, key];
        }
        pairs
    }

    /// Returns the members with the same colour as this rank. Each pair is the colour and the key of a rank. The ranks
    /// have gathered the pairs in the last call.
    pub(crate) fn split(&self, pairs: &[[u64; 2]], colour: u64) -> Self {
        let id = checksum([self.id, self.generation.wrapping_sub(1), colour]);
        let ranks = pairs.iter().enumerate().filter(|(_, [other, _])| *other == colour);
        let mut ranks: Vec<_> = ranks.map(|(rank, [_, key])| (*key, rank)).collect();
        ranks.sort_unstable();
        let rank = ranks.iter().position(|(_, rank)| *rank == self.member.rank).unwrap_or(0);
        let member = Member { rank, size: ranks.len() };
        let ranks = ranks.iter().filter_map(|(_, rank)| self.ranks.get(*rank).copied());
        Self::new(ranks.collect(), member, id)
    }

    /// Returns a run of a collective, which is the next call of the group. Its peers are ranks of the launcher's group.
    pub(crate) fn start<'a, T: Pod>(
        &'a mut self,
        plan: &Plan,
        buffer: Elements<'a, T>,
        combine: Option<&'a Combine<'a, T>>,
    ) -> Run<'a, T> {
        let call = Call {
            kind: plan.collective.kind() as u8,
            variant: plan.variant,
            number: plan.number,
            root: u32::try_from(plan.collective.root()).unwrap_or(u32::MAX),
            element_bytes: plan.element_bytes as u64,
            group: self.id,
            generation: self.generation,
            elements: plan.elements as u64,
            counts: plan.counts,
        };
        self.generation += 1;
        let len = buffer.as_slice().len();
        Run::new(call, self.prepared(&plan.collective, len, size_of::<T>()), buffer, combine)
    }

    /// Returns the schedule of a collective. Its peers are ranks of the launcher's group.
    fn prepared(
        &mut self,
        collective: &Collective,
        len: usize,
        element_bytes: usize,
    ) -> &mut Prepared {
        let is_same = |it: &Recent| {
            (it.len, it.element_bytes) == (len, element_bytes) && it.collective == *collective
        };
        let at = self.recent.iter().position(is_same).unwrap_or_else(|| {
            let mut schedule = collective.schedule(self.member, len, element_bytes);
            for transfer in schedule.iter_mut().flatten() {
                transfer.peer = self.ranks.get(transfer.peer).copied().unwrap_or(transfer.peer);
            }
            if self.recent.len() == MOST_RECENT {
                self.recent.remove(0);
            }
            let (collective, prepared) = (collective.clone(), Prepared::new(schedule));
            self.recent.push(Recent { collective, len, element_bytes, prepared });
            self.recent.len() - 1
        });
        // The last used collective comes last.
        self.recent[at..].rotate_left(1);
        let last = self.recent.len() - 1;
        &mut self.recent[last].prepared
    }

    /// Returns the rank in the launcher's group to which this rank connects, and the call. Only two ranks make this call, so
    /// it is not counted.
    pub(crate) fn connect(&self, rank: usize) -> Result<(usize, Call), Error> {
        let Member { rank: own, size } = self.member;
        match self.ranks.get(rank) {
            Some(peer) if rank != own => {
                let (group, generation) = (self.id, self.generation);
                Ok((
                    *peer,
                    Call { kind: Kind::Connect as u8, group, generation, ..Call::default() },
                ))
            }
            _ => Err(Error::Argument(format!(
                "rank {own} of {size} cannot connect to rank {rank}: pass another rank of the group"
            ))),
        }
    }

    pub(crate) fn check_root(&self, root: usize) -> Result<(), Error> {
        let size = self.member.size;
        if root < size {
            return Ok(());
        }
        Err(Error::Argument(format!("the root is rank {root}, but the group has {size} ranks")))
    }

    /// Divides a buffer into blocks of these lengths, or of the same length. The blocks are in bytes.
    fn blocks<T: Pod>(&self, buffer: &[T], counts: Option<&[usize]>) -> Result<Blocks, Error> {
        let (len, size) = (buffer.len(), self.member.size);
        let Some(counts) = counts else {
            if len.is_multiple_of(size) {
                return Ok(Blocks::even(size_of_val(buffer), size));
            }
            return Err(Error::Argument(format!(
                "{len} elements are no multiple of {size} ranks: pass as many for each rank, or the counts"
            )));
        };
        let bytes: Option<Vec<_>> =
            counts.iter().map(|count| count.checked_mul(size_of::<T>())).collect();
        let blocks = bytes.and_then(|bytes| Blocks::of(&bytes));
        let fits = |blocks: &Blocks| counts.len() == size && blocks.len() == size_of_val(buffer);
        blocks.filter(fits).ok_or_else(|| {
            Error::Argument(format!(
                "{} counts do not divide a buffer of {len} elements between {size} ranks: pass {size} counts whose sum \
                 is {len}",
                counts.len()
            ))
        })
    }

    pub(crate) fn broadcast<T>(&self, root: usize, buffer: &[T]) -> Result<Plan, Error> {
        self.check_root(root)?;
        Ok(Plan::copy(Collective::Broadcast { root }, buffer, None))
    }

    pub(crate) fn gather<T: Pod>(
        &self,
        root: usize,
        buffer: &[T],
        counts: Option<&[usize]>,
    ) -> Result<Plan, Error> {
        self.check_root(root)?;
        let blocks = self.blocks(buffer, counts)?;
        Ok(Plan::copy(Collective::Gather { root, blocks }, buffer, counts))
    }

    pub(crate) fn scatter<T: Pod>(
        &self,
        root: usize,
        buffer: &[T],
        counts: Option<&[usize]>,
    ) -> Result<Plan, Error> {
        self.check_root(root)?;
        let blocks = self.blocks(buffer, counts)?;
        Ok(Plan::copy(Collective::Scatter { root, blocks }, buffer, counts))
    }

    pub(crate) fn all_gather<T: Pod>(
        &self,
        buffer: &[T],
        counts: Option<&[usize]>,
    ) -> Result<Plan, Error> {
        let blocks = self.blocks(buffer, counts)?;
        Ok(Plan::copy(Collective::AllGather { blocks }, buffer, counts))
    }

    pub(crate) fn all_to_all<T: Pod>(&self, buffer: &[T]) -> Result<Plan, Error> {
        let sent = self.blocks(buffer, None)?;
        let received = sent.clone();
        Ok(Plan::copy(Collective::AllToAll { sent, received, offset: 0 }, buffer, None))
    }

    /// Returns the plan, and the bytes to exchange, which end with those of `received`.
    pub(crate) fn all_to_all_v<T: Pod>(
        &self,
        (sent, send_counts): (&[T], &[usize]),
        (received, receive_counts): (&[T], &[usize]),
    ) -> Result<(Plan, Vec<u8>), Error> {
        let from = self.blocks(sent, Some(send_counts))?;
        let into = self.blocks(received, Some(receive_counts))?;
        let rank = self.member.rank;
        let own = (from.block(rank), into.block(rank));
        if own.0.len() != own.1.len() {
            let text = "the block of this rank to itself has two lengths";
            return Err(Error::Argument(text.to_owned()));
        }
        let offset = from.len();
        let mut bytes =
            [bytemuck::cast_slice(sent), bytemuck::cast_slice::<T, u8>(received)].concat();
        bytes.copy_within(own.0, own.1.start + offset);
        let collective = Collective::AllToAll { sent: from, received: into, offset };
        // The lengths of the buffers differ between ranks.
        Ok((Plan { elements: 0, ..Plan::copy(collective, sent, None) }, bytes))
    }

    pub(crate) fn reduce<T: Number>(
        &self,
        root: usize,
        buffer: &[T],
        reduction: Reduction<'_, T>,
    ) -> Result<Plan, Error> {
        self.check_root(root)?;
        Ok(Plan::reduce(Collective::Reduce { root }, buffer, reduction))
    }

    pub(crate) fn all_reduce<T: Number>(buffer: &[T], reduction: Reduction<'_, T>) -> Plan {
        let is_commutative = reduction.is_commutative();
        Plan::reduce(Collective::AllReduce { is_commutative }, buffer, reduction)
    }

    /// Returns the plan, and the range of this rank's block.
    pub(crate) fn reduce_scatter<T: Number>(
        &self,
        buffer: &[T],
        reduction: Reduction<'_, T>,
    ) -> (Plan, std::ops::Range<usize>) {
        let blocks = Blocks::even(buffer.len(), self.member.size);
        let (own, is_commutative) = (blocks.block(self.member.rank), reduction.is_commutative());
        let collective = Collective::ReduceScatter { is_commutative, blocks };
        (Plan::reduce(collective, buffer, reduction), own)
    }
}
