//! Memory that is open to peers for a limited time: a peer has access until then, and none after it.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use rdma_async::{Descriptor, Region, ReserveError, Reserved};
use rdma_mem::{AccessFlags, RemoteMemoryRegion};
use rdma_soft::SoftDevice;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::common::provider::{Call, Provider};
use crate::common::{DEFERRED, DEVICES, HANG, HELD, Pair, domain, nearly_endless, region, run};

const SHORT: Duration = Duration::from_millis(50);
const WRITE: AccessFlags = AccessFlags::new().with_remote_write();
/// A length that another thread registers.
const LARGE: usize = 3 << 20;

/// Checks that a write of the peer after the end fails and changes nothing.
async fn is_closed(pair: &Pair, key: RemoteMemoryRegion, region: &Region) {
    pair.is_closed(&pair.one, key, region).await;
}

#[test]
fn a_peer_can_write_only_until_the_function_returns() {
    run(|| async {
        for device in DEVICES {
            for length in [100, LARGE] {
                let pair = Pair::new(device);
                let open = region(&pair.pd, length).reserve(WRITE, HANG, async |descriptor| {
                    assert!(descriptor.remaining() <= HANG && descriptor.len() == length);
                    let key = descriptor.remote(Duration::ZERO).unwrap();
                    let to = key.slice(10..14).unwrap();
                    pair.one.write(pair.buffer(b"word"), to).await.unwrap();
                    key
                });
                let Reserved { region, value, .. } = open.await.unwrap();
                assert_eq!((&region[10..14], region[14]), (b"word".as_slice(), 1), "{device}");
                is_closed(&pair, value.unwrap(), &region).await;
            }
        }
    });
}

/// Many peers read the same memory.
#[test]
fn many_peers_reach_open_memory_at_once() {
    run(|| async {
        for peers in [1, 8] {
            let first = Pair::new("soft0");
            let also = |_| Pair::of(first.driver.clone(), first.pd.clone(), |builder| builder);
            let pairs: Vec<_> = (0..peers).map(also).collect();
            let may = AccessFlags::new().with_remote_read();
            let reserved = region(&first.pd, 64).reserve(may, HANG, async |descriptor| {
                let mut tasks = tokio::task::JoinSet::new();
                for pair in &pairs {
                    let (reader, buffer) = (pair.one.clone(), pair.pool.allocate(64).unwrap());
                    let key = descriptor.remote(Duration::ZERO).unwrap();
                    tasks.spawn(async move { reader.read(buffer, key).await.unwrap()[63] });
                }
                (tasks.join_all().await, descriptor.remote(Duration::ZERO).unwrap())
            });
            let Reserved { region, value, .. } = reserved.await.unwrap();
            let (read, key) = value.unwrap();
            assert_eq!(read, vec![1; peers]);
            for pair in &pairs {
                let late = pair.one.read(pair.pool.allocate(64).unwrap(), key).await.unwrap_err();
                assert!(late.to_string().contains("remote access"), "{late}");
            }
            drop(region);
        }
    });
}

/// It does not end early, and ends soon after its time.
#[test]
fn a_reservation_ends_with_its_time() {
    run(|| async {
        for (device, length) in [("soft0", 64), ("softib0", LARGE)] {
            let pair = Pair::new(device);
            let begin = Instant::now();
            let mut seen = None;
            let reserved = region(&pair.pd, length).reserve(WRITE, SHORT, async |descriptor| {
                seen = descriptor.remote(Duration::ZERO);
                std::future::pending::<()>().await;
            });
            let Reserved { region, value, .. } = reserved.await.unwrap();
            assert!(begin.elapsed() >= SHORT && value.is_none());
            is_closed(&pair, seen.unwrap(), &region).await;
        }
    });
}

#[test]
fn the_shortest_and_the_longest_time_work() {
    run(|| async {
        let pd = domain("soft0");
        let pending = async |_| std::future::pending::<()>().await;
        let none = region(&pd, 8).reserve(WRITE, Duration::ZERO, pending).await.unwrap();
        assert!(none.value.is_none());
        let all = none.region.reserve(WRITE, Duration::MAX, async |descriptor| {
            descriptor.remote(Duration::from_secs(1 << 40)).is_some()
        });
        let all = all.await.unwrap();
        assert_eq!(all.value, Some(true));
        let mut region = all.region;
        // A timer is rounded up to a whole millisecond.
        for micros in [0, 50, 200, 500, 900, 2000] {
            let time = nearly_endless(micros);
            let waits = region.reserve(WRITE, time, async |_| {
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
            });
            let waited = waits.await.unwrap();
            assert_eq!(waited.value, Some(()));
            region = waited.region;
        }
    });
}

