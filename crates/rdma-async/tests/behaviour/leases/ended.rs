//! Events that end a lease: the end of its queue pair, of either process, and of the runtime.

use rdma_async::{
    CloseReason, Driver, LeaseDenial, LeaseEnd, LeaseError, ReserveError, TransportError,
};

use crate::common::peer;
use crate::common::provider::{ALWAYS, Call, Provider};
use crate::common::{Pair, in_a_process_of_its_own, poll_for};
use crate::leases::*;

/// Leases of the old queue pair have ended at both ends, and those of the new one have not.
#[test]
fn a_lease_does_not_outlive_its_queue_pair() {
    run(|| async {
        for device in DEVICES {
            let host = Host::new(device);
            let (lender, borrower) = pair(&host).await;
            let lease = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
            let untaken = lender.lend(region(&host, 65), WRITE, HANG).await.unwrap();
            let lent = borrower.receive_lease().await.unwrap();
            let asked = lender.borrow(64, WRITE, HANG / 2).await.unwrap();
            let key = lent.remote();
            let (one, other) = tokio::join!(lender.reconnect(), borrower.reconnect());
            assert_eq!(one.unwrap(), other.unwrap());
            let mut regions = Vec::new();
            for lease in [lease, untaken] {
                let ended = timeout(HANG, lease).await.unwrap().unwrap();
                assert_eq!(ended.end, LeaseEnd::Disconnected);
                regions.push(ended.region);
            }
            for old in [lent, asked] {
                let failed = old.write(host.buffer(b"old")).await.unwrap_err();
                let is_old = matches!(
                    failed.error,
                    TransportError::LeaseOver { reason: LeaseEnd::Disconnected, .. }
                );
                assert!(is_old, "{failed}");
            }
            // No old lease waits, and the connection still works.
            let again = lender.lend(regions.remove(0), WRITE, HANG).await.unwrap();
            let lent = borrower.receive_lease().await.unwrap();
            assert_eq!(lent.len(), 64);
            lent.write(host.buffer(b"new")).await.unwrap();
            drop(lent);
            let region = timeout(HANG, again).await.unwrap().unwrap().region;
            is_closed(&host, &borrower, key, &region).await;
        }
    });
}

/// The other end may not have handled the agreement yet.
#[test]
#[allow(clippy::async_yields_async)] // the lease is awaited later
fn a_reconnected_end_can_lend_at_once() {
    run(|| async {
        let host = Host::new("soft0");
        let (client, server) = pair(&host).await;
        for number in 0..20 {
            let (lender, borrower) =
                if number % 2 == 0 { (&client, &server) } else { (&server, &client) };
            let lend = async |lender: &Connection| {
                let lease = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
                let asked = lender.borrow(64, WRITE, HANG / 2).await.unwrap();
                asked.write(host.buffer(b"word")).await.unwrap();
                asked.hand_over();
                lease
            };
            let begun = async {
                if number < 10 {
                    lender.reconnect().await.unwrap();
                    (lender.clone(), lend(lender).await)
                } else {
                    let qp = host.pd.create_qp().access(all());
                    let further = lender.connect_additional(number, qp).await.unwrap();
                    let lease = lend(&further).await;
                    (further, lease)
                }
            };
            let there = async {
                let there = if number < 10 {
                    borrower.reconnect().await.unwrap();
                    borrower.clone()
                } else {
                    let qp = host.pd.create_qp().access(all());
                    borrower.connect_additional(number, qp).await.unwrap()
                };
                let lent = there.receive_lease().await.unwrap();
                lent.write(host.buffer(b"word")).await.unwrap();
                assert_eq!(there.receive_region().await.unwrap()[..4], *b"word");
            };
            let ((_lender, lease), ()) = tokio::join!(begun, there);
            assert_eq!(timeout(HANG, lease).await.unwrap().unwrap().end, LeaseEnd::Returned);
        }
    });
}

