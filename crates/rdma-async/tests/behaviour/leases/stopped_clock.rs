//! A clock that stops, like that of a suspended machine, while the other end's clock runs. The lender's clock is the
//! one of the runtime, which the test stops; the borrower's clock runs.

use std::cell::OnceCell;
use std::future::pending;
use std::thread::sleep;
use std::time::Instant;

use rdma_async::{Descriptor, LeaseEnd, ReservedEnd};
use tokio::time::{advance, pause, resume};

use crate::leases::*;

/// The lease time, long enough for any machine to receive the lease.
const TIME: Duration = Duration::from_secs(10);

/// Lets the time pass by the borrower's clock, while the lender's clock is stopped: nothing is awaited.
fn while_it_stands_still(until_over: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < until_over {
        sleep(until_over.saturating_sub(begin.elapsed()));
    }
}

/// Checks that a write with only the key still succeeds, because the memory is open. The runtime has checked its
/// timers.
async fn still_writes(host: &Host, by: &Connection, key: RemoteMemoryRegion) {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    by.write(host.buffer(b"open"), key.slice(0..4).unwrap()).await.unwrap();
}

/// The borrower no longer uses it, although it is open. It is closed when the lender's time is over, too.
#[test]
fn the_borrower_stops_in_time_while_the_lenders_clock_is_stopped() {
    run_in_one_thread(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        let mut lease = lender.lend(region(&host, 64), WRITE, TIME).await.unwrap();
        let lent = borrower.receive_lease().await.unwrap();
        pause();
        while_it_stands_still(lent.remaining());
        still_writes(&host, &borrower, lent.remote()).await;
        let late = lent.write(host.buffer(b"late")).try_post().unwrap_err();
        assert_eq!(reason(&late.error), LeaseEnd::TimeOver);
        assert!(poll_once(&mut lease).is_pending(), "its time is not over here");
        advance(TIME).await;
        resume();
        let ended = timeout(HANG, lease).await.unwrap().unwrap();
        assert_eq!((ended.end, &ended.region[..4]), (LeaseEnd::TimeOver, &b"open"[..]));
        is_closed(&host, &borrower, lent.remote(), &ended.region).await;
    });
}

/// A borrower whose clock stops believes that there is time left. The device refuses it.
#[test]
fn a_borrower_with_a_stopped_clock_is_refused() {
    run_in_one_thread(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        let lease = lender.lend(region(&host, 64), WRITE, HANG / 2).await.unwrap();
        let lent = borrower.receive_lease().await.unwrap();
        pause();
        advance(HANG / 2).await;
        resume();
        let ended = timeout(HANG, lease).await.unwrap().unwrap();
        assert_eq!(ended.end, LeaseEnd::TimeOver);
        assert!(lent.remaining() > HANG / 4, "by its own clock there is time");
        is_closed(&host, &borrower, lent.remote(), &ended.region).await;
    });
}

/// Memory stays open while the clock of its owner is stopped, and is closed afterwards.
#[test]
fn reserve_ends_by_the_clock_of_its_own_machine() {
    run_in_one_thread(|| async {
        let host = Host::new("soft0");
        let (_owner, peer) = pair(&host).await;
        let told: OnceCell<(Descriptor, RemoteMemoryRegion)> = OnceCell::new();
        let mut reserve = Box::pin(region(&host, 64).reserve(WRITE, TIME, async |descriptor| {
            told.set((descriptor, descriptor.remote(Duration::ZERO).unwrap())).unwrap();
            pending::<()>().await;
        }));
        assert!(poll_once(&mut reserve).is_pending());
        pause();
        while_it_stands_still(TIME);
        let (descriptor, key) = *told.get().unwrap();
        still_writes(&host, &peer, key).await;
        assert!(poll_once(&mut reserve).is_pending(), "its time is not over here");
        advance(TIME).await;
        resume();
        let reserved = timeout(HANG, reserve).await.unwrap().unwrap();
        assert_eq!((reserved.end, &reserved.region[..4]), (ReservedEnd::TimeOver, &b"open"[..]));
        assert_eq!(descriptor.remote(Duration::ZERO), None, "its time is over for the borrower");
        is_closed(&host, &peer, key, &reserved.region).await;
    });
}
