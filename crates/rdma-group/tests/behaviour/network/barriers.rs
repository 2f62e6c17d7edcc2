//! Barriers of nodes, and barriers alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rdma_channel::prelude::*;
use rdma_channel::{MultiChannel, PeerReceiveWorkRequest, PeerSendWorkRequest, ScopeError};
use rdma_group::network::{Barrier, BarrierAlgorithm, BarrierError};
use test_support::program::in_own_process;
use test_support::rig::fork::Child;

use super::{ALGORITHMS, LIMIT, nodes, threads};
use crate::ranks::domain;

/// Returns the ranks of a set, which is the bits of a number.
fn members(set: usize, size: usize) -> Vec<usize> {
    (0..size).filter(|rank| set >> rank & 1 == 1).collect()
}

#[test]
fn no_rank_leaves_a_barrier_before_all_of_its_ranks_have_entered() {
    const SIZE: usize = 5;
    for algorithm in ALGORITHMS {
        let entered: Vec<_> = (0..1 << SIZE).map(|_| AtomicUsize::new(0)).collect();
        nodes(SIZE, algorithm, |mut node| {
            assert_eq!(node.world_size(), SIZE);
            // Each round has the barriers of all subsets, in an order that is the same on all ranks.
            for round in 1..=4 {
                for set in 1..1 << SIZE {
                    let set = set * 7 % (1 << SIZE);
                    let peers = members(set, SIZE);
                    if peers.contains(&node.rank()) {
                        entered[set].fetch_add(1, Ordering::SeqCst);
                        node.barrier(&peers, LIMIT).unwrap();
                        assert!(entered[set].load(Ordering::SeqCst) >= round * peers.len());
                    }
                }
            }
        });
    }
}

#[test]
fn operations_of_a_scope_are_in_flight_during_its_barriers() {
    for algorithm in ALGORITHMS {
        let received = nodes(3, algorithm, |mut node| {
            let (rank, pd) = (node.rank(), node.pd().clone());
            let [to, from] = [(rank + 1) % 3, (rank + 2) % 3];
            let mut memory = [u8::try_from(rank).unwrap(), 9];
            let region = pd.register_local_mr_slice(&memory).unwrap();
            let (data, buffer) = memory.split_at_mut(1);
            node.scope(|s| {
                let mut buffer = [region.scatter_element(buffer)];
                let receive = s.post_receive(PeerReceiveWorkRequest::new(from, &mut buffer))?;
                s.barrier(&[0, 1, 2], LIMIT).unwrap();
                assert!(receive.poll().is_none());
                s.barrier_unchecked(&[0, 1, 2], LIMIT).unwrap();
                assert_eq!((s.rank(), s.world_size()), (rank, 3));
                s.post_send(PeerSendWorkRequest::new(to, &[region.gather_element(data)]))?;
                receive.wait(LIMIT)?;
                Ok::<_, ScopeError>(())
            })
            .unwrap();
            node.manual_scope(|s| s.barrier(&[0, 1, 2], LIMIT)).unwrap();
            node.scope_deadline(LIMIT, |s| s.barrier(&[0, 1, 2], LIMIT)).unwrap();
            memory[1]
        });
        assert_eq!(received, [2, 0, 1]);
    }
}

#[test]
fn wrong_ranks_are_named_and_do_not_end_the_barrier() {
    for algorithm in ALGORITHMS {
        nodes(2, algorithm, |mut node| {
            let rank = node.rank();
            for (peers, error) in [
                (&[1, 0][..], "ascending order: 0 follows 1".to_owned()),
                (&[0, 1, 1], "contain 1 twice".to_owned()),
                (&[0, 1, 2], "no rank 2, only 2 ranks".to_owned()),
                (&[1 - rank], format!("do not include this rank, {rank}")),
                (&[], format!("do not include this rank, {rank}")),
            ] {
                let said = node.barrier(peers, LIMIT).unwrap_err().to_string();
                assert!(said.contains(&error), "{said}");
            }
            let outside = node.barrier_unchecked(&[usize::MAX], LIMIT).unwrap_err();
            assert!(matches!(outside, BarrierError::NoSuchRank { .. }), "{outside}");
            node.barrier(&[0, 1], LIMIT).unwrap();
        });
    }
}

#[test]
fn a_missing_rank_is_named_and_ends_the_barrier() {
    for algorithm in ALGORITHMS {
        nodes(2, algorithm, |mut node| {
            if node.rank() == 0 {
                let error = node.barrier(&[0, 1], Duration::from_millis(20)).unwrap_err();
                let text = error.to_string();
                assert!(text.starts_with("no notice of rank 1 arrived within 20ms: "), "{text}");
                let error = node.barrier(&[0], LIMIT).unwrap_err();
                assert!(matches!(error, BarrierError::Poisoned), "{error}");
                // The channels are still open.
                let message = PeerSendWorkRequest::only_immediate(1, 7);
                node.send(message).unwrap();
            } else {
                let received = node.receive(PeerReceiveWorkRequest::only_immediate(0)).unwrap();
                assert_eq!(received.immediate_data(), Some(7));
            }
        });
    }
}

