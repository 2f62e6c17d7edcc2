//! Random programs of collectives, and the serial model of their results.

use std::fmt;
use std::iter;

use fastrand::Rng;

use super::*;
use crate::group::members::Members;

/// A number of a program, which is an integer of a certain number of bits.
pub(super) trait Value: Number + PartialEq + fmt::Debug {
    /// Half the number of bits.
    const HALF: u32;

    /// The sum, the least and the greatest of two numbers, and a function that is associative, but not commutative.
    const MODEL: [fn(Self, Self) -> Self; 4];

    fn new(number: u64) -> Self;

    fn number(self) -> u64;
}

impl Value for u64 {
    const HALF: u32 = 32;
    const MODEL: [fn(Self, Self) -> Self; 4] =
        [Self::wrapping_add, Ord::min, Ord::max, compose::<Self>];

    fn new(number: u64) -> Self {
        number
    }

    fn number(self) -> u64 {
        self
    }
}

/// The sums of 17 such numbers are exact in any order.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // integers of 48 bits
impl Value for f64 {
    const HALF: u32 = 24;
    const MODEL: [fn(Self, Self) -> Self; 4] =
        [std::ops::Add::add, Self::min, Self::max, compose::<Self>];

    fn new(number: u64) -> Self {
        number as Self
    }

    fn number(self) -> u64 {
        self as u64
    }
}

/// Composes two affine functions. A function `a x + b` is a number whose upper half is `a`.
pub(super) fn compose<V: Value>(first: V, second: V) -> V {
    let mask = (1_u128 << V::HALF) - 1;
    let parts = |f: V| (u128::from(f.number() >> V::HALF), u128::from(f.number()) & mask);
    let ((a, b), (c, d)) = (parts(first), parts(second));
    let low = |n: u128| u64::try_from(n & mask).unwrap();
    V::new(low(a * c) << V::HALF | low(a * d + b))
}

/// The number of reductions. The last one is a function.
const REDUCTIONS: usize = 4;

/// The functions of all reductions.
fn reductions<V: Value>() -> [Reduction<'static, V>; REDUCTIONS] {
    [Reduction::Sum, Reduction::Min, Reduction::Max, Reduction::Custom(&compose::<V>)]
}

/// A collective, and the buffers of its ranks.
#[derive(Debug)]
pub(super) struct Step<T> {
    pub(super) collective: Collective,
    /// The ranks of the group, in the order of their ranks in this group.
    pub(super) ranks: Vec<usize>,
    /// Whether the group is a part of the ranks.
    pub(super) is_split: bool,
    algorithm: Algorithm,
    pub(super) buffers: Vec<Vec<T>>,
}

impl<T: Number> Step<T> {
    /// Returns a collective of all ranks.
    pub(super) fn of_all(collective: Collective, buffers: Vec<Vec<T>>) -> Self {
        let (size, len) = (buffers.len(), buffers[0].len());
        let algorithm = collective.algorithm(size, len, size_of::<T>());
        Self { collective, ranks: (0..size).collect(), is_split: false, algorithm, buffers }
    }

    /// Returns the schedule of a rank of this group.
    fn prepare(&self, rank: usize, lengths: Lengths) -> Prepared {
        let (size, len) = (self.ranks.len(), self.buffers[rank].len());
        let mut schedule = self.collective.schedule_by(self.algorithm, Member { rank, size }, len);
        for transfer in schedule.iter_mut().flatten() {
            transfer.peer = self.ranks[transfer.peer];
        }
        Prepared { lengths, ..Prepared::new(schedule) }
    }
}

/// Runs collectives one after the other in memory. They replace their buffers.
pub(super) fn run_steps<T: Number>(
    steps: &mut [Step<T>],
    size: usize,
    reduction: Reduction<'_, T>,
    lengths: Lengths,
    rng: &mut Rng,
) {
    let combine = combine(reduction);
    let prepare = |step: &Step<T>| -> Vec<_> {
        (0..step.ranks.len()).map(|rank| step.prepare(rank, lengths)).collect()
    };
    let mut prepared: Vec<_> = steps.iter().map(prepare).collect();
    let mut programs: Vec<_> = iter::repeat_with(VecDeque::new).take(size).collect();
    for ((step, prepared), generation) in steps.iter_mut().zip(&mut prepared).zip(0..) {
        let call = Call { kind: step.collective.kind() as u8, generation, ..NO_CALL };
        for ((buffer, prepared), rank) in step.buffers.iter_mut().zip(prepared).zip(&step.ranks) {
            let run = Run::new(call, prepared, Elements::Slice(buffer), Some(&*combine));
            programs[*rank].push_back(run);
        }
    }
    run_all(programs, rng);
}