/// The last frame of a connection is sent with its last handle.
#[test]
fn memory_handed_over_last_arrives() {
    run(|| async {
        let host = Host::new("soft0");
        for is_first in [true, false] {
            let (asker, lender) = pair(&host).await;
            let asked = asker.borrow(64, WRITE, HANG / 2).await.unwrap();
            asked.write(host.buffer(b"last")).await.unwrap();
            if is_first {
                drop(asker);
                asked.hand_over();
            } else {
                asked.hand_over();
                drop(asker);
            }
            let region = timeout(HANG, lender.receive_region()).await.unwrap().unwrap();
            assert_eq!(region[..4], *b"last");
            let gone = timeout(HANG, lender.receive_region()).await.unwrap();
            assert!(gone.is_err());
        }
    });
}

/// Memory that is slow to close arrives in order, and before the end.
#[test]
fn slowly_closed_memory_is_not_lost() {
    run(|| async {
        let host = Host::new("soft0");
        for _ in 0..10 {
            let (asker, lender) = pair(&host).await;
            let lengths = [LARGE, 64, LARGE, LARGE / 2, 1];
            for length in lengths {
                asker.borrow(length, WRITE, HANG / 2).await.unwrap().hand_over();
            }
            asker.disconnect(HANG).await.unwrap();
            for length in lengths {
                let region = timeout(HANG, lender.receive_region()).await.unwrap().unwrap();
                assert_eq!(region.len(), length);
            }
            assert!(timeout(HANG, lender.receive_region()).await.unwrap().is_err());
        }
    });
}

fn with_one_blocking_thread() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(1).build().unwrap()
}

/// While memory waits for a thread to close it, the ends still receive signs of life.
#[test]
fn a_busy_blocking_thread_ends_no_connection() {
    with_one_blocking_thread().block_on(async {
        let host = Host::new("soft0");
        let beat = Duration::from_millis(50);
        let limits = LeaseLimits::new(WRITE);
        let options = options(&host).lease_limits(limits).heartbeat(beat);
        let (asker, lender) = pair_with(&host, options).await;
        let asked = asker.borrow(LARGE, WRITE, HANG / 2).await.unwrap();
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let holds = tokio::task::spawn_blocking(move || held.recv());
        asked.hand_over();
        let next = asker.borrow(64, WRITE, HANG / 2);
        let late = timeout(beat * 10, async { next.await.map(drop) }).await;
        assert!(late.is_err(), "it was closed without a free thread");
        host.talk(&asker, &lender, b"both live").await;
        assert_eq!((asker.closed(), lender.closed()), (None, None));
        let_go.send(()).unwrap();
        holds.await.unwrap().unwrap();
        assert_eq!(timeout(HANG, lender.receive_region()).await.unwrap().unwrap().len(), LARGE);
        drop(timeout(HANG, asker.borrow(64, WRITE, HANG / 2)).await.unwrap().unwrap());
    });
}

/// A panic of a waker affects no other task.
#[test]
fn a_panicking_waker_ends_no_connection() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: std::sync::Arc<Self>) {
            panic!("on purpose");
        }
    }
    run(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        let waker = std::task::Waker::from(std::sync::Arc::new(Panics));
        let mut lease = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
        assert!(poll_for(&mut lease, &waker).is_pending());
        let asker = lender.clone();
        let mut asked = Box::pin(async move { asker.borrow(64, WRITE, HANG / 2).await });
        assert!(poll_for(&mut asked, &waker).is_pending());
        drop(timeout(HANG, borrower.receive_lease()).await.unwrap().unwrap());
        assert_eq!(timeout(HANG, lease).await.unwrap().unwrap().end, LeaseEnd::Returned);
        drop(timeout(HANG, asked).await.unwrap().unwrap());
        host.talk(&lender, &borrower, b"as before").await;
    });
}

