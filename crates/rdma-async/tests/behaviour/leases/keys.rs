//! Keys of memory that was closed, repeated many times.

use std::collections::HashSet;

use rdma_async::{Driver, Region};
use test_support::program::is_emulated;

use crate::common::Pair;
use crate::common::provider::Provider;
use crate::leases::*;

/// The number of times that memory is opened and closed.
const TIMES: usize = 100_000;
/// One key of this many is tried later.
const TRIED: usize = 1000;

/// Each key is new, no old key works, and no registration is left.
#[test]
fn no_key_of_many_works_again() {
    crate::common::run_long_in_one_thread(|| async {
        // A memory checker makes each copy slow.
        let is_slow = is_emulated() || cfg!(rdma_visible_copies);
        let times = if is_slow { TIMES / 10 } else { TIMES };
        let (pd, provider) = Provider::faulty("soft0");
        let driver = Driver::spawn(pd.context()).unwrap();
        let (pair, listener) = Pair::by_address(driver, pd).await;
        let mut region = crate::common::region(&pair.pd, 64);
        // Grows the pool, so that its region is counted.
        write(&pair, pair.board.remote()).await;
        let regions = provider.live()[2];
        let (mut keys, mut old) = (HashSet::new(), Vec::new());
        for number in 0..times {
            let key;
            (region, key) = if number % 20 == 0 {
                lent(&pair, region).await
            } else {
                let open = region.reserve(WRITE, HANG, async |descriptor| {
                    let key = descriptor.remote(Duration::ZERO).unwrap();
                    if number % TRIED == 1 {
                        write(&pair, key).await;
                    }
                    key
                });
                let reserved = open.await.unwrap();
                (reserved.region, reserved.value.unwrap())
            };
            assert!(keys.insert(key.rkey()), "{key:?} was used before, after {number}");
            if number % TRIED <= 1 {
                old.push(key);
            }
        }
        assert_eq!(provider.live()[2], regions, "each was deregistered");
        assert_eq!(old.len(), 2 * times / TRIED);
        for key in old {
            // A refusal ends the queue pair.
            let late = Pair::of(pair.driver.clone(), pair.pd.clone(), |builder| builder);
            late.is_closed(&late.one, key, &region).await;
        }
        drop((pair, listener, region));
        provider.gone().await;
    });
}

async fn write(pair: &Pair, to: RemoteMemoryRegion) {
    pair.one.write(pair.buffer(b"word"), to.slice(0..4).unwrap()).await.unwrap();
}

/// Lends the region, and returns it after the peer has written.
async fn lent(pair: &Pair, region: Region) -> (Region, RemoteMemoryRegion) {
    let lease = pair.other.lend(region, WRITE, HANG).await.unwrap();
    let lent = pair.one.receive_lease().await.unwrap();
    let key = lent.remote();
    write(pair, key).await;
    drop(lent);
    (lease.await.unwrap().region, key)
}