/// The collectives of a program.
#[derive(Debug)]
pub(super) struct Program<V> {
    pub(super) size: usize,
    /// The index of the reduction.
    reduction: usize,
    /// The colour and the key of each rank, for a division of the ranks into groups.
    pub(super) pairs: Vec<[u64; 2]>,
    pub(super) steps: Vec<Step<V>>,
}

impl<V: Value> Program<V> {
    /// Returns a random program. `len` returns the length of a buffer.
    pub(super) fn random(
        size: usize,
        calls: usize,
        len: impl Fn(&mut Rng) -> usize,
        rng: &mut Rng,
    ) -> Self {
        let reduction = rng.usize(..REDUCTIONS);
        let pairs: Vec<_> = (0..size).map(|_| [rng.u64(..3), rng.u64(..4)]).collect();
        let mut program = Self { size, reduction, pairs, steps: Vec::new() };
        for _ in 0..calls {
            let is_split = rng.u8(..3) == 0;
            let groups = if is_split { program.parts() } else { vec![(0..size).collect()] };
            for ranks in groups {
                let step = program.random_step(ranks, is_split, len(rng), rng);
                program.steps.push(step);
            }
        }
        program
    }

    /// Returns the ranks of each colour, in the order of their keys and ranks.
    fn parts(&self) -> Vec<Vec<usize>> {
        let of = |colour| {
            let mut ranks: Vec<_> =
                (0..self.size).filter(|rank| self.pairs[*rank][0] == colour).collect();
            ranks.sort_by_key(|rank| self.pairs[*rank][1]);
            ranks
        };
        (0..3).map(of).filter(|ranks| !ranks.is_empty()).collect()
    }

    fn random_step(&self, ranks: Vec<usize>, is_split: bool, len: usize, rng: &mut Rng) -> Step<V> {
        let size = ranks.len();
        let is_commutative = self.reduction + 1 < REDUCTIONS;
        let collective = random_collective(size, len, is_commutative, rng);
        let len = match &collective {
            Collective::AllToAll { sent, .. } => sent.len(),
            _ => len,
        };
        let number = |rng: &mut Rng| V::new(rng.u64(..) >> (u64::BITS - 2 * V::HALF));
        let mut buffer = || iter::repeat_with(|| number(rng)).take(len).collect();
        let buffers = (0..size).map(|_| buffer()).collect();
        let algorithm = if rng.bool() { Algorithm::FewRounds } else { Algorithm::Ring };
        Step { collective, ranks, is_split, algorithm, buffers }
    }

    pub(super) fn reduction(&self) -> Reduction<'static, V> {
        reductions()[self.reduction]
    }

    /// Checks the buffer of a rank of the group of a step after its collective.
    pub(super) fn check(&self, step: usize, rank: usize, found: &[V]) {
        let Step { collective, buffers, .. } = &self.steps[step];
        let expected = expect(collective, V::MODEL[self.reduction], buffers, rank);
        let mut pairs = found.iter().zip(&expected).enumerate();
        let is_wrong = |(_, (found, expected)): &(usize, (&V, &Option<V>))| {
            expected.is_some_and(|expected| **found != expected)
        };
        let wrong = pairs.find(is_wrong);
        assert_eq!(wrong, None, "step {step}, rank {rank} of {}, {collective:?}", buffers.len());
        assert_eq!(found.len(), expected.len());
    }

    /// Runs the program in memory, and checks the buffers of all ranks.
    fn check_in_memory(&self, lengths: Lengths, rng: &mut Rng) {
        let copy = |step: &Step<V>| Step {
            collective: step.collective.clone(),
            ranks: step.ranks.clone(),
            buffers: step.buffers.clone(),
            ..*step
        };
        let mut steps: Vec<_> = self.steps.iter().map(copy).collect();
        run_steps(&mut steps, self.size, self.reduction(), lengths, rng);
        for (i, step) in steps.iter().enumerate() {
            (0..step.ranks.len()).for_each(|rank| self.check(i, rank, &step.buffers[rank]));
        }
    }

    /// Compares the division into groups with that of a group's members.
    fn check_split(&self) {
        let parts = self.parts();
        for (own, [colour, _]) in self.pairs.iter().enumerate() {
            let members = Members::all(own, self.size).split(&self.pairs, *colour);
            let part = parts.iter().find(|ranks| ranks.contains(&own)).unwrap();
            assert_eq!((&members.ranks, part[members.member.rank]), (part, own));
            assert_eq!(members.member.size, part.len());
        }
    }
}

