//! Atomic operations: invalid ones are refused locally, and valid ones return the old value.

use rdma_async::{Failed, TransportError};
use rdma_qp::PostErrorKind;

use crate::parity::{ATOMIC, DEVICES, LONG, READ, ends, run};

#[track_caller]
fn refused<T>(outcome: Result<T, Failed<()>>) -> PostErrorKind {
    let TransportError::PostError(refused) = outcome.err().unwrap().error else { panic!() };
    refused.kind()
}

/// The connection continues, because nothing was posted.
#[test]
fn an_atomic_operation_needs_an_aligned_word() {
    run(|| async {
        for device in DEVICES {
            let pair = ends(device).await;
            let lent = pair.one.borrow(64, ATOMIC | READ, LONG).await.unwrap();
            for (range, why) in [
                (0..4, PostErrorKind::RemoteTooShort),
                (60..64, PostErrorKind::Misaligned),
                (1..9, PostErrorKind::Misaligned),
                (4..12, PostErrorKind::Misaligned),
                (0..0, PostErrorKind::RemoteTooShort),
            ] {
                let word = lent.slice(range.clone()).unwrap();
                assert_eq!(refused(word.compare_and_swap(0, 1).await), why, "{range:?}");
                assert_eq!(refused(word.fetch_add(1).await), why, "{range:?}");
                let word = word.remote();
                assert_eq!(refused(pair.one.compare_and_swap(word, 0, 1).await), why);
                assert_eq!(refused(pair.one.fetch_add(word, 1).await), why);
            }
            assert_eq!(lent.slice(8..16).unwrap().compare_and_swap(0, 1).await.unwrap(), 0);
            assert_eq!(pair.bytes_of(&lent).await[..16], [[0; 8], 1_u64.to_ne_bytes()].concat());
        }
    });
}

/// Each caller knows whether its swap succeeded.
#[test]
fn exactly_one_of_many_compare_and_swaps_succeeds() {
    run(|| async {
        for device in DEVICES {
            let pair = ends(device).await;
            let lent = pair.one.borrow(8, ATOMIC | READ, LONG).await.unwrap();
            let mut tasks = tokio::task::JoinSet::new();
            for own in 1..=12 {
                let lent = lent.clone();
                tasks.spawn(async move { (own, lent.compare_and_swap(0, own).await.unwrap()) });
            }
            let found = tasks.join_all().await;
            let winners: Vec<_> = found.iter().filter(|(_, found)| *found == 0).collect();
            assert_eq!(winners.len(), 1, "{found:?}");
            let winner = winners[0].0;
            assert!(found.iter().all(|&(own, found)| found == winner || own == winner));
            assert_eq!(pair.bytes_of(&lent).await, winner.to_ne_bytes());
        }
    });
}
