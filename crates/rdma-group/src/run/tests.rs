//! Runs the schedules of all ranks in memory, in random orders, and compares the results with a serial model.

mod programs;
mod threads;

use std::collections::{BTreeSet, HashMap, VecDeque};

use fastrand::Rng;

use super::*;
use crate::call::Kind;
use crate::collective::{Algorithm, Collective};
use crate::reduction::{Number, Reduction, combine};
use crate::schedule::{BarrierAlgorithm, Blocks, Member};

const NO_CALL: Call = Call {
    kind: Kind::Barrier as u8,
    variant: 0,
    number: 0,
    element_bytes: 8,
    root: 0,
    group: 0,
    generation: 0,
    elements: 0,
    counts: 0,
};

/// The messages between the ranks, with the data that the sender has written. Only one waits at a time in each direction
/// of each pair.
#[derive(Default)]
struct Network {
    messages: HashMap<(usize, usize), Sent>,
}

type Sent = (Vec<u8>, Vec<u8>);

/// The calls of a rank in progress, and the message that it could not send yet.
struct Rank<'a, T> {
    runs: VecDeque<Run<'a, T>>,
    unsent: Option<(usize, Sent)>,
}

impl<T: Pod> Rank<'_, T> {
    /// Takes steps until this rank has to wait. Returns true if it has taken any.
    fn proceed(&mut self, own: usize, network: &mut Network) -> bool {
        let mut proceeded = false;
        loop {
            if let Some((peer, message)) = self.unsent.take() {
                if network.messages.contains_key(&(own, peer)) {
                    self.unsent = Some((peer, message));
                    return proceeded;
                }
                network.messages.insert((own, peer), message);
                proceeded = true;
            }
            let Some(run) = self.runs.front_mut() else { return proceeded };
            match run.next() {
                Next::Send(peer, part) => {
                    let written = run.is_written(&part);
                    let data = if written { run.bytes(&part).to_vec() } else { Vec::new() };
                    self.unsent = Some((peer, (run.message(&part).to_vec(), data)));
                }
                Next::Receive(peer) => {
                    let Some((message, data)) = network.messages.remove(&(peer, own)) else {
                        return proceeded;
                    };
                    let read =
                        |at, bytes: &mut [u8]| bytes.copy_from_slice(&data[at..][..bytes.len()]);
                    run.received(&message, read).unwrap();
                }
                Next::Done => _ = self.runs.pop_front(),
            }
            proceeded = true;
        }
    }
}

/// Runs the programs of all ranks. In each pass, the ranks proceed in a new order.
fn run_all<T: Pod>(programs: Vec<VecDeque<Run<'_, T>>>, rng: &mut Rng) {
    let mut network = Network::default();
    let ranks = programs.into_iter().map(|runs| Rank { runs, unsent: None });
    let mut ranks: Vec<_> = ranks.enumerate().collect();
    while ranks.iter().any(|(_, rank)| !rank.runs.is_empty()) {
        rng.shuffle(&mut ranks);
        let proceeded = ranks
            .iter_mut()
            .filter_map(|(own, rank)| rank.proceed(*own, &mut network).then_some(()));
        assert!(proceeded.count() > 0, "all ranks wait");
    }
    assert!(network.messages.is_empty(), "messages that no rank has received");
}

#[test]
fn blocks_of_different_lengths_reach_all_ranks() {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let size = rng.usize(1..=9);
        let counts: Vec<Vec<_>> =
            (0..size).map(|_| (0..size).map(|_| rng.usize(..5)).collect()).collect();
        let column = |to: usize| counts.iter().map(|row| row[to]).collect::<Vec<_>>();
        let call = |rank: usize| {
            let sent = Blocks::of(&counts[rank]).unwrap();
            let (received, offset) = (Blocks::of(&column(rank)).unwrap(), sent.len());
            Collective::AllToAll { sent, received, offset }
        };
        let value = |from: usize, to: usize| vec![(from * size + to) as u64; counts[from][to]];
        let sent = |from: usize| (0..size).flat_map(|to| value(from, to)).collect::<Vec<_>>();
        let mut buffers: Vec<_> = (0..size)
            .map(|rank| [sent(rank), vec![u64::MAX; column(rank).iter().sum()]].concat())
            .collect();
        let mut prepared = Vec::new();
        for (rank, buffer) in buffers.iter_mut().enumerate() {
            // A rank does not send to itself.
            let Collective::AllToAll { sent, received, offset } = call(rank) else {
                unreachable!()
            };
            let into = received.block(rank).start + offset;
            buffer.copy_within(sent.block(rank), into);
            let schedule = call(rank).schedule(Member { rank, size }, buffer.len(), 8);
            prepared.push(Prepared::new(schedule));
        }
        let runs = buffers.iter_mut().zip(&mut prepared).map(|(buffer, prepared)| {
            VecDeque::from([Run::new(NO_CALL, prepared, Elements::Slice(buffer), None)])
        });
        run_all(runs.collect(), &mut rng);
        for (rank, buffer) in buffers.iter().enumerate() {
            let expected: Vec<_> = (0..size).flat_map(|from| value(from, rank)).collect();
            assert_eq!(buffer[sent(rank).len()..], expected);
        }
    }
}