/// Returns the buffer of a rank after a collective. An element that the collective leaves unspecified is `None`.
fn expect<V: Value>(
    collective: &Collective,
    combine: fn(V, V) -> V,
    inputs: &[Vec<V>],
    rank: usize,
) -> Vec<Option<V>> {
    let (len, size) = (inputs[0].len(), inputs.len());
    let reduced = || -> Vec<_> {
        let columns = (0..len).map(|i| inputs.iter().map(move |input| input[i]));
        columns.map(|column| column.reduce(combine)).collect()
    };
    let only = |range: Range<usize>, values: &[Option<V>]| -> Vec<_> {
        let values = values.iter().enumerate();
        values.map(|(i, value)| value.filter(|_| range.contains(&i))).collect()
    };
    let known = |values: &[V]| -> Vec<_> { values.iter().copied().map(Some).collect() };
    let gathered = |blocks: &Blocks| -> Vec<_> {
        (0..size).flat_map(|rank| known(&inputs[rank][blocks.block(rank)])).collect()
    };
    match collective {
        Collective::Barrier(_) => known(&inputs[rank]),
        Collective::Gather { root, .. } | Collective::Reduce { root } if *root != rank => {
            vec![None; len]
        }
        Collective::Broadcast { root } => known(&inputs[*root]),
        Collective::Gather { blocks, .. } | Collective::AllGather { blocks } => gathered(blocks),
        Collective::Scatter { root, blocks } => only(blocks.block(rank), &known(&inputs[*root])),
        Collective::AllToAll { sent, .. } => {
            inputs.iter().flat_map(|input| known(&input[sent.block(rank)])).collect()
        }
        Collective::Reduce { .. } | Collective::AllReduce { .. } => reduced(),
        Collective::ReduceScatter { blocks, .. } => only(blocks.block(rank), &reduced()),
    }
}

fn random_collective(size: usize, len: usize, is_commutative: bool, rng: &mut Rng) -> Collective {
    let root = rng.usize(..size);
    let mut cuts: Vec<_> = iter::repeat_with(|| rng.usize(..=len)).take(size - 1).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    let counts: Vec<_> = cuts.windows(2).map(|cut| cut[1] - cut[0]).collect();
    let blocks = Blocks::of(&counts).unwrap();
    match rng.u8(..11) {
        0 => Collective::Barrier(BarrierAlgorithm::Centralized),
        1 => Collective::Barrier(BarrierAlgorithm::BinaryTree),
        2 => Collective::Barrier(BarrierAlgorithm::Dissemination),
        3 => Collective::Broadcast { root },
        4 => Collective::Gather { root, blocks },
        5 => Collective::Scatter { root, blocks },
        6 => Collective::AllGather { blocks },
        7 => {
            let blocks = Blocks::even(len - len % size, size);
            Collective::AllToAll { sent: blocks.clone(), received: blocks, offset: 0 }
        }
        8 => Collective::Reduce { root },
        9 => Collective::AllReduce { is_commutative },
        _ => Collective::ReduceScatter { is_commutative, blocks: Blocks::even(len, size) },
    }
}

/// Returns lengths with which short buffers have several messages and long pieces.
fn short_lengths(rng: &mut Rng) -> Lengths {
    let data = 16 << rng.u32(..4);
    Lengths { data, short: 2 * data, piece: data * rng.usize(1..=8) }
}

fn check_random<V: Value>(rng: &mut Rng) {
    let (size, calls) = (rng.usize(1..=17), rng.usize(1..=4));
    let program = Program::<V>::random(size, calls, |rng| rng.usize(..=40), rng);
    program.check_split();
    let lengths = if rng.bool() { LENGTHS } else { short_lengths(rng) };
    program.check_in_memory(lengths, rng);
}

#[test]
fn random_programs_agree_with_the_model() {
    for seed in 0..10_000 {
        let rng = &mut Rng::with_seed(seed);
        if rng.bool() { check_random::<u64>(rng) } else { check_random::<f64>(rng) }
    }
}

#[test]
fn buffers_of_many_messages_agree_with_the_model() {
    for seed in 0..10 {
        let mut rng = Rng::with_seed(seed);
        let size = rng.usize(2..=9);
        let program = Program::<u64>::random(size, 4, |rng| rng.usize(..=70_000), &mut rng);
        program.check_in_memory(LENGTHS, &mut rng);
    }
}

