//! Ranks that die before each notice of a barrier. The rank that dies is a process, and the others are threads.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::{env, process};

use test_support::loopback::free_address;
use test_support::program::this_program;

use super::*;
use crate::network::{
    ExchangeConfig, Exchanger, NetworkConfig, Node, NodeConfig, RawNetworkConfig,
};
use crate::schedule::Transfer;
use crate::world::tests::{DEATHS, LIMIT, domain};

/// The variable that describes the process of a rank: the address of rank 0, the number of the algorithm, and the rank.
/// The last word is the number of notices after which it dies.
const PROCESS: &str = "RDMA_TEST_BARRIER_PROCESS";

const SIZE: usize = 5;
const PEERS: [usize; SIZE] = [0, 1, 2, 3, 4];
const ALGORITHMS: [BarrierAlgorithm; 3] =
    [BarrierAlgorithm::Centralized, BarrierAlgorithm::BinaryTree, BarrierAlgorithm::Dissemination];

/// The limit of ranks that wait for the dead one.
const SHORT: Duration = Duration::from_secs(30);

/// A rank that dies after that many notices, which it has sent or received.
#[derive(Clone, Copy, Debug)]
struct Death {
    algorithm: BarrierAlgorithm,
    rank: usize,
    steps: usize,
}

impl Death {
    /// Returns the notices of a rank, each in a round of its own. The rank that dies has fewer.
    fn schedule(self, rank: usize) -> Schedule {
        let rounds = Member { rank, size: SIZE }.barrier(self.algorithm);
        let notices = rounds.into_iter().flat_map(|mut round| {
            round.sort_by_key(|notice| notice.action != Action::Send);
            round
        });
        let most = if rank == self.rank { self.steps } else { usize::MAX };
        notices.take(most).map(|notice| vec![notice]).collect()
    }

    /// Returns the ranks that wait without end, each with the one that it waits for. The others complete the barrier.
    fn waits(self) -> BTreeMap<usize, usize> {
        let mut schedules = PEERS.map(|rank| self.schedule(rank).into_iter().flatten().peekable());
        let mut sent = [[0_usize; SIZE]; SIZE];
        let mut waits = BTreeMap::new();
        loop {
            let mut has_changed = false;
            for (rank, schedule) in schedules.iter_mut().enumerate() {
                waits.remove(&rank);
                while let Some(Transfer { peer, action, .. }) = schedule.peek() {
                    let peer = *peer;
                    if *action == Action::Send {
                        sent[rank][peer] += 1;
                    } else if sent[peer][rank] > 0 {
                        sent[peer][rank] -= 1;
                    } else {
                        waits.insert(rank, peer);
                        break;
                    }
                    has_changed = true;
                    schedule.next();
                }
            }
            if !has_changed {
                return waits;
            }
        }
    }
}

/// Returns the deaths: all, or by default three of a rank in each algorithm.
fn deaths() -> Vec<Death> {
    let all = env::var(DEATHS).is_ok_and(|which| which == "all");
    let ranks_of = |number| if all { 0..SIZE } else { number..number + 1 };
    let of_rank = |algorithm: BarrierAlgorithm, rank| {
        let most = Member { rank, size: SIZE }.barrier(algorithm).iter().flatten().count();
        let steps = if all { (0..=most).collect() } else { vec![0, most / 2, most] };
        steps.into_iter().map(move |steps| Death { algorithm, rank, steps })
    };
    let algorithms = ALGORITHMS.into_iter().enumerate();
    let ranks = algorithms.flat_map(|(number, it)| ranks_of(number).map(move |rank| (it, rank)));
    ranks.flat_map(|(algorithm, rank)| of_rank(algorithm, rank)).collect()
}

