//! Random programs of ranks in threads, which are connected on the software device.

use std::thread;

#[cfg(feature = "async")]
use tokio::runtime::{Builder, Runtime};

use test_support::loopback::free_address;

use super::programs::{Program, Step, Value, specified, sums};
use super::*;
use crate::error::Error;
use crate::group::Group;
use crate::group::buffer::Memory;
use crate::world::tests::{LIMIT, counts, domain};

/// The number of programs of a group.
const PROGRAMS: usize = 40;

/// Returns the result of an asynchronous call. All ranks share a runtime.
#[cfg(feature = "async")]
fn wait<F: Future>(future: F) -> F::Output {
    static RUNTIME: std::sync::OnceLock<Runtime> = std::sync::OnceLock::new();
    let builder = || Builder::new_multi_thread().worker_threads(2).enable_all().build();
    RUNTIME.get_or_init(|| builder().unwrap()).block_on(future)
}

/// Defines the calls of a rank. `$run` returns the result of a call.
macro_rules! calls {
    ($module:ident, $group:ty, $run:path) => {
        mod $module {
            use super::*;

            /// Calls the collective of a step.
            fn call<T: Number, M: Memory<Element = T>>(
                group: &mut $group,
                step: &Step<T>,
                reduction: Reduction<'_, T>,
                buffer: &mut M,
            ) -> Result<(), Error> {
                let size = group.world_size();
                match &step.collective {
                    Collective::Barrier(algorithm) => $run(group.barrier_with(*algorithm)),
                    Collective::Broadcast { root } => $run(group.broadcast(*root, buffer)),
                    Collective::Gather { root, blocks } => {
                        $run(group.gather_v(*root, buffer, &counts(blocks, size)))
                    }
                    Collective::Scatter { root, blocks } => {
                        $run(group.scatter_v(*root, buffer, &counts(blocks, size)))
                    }
                    Collective::AllGather { blocks } => {
                        $run(group.all_gather_v(buffer, &counts(blocks, size)))
                    }
                    Collective::AllToAll { .. } => $run(group.all_to_all(buffer)),
                    Collective::Reduce { root } => $run(group.reduce(*root, buffer, reduction)),
                    Collective::AllReduce { .. } => $run(group.all_reduce(buffer, reduction)),
                    Collective::ReduceScatter { blocks, .. } => {
                        let own = $run(group.reduce_scatter(buffer, reduction))?;
                        assert_eq!(own, blocks.block(group.rank()));
                        Ok(())
                    }
                }
            }

            /// Calls the collective of a step with this rank's buffer, which may be registered. Returns the elements.
            pub(super) fn run<T: Number>(
                group: &mut $group,
                step: &Step<T>,
                reduction: Reduction<'_, T>,
                is_registered: bool,
            ) -> Vec<T> {
                let mut elements = step.buffers[group.rank()].clone();
                if is_registered {
                    let mut buffer = group.buffer(elements.len()).unwrap();
                    buffer.copy_from_slice(&elements);
                    call(group, step, reduction, &mut buffer).unwrap();
                    return buffer.to_vec();
                }
                call(group, step, reduction, &mut elements).unwrap();
                elements
            }

            /// Runs a program, and checks the buffers of this rank.
            pub(super) fn check<V: Value>(group: &mut $group, program: &Program<V>) {
                let own = group.rank();
                let [colour, key] = program.pairs[own];
                let mut part = $run(group.split(colour, key)).unwrap();
                for (i, step) in program.steps.iter().enumerate() {
                    let group = if step.is_split { &mut part } else { &mut *group };
                    if step.ranks.get(group.rank()) == Some(&own) {
                        let is_registered = (i + own) % 3 == 0;
                        let found = run(group, step, program.reduction(), is_registered);
                        program.check(i, group.rank(), &found);
                    }
                }
            }
        }
    };
}

calls! { blocking, Group, std::convert::identity }
#[cfg(feature = "async")]
calls! { asynchronous, crate::aio::Group, wait }

