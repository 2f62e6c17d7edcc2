//! What becomes of the memory when nobody waits for it any more.

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

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begun,
    /// The bind is with the device.
    Binding,
    Open,
    /// The invalidation is with the device.
    Closing,
}

const STAGES: [Stage; 4] = [Stage::Begun, Stage::Binding, Stage::Open, Stage::Closing];

/// A call on a device that does nothing by itself.
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

    /// Goes as far as that. The key, if there is one.
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
            assert!(self.key.try_recv().is_err(), "the bind is not done");
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

/// Ready when the region and its window are no more.
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
fn dropped_at_any_point_it_is_closed_and_freed_behind_what_is_with_the_device() {
    run(|| async {
        for stage in STAGES {
            let rig = Rig::new(held("softheld2")).await;
            let regions = rig.provider.live()[2];
            let (pair, provider, open, key) = rig.reach(stage).await;
            drop(open);
            if provider.lent() > 0 {
                assert_eq!(provider.live()[6], 1, "{stage:?}: it stays until then");
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

/// With the connection, whose queue pair is destroyed while the request is with the device.
#[test]
fn dropped_with_the_connection_it_is_freed_behind_the_queue_pair() {
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
fn forgotten_it_keeps_its_memory_as_long_as_the_device_may_use_it() {
    let name =
        "reserve_for::dropped::forgotten_it_keeps_its_memory_as_long_as_the_device_may_use_it";
    in_a_process_of_its_own(name, || run(forgotten));
}

async fn forgotten() {
    for stage in STAGES {
        let rig = Rig::new(held("softheld4")).await;
        let regions = rig.provider.live()[2];
        let (pair, provider, open, _) = rig.reach(stage).await;
        #[allow(clippy::mem_forget)] // it is what is tested
        mem::forget(open);
        pair.release(u32::MAX);
        // Forgotten with it, or in the slot.
        let kept = usize::from(stage != Stage::Begun);
        assert_eq!((provider.live()[2] - regions, provider.live()[6]), (kept, kept));
        pair.assert_works().await;
        assert_eq!(provider.live()[6], kept, "{stage:?}");
        provider.assert_kept();
    }
}

/// After any number of polls, on devices that work by themselves.
#[test]
fn dropped_after_any_number_of_polls_it_is_freed() {
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

/// Without its function having ended, and without a panic of the runtime.
#[test]
fn what_is_given_up_is_closed() {
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

/// While it is found out whether there are windows, whose queue pairs nobody has made but the crate.
#[test]
fn dropped_while_the_device_is_looked_at_it_is_found_out_later() {
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
                    // Another thread makes its queue pairs.
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
        assert!(gone.is_ok(), "{:?}, and not {before:?}", provider.live());
        provider.assert_kept();
    });
}

/// Nobody waits for whoever has asked first, and asks no further.
#[test]
fn who_is_not_polled_keeps_nobody_from_finding_out() {
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
