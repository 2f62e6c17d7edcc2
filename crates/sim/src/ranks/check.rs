//! The results that each rank must have.

use fastrand::Rng;
use rdma_group::BarrierAlgorithm;
use rdma_group::simulation::{Algorithm, Blocks, Collective, Member, Schedule};

use super::network::Network;
use super::rank::{Combine, Rank, State};
use super::run::Run;

/// A random group. One of its ranks may die.
struct Scene {
    size: usize,
    len: usize,
    collective: Collective,
    algorithm: Algorithm,
    /// A rank, and the number of its steps before it dies.
    death: Option<(usize, usize)>,
}

/// Runs the groups of some seeds, with at most `most` ranks. Returns the number of events.
///
/// # Errors
/// The first group that fails, with its seed and the number of groups before it.
pub fn check_many(first: u64, groups: u64, most: usize) -> Result<usize, String> {
    let mut events = 0;
    for seed in first..first.saturating_add(groups) {
        let checked = check(seed, most);
        events += checked.map_err(|it| format!("{it}\nfound after {} groups", seed - first))?;
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
    let Scene { size, len, ref collective, algorithm, death } = scene;
    let ranks = (0..size).map(|rank| {
        let member = Member { rank, size };
        let schedule = collective.schedule_by(algorithm, member, len);
        // After a death, only the barrier is sure to wait for the dead rank.
        let last = member_barrier(member);
        let dies_after = death.filter(|(dying, _)| *dying == rank).map(|(_, steps)| steps);
        let (input, begin) = (scene.input(rank), rng.u64(0..50_000));
        Rank::new([schedule, last], input, scene.combine(), begin, dies_after)
    });
    let ranks = ranks.collect();
    let mut run = Run::new(ranks, ELEMENT_BYTES, Network::new(Some(rng)));
    let events = run.finish();
    let failed = |rank: usize, what: String| {
        let name = format!("{collective:?}, {algorithm:?}, {len} elements, death {death:?}");
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

/// Returns an element of a rank before the collective.
fn input(rank: usize, at: usize) -> u64 {
    let rank = rank as u64;
    ((2 * rank + 3) << 32) + (rank + 1) * 1_000_003 + at as u64
}

/// Composes two affine functions: associative, but not commutative. A function `a x + b` is the number `a 2^32 + b`.
fn compose(first: u64, second: u64) -> u64 {
    let parts = |function: u64| (function >> 32, function & 0xffff_ffff);
    let ((a, b), (c, d)) = (parts(first), parts(second));
    (a.wrapping_mul(c) << 32) + (a.wrapping_mul(d).wrapping_add(b) & 0xffff_ffff)
}

fn member_barrier(member: Member) -> Schedule {
    Collective::Barrier(BarrierAlgorithm::Dissemination).schedule(member, 0, ELEMENT_BYTES)
}

impl Scene {
    fn random(most: usize, rng: &mut Rng) -> Self {
        let most = 1 << rng.u32(1..=most.max(2).ilog2());
        let size = rng.usize(2..=most);
        // Short buffers, and some long ones.
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
        let algorithm = if rng.bool() { Algorithm::FewRounds } else { Algorithm::Ring };
        let dying = rng.usize(..size);
        let member = Member { rank: dying, size };
        let steps: usize =
            collective.schedule_by(algorithm, member, len).iter().map(Vec::len).sum();
        let death = rng.bool().then(|| (dying, rng.usize(..=steps)));
        Self { size, len, collective, algorithm, death }
    }

    fn input(&self, rank: usize) -> Vec<u64> {
        (0..self.len).map(|at| input(rank, at)).collect()
    }

    /// Returns the reduction of this scene. Rings need one that is commutative. Other algorithms combine in rank order.
    fn combine(&self) -> Combine {
        match self.collective {
            Collective::AllReduce { is_commutative: true }
            | Collective::ReduceScatter { is_commutative: true, .. } => u64::wrapping_add,
            _ => compose,
        }
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
        let each = len / size;
        let owner = at / each;
        let reduced = || (0..size).map(|rank| input(rank, at)).reduce(self.combine());
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
