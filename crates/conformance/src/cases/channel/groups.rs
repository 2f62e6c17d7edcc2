//! Cases for groups: ranks in threads, each with its own context.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rdma_channel::Channel;
use rdma_group::network::{
    ExchangeConfig, Exchanger, NetworkConfig, Node, NodeConfig, RawNetworkConfig,
};
use rdma_group::{BarrierAlgorithm, Error, Group, GroupBuilder, Reduction, aio};
use rdma_mem::{ProtectionDomain, open_device};
use test_support::loopback::free_address;

use crate::case::cases;
use crate::device::Device;

cases![
    all_collectives_return_their_results,
    all_collectives_of_asynchronous_ranks_return_their_results,
    registered_buffers_have_the_results_of_all_ranks,
    blocking_and_asynchronous_ranks_form_a_group,
    two_ranks_connect,
    no_rank_of_a_node_leaves_a_barrier_before_all_have_entered,
    a_rank_that_leaves_is_named_on_all_others
];

const SIZE: usize = 3;
const LIMIT: Duration = Duration::from_secs(120);
const ALGORITHMS: [BarrierAlgorithm; 3] =
    [BarrierAlgorithm::Centralized, BarrierAlgorithm::BinaryTree, BarrierAlgorithm::Dissemination];

/// Runs three ranks, each with its own domain. Returns their results in rank order.
fn threads<T: Send>(
    device: &Device,
    part: impl Fn(usize, &ProtectionDomain) -> T + Sync,
) -> Vec<T> {
    let name = &**device;
    thread::scope(|threads| {
        let part = &part;
        let rank = |rank| {
            threads.spawn(move || {
                let pd = open_device(name).unwrap().allocate_pd().unwrap();
                part(rank, &pd)
            })
        };
        let ranks: Vec<_> = (0..SIZE).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs a group of three ranks. Returns their results in rank order.
fn ranks<T: Send>(device: &Device, part: impl Fn(&mut Group) -> T + Sync) -> Vec<T> {
    let master = free_address().to_string();
    threads(device, |rank, pd| part(&mut Group::builder(pd, rank, SIZE, &master).join().unwrap()))
}

/// Defines a function that calls all collectives of a blocking or an asynchronous group.
macro_rules! call_all {
    ($name:ident, $group:ty $(, $async:tt, $await:tt)?) => {
        /// Calls all collectives. Each rank has as many elements as `each` for each rank.
        $($async)? fn $name(group: &mut $group, each: usize) -> Result<(), Error> {
            let own = group.rank();
            let of = |ranks: [usize; 3]| ranks.map(|rank| vec![rank; each]).concat();
            for algorithm in ALGORITHMS {
                group.barrier_with(algorithm)$(.$await)??;
            }
            let mut buffer = of([own; 3]);
            group.broadcast(1, &mut buffer)$(.$await)??;
            assert_eq!(buffer, of([1; 3]));
            let mut buffer = of([own; 3]);
            group.gather(2, &mut buffer)$(.$await)??;
            assert!(own != 2 || buffer == of([0, 1, 2]));
            let mut buffer = if own == 0 { of([0, 1, 2]) } else { of([9; 3]) };
            group.scatter(0, &mut buffer)$(.$await)??;
            assert_eq!(buffer[own * each..][..each], vec![own; each]);
            let mut buffer = of([own; 3]);
            group.all_gather(&mut buffer)$(.$await)??;
            assert_eq!(buffer, of([0, 1, 2]));
            let mut buffer = of([own, own + 10, own + 20]);
            group.all_to_all(&mut buffer)$(.$await)??;
            assert_eq!(buffer, of([0, 1, 2].map(|from| from + 10 * own)));

            // Rank 0 has an empty block, and rank 2 the longest one.
            let counts = [0, each, 2 * each];
            let all = [vec![1; each], vec![2; 2 * each]].concat();
            let mut buffer = vec![own; 3 * each];
            group.gather_v(2, &mut buffer, &counts)$(.$await)??;
            assert!(own != 2 || buffer == all);
            let mut buffer = if own == 0 { all.clone() } else { vec![9; 3 * each] };
            group.scatter_v(0, &mut buffer, &counts)$(.$await)??;
            let start = if own == 2 { each } else { 0 };
            assert_eq!(buffer[start..][..own * each], vec![own; own * each]);
            let mut buffer = vec![own; 3 * each];
            group.all_gather_v(&mut buffer, &counts)$(.$await)??;
            assert_eq!(buffer, all);
            let (sent, mut received) = (vec![own; 3 * each], vec![9; 3 * own * each]);
            group.all_to_all_v(&sent, &counts, &mut received, &[own * each; 3])$(.$await)??;
            assert_eq!(received, [0, 1, 2].map(|from| vec![from; own * each]).concat());

            let mut buffer = vec![own as u64; each];
            group.reduce(1, &mut buffer, Reduction::Max)$(.$await)??;
            assert!(own != 1 || buffer == vec![2; each]);
            let mut buffer = vec![own as f64; 3 * each];
            group.all_reduce(&mut buffer, Reduction::Sum)$(.$await)??;
            assert_eq!(buffer, vec![3.0; 3 * each]);
            // A function that is not commutative.
            let last = |_, higher| higher;
            let mut buffer = vec![own as u64; each];
            group.all_reduce(&mut buffer, Reduction::Custom(&last))$(.$await)??;
            assert_eq!(buffer, vec![2; each]);
            let mut buffer = vec![own as i32 - 1; 3 * each];
            let block = group.reduce_scatter(&mut buffer, Reduction::Min)$(.$await)??;
            assert_eq!(buffer[block], vec![-1; each]);
            let mut pair = group.split(u64::from(own == 0), 0)$(.$await)??;
            let mut size = [1_u64];
            pair.all_reduce(&mut size, Reduction::Sum)$(.$await)??;
            assert_eq!(size[0], pair.world_size() as u64);
            group.barrier()$(.$await)?
        }
    };
}

call_all! { call_all, Group }
call_all! { call_all_async, aio::Group, async, await }

/// Runs a future on a thread of its own.
fn wait<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(future)
}

fn all_collectives_return_their_results(device: &Device) {
    ranks(device, |group| {
        // A message each, and several.
        for each in [1, 10_000] {
            call_all(group, each).unwrap();
        }
    });
}

fn all_collectives_of_asynchronous_ranks_return_their_results(device: &Device) {
    let master = free_address().to_string();
    threads(device, |rank, pd| {
        wait(async {
            let mut group = Group::builder(pd, rank, SIZE, &master).join_async().await.unwrap();
            for each in [1, 10_000] {
                call_all_async(&mut group, each).await.unwrap();
            }
        });
    });
}

/// Uses the same memory several times, for short blocks and for blocks of several long pieces.
fn registered_buffers_have_the_results_of_all_ranks(device: &Device) {
    ranks(device, |group| {
        let own = group.rank() as u64;
        for each in [1, 100_000] {
            let mut buffer = group.buffer::<u64>(SIZE * each).unwrap();
            for round in 0..2 {
                buffer.fill(own + round);
                group.all_reduce(&mut buffer, Reduction::Sum).unwrap();
                assert!(buffer.iter().all(|element| *element == 3 + 3 * round));
                buffer.fill(own + round);
                group.all_to_all(&mut buffer).unwrap();
                let all = (0..3).flat_map(|from| vec![from + round; each]);
                assert!(buffer.iter().copied().eq(all));
                buffer.fill(own + round);
                group.broadcast(2, &mut buffer).unwrap();
                assert!(buffer.iter().all(|element| *element == 2 + round));
            }
        }
    });
}

/// Rank 1 is asynchronous. It sends and receives short blocks and long ones.
fn blocking_and_asynchronous_ranks_form_a_group(device: &Device) {
    fn buffers(own: usize, each: usize) -> (Vec<u64>, Vec<u64>) {
        let gathered = (0..SIZE).flat_map(|rank| vec![rank as u64; each]);
        (vec![own as u64; SIZE * each], gathered.collect())
    }
    let blocking = |builder: GroupBuilder<'_>| {
        let mut group = builder.join().unwrap();
        for each in [1, 10_000, 100_000] {
            let (mut buffer, gathered) = buffers(group.rank(), each);
            group.all_gather(&mut buffer).unwrap();
            assert_eq!(buffer, gathered);
            group.all_reduce(&mut buffer, Reduction::Sum).unwrap();
            group.barrier().unwrap();
        }
    };
    let asynchronous = async |builder: GroupBuilder<'_>| {
        let mut group: aio::Group = builder.join_async().await.unwrap();
        for each in [1, 10_000, 100_000] {
            let (mut buffer, gathered) = buffers(group.rank(), each);
            group.all_gather(&mut buffer).await.unwrap();
            assert_eq!(buffer, gathered);
            group.all_reduce(&mut buffer, Reduction::Sum).await.unwrap();
            assert!(buffer.into_iter().eq(gathered.into_iter().map(|element| element * 3)));
            group.barrier().await.unwrap();
        }
    };
    let master = free_address().to_string();
    threads(device, |rank, pd| {
        let builder = Group::builder(pd, rank, SIZE, &master);
        if rank == 1 {
            wait(asynchronous(builder));
        } else {
            blocking(builder);
        }
    });
}

