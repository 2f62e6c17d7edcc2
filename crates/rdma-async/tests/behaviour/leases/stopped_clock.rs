//! A clock that stands still, as that of a machine which is suspended, while the other one's goes on. The lender's is the
//! runtime's, which stands still when the test says so; the borrower's goes on.

use std::cell::OnceCell;
use std::future::pending;
use std::thread::sleep;
use std::time::Instant;

use rdma_async::{Descriptor, LeaseEnd, ReservedEnd};
use tokio::time::{advance, pause, resume};

use crate::leases::*;

/// So long memory is lent here: no machine takes so long to have it taken.
const TIME: Duration = Duration::from_secs(2);

/// The lender's clock stands still until the time is over by the borrower's: nothing is awaited meanwhile.
fn while_it_stands_still(until_over: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < until_over {
        sleep(until_over.saturating_sub(begin.elapsed()));
    }
}

/// Whoever writes there all the same, by the key alone, does so: it is open. The runtime has looked at its timers.
async fn still_writes(host: &Host, by: &Connection, key: RemoteMemoryRegion) {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    by.write(host.buffer(b"open"), key.slice(0..4).unwrap()).await.unwrap();
}

/// The borrower uses it no more, though it is open; and it is closed when the lender's time is over, too.
#[test]
fn a_lease_whose_lender_stands_still_is_over_for_the_borrower() {
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

/// A borrower whose clock stands still believes that it has time, and is refused by the device.
#[test]
fn a_borrower_that_stands_still_is_refused() {
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

/// Memory stays open as long as the clock of whoever has opened it stands still, and is then closed.
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
        assert_eq!(descriptor.remote(Duration::ZERO), None, "nobody is told of it any more");
        is_closed(&host, &peer, key, &reserved.region).await;
    });
}
