//! The time of collectives by the number of ranks, on a network without random delays.

use rdma_group::BarrierAlgorithm;
use rdma_group::simulation::{Algorithm, Blocks, Collective, Member, Schedule};

use super::network::Network;
use super::rank::Rank;
use super::run::Run;

/// The time of a collective, by the number of ranks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Growth {
    /// The name of the collective, with its length.
    pub name: &'static str,
    /// The numbers of ranks, and the times until the last rank has ended, in nanoseconds.
    pub times: Vec<(usize, u64)>,
}

/// The length of long buffers in bytes.
const LONG: usize = 1 << 20;

/// Runs collectives on these numbers of ranks.
#[must_use]
pub fn growth(sizes: &[usize]) -> Vec<Growth> {
    let barrier = Collective::Barrier;
    let all_reduce = |_| Collective::AllReduce { is_commutative: true };
    let all_gather = |size| Collective::AllGather { blocks: Blocks::even(size, size) };
    vec![
        of("barrier, dissemination", sizes, 0, None, |_| barrier(BarrierAlgorithm::Dissemination)),
        of("barrier, binary tree", sizes, 0, None, |_| barrier(BarrierAlgorithm::BinaryTree)),
        of("barrier, centralized", sizes, 0, None, |_| barrier(BarrierAlgorithm::Centralized)),
        of("all_reduce of 8 B", sizes, 8, None, all_reduce),
        of("all_reduce of 1 MiB", sizes, LONG, None, all_reduce),
        of("all_gather of 1 MiB", sizes, LONG, None, all_gather),
        of("all_reduce of 1 MiB, a ring", sizes, LONG, Some(Algorithm::Ring), all_reduce),
    ]
}

/// Runs a collective by an algorithm, or by the one that the ranks choose.
fn of(
    name: &'static str,
    sizes: &[usize],
    bytes: usize,
    algorithm: Option<Algorithm>,
    collective: impl Fn(usize) -> Collective,
) -> Growth {
    let time = |size: usize| {
        // An element of a long buffer stands for a block, so that the simulation needs little memory.
        let (len, element_bytes) = if bytes < LONG { (bytes / 8, 8) } else { (size, bytes / size) };
        let collective = collective(size);
        time(size, (len, element_bytes), |member| match algorithm {
            Some(algorithm) => collective.schedule_by(algorithm, member, len),
            None => collective.schedule(member, len, element_bytes),
        })
    };
    Growth { name, times: sizes.iter().map(|size| (*size, time(*size))).collect() }
}