#[test]
fn ranks_that_pass_other_ranks_are_named() {
    let errors = nodes(3, BarrierAlgorithm::Dissemination, |mut node| {
        let (peers, limit) = match node.rank() {
            0 => (&[0, 1][..], Duration::from_millis(20)),
            1 => (&[0, 1, 2][..], LIMIT),
            _ => return String::new(),
        };
        node.barrier(peers, limit).unwrap_err().to_string()
    });
    assert!(errors[0].starts_with("no notice of rank 1 arrived within 20ms: "), "{errors:?}");
    assert_eq!(errors[1], "rank 0 is in a barrier of other ranks or with another algorithm");
}

/// Returns the channels and barriers of two ranks, which are not nodes.
fn alone(algorithm: BarrierAlgorithm, sizes: [usize; 2]) -> [(MultiChannel, Barrier); 2] {
    let pd = domain();
    let channels = [0, 1].map(|_| pd.create_multi_channel().num_channels(2).build().unwrap());
    let ends = [0, 1].map(|rank: usize| channels[rank].endpoints());
    let mut rank = 0;
    let channels = channels.map(|channels| {
        rank += 1;
        channels.handshake(ends.iter().map(|ends| ends[rank - 1])).unwrap()
    });
    let barriers = [0, 1].map(|rank| algorithm.instance(&pd, rank, sizes[rank]).unwrap());
    let memory = [0, 1].map(|rank: usize| barriers[rank].remote_mr());
    let mut barriers = barriers.map(|barrier| barrier.link_remote(memory.into())).into_iter();
    channels.map(|channels| (channels, barriers.next().unwrap()))
}

#[test]
fn a_barrier_is_usable_without_a_node() {
    for algorithm in ALGORITHMS {
        let ranks = alone(algorithm, [2, 2]).map(|rank| std::sync::Mutex::new(Some(rank)));
        threads(2, |rank| {
            let (mut channels, mut barrier) = ranks[rank].lock().unwrap().take().unwrap();
            for _ in 0..100 {
                barrier.barrier(&mut channels, &[0, 1], LIMIT).unwrap();
            }
        });
    }
}

#[test]
fn barriers_for_other_numbers_of_ranks_are_named() {
    let [(mut channels, mut barrier), _other] = alone(BarrierAlgorithm::BinaryTree, [2, 3]);
    let error = barrier.barrier(&mut channels, &[0, 1], LIMIT).unwrap_err().to_string();
    assert_eq!(error, "rank 1 has a barrier for 3 ranks, but the barrier of this rank is for 2");
}

#[test]
fn a_rank_that_leaves_after_the_barrier_does_not_fail_it() {
    let [mut root, mut other] = alone(BarrierAlgorithm::Centralized, [2, 2]);
    // Rank 1 notifies rank 0, and leaves.
    let error = other.1.barrier(&mut other.0, &[0, 1], Duration::ZERO).unwrap_err();
    assert!(matches!(error, BarrierError::Timeout { rank: 0, .. }), "{error}");
    drop(other);
    root.1.barrier(&mut root.0, &[0, 1], LIMIT).unwrap();
    let error = root.1.barrier(&mut root.0, &[0, 1], Duration::from_millis(20)).unwrap_err();
    assert!(matches!(error, BarrierError::Timeout { rank: 1, .. }), "{error}");
}

#[test]
fn a_rank_that_cannot_be_notified_is_named() {
    let [root, mut other] = alone(BarrierAlgorithm::Centralized, [2, 2]);
    drop(root);
    let error = other.1.barrier(&mut other.0, &[0, 1], LIMIT).unwrap_err();
    assert!(matches!(error, BarrierError::TransportError { rank: 0, .. }), "{error}");
}

#[test]
fn a_dropped_barrier_refuses_the_notices_of_other_ranks() {
    let [(_channels, dropped), mut other] = alone(BarrierAlgorithm::Centralized, [2, 2]);
    drop(dropped);
    let error = other.1.barrier(&mut other.0, &[0, 1], LIMIT).unwrap_err();
    let BarrierError::TransportError { rank: 0, source } = error else { panic!("{error}") };
    assert!(source.to_string().contains("remote access error"), "{source}");
}

/// The memory of the barrier does not exist in a forked child.
#[test]
fn a_forked_child_cannot_use_a_barrier() {
    in_own_process("network::barriers::a_forked_child_cannot_use_a_barrier", || {
        let [(mut channels, mut barrier), _other] = alone(BarrierAlgorithm::Centralized, [2, 2]);
        Child::fork(|| {
            let error = barrier.barrier(&mut channels, &[0, 1], LIMIT).unwrap_err().to_string();
            assert!(error.contains("a forked child"), "{error}");
        })
        .join();
    });
}
