//! The time of collectives by the number of ranks, on a network without random delays.

use rdma_group::BarrierAlgorithm;
use rdma_group::simulation::{Blocks, Collective, Member, Schedule};

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
        of("barrier, dissemination", sizes, 0, |_| barrier(BarrierAlgorithm::Dissemination)),
        of("barrier, binary tree", sizes, 0, |_| barrier(BarrierAlgorithm::BinaryTree)),
        of("barrier, centralized", sizes, 0, |_| barrier(BarrierAlgorithm::Centralized)),
        of("all_reduce of 8 B, doubling", sizes, 8, all_reduce),
        of("all_reduce of 1 MiB, ring", sizes, LONG, all_reduce),
        of("all_gather of 1 MiB, ring", sizes, LONG, all_gather),
    ]
}

fn of(
    name: &'static str,
    sizes: &[usize],
    bytes: usize,
    collective: impl Fn(usize) -> Collective,
) -> Growth {
    let time = |size: usize| {
        // An element of a long buffer stands for a block, so that the simulation needs little memory.
        let (len, element_bytes) = if bytes < LONG { (bytes / 8, 8) } else { (size, bytes / size) };
        let collective = collective(size);
        let ranks = (0..size).map(|rank| {
            let schedule = collective.schedule(Member { rank, size }, len, element_bytes);
            Rank::new([schedule, Schedule::new()], vec![1; len], u64::wrapping_add, 0, None)
        });
        let mut run = Run::new(ranks.collect(), element_bytes, Network::new(None));
        run.finish();
        let ends = run.ranks.iter().map(|rank| rank.times[1]);
        ends.max().unwrap_or_default()
    };
    Growth { name, times: sizes.iter().map(|size| (*size, time(*size))).collect() }
}

#[cfg(test)]
mod tests {
    use super::super::network::{BYTES_IN_TWO, LATENCY, OVERHEAD};
    use super::*;

    /// The time of a round in which each rank sends one message and receives one.
    fn round(bytes: usize) -> u64 {
        LATENCY + 2 * OVERHEAD + (2 * bytes as u64).div_ceil(BYTES_IN_TWO)
    }

    #[test]
    fn a_barrier_takes_as_many_rounds_as_the_logarithm_and_a_ring_twice_the_size() {
        let most = if cfg!(debug_assertions) { 256 } else { 1024 };
        let sizes: Vec<_> =
            [2, 3, 5, 8, 100, 128, 1000, 1024].into_iter().filter(|size| *size <= most).collect();
        for Growth { name, times } in growth(&sizes) {
            for (size, time) in times {
                let (n, log2) = (size as u64, u64::from(size.next_power_of_two().trailing_zeros()));
                let block = LONG / size;
                let odd = u64::from(!size.is_power_of_two());
                match name {
                    "barrier, dissemination" => assert_eq!(time, log2 * round(0), "{size}"),
                    "all_reduce of 1 MiB, ring" => assert_eq!(time, 2 * (n - 1) * round(block)),
                    "all_gather of 1 MiB, ring" => assert_eq!(time, (n - 1) * round(block)),
                    // If the size is not a power of two, ranks begin with the next round at different times.
                    "all_reduce of 8 B, doubling" => {
                        let most = (log2 + odd) * round(8);
                        assert!(time == most || odd == 1 && time < most, "{size}: {time}");
                    }
                    _ => assert!(time >= round(0), "{name}, {size}"),
                }
            }
        }
    }
}
