//! The limits of a peer's requests, and the denials.

use std::time::Duration;

use rdma_async::{LeaseDenial, LeaseError};
use rdma_mem::AccessFlags;

use crate::leases::*;

async fn denied(
    asker: &Connection,
    length: usize,
    access: AccessFlags,
    time: Duration,
) -> LeaseDenial {
    let denied = timeout(HANG, asker.borrow(length, access, time)).await.unwrap().unwrap_err();
    let LeaseError::Denied(denial) = denied else { panic!("{denied}") };
    denial
}

#[test]
fn without_limits_nothing_is_lent() {
    run(|| async {
        let host = Host::new("soft0");
        let (asker, _lender) = host.pair().await;
        assert_eq!(denied(&asker, 8, READ, SOON).await, LeaseDenial::NotOffered);
        let empty = asker.borrow(0, READ, SOON).await.unwrap_err();
        assert!(matches!(empty, LeaseError::NotOpened(_)), "{empty}");
    });
}

/// Each borrower learns its limits, and the connection continues.
#[test]
fn a_denial_names_the_limit() {
    run(|| async {
        let host = Host::new("soft0");
        let longest = HANG / 2;
        let limits = LeaseLimits::new(READ | AccessFlags::new().with_remote_atomic())
            .per_peer(8192)
            .regions_per_peer(2)
            .longest(longest);
        // Its queue pair allows no atomic operations.
        let (asker, lender) = pair_with(&host, host.options().lease_limits(limits)).await;
        assert_eq!(denied(&asker, 8, WRITE, SOON).await, LeaseDenial::Access { allowed: READ });
        let none = AccessFlags::new();
        assert_eq!(denied(&asker, 8, none, SOON).await, LeaseDenial::Access { allowed: READ });
        assert_eq!(denied(&asker, 8193, READ, SOON).await, LeaseDenial::TooLong { most: 8192 });
        assert_eq!(
            denied(&asker, usize::MAX, READ, SOON).await,
            LeaseDenial::TooLong { most: 8192 }
        );
        assert_eq!(denied(&asker, 8, READ, Duration::MAX).await, LeaseDenial::Time { longest });
        let wrong = asker.borrow_aligned(8, 3, READ, SOON).await.unwrap_err();
        assert!(matches!(wrong, LeaseError::Denied(LeaseDenial::Alignment { .. })), "{wrong}");
        let one = asker.borrow(1, READ, longest).await.unwrap();
        assert_eq!(denied(&asker, 4097, READ, longest).await, LeaseDenial::Full { left: 4096 });
        let other = asker.borrow(4096, READ, longest).await.unwrap();
        assert_eq!(denied(&asker, 1, READ, longest).await, LeaseDenial::TooMany { most: 2 });
        drop((one, other));
        drop(asker.borrow(8192, READ, longest).await.unwrap());
        host.talk(&asker, &lender, b"as before").await;
    });
}

/// If one peer has used up the limit, others get nothing until it closes.
#[test]
fn all_peers_share_the_total_limit() {
    run(|| async {
        let host = Host::new("soft0");
        let limits = LeaseLimits::new(READ).in_total(8192);
        let options = options(&host).lease_limits(limits);
        let (one, at_one) = pair_with(&host, options.clone()).await;
        let (other, _at_other) = pair_with(&host, options).await;
        let has = one.borrow(8192, READ, HANG / 2).await.unwrap();
        assert_eq!(denied(&other, 1, READ, SOON).await, LeaseDenial::Full { left: 0 });
        // As if its process had ended: its lease is not returned.
        forget(has);
        one.close().unwrap();
        at_one.receive_imm().await.unwrap_err();
        // The task of the connection frees the lease at some later time.
        let freed = async {
            loop {
                match other.borrow(8192, READ, HANG / 2).await {
                    Err(LeaseError::Denied(LeaseDenial::Full { .. })) => {
                        tokio::task::yield_now().await
                    }
                    again => return again,
                }
            }
        };
        drop(timeout(HANG, freed).await.unwrap().unwrap());
    });
}

/// Further connections of a peer count as the same peer.
#[test]
fn further_connections_share_the_limit_of_their_peer() {
    run(|| async {
        let host = Host::new("soft0");
        let limits = LeaseLimits::new(READ).regions_per_peer(1);
        let (asker, lender) = pair_with(&host, options(&host).lease_limits(limits)).await;
        let builder = || host.pd.create_qp().access(READ);
        let (more, more_there) = tokio::join!(
            asker.connect_additional(1, builder()),
            lender.connect_additional(1, builder())
        );
        let (more, _more_there) = (more.unwrap(), more_there.unwrap());
        let has = more.borrow(1, READ, HANG / 2).await.unwrap();
        assert_eq!(denied(&asker, 1, READ, SOON).await, LeaseDenial::TooMany { most: 1 });
        // Rights that a queue pair does not grant its peer are not granted for memory either.
        assert_eq!(denied(&more, 1, WRITE, SOON).await, LeaseDenial::Access { allowed: READ });
        drop(has);
        drop(asker.borrow(1, READ, HANG / 2).await.unwrap());
    });
}

/// More requests at once than may be outstanding.
#[test]
fn many_requests_at_once_are_answered() {
    run(|| async {
        let host = Host::new("soft0");
        let limits = LeaseLimits::new(READ).regions_per_peer(200);
        let (asker, _lender) = pair_with(&host, options(&host).lease_limits(limits)).await;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..200 {
            let asker = asker.clone();
            tasks.spawn(async move { asker.borrow(1, READ, HANG / 2).await.unwrap() });
        }
        let all = timeout(HANG, tasks.join_all()).await.unwrap();
        let keys: std::collections::BTreeSet<_> =
            all.iter().map(|region| u32::from(region.remote().rkey())).collect();
        assert_eq!(keys.len(), 200);
    });
}
