//! The futures that open memory to a peer, lend it, borrow it, and receive it.

use std::time::Duration;

use rdma_async::{LeaseDenial, LeaseEnd, LeaseError, Region, RemoteRegion};
use rdma_mem::{AccessFlags, CommonMemory, RegionMemory};
use rdma_soft::Schedule;

use crate::await_points::*;

const WRITE: AccessFlags = AccessFlags::new().with_remote_write();
/// A length that another thread registers and deregisters.
const LARGE: usize = 3 << 20;
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(3600);

/// The futures that are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Reserve,
    ReserveFor,
    Lend,
    LendPart,
    Lease,
    Request,
    ReceiveLease,
    ReceiveRegion,
}

impl What {
    const ALL: [Self; 8] = [
        Self::Reserve,
        Self::ReserveFor,
        Self::Lend,
        Self::LendPart,
        Self::Lease,
        Self::Request,
        Self::ReceiveLease,
        Self::ReceiveRegion,
    ];

    /// Drops the future after that many polls. Returns true if it was ready before.
    async fn give_up(self, pair: &Pair, polls: usize, length: usize) -> bool {
        let Pair { one, other, pd, .. } = pair;
        let region = || Region::allocate(pd, length).unwrap();
        let write = async |descriptor: rdma_async::Descriptor| {
            let to = descriptor.remote(Duration::ZERO).unwrap().slice(0..BYTES).unwrap();
            other.write(pair.buffer(&[7; BYTES]), to).await.unwrap();
        };
        match self {
            Self::Reserve => pair
                .released(polled(polls, region().reserve(WRITE, LONG, write)))
                .await
                .map(|reserved| assert_eq!(reserved.unwrap().region[..BYTES], [7; BYTES])),
            Self::ReserveFor => {
                let reserve = region().reserve_for(one, WRITE, LONG, write);
                pair.released(polled(polls, reserve))
                    .await
                    .map(|reserved| assert_eq!(reserved.unwrap().region[..BYTES], [7; BYTES]))
            }
            Self::Lend => pair
                .released(polled(polls, one.lend(region(), WRITE, LONG)))
                .await
                .map(|lease| lease.unwrap().revoke()),
            Self::LendPart => {
                let memory = CommonMemory::new(RegionMemory::allocate(length).unwrap());
                let lend = one.lend_part(&memory, 0..length, WRITE, LONG);
                pair.released(polled(polls, lend)).await.map(|lease| lease.unwrap().revoke())
            }
            Self::Lease => {
                let lease = one.lend(region(), WRITE, LONG).await.unwrap();
                lease.revoke();
                pair.released(polled(polls, lease))
                    .await
                    .map(|ended| assert_eq!(ended.unwrap().end, LeaseEnd::Revoked))
            }
            Self::Request => asked(pair, polls, length).await.map(drop),
            Self::ReceiveLease => {
                let lease = other.lend(region(), WRITE, LONG).await.unwrap();
                let taken = pair.released(polled(polls, one.receive_lease())).await;
                let is_over = taken.map(drop);
                if is_over.is_none() {
                    // The next call gets the lease.
                    drop(pair.released(one.receive_lease()).await.unwrap());
                }
                let ended = pair.released(lease).await.unwrap();
                assert_eq!((ended.end, ended.region.len()), (LeaseEnd::Returned, length));
                is_over
            }
            Self::ReceiveRegion => {
                asked(pair, usize::MAX, length).await.unwrap().hand_over();
                let taken = pair.released(polled(polls, other.receive_region())).await;
                let is_over = taken.as_ref().map(|_| ());
                let region = match taken {
                    Some(region) => region,
                    None => pair.released(other.receive_region()).await,
                };
                assert_eq!(region.unwrap().len(), length);
                is_over
            }
        }
        .is_some()
    }
}

/// Borrows memory, and drops the future after that many polls. Memory of earlier futures may be about to be freed, and
/// counts until then.
async fn asked(pair: &Pair, polls: usize, length: usize) -> Option<RemoteRegion> {
    loop {
        let asks = pair.one.borrow(length, WRITE, HANG / 2);
        match pair.released(polled(polls, asks)).await {
            Some(Err(LeaseError::Denied(LeaseDenial::Full { .. }))) => {
                tokio::task::yield_now().await
            }
            outcome => return outcome.map(Result::unwrap),
        }
    }
}

/// Its memory is closed and freed, even if another thread is about to open or close it, and no other memory is lost.
#[test]
fn futures_that_open_or_receive_memory_are_dropped_after_any_poll() {
    // Only this test uses it, because `release_all` releases the requests of every test on the device.
    let held = "soft-held-leases";
    Builder::new(held).schedule(Schedule::Held).install().unwrap();
    for device in ["soft0", held, DEFERRED] {
        run(move || async move {
            let (pd, provider) = Provider::faulty(device);
            let driver = Driver::spawn(pd.context()).unwrap();
            let (pair, listener) = Pair::by_address(driver, pd).await;
            // The first `reserve_for` of a driver tests the windows, with two queue pairs that the driver creates.
            let device = SoftDevice::find(device).unwrap();
            let mut first = Box::pin(What::ReserveFor.give_up(&pair, usize::MAX, BYTES));
            let is_over = poll_fn(|cx| {
                device.release_all();
                first.as_mut().poll(cx)
            });
            assert!(is_over.await);
            drop(first);
            // From the first one on, atomic operations have their own memory.
            pair.assert_works().await;
            pair.assert_given_back().await;
            let regions = provider.live()[2];
            for what in What::ALL {
                for length in [64, LARGE] {
                    // Increases the number of polls until the future is ready, so that each await was once the last.
                    let mut polls = 0;
                    loop {
                        let is_over = what.give_up(&pair, polls, length).await;
                        assert_closed(&pair, &provider, regions, what, polls).await;
                        if is_over {
                            break;
                        }
                        polls = if polls < 8 { polls + 1 } else { polls * 2 };
                    }
                }
                pair.assert_works().await;
            }
            pair.assert_given_back().await;
            drop((pair, listener));
            provider.gone().await;
        });
    }
}

/// Checks that soon only the earlier regions are registered.
async fn assert_closed(pair: &Pair, provider: &Provider, regions: usize, what: What, polls: usize) {
    let closed = async {
        while provider.live()[2] > regions || provider.lent() > 0 {
            tokio::task::yield_now().await;
        }
    };
    let closed = timeout(HANG, pair.released(closed)).await;
    assert!(closed.is_ok(), "{what:?}, after {polls} polls: {:?}", provider.live());
    assert_eq!((pair.one.closed(), pair.other.closed()), (None, None), "{what:?}, {polls}");
    provider.assert_kept();
}