/// Connects the nodes of a rank, and completes a barrier.
fn node(address: SocketAddr, rank: usize, algorithm: BarrierAlgorithm) -> Node {
    let config = |rankid| NodeConfig {
        hostname: address.ip().to_string(),
        port: address.port(),
        ibdev: "soft0".to_owned(),
        rankid,
        comment: String::new(),
    };
    let configs = PEERS.map(config).into_iter();
    let network = configs.fold(NetworkConfig::builder(), RawNetworkConfig::add_node).build();
    let (pd, network) = (domain(), network.unwrap());
    let node = Node::builder().pd(&pd).rank(rank).world_size(SIZE).barrier(algorithm);
    let node = node.build().unwrap();
    let limits = ExchangeConfig { exchange_timeout: LIMIT, ..ExchangeConfig::default() };
    let all = Exchanger::await_exchange_all(rank, &network, &node.endpoint(), &limits).unwrap();
    let all = node.gather_endpoints(all).unwrap();
    let mut node = node.handshake(all).unwrap();
    node.barrier(&PEERS, LIMIT).unwrap();
    node
}

/// Dies in a barrier.
#[test]
#[ignore = "a process of another test"]
fn process_of_a_rank() {
    let process = env::var(PROCESS).unwrap();
    let words: Vec<_> = process.split(' ').collect();
    let [address, algorithm, rank, steps] = words[..] else { panic!("{process}") };
    let [algorithm, rank, steps] =
        [algorithm, rank, steps].map(|number| number.parse::<usize>().unwrap());
    let death = Death { algorithm: ALGORITHMS[algorithm], rank, steps };
    let mut node = node(address.parse().unwrap(), rank, death.algorithm);
    let (channels, barrier, _) = node.parts();
    let result = channels.scope(|scope| {
        barrier.run(scope, &PEERS, death.schedule(rank), LIMIT)?;
        println!("dies as rank {rank}");
        process::abort();
        #[allow(unreachable_code)] // states the type
        Ok::<(), BarrierError>(())
    });
    panic!("{result:?}");
}

/// Runs all ranks of a death.
fn die(death: Death) {
    let Death { algorithm, rank: dead, steps } = death;
    let address = free_address();
    let number = ALGORITHMS.iter().position(|it| *it == algorithm).unwrap();
    let mut command = this_program();
    let name = "network::barrier::tests::process_of_a_rank";
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command.env(PROCESS, format!("{address} {number} {dead} {steps}"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let process = command.spawn().unwrap();
    let waits = death.waits();
    thread::scope(|threads| {
        let survivor = |rank| {
            let awaited = waits.get(&rank).copied();
            threads.spawn(move || survive(death, node(address, rank, algorithm), awaited))
        };
        let survivors = PEERS.into_iter().filter(|rank| *rank != dead);
        let survivors: Vec<_> = survivors.map(survivor).collect();
        let output = process.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.ends_with(&format!("dies as rank {dead}\n")), "{death:?}: {output:?}");
        // No node ends before all barriers have ended, because its peers would notice.
        let _nodes: Vec<_> = survivors.into_iter().map(|it| it.join().unwrap()).collect();
    });
}

/// Enters the barrier in which a rank dies. `awaited` is the rank whose notice never arrives at this one.
fn survive(death: Death, mut node: Node, awaited: Option<usize>) -> Node {
    let limit = if awaited.is_some() { SHORT } else { LIMIT };
    let rank = node.rank();
    match (node.barrier(&PEERS, limit), awaited) {
        (Ok(()), None) => return node,
        (Err(BarrierError::TransportError { rank, .. }), Some(_)) if rank == death.rank => {}
        (Err(BarrierError::Timeout { rank, .. }), Some(awaited)) if rank == awaited => {}
        (result, _) => panic!("rank {rank}, which waits for {awaited:?}: {result:?}, {death:?}"),
    }
    let next = node.barrier(&PEERS, LIMIT);
    assert!(matches!(next, Err(BarrierError::Poisoned)), "rank {rank}: {next:?}");
    node
}

#[test]
fn the_death_of_a_rank_before_each_step_of_a_barrier_ends_it_on_all_others() {
    for some in deaths().chunks(9) {
        thread::scope(|threads| {
            for death in some {
                threads.spawn(|| die(*death));
            }
        });
    }
}