/// Sends a number to the other end, and returns the one from there.
fn exchange(channel: &mut Channel, first: bool, number: u8) -> u8 {
    let pd = channel.pd().clone();
    let [mut sent, mut received] = [(); 2].map(|()| pd.allocate_region(1).unwrap());
    sent.fill(number);
    if first {
        channel.send_from(&sent).unwrap();
    }
    channel.receive_into(&mut received).unwrap();
    if !first {
        channel.send_from(&sent).unwrap();
    }
    received[0]
}

fn two_ranks_connect(device: &Device) {
    ranks(device, |group| {
        let channel = match group.rank() {
            0 => Some(group.connect(2).unwrap()),
            2 => Some(group.connect(0).unwrap()),
            _ => None,
        };
        group.barrier().unwrap();
        if let Some(mut channel) = channel {
            let is_first = group.rank() == 0;
            let (own, other) = if is_first { (7, 9) } else { (9, 7) };
            assert_eq!(exchange(&mut channel, is_first, own), other);
        }
        group.barrier().unwrap();
    });
}

fn no_rank_of_a_node_leaves_a_barrier_before_all_have_entered(device: &Device) {
    let exchanges = ExchangeConfig { exchange_timeout: LIMIT, ..ExchangeConfig::default() };
    for algorithm in ALGORITHMS {
        let address = free_address();
        let host = |rankid| NodeConfig {
            hostname: address.ip().to_string(),
            port: address.port(),
            ibdev: device.to_string(),
            rankid,
            comment: String::new(),
        };
        let hosts = (0..SIZE).map(host).fold(NetworkConfig::builder(), RawNetworkConfig::add_node);
        let (config, entered) = (hosts.build().unwrap(), AtomicUsize::new(0));
        threads(device, |rank, pd| {
            let builder = Node::builder().pd(pd).rank(rank).world_size(SIZE).barrier(algorithm);
            let node = builder.build().unwrap();
            let endpoint = node.endpoint();
            let all = Exchanger::await_exchange_all(rank, &config, &endpoint, &exchanges).unwrap();
            let all = node.gather_endpoints(all).unwrap();
            let mut node = node.handshake(all).unwrap();
            for round in 1..=3 {
                entered.fetch_add(1, Ordering::SeqCst);
                node.barrier(&[0, 1, 2], LIMIT).unwrap();
                assert!(entered.load(Ordering::SeqCst) >= SIZE * round);
            }
        });
    }
}

fn a_rank_that_leaves_is_named_on_all_others(device: &Device) {
    let results = ranks(device, |group| {
        group.barrier().unwrap();
        if group.rank() == 1 { Ok(()) } else { group.barrier() }
    });
    for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        assert!(matches!(result, Err(Error::Lost { rank: 1, .. })), "rank {rank}: {result:?}");
    }
}