#[test]
fn the_number_of_rounds_is_the_least_for_the_algorithm() {
    for size in (1..=17).chain([64, 1000, 1024]) {
        let log2 = (0..).find(|log| 1 << log >= size).unwrap();
        for rank in [0, size / 2, size - 1] {
            let member = Member { rank, size };
            let blocks = Blocks::even(size, size);
            assert_eq!(member.barrier(BarrierAlgorithm::Dissemination).len(), log2);
            assert_eq!(member.broadcast(size / 3, 1).len(), log2);
            assert_eq!(member.gather(size / 3, &blocks).len(), log2);
            assert_eq!(member.scatter(size / 3, &blocks).len(), log2);
            assert_eq!(member.reduce(0, 1).len(), log2);
            assert_eq!(member.all_reduce_by_ring(9).len(), 2 * (size - 1));
            assert_eq!(member.reduce_scatter(&blocks).len(), size - 1);
            assert_eq!(member.all_gather(&blocks).len(), size - 1);
            let doubling = member.all_reduce_by_doubling(1).len();
            assert_eq!(doubling, if size.is_power_of_two() { log2 } else { log2 + 1 });
            assert_eq!(member.reduce(size - 1, 1).len(), log2 + usize::from(size > 1));
            assert_eq!(member.all_gather_by_tree(&blocks).len(), 2 * log2);
            assert_eq!(member.all_to_all(&blocks, &blocks, 0).len(), size);
            let centralized = member.barrier(BarrierAlgorithm::Centralized).len();
            assert_eq!(centralized, if size == 1 { 0 } else { 2 });
            assert!(member.barrier(BarrierAlgorithm::BinaryTree).len() <= 2 * log2);
        }
    }
}

#[test]
fn a_rank_has_few_neighbours_unless_the_algorithm_connects_all() {
    let neighbours = |schedule: Schedule| {
        let peers = schedule.iter().flatten().map(|transfer| transfer.peer);
        peers.collect::<BTreeSet<_>>().len()
    };
    for size in (1..=17).chain([64, 1000, 1024]) {
        let log2 = (0..).find(|log| 1 << log >= size).unwrap();
        for rank in [0, 1 % size, size / 3, size / 2, size - 1] {
            let (member, blocks) = (Member { rank, size }, Blocks::even(size, size));
            let few = [
                member.barrier(BarrierAlgorithm::Dissemination),
                member.barrier(BarrierAlgorithm::BinaryTree),
                member.broadcast(size / 3, 1),
                member.gather(size / 3, &blocks),
                member.scatter(size / 3, &blocks),
                member.reduce(size / 3, 1),
                member.all_gather_by_tree(&blocks),
                member.all_reduce_by_doubling(1),
            ];
            for (i, schedule) in few.into_iter().enumerate() {
                let found = neighbours(schedule);
                assert!(found <= 2 * log2, "schedule {i}, rank {rank} of {size}: {found}");
            }
            let rings = [
                member.all_reduce_by_ring(9),
                member.reduce_scatter(&blocks),
                member.all_gather(&blocks),
            ];
            assert_eq!(rings.map(neighbours), [2.min(size - 1); 3]);
            assert_eq!(neighbours(member.all_to_all(&blocks, &blocks, 0)), size - 1);
            let centralized = neighbours(member.barrier(BarrierAlgorithm::Centralized));
            assert_eq!(centralized, if rank == 0 { size - 1 } else { 1 });
        }
    }
}

fn received<T: Pod>(run: &mut Run<'_, T>, message: &[u8]) -> Result<(), Mismatch> {
    run.received(message, |_, _| ())
}