#[test]
fn a_lease_ends_with_either_end_of_its_connection() {
    run(|| async {
        for who in ["lender closes", "lender drops", "borrower closes", "borrower drops"] {
            let host = Host::new("soft0");
            let (lender, borrower) = pair(&host).await;
            let lease = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
            let untaken = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
            let lent = borrower.receive_lease().await.unwrap();
            let (mut lender, mut borrower) = (Some(lender), Some(borrower));
            match who {
                "lender closes" => lender.as_ref().unwrap().close().unwrap(),
                "lender drops" => lender = None,
                "borrower closes" => borrower.as_ref().unwrap().close().unwrap(),
                _ => {
                    // Its memory keeps the connection alive.
                    drop((borrower.take(), lent.clone()));
                    lent.write(host.buffer(b"word")).await.unwrap();
                    drop(lent.clone());
                }
            }
            if who == "borrower drops" {
                drop(lent);
            } else {
                let failed = timeout(HANG, async {
                    loop {
                        if let Err(failed) = lent.write(host.buffer(b"late")).await {
                            break failed;
                        }
                        tokio::task::yield_now().await;
                    }
                });
                let failed = failed.await.unwrap();
                assert!(
                    matches!(
                        failed.error,
                        TransportError::Closed { .. } | TransportError::WorkError(_)
                    ),
                    "{who}: {failed}"
                );
            }
            for lease in [lease, untaken] {
                let ended = timeout(HANG, lease).await.unwrap().unwrap();
                assert!(
                    ended.end == LeaseEnd::Disconnected
                        || who == "borrower drops" && ended.end == LeaseEnd::Returned
                        || ended.end == LeaseEnd::BorrowerFailed,
                    "{who}: {}",
                    ended.end
                );
            }
            drop((lender, borrower));
        }
    });
}

/// A task that waits for memory of a peer fails when the peer goes.
#[test]
fn waiting_tasks_fail_when_the_peer_closes() {
    run(|| async {
        let host = Host::new("soft0");
        let (one, other) = pair(&host).await;
        let (mut lease, mut given) =
            (Box::pin(one.receive_lease()), Box::pin(one.receive_region()));
        assert!(poll_once(&mut lease).is_pending() && poll_once(&mut given).is_pending());
        // This memory was handed over before.
        let asked = other.borrow(1, WRITE, HANG / 2).await.unwrap();
        asked.hand_over();
        timeout(HANG, given).await.unwrap().unwrap();
        other.borrow(1, WRITE, HANG / 2).await.unwrap().hand_over();
        other.lend(region(&host, 8), READ, HANG).await.unwrap().revoke();
        // All earlier frames are handled before the end.
        other.disconnect(HANG).await.unwrap();
        let gone = timeout(HANG, lease).await.unwrap();
        match gone {
            // Revoked too late.
            Ok(_) => assert!(one.receive_lease().await.is_err()),
            Err(gone) => {
                let is_gone = matches!(gone, LeaseError::Closed(Some(CloseReason::Disconnected)));
                assert!(is_gone, "{gone}");
            }
        }
        // Memory that was handed over is not lost.
        assert!(one.receive_region().await.is_ok());
        assert!(matches!(one.receive_region().await, Err(LeaseError::Closed(_))));
        let late = one.borrow(1, READ, SOON).await.unwrap_err();
        assert!(matches!(late, LeaseError::Closed(Some(CloseReason::Disconnected))), "{late}");
    });
}

/// Memory of a runtime that ends is closed, and no task waits forever.
#[test]
fn a_runtime_that_ends_closes_lent_memory() {
    for length in [64, LARGE] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (host, lender, borrower, lease, key) = runtime.block_on(async {
            let host = Host::new("soft0");
            let (lender, borrower) = pair(&host).await;
            let lease = lender.lend(region(&host, length), WRITE, HANG).await.unwrap();
            let lent = borrower.receive_lease().await.unwrap();
            let key = lent.remote();
            forget(lent);
            (host, lender, borrower, lease, key)
        });
        drop(runtime);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ended = timeout(HANG, lease).await.unwrap().unwrap();
            assert_eq!((ended.end, ended.region.len()), (LeaseEnd::Disconnected, length));
            let driver = Driver::spawn(host.pd.context()).unwrap();
            let others = Pair::of(driver, host.pd.clone(), |builder| builder);
            is_closed(&host, &others.one, key, &ended.region).await;
            for end in [&lender, &borrower] {
                assert!(end.borrow(1, READ, SOON).await.is_err());
                assert!(end.receive_lease().await.is_err());
            }
        });
    }
}