#[test]
fn many_ranks_agree_with_the_model() {
    for (size, programs) in [(64, 20), (1024, 3)] {
        for seed in 0..programs {
            let mut rng = Rng::with_seed(seed);
            // Rings of 1,024 ranks have long schedules, so all calls are of other kinds.
            let root = rng.usize(..size);
            let collectives = [
                Collective::Barrier(BarrierAlgorithm::Dissemination),
                Collective::Barrier(BarrierAlgorithm::BinaryTree),
                Collective::Barrier(BarrierAlgorithm::Centralized),
                Collective::Broadcast { root },
                Collective::AllGather { blocks: Blocks::even(size, size) },
                Collective::AllReduce { is_commutative: false },
            ];
            let all: Vec<_> = (0..size as u64).collect();
            let buffers = || all.iter().map(|rank| vec![*rank; size]).collect();
            let mut steps = collectives.map(|collective| Step::of_all(collective, buffers()));
            run_steps(&mut steps, size, Reduction::Custom(&compose), LENGTHS, &mut rng);
            let composed = all.iter().copied().reduce(compose).unwrap();
            let expected = [vec![root as u64; size], all, vec![composed; size]];
            for (step, expected) in steps[3..].iter().zip(expected) {
                assert!(step.buffers.iter().all(|buffer| *buffer == expected));
            }
        }
    }
    let rng = &mut Rng::with_seed(1);
    Program::<u64>::random(64, 4, |rng| rng.usize(..=640), rng).check_in_memory(LENGTHS, rng);
}

/// Returns the elements that a collective of sums specifies on a rank.
pub(super) fn specified(collective: &Collective, rank: usize, len: usize) -> Range<usize> {
    match collective {
        Collective::Reduce { root } if *root != rank => 0..0,
        Collective::ReduceScatter { blocks, .. } => blocks.block(rank),
        _ => 0..len,
    }
}

/// Returns the collectives of sums.
pub(super) fn sums(size: usize, len: usize) -> [Collective; 3] {
    let (is_commutative, blocks) = (true, Blocks::even(len, size));
    [
        Collective::AllReduce { is_commutative },
        Collective::Reduce { root: size / 2 },
        Collective::ReduceScatter { is_commutative, blocks },
    ]
}

/// Runs each collective of sums in several orders of delivery. `bits` are those of a number.
fn check_bits<T: Number>(
    algorithm: Algorithm,
    (size, len): (usize, usize),
    new: fn(f64) -> T,
    bits: fn(&T) -> u64,
) {
    let mut values = Rng::with_seed(7);
    let mut row = || iter::repeat_with(|| new(values.f64() * 1e9 - 5e8)).take(len).collect();
    let inputs: Vec<Vec<T>> = iter::repeat_with(&mut row).take(size).collect();
    let mut first: Option<Vec<Vec<u64>>> = None;
    for seed in 0..3 {
        let step = |collective| Step { algorithm, ..Step::of_all(collective, inputs.clone()) };
        let mut steps = sums(size, len).map(step);
        let rng = &mut Rng::with_seed(seed);
        run_steps(&mut steps, size, Reduction::Sum, LENGTHS, rng);
        let mut results = Vec::new();
        for step in &steps {
            let of = |rank: usize| {
                let buffer = &step.buffers[rank];
                buffer[specified(&step.collective, rank, len)].iter().map(bits).collect()
            };
            results.extend((0..size).map(of));
        }
        assert!(results[..size].iter().all(|result| *result == results[0]), "{size}, {len}");
        assert!(first.get_or_insert_with(|| results.clone()) == &results, "{size}, {len}");
    }
}

#[test]
fn sums_of_floats_are_equal_on_all_ranks_and_in_all_orders_of_delivery() {
    // The longer buffers have several messages.
    let sizes = (1..=17).map(|size| (size, 100)).chain([2, 3, 5, 8, 17].map(|size| (size, 17_000)));
    for buffers in sizes {
        for algorithm in [Algorithm::FewRounds, Algorithm::Ring] {
            check_bits::<f64>(algorithm, buffers, |value| value, |value| value.to_bits());
            #[allow(clippy::cast_possible_truncation)] // any number
            let new = |value| value as f32;
            check_bits::<f32>(algorithm, buffers, new, |value| value.to_bits().into());
        }
    }
}
