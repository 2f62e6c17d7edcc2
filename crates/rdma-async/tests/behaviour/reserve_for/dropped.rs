//! The memory of futures that are dropped or forgotten.

use std::future::{Future, poll_fn};
use std::mem;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rdma_async::{Descriptor, Region, ReserveError, Reserved};
use rdma_mem::RemoteMemoryRegion;
use rdma_soft::SoftDevice;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::common::provider::Provider;
use crate::common::{DEFERRED, HANG, Pair, in_a_process_of_its_own, poll_once, run};
use crate::reserve_for::{WRITE, held, is_closed_soon, probed, region};

type Open = Pin<Box<dyn Future<Output = Result<Reserved<()>, ReserveError>> + Send>>;

/// The stages of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begun,
    /// The bind is outstanding.
    Binding,
    Open,
    /// The invalidation is outstanding.
    Closing,
}

const STAGES: [Stage; 4] = [Stage::Begun, Stage::Binding, Stage::Open, Stage::Closing];

/// A call on a device that executes requests only on release.
struct Rig {
    pair: Pair,
    provider: Arc<Provider>,
    open: Open,
    key: oneshot::Receiver<RemoteMemoryRegion>,
    end: oneshot::Sender<()>,
}

impl Rig {
    async fn new(device: &str) -> Self {
        let (pair, provider) = Pair::faulty(device);
        probed(&pair).await;
        let (tell, key) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let (connection, memory) = (pair.one.clone(), region(&pair.pd, 64));
        let open = Box::pin(async move {
            let f = async |descriptor: Descriptor| {
                tell.send(descriptor.remote(Duration::ZERO).unwrap()).unwrap();
                let _ = ended.await;
            };
            memory.reserve_for(&connection, WRITE, HANG, f).await
        });
        Self { pair, provider, open, key, end }
    }

    /// Proceeds to that stage. Returns the key, if there is one.
    async fn reach(
        mut self,
        stage: Stage,
    ) -> (Pair, Arc<Provider>, Open, Option<RemoteMemoryRegion>) {
        let mut key = None;
        if stage != Stage::Begun {
            assert!(poll_once(&mut self.open).is_pending());
            assert_eq!(self.provider.lent(), 1, "the bind");
        }
        if let Stage::Open | Stage::Closing = stage {
            assert!(self.key.try_recv().is_err(), "the bind has not completed");
            self.pair.release(u32::MAX);
            assert!(poll_once(&mut self.open).is_pending());
            key = self.key.try_recv().ok();
            assert!(key.is_some() && self.provider.lent() == 0);
        }
        if stage == Stage::Closing {
            self.end.send(()).unwrap();
            assert!(poll_once(&mut self.open).is_pending());
            assert_eq!(self.provider.lent(), 1, "the invalidation");
        }
        (self.pair, self.provider, self.open, key)
    }
}

/// Waits until the region and its window are gone.
async fn gone(provider: &Provider, regions: usize) {
    let all = poll_fn(|cx| {
        cx.waker().wake_by_ref();
        let live = provider.live();
        if (live[2], live[6]) == (regions, 0) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    });
    let gone = timeout(HANG, all).await;
    assert!(gone.is_ok(), "{:?}, {} lent", provider.live(), provider.lent());
}

#[test]
fn a_future_dropped_at_any_stage_frees_its_memory_after_its_requests() {
    run(|| async {
        for stage in STAGES {
            let rig = Rig::new(held("softheld2")).await;
            let regions = rig.provider.live()[2];
            let (pair, provider, open, key) = rig.reach(stage).await;
            drop(open);
            if provider.lent() > 0 {
                assert_eq!(provider.live()[6], 1, "{stage:?}: the window exists until then");
                pair.release(u32::MAX);
            }
            gone(&provider, regions).await;
            if let Some(key) = key {
                is_closed_soon(&pair, key).await;
            }
            provider.assert_kept();
            pair.assert_works().await;
            drop((pair, key));
            provider.gone().await;
        }
    });
}

/// Dropped with the connection, whose queue pair is destroyed while the request is outstanding.
#[test]
fn a_future_dropped_with_the_connection_frees_its_memory_after_the_queue_pair() {
    run(|| async {
        for stage in STAGES {
            for first in [false, true] {
                let (pair, provider, open, _) =
                    Rig::new(held("softheld3")).await.reach(stage).await;
                if first {
                    drop(open);
                    pair.one.close().unwrap();
                    gone(&provider, provider.live()[2]).await;
                } else {
                    pair.one.close().unwrap();
                    drop(open);
                }
                provider.assert_kept();
                drop(pair);
                provider.gone().await;
            }
        }
    });
}