/// Memory that a peer may still reach is not returned.
#[test]
fn memory_that_cannot_be_closed_is_not_returned() {
    run(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let host = Host::with(pd);
        let (lender, borrower) = pair(&host).await;
        let lease = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
        let lent = borrower.receive_lease().await.unwrap();
        let key = lent.remote();
        // If the provider refuses once, the memory is closed and returned.
        provider.refuse(Call::DeregisterRegion, 1);
        drop(lent);
        let region_again = timeout(HANG, lease).await.unwrap().unwrap().region;
        is_closed(&host, &pair(&host).await.0, key, &region_again).await;
        let lease = lender.lend(region_again, WRITE, HANG).await.unwrap();
        let lent = borrower.receive_lease().await.unwrap();
        let key = lent.remote();
        // Refused twice while closing; the later drop succeeds.
        provider.refuse(Call::DeregisterRegion, 2);
        drop(lent);
        let refused = timeout(HANG, lease).await.unwrap().unwrap_err();
        assert!(matches!(refused, ReserveError::NotRevoked(_)), "{refused}");
        until_closed(&host, &borrower, key).await;
        let (lender, _borrower) = pair(&host).await;
        provider.refuse(Call::RegisterRegion, 2);
        let refused = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap_err();
        assert!(matches!(refused.error, LeaseError::NotOpened(_)), "{refused}");
        assert_eq!(refused.region.unwrap()[..], [1; 64]);
        let refused = lender.borrow(64, WRITE, SOON).await.unwrap_err();
        assert!(refused.to_string().contains("could not allocate"), "{refused}");
        drop(lender.borrow(64, WRITE, HANG / 2).await.unwrap());
    });
}

/// Memory that the device has refused to close once counts against the limits only while it is registered.
#[test]
fn memory_closed_at_the_second_attempt_stops_counting() {
    run(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let host = Host::with(pd);
        let limits = LeaseLimits::new(WRITE).in_total(4096).regions_per_peer(1);
        let (lender, borrower) = pair_with(&host, options(&host).lease_limits(limits)).await;
        for _ in 0..3 {
            let lent = borrower.borrow(4096, WRITE, HANG / 2).await.unwrap();
            provider.refuse(Call::DeregisterRegion, 1);
            drop(lent);
            // A request after the return is answered after the memory was closed.
            drop(borrower.borrow(4096, WRITE, HANG / 2).await.unwrap());
        }
        assert_eq!(lender.closed(), None);
    });
}

/// Memory that is never closed counts forever, and is never freed.
#[test]
fn memory_that_is_never_closed_counts_forever() {
    in_a_process_of_its_own("leases::ended::memory_that_is_never_closed_counts_forever", || {
        run_in_one_thread(|| async {
            let (pd, provider) = Provider::faulty("soft0");
            let host = Host::with(pd);
            let limits = LeaseLimits::new(WRITE).in_total(4096);
            let (_lender, borrower) = pair_with(&host, options(&host).lease_limits(limits)).await;
            let lent = borrower.borrow(4096, WRITE, HANG / 2).await.unwrap();
            let key = lent.remote();
            provider.refuse(Call::DeregisterRegion, ALWAYS);
            drop(lent);
            let refused = borrower.borrow(64, WRITE, HANG / 2).await.unwrap_err();
            assert!(
                matches!(refused, LeaseError::Denied(LeaseDenial::Full { left: 0 })),
                "{refused}"
            );
            // The memory still exists.
            borrower.write(host.buffer(b"word"), key.slice(0..4).unwrap()).await.unwrap();
        });
    });
}

/// Requests without an answer wait until the connection ends, and so do those that wait for their turn.
#[test]
fn requests_waiting_for_their_turn_fail_with_the_connection() {
    run(|| async {
        let host = Host::new("soft0");
        let (_peer, server) =
            peer::pair_with(&host, options(&host).rendezvous_timeout(Duration::MAX)).await;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let server = server.clone();
            tasks.spawn(async move { server.borrow(64, READ, HANG).await.map(drop) });
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        server.close().unwrap();
        while let Some(ended) = timeout(HANG, tasks.join_next()).await.unwrap() {
            let ended = ended.unwrap().unwrap_err();
            assert!(matches!(ended, LeaseError::Closed(_)), "{ended}");
        }
    });
}