#[test]
fn a_message_of_another_call_or_length_is_refused() {
    let mut prepared = Prepared::new(Member { rank: 1, size: 2 }.broadcast(0, 2));
    let mut buffer = [0_u64; 2];
    let mut run = Run::new(NO_CALL, &mut prepared, Elements::Slice(&mut buffer), None);
    assert!(matches!(run.next(), Next::Receive(0)));
    let later = Call { generation: 1, ..NO_CALL };
    let message = |call: Call, block: u64, data: usize| {
        [&call.to_bytes()[..], &block.to_le_bytes(), &vec![7; data]].concat()
    };
    let length = |found, expected| Err(Mismatch::Length { found, expected });
    assert_eq!(received(&mut run, &message(later, 16, 16)), Err(Mismatch::Call(later)));
    assert_eq!(received(&mut run, &message(NO_CALL, 15, 15)), length(15, 16));
    // The peer does not send what it has stated.
    assert_eq!(received(&mut run, &message(NO_CALL, 16, 15)), length(15, 16));
    assert_eq!(received(&mut run, &[1]), length(1, HEADER_BYTES));
    received(&mut run, &message(NO_CALL, 16, 16)).unwrap();
    assert!(matches!(run.next(), Next::Done));
    drop(run);
    assert_eq!(buffer, [0x0707_0707_0707_0707; 2]);
}

#[test]
fn a_peer_that_states_another_call_with_the_same_number_is_a_mismatch() {
    let mut prepared = Prepared::new(Member { rank: 1, size: 2 }.broadcast(0, 2));
    let mut buffer = [0_u64; 2];
    let run = Run::new(NO_CALL, &mut prepared, Elements::Slice(&mut buffer), None);
    let check = |call: Call, form: Form| {
        let mut message = call.to_bytes();
        message[Call::FORM_BYTE] = form as u8;
        run.check_statement(&message)
    };
    let [other, later] = [Call { root: 1, ..NO_CALL }, Call { generation: 1, ..NO_CALL }];
    assert_eq!(run.check_statement(&run.statement()), Ok(()));
    assert_eq!(check(other, Form::Stated), Err(Mismatch::Call(other)));
    assert_eq!(check(later, Form::Stated), Ok(()));
    assert_eq!(check(other, Form::Short), Ok(()));
}

/// Rank 0 of 3 sends to both others, and then receives two blocks of rank 1 and one of rank 2 in pieces.
#[test]
fn an_early_message_is_compared_with_the_block_in_its_turn() {
    let transfer = |peer, range, action| Transfer { peer, range, action };
    let (long, short) = (2 * SHORT_BYTES, 2 * DATA_BYTES);
    let schedule = vec![
        vec![
            transfer(1, 0..8, Action::Send),
            transfer(1, 0..short, Action::Receive),
            transfer(2, 0..8, Action::Receive),
            transfer(1, 0..long, Action::Receive),
        ],
        vec![transfer(1, 0..9, Action::Receive)],
    ];
    let mut prepared = Prepared::new(schedule);
    let mut buffer = vec![0_u8; long];
    let mut run = Run::new(NO_CALL, &mut prepared, Elements::Slice(&mut buffer), None);
    let blocks = |run: &Run<'_, u8>, peer| run.blocks_from(peer).collect::<Vec<_>>();
    let all = [short, long, short, 9];
    assert_eq!((blocks(&run, 1), blocks(&run, 2)), (all.to_vec(), vec![8]));
    assert!(matches!(run.next(), Next::Send(1, _)));
    assert_eq!(blocks(&run, 1), all);
    let message = |block: usize, data: usize| {
        [&NO_CALL.to_bytes()[..], &(block as u64).to_le_bytes(), &vec![7; data]].concat()
    };
    for (peer, data) in [(1, DATA_BYTES), (2, 8)] {
        assert!(matches!(run.next(), Next::Receive(next) if next == peer));
        let message = message(blocks(&run, peer)[0], data);
        received(&mut run, &message).unwrap();
    }
    assert_eq!((blocks(&run, 1), blocks(&run, 2)), (all[1..].to_vec(), vec![]));
    let wrong = Err(Mismatch::Length { found: 9, expected: short });
    assert_eq!(run.check_early(1, 1, &message(9, 0)), wrong);
    assert_eq!(run.check_early(1, 2, &message(9, 0)), Ok(()));
    let wrong = Err(Mismatch::Length { found: short, expected: long });
    assert_eq!(run.check_next(1, &message(short, 0)), wrong);
}
