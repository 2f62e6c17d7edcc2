//! The results that each rank must have.

use fastrand::Rng;
use rdma_group::BarrierAlgorithm;
use rdma_group::simulation::{Blocks, Collective, Member, Schedule};

use super::network::Network;
use super::rank::{Rank, State, combine};
use super::run::Run;

/// A random group. One of its ranks may die.
struct Scene {
    size: usize,
    len: usize,
    collective: Collective,
    /// A rank, and the number of its steps before it dies.
    death: Option<(usize, usize)>,
}

/// Runs the groups of some seeds, with at most `most` ranks. Returns the number of events.
///
/// # Errors
/// The first group that fails, with its seed.
pub fn check_many(seed: u64, groups: u64, most: usize) -> Result<usize, String> {
    let mut events = 0;
    for seed in seed..seed.saturating_add(groups) {
        events += check(seed, most)?;
    }
    Ok(events)
}

/// Runs a random group of at most `most` ranks. Returns the number of events.
///
/// # Errors
/// The error in the result of a rank, and the seed.
pub fn check(seed: u64, most: usize) -> Result<usize, String> {
    let mut rng = Rng::with_seed(seed);
    let scene = Scene::random(most, &mut rng);
    let Scene { size, len, ref collective, death } = scene;
    let ranks = (0..size).map(|rank| {
        let member = Member { rank, size };
        let schedule = collective.schedule(member, len, ELEMENT_BYTES);
        // After a death, only the barrier is sure to wait for the dead rank.
        let last = member_barrier(member);
        let dies_after = death.filter(|(dying, _)| *dying == rank).map(|(_, steps)| steps);
        Rank::new([schedule, last], scene.input(rank), rng.u64(0..50_000), dies_after)
    });
    let ranks = ranks.collect();
    let mut run = Run::new(ranks, ELEMENT_BYTES, Network::new(Some(rng)));
    let events = run.finish();
    let failed = |rank: usize, what: String| {
        let name = format!("{collective:?}, {len} elements, death {death:?}");
        format!(
            "rank {rank} of {size}: {what} ({name})\nto repeat: cargo xtask sim --group {seed:#x} --ranks {most}"
        )
    };
    for (number, rank) in run.ranks.iter().enumerate() {
        scene.check(number, rank).map_err(|what| failed(number, what))?;
    }
    let begins = run.ranks.iter().map(|rank| rank.times[0]).max();
    let ends = run.ranks.iter().filter_map(|rank| rank.times.get(2)).min();
    if death.is_none() && ends.copied() < begins {
        return Err(failed(0, "the barrier ended before all ranks had begun".to_owned()));
    }
    Ok(events)
}

const ELEMENT_BYTES: usize = 8;

fn member_barrier(member: Member) -> Schedule {
    Collective::Barrier(BarrierAlgorithm::Dissemination).schedule(member, 0, ELEMENT_BYTES)
}

impl Scene {
    fn random(most: usize, rng: &mut Rng) -> Self {
        let most = 1 << rng.u32(1..=most.max(2).ilog2());
        let size = rng.usize(2..=most);
        // Short buffers, and some long ones. Ranks form rings only if a buffer is long.
        let len = size * if rng.u8(..4) == 0 { 1 + 9_000 / size } else { rng.usize(1..4) };
        let (root, blocks) = (rng.usize(..size), Blocks::even(len, size));
        let is_commutative = rng.bool();
        let collective = match rng.u8(..11) {
            0 => Collective::Barrier(BarrierAlgorithm::Centralized),
            1 => Collective::Barrier(BarrierAlgorithm::BinaryTree),
            2 => Collective::Barrier(BarrierAlgorithm::Dissemination),
            3 => Collective::Broadcast { root },
            4 => Collective::Gather { root, blocks },
            5 => Collective::Scatter { root, blocks },
            6 => Collective::AllGather { blocks },
            7 => Collective::AllToAll { sent: blocks.clone(), received: blocks, offset: 0 },
            8 => Collective::Reduce { root },
            9 => Collective::AllReduce { is_commutative },
            _ => Collective::ReduceScatter { is_commutative, blocks },
        };
        let dying = rng.usize(..size);
        let member = Member { rank: dying, size };
        let steps: usize =
            collective.schedule(member, len, ELEMENT_BYTES).iter().map(Vec::len).sum();
        let death = rng.bool().then(|| (dying, rng.usize(..=steps)));
        Self { size, len, collective, death }
    }

    fn input(&self, rank: usize) -> Vec<u64> {
        (0..self.len as u64).map(|at| (rank as u64 + 1) * 1_000_003 + at).collect()
    }

    /// Returns what is wrong with a rank after the run.
    fn check(&self, number: usize, rank: &Rank) -> Result<(), String> {
        let expected = match self.death {
            Some((dying, _)) if dying == number => State::Dead,
            Some((dying, _)) => State::Failed(dying),
            None => State::Done,
        };
        if rank.state != expected {
            return Err(format!("it is {:?}, expected {expected:?}", rank.state));
        }
        if self.death.is_some() {
            return Ok(());
        }
        for at in 0..self.len {
            if let Some(expected) = self.expected(number, at)
                && rank.buffer[at] != expected
            {
                return Err(format!("element {at} is {}, expected {expected}", rank.buffer[at]));
            }
        }
        Ok(())
    }

    /// Returns an element after the collective, unless its contents are unspecified.
    fn expected(&self, rank: usize, at: usize) -> Option<u64> {
        let Self { size, len, ref collective, .. } = *self;
        let input = |rank: usize, at: usize| (rank as u64 + 1) * 1_000_003 + at as u64;
        let each = len / size;
        let owner = at / each;
        let reduced = || (0..size).map(|rank| input(rank, at)).reduce(combine);
        match collective {
            Collective::Barrier(_) => Some(input(rank, at)),
            Collective::Broadcast { root } => Some(input(*root, at)),
            Collective::Gather { root, .. } => (rank == *root).then(|| input(owner, at)),
            Collective::Scatter { root, .. } => (rank == owner).then(|| input(*root, at)),
            Collective::AllGather { .. } => Some(input(owner, at)),
            Collective::AllToAll { .. } => Some(input(owner, rank * each + at % each)),
            Collective::Reduce { root } => {
                if rank == *root {
                    reduced()
                } else {
                    None
                }
            }
            Collective::AllReduce { .. } => reduced(),
            Collective::ReduceScatter { .. } => {
                if rank == owner {
                    reduced()
                } else {
                    None
                }
            }
        }
    }
}