/// A future that is dropped, or whose function panics, leaves no open memory.
#[test]
fn memory_of_an_abandoned_call_is_closed() {
    run(|| async {
        for length in [64, LARGE] {
            for panics in [false, true] {
                let pair = Pair::new("soft0");
                let (tell, told) = oneshot::channel();
                let open = region(&pair.pd, length);
                let task = tokio::spawn(async move {
                    let f = async |descriptor: Descriptor| {
                        tell.send(descriptor.remote(Duration::ZERO).unwrap()).unwrap();
                        assert!(!panics, "on purpose");
                        std::future::pending::<()>().await;
                    };
                    open.reserve(WRITE, HANG, f).await.map(drop)
                });
                let key = told.await.unwrap();
                task.abort();
                assert!(task.await.is_err());
                // Another thread may still be about to deregister it.
                loop {
                    let again = Pair::of(pair.driver.clone(), pair.pd.clone(), |builder| builder);
                    let late = again.one.write(again.buffer(b"late"), key.slice(0..4).unwrap());
                    if timeout(HANG, late).await.unwrap().is_err() {
                        break;
                    }
                    assert!(length == LARGE, "small memory is closed at once");
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
    });
}

/// A write that is outstanding when the time is over has changed all that it ever will.
#[test]
fn an_outstanding_write_completes_or_is_refused() {
    run(|| async {
        for (device, is_half_done) in [(HELD, false), (HELD, true), (DEFERRED, false)] {
            let pair = Pair::new(device);
            let mut half_way = None;
            let reserved = region(&pair.pd, 64).reserve(WRITE, SHORT, async |descriptor| {
                let key = descriptor.remote(Duration::ZERO).unwrap();
                let write = pair.one.write(pair.buffer(&[7; 64]), key).post().await.unwrap();
                let soft = SoftDevice::find(device).unwrap();
                assert!(!is_half_done || soft.release_half(pair.one.qpn()));
                half_way = Some(write);
                std::future::pending::<()>().await;
            });
            let Reserved { region, value, .. } = reserved.await.unwrap();
            assert!(value.is_none());
            let before = region.to_vec();
            let outcome = pair.released(half_way.unwrap()).await;
            assert_eq!(
                *region, *before,
                "{device}: the memory changed after it was exclusive again"
            );
            if device == DEFERRED {
                assert!(before == [1; 64] || before == [7; 64], "only a part was written");
            } else {
                // The device has released only a part of it.
                assert_eq!(before, half(is_half_done));
                let failed = outcome.unwrap_err();
                assert!(failed.to_string().contains("remote access"), "{failed}");
            }
        }
    });
}

/// The first half of a write, or nothing of it, over ones.
fn half(is_done: bool) -> [u8; 64] {
    let mut bytes = [1; 64];
    bytes[..if is_done { 32 } else { 0 }].fill(7);
    bytes
}

#[test]
fn memory_that_cannot_be_opened_is_returned() {
    run(|| async {
        for length in [64, LARGE] {
            let (pd, provider) = Provider::faulty("soft0");
            provider.refuse(Call::RegisterRegion, 1);
            let f = async |_| panic!("the memory was not opened");
            let refused = region(&pd, length).reserve(WRITE, HANG, f).await.unwrap_err();
            let ReserveError::NotOpened { region, .. } = refused else { panic!("{refused}") };
            assert_eq!((region.len(), region[length - 1]), (length, 1));
            // It can be opened later.
            assert!(region.reserve(WRITE, HANG, async |_| ()).await.is_ok());
        }
    });
}

/// Memory that a peer may still reach is not returned.
#[test]
fn memory_that_cannot_be_closed_is_not_returned() {
    run(|| async {
        let (pair, provider) = Pair::faulty("soft0");
        let mut seen = None;
        let reserved = region(&pair.pd, 64).reserve(WRITE, HANG, async |descriptor| {
            seen = descriptor.remote(Duration::ZERO);
            // Refused twice while closing; the later drop succeeds.
            provider.refuse(Call::DeregisterRegion, 2);
        });
        let refused = reserved.await.unwrap_err();
        assert!(matches!(refused, ReserveError::NotRevoked(_)), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("peers may still reach"), "{text}");
        // The later attempt has closed it.
        let late = pair.one.write(pair.buffer(b"late"), seen.unwrap().slice(0..4).unwrap());
        late.await.unwrap_err();
    });
}

/// No panic of the ended runtime.
#[test]
fn a_runtime_that_ends_closes_reserved_memory() {
    let pair_runtime = tokio::runtime::Runtime::new().unwrap();
    let pair = pair_runtime.block_on(async { Pair::new("soft0") });
    for length in [64, LARGE] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (tell, told) = oneshot::channel();
        let open = region(&pair.pd, length);
        let task = runtime.spawn(async move {
            let f = async |descriptor: Descriptor| {
                tell.send(descriptor.remote(Duration::ZERO).unwrap()).unwrap();
                std::future::pending::<()>().await;
            };
            open.reserve(WRITE, HANG, f).await.map(drop)
        });
        let key = runtime.block_on(told).unwrap();
        let ended = std::panic::catch_unwind(AssertUnwindSafe(|| drop(runtime)));
        assert!(ended.is_ok());
        drop(task);
        pair_runtime.block_on(async {
            let again = Pair::of(pair.driver.clone(), pair.pd.clone(), |builder| builder);
            let late = again.one.write(again.buffer(b"late"), key.slice(0..4).unwrap());
            late.await.unwrap_err();
        });
    }
}
