//! Leases that are dropped or forgotten in every state: no memory is open longer than documented, and none is lost.

use rdma_async::LeaseEnd;
use rdma_soft::SoftDevice;

use crate::common::{DEFERRED, HELD, polled_slowly};
use crate::leases::*;

#[test]
fn memory_of_a_dropped_request_is_freed() {
    run(|| async {
        let host = Host::new("soft0");
        let limits = LeaseLimits::new(WRITE).regions_per_peer(1);
        let (asker, lender) = pair_with(&host, options(&host).lease_limits(limits)).await;
        for length in [64, LARGE] {
            for polls in 0.. {
                let asked = polled_slowly(polls, asker.borrow(length, WRITE, HANG / 2)).await;
                let is_over = asked.is_some();
                drop(asked);
                // The memory of the dropped request returns without an action of the program.
                let next = async {
                    loop {
                        if let Ok(next) = asker.borrow(1, WRITE, HANG / 2).await {
                            break next;
                        }
                    }
                };
                drop(timeout(HANG, next).await.unwrap());
                if is_over && polls > 10 {
                    break;
                }
            }
        }
        assert!(timeout(SOON, lender.receive_region()).await.is_err(), "nothing was handed over");
    });
}

#[test]
fn a_lease_that_was_not_received_waits_for_the_next_call() {
    run(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        for polls in 0.. {
            let lease = lender.lend(region(&host, polls + 1), WRITE, HANG).await.unwrap();
            let taken = polled_slowly(polls, borrower.receive_lease()).await;
            let is_over = taken.is_some();
            let lent = match taken {
                Some(taken) => taken.unwrap(),
                None => timeout(HANG, borrower.receive_lease()).await.unwrap().unwrap(),
            };
            assert_eq!(lent.len(), polls + 1);
            lent.slice(0..1).unwrap().write(host.buffer(b"w")).await.unwrap();
            drop(lent);
            assert_eq!(timeout(HANG, lease).await.unwrap().unwrap().end, LeaseEnd::Returned);
            if is_over && polls > 10 {
                break;
            }
        }
    });
}

/// Its memory is closed and freed, whenever it is dropped.
#[test]
fn a_lease_that_was_not_made_is_closed() {
    run(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        for length in [64, LARGE] {
            for polls in 0..4 {
                drop(polled_slowly(polls, lender.lend(region(&host, length), WRITE, SHORT)).await);
            }
        }
        // Leases that were made, and whose handles were dropped, last for their time.
        tokio::time::sleep(A_SECOND).await;
        let _lease = lender.lend(region(&host, 65), WRITE, HANG).await.unwrap();
        let received = async {
            loop {
                let lent = borrower.receive_lease().await.unwrap();
                if lent.len() == 65 {
                    break;
                }
                // On a busy machine, its time may have started only now.
                assert!(lent.remaining() <= SHORT);
            }
        };
        timeout(HANG, received).await.unwrap();
    });
}

/// A write that is outstanding when the lease ends has changed all that it ever will.
#[test]
fn an_outstanding_write_completes_or_is_refused() {
    run(|| async {
        for (device, done) in [(HELD, 0), (HELD, 32), (DEFERRED, 0)] {
            for revokes in [false, true] {
                while !is_outstanding_at_the_end(device, done, revokes).await {}
            }
        }
    });
}

/// Checks a write during whose copy the lease ends, when the device has released that many bytes. Returns false if the
/// lease was over before, which a busy machine may cause.
async fn is_outstanding_at_the_end(device: &str, done: usize, revokes: bool) -> bool {
    let host = Host::new(device);
    let soft = SoftDevice::find(device).unwrap();
    let (lender, borrower) = pair(&host).await;
    let time = if revokes { HANG } else { A_SECOND };
    let (lease, lent) = lend_for(time, (&host, 64), (&lender, &borrower)).await;
    let write = match lent.write(host.buffer(&[7; 64])).post().await {
        Ok(write) => write,
        Err(late) => {
            assert_eq!(reason(&late.error), LeaseEnd::TimeOver);
            return false;
        }
    };
    let is_released = done == 0 || soft.release_half(borrower.qpn());
    if lent.remaining().is_zero() {
        soft.release(borrower.qpn(), u32::MAX);
        return false;
    }
    assert!(is_released);
    if revokes {
        lease.revoke();
    }
    let region = timeout(HANG, lease).await.unwrap().unwrap().region;
    let before = region.to_vec();
    soft.release(borrower.qpn(), u32::MAX);
    let outcome = timeout(HANG, write).await.unwrap();
    assert_eq!(*region, *before, "{device}: the memory changed after it was exclusive again");
    if device == DEFERRED {
        assert!(before == [1; 64] || before == [7; 64], "only a part was written");
    } else {
        // The device has released only a part of it.
        assert_eq!((&before[..done], &before[done..]), (&[7; 64][..done], &[1; 64][done..]));
        let failed = outcome.unwrap_err();
        assert!(failed.to_string().contains("remote access"), "{failed}");
    }
    true
}

/// The memory returns to the peer when its time is over, and not before an outstanding request ends.
#[test]
fn memory_of_a_dropped_operation_is_returned_when_its_time_is_over() {
    run(|| async {
        let host = Host::new(HELD);
        let (lender, borrower) = pair(&host).await;
        let device = SoftDevice::find(HELD).unwrap();
        for (time, goes_on) in [(SOME_SECONDS, true), (HANG, false)] {
            let (lease, lent) = lend_for(time, (&host, 64), (&lender, &borrower)).await;
            let write = lent.write(host.buffer(&[7; 64])).post().await.unwrap();
            if goes_on {
                drop(write);
                device.release(borrower.qpn(), u32::MAX);
            } else {
                device.release(borrower.qpn(), u32::MAX);
                write.await.unwrap();
            }
            drop(lent);
            let ended = timeout(HANG, lease).await.unwrap().unwrap();
            let end = if goes_on { LeaseEnd::TimeOver } else { LeaseEnd::Returned };
            assert_eq!((ended.end, &ended.region[..]), (end, &[7; 64][..]));
        }
    });
}

/// A forgotten lease ends with its time, or with its connection.
#[test]
fn a_forgotten_lease_ends_with_its_time() {
    run(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        let (lease, lent) = lend_for(SOME_SECONDS, (&host, 64), (&lender, &borrower)).await;
        forget(lent.clone());
        forget(lent.write(host.buffer(b"word")));
        forget(lent.write(host.buffer(b"word")).post().await.unwrap());
        forget(lent);
        assert_eq!(timeout(HANG, lease).await.unwrap().unwrap().end, LeaseEnd::TimeOver);
        // The memory of this one is not received, but closed nevertheless.
        let (lease, lent) = lend_for(A_SECOND, (&host, 64), (&lender, &borrower)).await;
        forget(lease);
        until_closed(&host, &borrower, lent.remote()).await;
        // These do not affect other leases.
        let (lender, borrower) = pair(&host).await;
        let asker = lender.clone();
        let mut request = Box::pin(async move { asker.borrow(8, WRITE, HANG / 2).await });
        assert!(poll_once(&mut request).is_pending());
        forget(request);
        let taker = borrower.clone();
        let mut waits = Box::pin(async move { taker.receive_lease().await });
        assert!(poll_once(&mut waits).is_pending());
        forget(waits);
        let _lease = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
        drop(timeout(HANG, borrower.receive_lease()).await.unwrap().unwrap());
        drop(lender.borrow(8, WRITE, HANG / 2).await.unwrap());
    });
}