/// Runs a group whose ranks are threads. Returns their results in rank order.
fn group<R: Send>(
    size: usize,
    is_async: impl Fn(usize) -> bool,
    one: impl Fn(&mut Group) -> R + Sync,
    #[cfg(feature = "async")] other: impl Fn(&mut crate::aio::Group) -> R + Sync,
) -> Vec<R> {
    let (pd, master) = (domain(), free_address().to_string());
    thread::scope(|threads| {
        let (pd, master, one) = (&pd, &*master, &one);
        #[cfg(feature = "async")]
        let other = &other;
        let rank = |rank: usize| {
            let is_async = is_async(rank);
            threads.spawn(move || {
                let builder = Group::builder(pd, rank, size, master).limit(LIMIT).join_limit(LIMIT);
                #[cfg(feature = "async")]
                if is_async {
                    return other(&mut wait(builder.join_async()).unwrap());
                }
                assert!(!is_async);
                one(&mut builder.join().unwrap())
            })
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs random programs on groups of three to five ranks.
fn check_random(seed: u64, is_async: impl Fn(usize) -> bool) {
    for size in 3..=5 {
        let rng = &mut Rng::with_seed(seed + size as u64);
        // Half of the buffers have at most 256 elements, and the longest ones have several long pieces.
        let len = |rng: &mut Rng| {
            let bits = rng.u32(..17);
            rng.usize(..1 << bits)
        };
        let calls = |rng: &mut Rng| rng.usize(1..=5);
        let integers: Vec<_> =
            (0..PROGRAMS / 2).map(|_| Program::<u64>::random(size, calls(rng), len, rng)).collect();
        let floats: Vec<_> =
            (0..PROGRAMS / 2).map(|_| Program::<f64>::random(size, calls(rng), len, rng)).collect();
        group(
            size,
            &is_async,
            |group| {
                integers.iter().for_each(|program| blocking::check(group, program));
                floats.iter().for_each(|program| blocking::check(group, program));
            },
            #[cfg(feature = "async")]
            |group| {
                integers.iter().for_each(|program| asynchronous::check(group, program));
                floats.iter().for_each(|program| asynchronous::check(group, program));
            },
        );
    }
}

#[test]
fn random_programs_of_blocking_ranks_agree_with_the_model() {
    check_random(0, |_| false);
}

#[cfg(feature = "async")]
#[test]
fn random_programs_of_asynchronous_ranks_agree_with_the_model() {
    check_random(100, |_| true);
}

#[cfg(feature = "async")]
#[test]
fn random_programs_of_blocking_and_asynchronous_ranks_agree_with_the_model() {
    check_random(200, |rank| rank % 2 == 1);
}

/// Returns the bits of sums on all ranks of a group. Short buffers and long ones are added.
fn sums_of_threads(size: usize, is_async: bool, is_registered: bool) -> Vec<Vec<u32>> {
    let rng = &mut Rng::with_seed(9);
    let steps = [100, 100_000].map(|len| {
        let row = |_| (0..len).map(|_| rng.f32() * 1e9 - 5e8).collect::<Vec<f32>>();
        let rows: Vec<_> = (0..size).map(row).collect();
        sums(size, len).map(|collective| Step::of_all(collective, rows.clone()))
    });
    let steps = steps.as_flattened();
    let bits = |step: &Step<f32>, rank: usize, buffer: Vec<f32>| {
        let range = specified(&step.collective, rank, buffer.len());
        buffer[range].iter().map(|sum| sum.to_bits()).collect::<Vec<_>>()
    };
    group(
        size,
        |_| is_async,
        |group| {
            let run = |step| blocking::run(group, step, Reduction::Sum, is_registered);
            let results: Vec<_> = steps.iter().map(run).collect();
            let rank = group.rank();
            steps.iter().zip(results).flat_map(|(step, it)| bits(step, rank, it)).collect()
        },
        #[cfg(feature = "async")]
        |group| {
            let run = |step| asynchronous::run(group, step, Reduction::Sum, is_registered);
            let results: Vec<_> = steps.iter().map(run).collect();
            let rank = group.rank();
            steps.iter().zip(results).flat_map(|(step, it)| bits(step, rank, it)).collect()
        },
    )
}

#[test]
fn sums_of_floats_are_equal_in_repeated_runs_with_any_memory_and_driver() {
    let size = 3;
    let first = sums_of_threads(size, false, false);
    assert!(first.iter().all(|bits| bits.len() > 100_100));
    for is_async in [false, cfg!(feature = "async")] {
        for is_registered in [false, true] {
            let again = sums_of_threads(size, is_async, is_registered);
            assert!(again == first, "async: {is_async}, registered: {is_registered}");
        }
    }
}