/// Returns the time until the last rank has ended. The buffer has `len` elements.
fn time(
    size: usize,
    (len, element_bytes): (usize, usize),
    schedule: impl Fn(Member) -> Schedule,
) -> u64 {
    let ranks = (0..size).map(|rank| {
        let schedules = [schedule(Member { rank, size }), Schedule::new()];
        Rank::new(schedules, vec![1; len], u64::wrapping_add, 0, None)
    });
    let mut run = Run::new(ranks.collect(), element_bytes, Network::new(None));
    run.finish();
    let ends = run.ranks.iter().map(|rank| rank.times[1]);
    ends.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::network::{BYTES_IN_TWO, LATENCY, OVERHEAD};
    use super::*;

    /// The time of a round in which each rank sends one message and receives one.
    fn round(bytes: usize) -> u64 {
        LATENCY + 2 * OVERHEAD + (2 * bytes as u64).div_ceil(BYTES_IN_TWO)
    }

    /// Returns the collectives that have two algorithms, with the number of rounds of a ring.
    fn choices(size: usize, len: usize) -> [(Collective, u64); 3] {
        let (is_commutative, blocks) = (true, Blocks::even(len, size));
        let steps = size as u64 - 1;
        [
            (Collective::AllGather { blocks: blocks.clone() }, steps),
            (Collective::AllReduce { is_commutative }, 2 * steps),
            (Collective::ReduceScatter { is_commutative, blocks }, steps),
        ]
    }

    /// Returns the number of elements of a buffer of about that many bytes, and the length of an element. If possible, an
    /// element stands for a block.
    fn elements(size: usize, bytes: usize) -> (usize, usize) {
        let len = size.min(bytes / 8);
        (len, bytes / len)
    }

    /// Returns the time of an algorithm of a collective.
    fn time_of(
        collective: &Collective,
        algorithm: Algorithm,
        size: usize,
        (len, element_bytes): (usize, usize),
    ) -> u64 {
        time(size, (len, element_bytes), |member| collective.schedule_by(algorithm, member, len))
    }

    #[test]
    fn a_barrier_takes_as_many_rounds_as_the_logarithm_and_a_ring_as_many_as_the_size() {
        let most = if cfg!(debug_assertions) { 256 } else { 1024 };
        let sizes: Vec<_> =
            [2, 3, 5, 8, 100, 128, 1000, 1024].into_iter().filter(|size| *size <= most).collect();
        for Growth { name, times } in growth(&sizes) {
            for (size, time) in times {
                let log2 = u64::from(size.next_power_of_two().trailing_zeros());
                let odd = u64::from(!size.is_power_of_two());
                match name {
                    "barrier, dissemination" => assert_eq!(time, log2 * round(0), "{size}"),
                    // If the size is not a power of two, ranks begin with the next round at different times.
                    "all_reduce of 8 B" => {
                        let most = (log2 + odd) * round(8);
                        assert!(time == most || odd == 1 && time < most, "{size}: {time}");
                    }
                    "all_reduce of 1 MiB, a ring" => {
                        assert_eq!(time, 2 * (size as u64 - 1) * round(LONG / size), "{size}");
                    }
                    _ => assert!(time >= round(0), "{name}, {size}"),
                }
            }
        }
        for size in sizes {
            let (len, element_bytes) = elements(size, LONG);
            for (collective, rounds) in choices(size, len) {
                let time = time_of(&collective, Algorithm::Ring, size, (len, element_bytes));
                assert_eq!(time, rounds * round(element_bytes), "{size}, {collective:?}");
            }
        }
    }

    /// Returns how much longer the chosen algorithm takes than the best one, in per cent. `times` are those of few rounds
    /// and of a ring.
    fn excess(
        collective: &Collective,
        size: usize,
        (len, element_bytes): (usize, usize),
        times: [u64; 2],
    ) -> u64 {
        let [few, ring] = times;
        let chosen = match collective.algorithm(size, len, element_bytes) {
            Algorithm::FewRounds => few,
            Algorithm::Ring => ring,
        };
        100 * chosen / few.min(ring) - 100
    }

    #[test]
    fn no_length_is_much_slower_than_with_the_best_algorithm() {
        for size in (2..=24).chain([64, 100, 1024]) {
            let lengths = (3..26).flat_map(|power| [1 << power, 3 << (power - 1)]);
            let lengths = lengths.chain([(64 << 10) + 8]);
            let mut worst = 0;
            // Many ranks take longer in slow builds.
            for bytes in lengths.step_by(if size < 1024 { 1 } else { 5 }) {
                let (len, element_bytes) = elements(size, bytes);
                for (collective, rounds) in choices(size, len) {
                    let few =
                        time_of(&collective, Algorithm::FewRounds, size, (len, element_bytes));
                    // The test above shows that this is exact for even blocks.
                    let ring = rounds * round(element_bytes);
                    worst = worst.max(excess(&collective, size, (len, element_bytes), [few, ring]));
                }
            }
            // The ring of two ranks saves time that the simulator does not count: each combines only half the buffer.
            let most = if size == 2 { 33 } else { 20 };
            assert!(worst <= most, "{size} ranks: {worst} %");
        }
    }

    /// The block of one rank, or of each second one, has all data.
    #[test]
    fn no_length_of_uneven_blocks_is_much_slower_than_with_the_best_algorithm() {
        let mut worst = 0;
        for size in (2..=9).chain([64]) {
            for bytes in (3..26).map(|power| 1 << power) {
                let one = |owner: usize| {
                    (0..size).map(|rank| usize::from(rank == owner)).collect::<Vec<_>>()
                };
                let second = (0..size).map(|rank| rank % 2).collect();
                for counts in [one(0), one(1), one(size - 1), second] {
                    let blocks = Blocks::of(&counts).unwrap();
                    let len = counts.iter().sum();
                    let buffer = (len, bytes / len);
                    let collective = Collective::AllGather { blocks };
                    let times = [Algorithm::FewRounds, Algorithm::Ring]
                        .map(|algorithm| time_of(&collective, algorithm, size, buffer));
                    worst = worst.max(excess(&collective, size, buffer, times));
                }
            }
        }
        assert!(worst <= 20, "{worst} %");
    }
}