#[test]
fn a_forgotten_future_keeps_memory_that_the_device_may_use() {
    let name = "reserve_for::dropped::a_forgotten_future_keeps_memory_that_the_device_may_use";
    in_a_process_of_its_own(name, || run(forgotten));
}

async fn forgotten() {
    for stage in STAGES {
        let rig = Rig::new(held("softheld4")).await;
        let regions = rig.provider.live()[2];
        let (pair, provider, open, _) = rig.reach(stage).await;
        #[allow(clippy::mem_forget)] // this is the test
        mem::forget(open);
        pair.release(u32::MAX);
        // Forgotten with the future, or kept in the slot.
        let kept = usize::from(stage != Stage::Begun);
        assert_eq!((provider.live()[2] - regions, provider.live()[6]), (kept, kept));
        pair.assert_works().await;
        assert_eq!(provider.live()[6], kept, "{stage:?}");
        provider.assert_kept();
    }
}

/// After any number of polls, on devices that work by themselves.
#[test]
fn a_future_dropped_after_any_poll_frees_its_memory() {
    run(|| async {
        for device in ["soft0", DEFERRED] {
            for polls in 0..20 {
                let (pair, provider) = Pair::faulty(device);
                let regions = provider.live()[2];
                let memory = region(&pair.pd, 64);
                let connection = pair.one.clone();
                let mut open = Box::pin(async move {
                    let f = async |_| tokio::task::yield_now().await;
                    memory.reserve_for(&connection, WRITE, HANG, f).await
                });
                let mut is_done = false;
                for _ in 0..polls {
                    is_done = is_done || poll_once(&mut open).is_ready();
                    tokio::task::yield_now().await;
                }
                drop(open);
                gone(&provider, regions).await;
                provider.assert_kept();
            }
        }
    });
}

/// The function has not returned, and the runtime does not panic.
#[test]
fn memory_of_an_abandoned_call_is_closed() {
    async fn opened(
        open: Region,
        pair: &Pair,
        tell: oneshot::Sender<RemoteMemoryRegion>,
        panics: bool,
    ) {
        let f = async |descriptor: Descriptor| {
            tell.send(descriptor.remote(Duration::ZERO).unwrap()).unwrap();
            assert!(!panics, "on purpose");
            std::future::pending::<()>().await;
        };
        let _ = open.reserve_for(&pair.one, WRITE, HANG, f).await;
    }
    for panics in [false, true] {
        let kept = tokio::runtime::Runtime::new().unwrap();
        let (pair, provider) = kept.block_on(async { Pair::faulty("soft0") });
        let pair = Arc::new(pair);
        kept.block_on(probed(&pair));
        let regions = provider.live()[2];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (tell, told) = oneshot::channel();
        let (open, its) = (region(&pair.pd, 64), Arc::clone(&pair));
        let task = runtime.spawn(async move { opened(open, &its, tell, panics).await });
        let key = runtime.block_on(told).unwrap();
        let ended = std::panic::catch_unwind(AssertUnwindSafe(|| drop(runtime)));
        assert!(ended.is_ok());
        drop(task);
        assert_eq!((provider.live()[2], provider.live()[6]), (regions, 0), "at once");
        kept.block_on(is_closed_soon(&pair, key));
    }
}

/// Dropped during the probe of the windows, which uses its own queue pairs.
#[test]
fn a_dropped_probe_is_repeated_later() {
    run(|| async {
        let name = held("softheld5");
        let (pair, provider) = Pair::faulty(name);
        let before = provider.live();
        for polls in 0..8 {
            let memory = region(&pair.pd, 64);
            let mut open = Box::pin(memory.reserve_for(&pair.one, WRITE, HANG, async |_| ()));
            for _ in 0..polls {
                assert!(poll_once(&mut open).is_pending());
                if polls > 2 {
                    // Another thread creates its queue pairs.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            drop(open);
        }
        SoftDevice::find(name).unwrap().release_all();
        probed(&pair).await;
        let all = poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if provider.live() == before {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        });
        let gone = timeout(HANG, all).await;
        assert!(gone.is_ok(), "{:?} instead of {before:?}", provider.live());
        provider.assert_kept();
    });
}

/// The first caller stops polling; other callers do not depend on it.
#[test]
fn a_future_that_is_not_polled_does_not_block_the_probe() {
    run(|| async {
        let pair = Pair::new("soft0");
        let memory = region(&pair.pd, 64);
        let mut first = Box::pin(memory.reserve_for(&pair.one, WRITE, HANG, async |_| ()));
        assert!(poll_once(&mut first).is_pending());
        let memory = region(&pair.pd, 64);
        let second = memory.reserve_for(&pair.other, WRITE, HANG, async |_| ());
        timeout(HANG, second).await.unwrap().unwrap();
        timeout(HANG, first).await.unwrap().unwrap();
    });
}
