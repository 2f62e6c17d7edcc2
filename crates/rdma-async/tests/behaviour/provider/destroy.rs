//! Queue pairs that refuse to be destroyed.

use rdma_async::{CloseReason, TransportError};
use rdma_soft::SoftDevice;
use tokio::time::timeout;

use crate::common::kinds::{BYTES, Begun, Kind, Way};
use crate::common::provider::{ALWAYS, Call, Provider};
use crate::common::{HANG, HELD, Pair, in_a_process_of_its_own, poll_once, run};

/// A receive that was dropped, and a receive and a write that are awaited.
fn outstanding(pair: &Pair) -> [Begun; 2] {
    drop(pair.one.receive(pair.buffer(&[1; BYTES])).try_post().unwrap());
    [Kind::Receive, Kind::Write].map(|kind| {
        let mut begun = kind.begin(pair, Way::Tried);
        assert!(poll_once(&mut begun).is_pending());
        begun
    })
}

/// The call that destroys the queue pair.
#[derive(Clone, Copy, Debug)]
enum By {
    Close,
    Shutdown,
}

/// Until a later call destroys it, operations end by their completions.
#[test]
fn a_refused_close_leaves_the_memory_with_the_device() {
    for (by, reason) in [(By::Close, CloseReason::Asked), (By::Shutdown, CloseReason::Destroyed)] {
        for times in [1, ALWAYS] {
            run(|| async move {
                let (pair, provider) = Pair::faulty(HELD);
                let [mut receive, write] = outstanding(&pair);
                provider.refuse(Call::DestroyQueuePair, times);
                match by {
                    By::Close => {
                        let error = pair.one.close().unwrap_err();
                        assert!(error.to_string().contains("EBUSY"), "{error}");
                    }
                    By::Shutdown => {
                        let ends = timeout(HANG, pair.driver.clone().shutdown()).await;
                        ends.unwrap();
                    }
                }
                assert_eq!(pair.one.closed(), Some(reason));
                assert_eq!((pair.buffers(), provider.lent()), (3, 3));
                assert!(poll_once(&mut receive).is_pending());
                let later = pair.one.send(pair.buffer(&[1])).await.unwrap_err();
                assert!(is_closed(&later.error, reason), "{later}");
                drop(later);
                if let By::Close = by {
                    assert!(pair.released(write).await.is_none(), "the write was not executed");
                } else {
                    drop(write);
                }
                provider.refuse(Call::DestroyQueuePair, 0);
                pair.one.close().unwrap();
                let (error, bytes) = receive.await.unwrap();
                assert!(is_closed(&error, reason), "{error}");
                assert_eq!((bytes, pair.buffers(), provider.lent()), (BYTES, 0, 0));
                drop(pair);
                provider.gone().await;
            });
        }
    }
}

fn is_closed(error: &TransportError, why: CloseReason) -> bool {
    matches!(error, TransportError::Closed { reason, .. } if *reason == why)
}

/// The end of the driver finally destroys it.
#[test]
fn a_dropped_connection_that_stays_ends_with_its_driver() {
    run(|| async {
        let (pair, provider) = Pair::faulty(HELD);
        let begun = outstanding(&pair);
        provider.refuse(Call::DestroyQueuePair, 1);
        let Pair { one, other, board, pool, pd, driver } = pair;
        drop((begun, one));
        assert_eq!((pool.usage().buffers, provider.lent()), (3, 3));
        drop((other, driver));
        while pool.usage().buffers > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(provider.lent(), 0);
        drop((board, pool, pd));
        provider.gone().await;
    });
}

/// Nothing that it needs is freed or deregistered, whatever else is dropped.
#[test]
fn a_queue_pair_that_is_never_destroyed_keeps_its_memory_forever() {
    let name = "provider::destroy::a_queue_pair_that_is_never_destroyed_keeps_its_memory_forever";
    in_a_process_of_its_own(name, keeps_for_ever);
}

fn keeps_for_ever() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (provider, pool, qpn) = runtime.block_on(async {
        let (pair, provider) = Pair::faulty(HELD);
        let begun = outstanding(&pair);
        provider.refuse(Call::DestroyQueuePair, ALWAYS);
        let (pool, qpn) = (pair.pool.clone(), pair.one.qpn());
        let driver = pair.driver.clone();
        drop((begun, pair));
        timeout(HANG, driver.shutdown()).await.unwrap();
        (provider, pool, qpn)
    });
    drop(runtime);
    assert_eq!((pool.usage().buffers, provider.lent()), (3, 3));
    drop(pool);
    // Both queue pairs, their completion queue, and the region of the pool.
    assert_eq!(provider.live(), [1, 1, 1, 1, 1, 2, 0]);
    // The target of the write is gone, so it fails; its source memory still exists.
    SoftDevice::find(HELD).unwrap().release(qpn, 1);
    assert_eq!(provider.live(), [1, 1, 1, 1, 1, 2, 0]);
    provider.assert_kept();
}

/// It keeps its slots, and does not block another queue pair in the same completion queue.
#[test]
fn a_queue_pair_that_stays_does_not_block_others() {
    run(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let driver = rdma_async::Driver::spawn(pd.context()).unwrap();
        let [stays, works] =
            [(); 2].map(|()| Pair::of(driver.clone(), pd.clone(), |builder| builder));
        let receive = Kind::Receive.begin(&stays, Way::Tried);
        provider.refuse(Call::DestroyQueuePair, 2);
        let Pair { one, other, pool, board, pd: domain, driver: also } = stays;
        drop((receive, one, other, board, domain, also));
        assert_eq!(pool.usage().buffers, 1);
        works.assert_works().await;
        let again = Pair::of(driver.clone(), pd.clone(), |builder| builder);
        again.assert_works().await;
        assert_eq!(pool.usage().buffers, 1);
        drop((again, works, driver));
        while pool.usage().buffers > 0 {
            tokio::task::yield_now().await;
        }
        drop((pool, pd));
        provider.gone().await;
    });
}