/// A lease that waits for a thread to close it is closed by the end of its stream.
#[test]
fn no_thread_is_needed_after_the_end() {
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    with_one_blocking_thread().block_on(async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        let mut lease = lender.lend(region(&host, LARGE), WRITE, HANG).await.unwrap();
        let lent = borrower.receive_lease().await.unwrap();
        let (other_lender, other_borrower) = pair(&host).await;
        let mut others = other_lender.lend(region(&host, LARGE), WRITE, HANG).await.unwrap();
        let others_lent = other_borrower.receive_lease().await.unwrap();
        let asked = other_borrower.borrow(LARGE, WRITE, HANG / 2).await.unwrap();
        tokio::task::spawn_blocking(move || blocked.recv());
        lease.revoke();
        timeout(SHORT, &mut lease).await.unwrap_err();
        drop((lender, borrower, lent));
        let ended = timeout(HANG, lease).await.unwrap().unwrap();
        assert_eq!((ended.end, ended.region.len()), (LeaseEnd::Revoked, LARGE));
        // The same when the other end returns it and closes: handed-over memory arrives.
        asked.hand_over();
        drop(others_lent);
        timeout(SHORT, &mut others).await.unwrap_err();
        drop(other_borrower);
        let given = timeout(HANG, other_lender.receive_region()).await.unwrap().unwrap();
        assert_eq!(given.len(), LARGE);
        let ended = timeout(HANG, others).await.unwrap().unwrap();
        assert_eq!((ended.end, ended.region.len()), (LeaseEnd::Returned, LARGE));
        timeout(HANG, other_lender.receive_region()).await.unwrap().unwrap_err();
        assert_eq!(other_lender.closed(), Some(CloseReason::Disconnected));
        drop(unblock);
    });
}

/// Memory that was handed over before the end arrives after it, even if it still has to be closed.
#[test]
fn memory_handed_over_before_the_end_arrives_after_it() {
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    with_one_blocking_thread().block_on(async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        let asked = borrower.borrow(LARGE, WRITE, HANG / 2).await.unwrap();
        tokio::task::spawn_blocking(move || blocked.recv());
        asked.hand_over();
        timeout(SHORT, lender.receive_region()).await.unwrap_err();
        lender.close().unwrap();
        timeout(SHORT, lender.receive_region()).await.unwrap_err();
        // No other call waits for it.
        let closed = timeout(HANG, lender.receive_lease()).await.unwrap().unwrap_err();
        assert!(matches!(closed, LeaseError::Closed(_)), "{closed}");
        drop(unblock);
        let given = timeout(HANG, lender.receive_region()).await.unwrap().unwrap();
        assert_eq!(given.len(), LARGE);
        timeout(HANG, lender.receive_region()).await.unwrap().unwrap_err();
    });
}

/// A task that waits for its turn also fails when the connection is about to end.
#[test]
fn requests_waiting_for_their_turn_fail_when_the_connection_disconnects() {
    run(|| async {
        let host = Host::new("soft0");
        let (_peer, server) =
            peer::pair_with(&host, options(&host).rendezvous_timeout(Duration::MAX)).await;
        // The peer posts no receive for it, so it is outstanding.
        let sent = server.send(host.buffer(b"first")).post().await.unwrap();
        let mut asked: Vec<_> = (0..40).map(|_| Box::pin(server.borrow(64, READ, HANG))).collect();
        for asked in &mut asked {
            assert!(poll_once(asked).is_pending());
        }
        let mut ends = Box::pin(server.disconnect(HANG));
        assert!(poll_once(&mut ends).is_pending());
        let last = timeout(HANG, asked.pop().unwrap()).await.unwrap().unwrap_err();
        assert!(matches!(last, LeaseError::Closed(_)), "{last}");
        drop((asked, ends, sent));
    });
}
