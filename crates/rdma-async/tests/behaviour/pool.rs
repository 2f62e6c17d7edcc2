//! Pools: allocations are awaited, many share one growth, and a task that needs no growth never waits for the provider.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Poll;

use rdma_async::{Driver, Pool, PoolError};
use rdma_mem::{Buffer, BufferPool, Errno, Error, ProtectionDomain, Recovery};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, spawn_blocking, yield_now};
use tokio::time::timeout;

use crate::common::provider::{ALWAYS, Call, Provider};
use crate::common::{HANG, Pair, domain, poll_once, run};

/// The number of bytes that a pool of these tests registers at a time.
const REGION: usize = 4096;

fn small(pd: &ProtectionDomain) -> Pool {
    BufferPool::with_region_size(pd, REGION).into()
}

/// Stops the provider at its calls for regions, and counts these calls.
struct Gate {
    reached: tokio::sync::mpsc::UnboundedReceiver<Call>,
    opens: Sender<()>,
    calls: Arc<AtomicUsize>,
}

impl Gate {
    fn at(provider: &Provider) -> Self {
        let (reach, reached) = tokio::sync::mpsc::unbounded_channel();
        let (opens, open): (_, Receiver<()>) = channel();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        provider.at_region(move |call| {
            counted.fetch_add(1, Relaxed);
            // A dropped gate stops no call.
            if reach.send(call).is_ok() {
                let _ = open.recv_timeout(HANG);
            }
        });
        Self { reached, opens, calls }
    }

    /// Waits until a call has reached the gate.
    async fn reached(&mut self) -> Call {
        timeout(HANG, self.reached.recv()).await.unwrap().unwrap()
    }

    /// Lets all calls pass from now on. They are still counted.
    fn open(self) -> Arc<AtomicUsize> {
        let Self { reached, opens, calls } = self;
        drop((reached, opens));
        calls
    }
}

/// A pool with a free region. Its provider is stopped in a thread that registers another one.
async fn stopped(provider: &Provider, pd: &ProtectionDomain) -> (Pool, Gate, Waits) {
    let pool = small(pd);
    assert_eq!(pool.grow(1).await.unwrap(), REGION);
    let mut gate = Gate::at(provider);
    let waits = tokio::spawn({
        let pool = pool.clone();
        async move { pool.allocate(2 * REGION).await }
    });
    assert_eq!(gate.reached().await, Call::RegisterRegion);
    (pool, gate, waits)
}

type Waits = tokio::task::JoinHandle<Result<Buffer, PoolError>>;

#[test]
fn buffers_of_all_sizes_are_aligned() {
    run(|| async {
        let pool = Pool::new(&domain("soft0"));
        for length in [0, 1, 64, 100, 4096, 100_000, 9 << 20] {
            assert_eq!(pool.allocate(length).await.unwrap().len(), length);
        }
        let mut held = Vec::new();
        for shift in 0..27 {
            let mut buffer = pool.allocate_aligned(100, 1 << shift).await.unwrap();
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % (1 << shift)), (100, 0));
            buffer.fill(shift);
            held.push(buffer);
        }
        assert!((0..).zip(&held).all(|(mark, buffer)| **buffer == [mark; 100]));
        for alignment in [0, 3, usize::MAX] {
            let error = pool.allocate_aligned(1, alignment).await.unwrap_err();
            assert!(error.to_string().contains("is not a power of two"), "{error}");
            assert_eq!(error.recovery(), Recovery::Programming);
        }
        for (length, alignment) in [(usize::MAX, 1), (1 << 40, 1), (1, 1 << 63)] {
            let error = pool.allocate_aligned(length, alignment).await.unwrap_err();
            assert!(matches!(error, PoolError::Memory(Error::OutOfMemory { .. })), "{error}");
        }
    });
}

#[test]
fn a_pool_grows_shrinks_and_reports_its_usage() {
    run(|| async {
        let pool = small(&domain("soft0"));
        assert_eq!((pool.usage(), pool.trim().await.unwrap()), (Default::default(), 0));
        let (one, two) = (pool.allocate(REGION).await.unwrap(), pool.allocate(10).await.unwrap());
        let usage = pool.usage();
        assert_eq!((usage.regions, usage.registered_bytes), (2, 2 * REGION));
        assert_eq!((usage.buffers, usage.used_bytes), (2, REGION + 64));
        drop(one);
        assert_eq!(pool.trim().await.unwrap(), REGION);
        assert_eq!(pool.usage().regions, 1);
        drop(two);
        assert!(pool.grow(10_000).await.unwrap() >= 10_000);
        assert!(pool.as_blocking().try_allocate(10_000).unwrap().is_some());
        assert!(pool.trim().await.unwrap() >= REGION + 10_000);
        assert_eq!(pool.usage(), Default::default());
    });
}

#[test]
fn a_buffer_outlives_its_pool_and_the_driver() {
    run(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let driver = Driver::spawn(pd.context()).unwrap();
        let pool = Pool::new(&pd);
        let mut buffer = pool.allocate(100).await.unwrap();
        drop((pool, pd));
        driver.shutdown().await;
        buffer.fill(9);
        assert_eq!((&*buffer, provider.live()[2]), ([9; 100].as_slice(), 1));
        drop(buffer);
        provider.gone().await;
    });
}

/// A message in the memory of a pool whose last clone was dropped.
#[test]
fn operations_can_use_buffers_of_a_dropped_pool() {
    run(|| async {
        let pair = Pair::new("soft0");
        let pool = Pool::new(&pair.pd);
        let mut from = pool.allocate_aligned(5, 4096).await.unwrap();
        from.copy_from_slice(b"hello");
        let receive = pair.other.receive(pool.allocate(64).await.unwrap());
        drop(pool);
        let receive = receive.post().await.unwrap();
        pair.one.send(from).await.unwrap();
        let received = receive.await.unwrap();
        assert_eq!(&received.memory[..received.length], b"hello");
    });
}

/// On one thread: the test would hang if a task called the provider, or waited for a lock that is held during the call.
#[test]
fn tasks_that_need_no_growth_continue_while_the_provider_is_slow() {
    run(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let (pool, gate, waits) = stopped(&provider, &pd).await;
        let mut tasks = JoinSet::new();
        for task in 0..10 {
            let pool = pool.clone();
            tasks.spawn(async move {
                for round in 0..20 {
                    let mut buffer = pool.allocate_aligned(200, 64 << (round % 2)).await.unwrap();
                    buffer.fill(task);
                    yield_now().await;
                    assert_eq!(*buffer, [task; 200]);
                    assert!(
                        pool.usage().regions == 1 && !pool.clone().usage().eq(&Default::default())
                    );
                }
            });
        }
        timeout(HANG, tasks.join_all()).await.unwrap();
        assert!(!waits.is_finished());
        assert_eq!((pool.usage().regions, pool.usage().buffers), (1, 0));
        assert_eq!(gate.open().load(Relaxed), 1);
        assert_eq!(waits.await.unwrap().unwrap().len(), 2 * REGION);
    });
}

#[test]
fn tasks_continue_while_the_provider_deregisters() {
    run(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let pool = small(&pd);
        let held = [pool.allocate(REGION).await.unwrap(), pool.allocate(1).await.unwrap()];
        let [first, held] = held;
        drop(first);
        let mut gate = Gate::at(&provider);
        let trims = tokio::spawn({
            let pool = pool.clone();
            async move { pool.trim().await }
        });
        assert_eq!(gate.reached().await, Call::DeregisterRegion);
        for _ in 0..20 {
            assert_eq!(pool.allocate(1000).await.unwrap().len(), 1000);
        }
        assert!(!trims.is_finished());
        gate.open();
        assert_eq!(trims.await.unwrap().unwrap(), REGION);
        drop(held);
    });
}

/// All allocations that wait when a growth starts get their buffers from it.
#[test]
fn many_tasks_wait_for_one_growth() {
    run(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let (pool, gate, waits) = stopped(&provider, &pd).await;
        let wanted = |task: usize| (1000 + task * 77, 1 << (task % 13));
        let mut tasks: Vec<_> = (0..200)
            .map(|task| {
                let (pool, (length, alignment)) = (pool.clone(), wanted(task));
                Box::pin(async move { pool.allocate_aligned(length, alignment).await })
            })
            .collect();
        let mut held: Vec<Option<Buffer>> = Vec::new();
        for task in &mut tasks {
            let polled = poll_once(task);
            held.push(match polled {
                Poll::Ready(buffer) => Some(buffer.unwrap()),
                Poll::Pending => None,
            });
        }
        let at_once = held.iter().flatten().count();
        assert!((1..=4).contains(&at_once), "{at_once} buffers of one region");
        let calls = gate.open();
        for (task, place) in tasks.into_iter().zip(&mut held) {
            if place.is_none() {
                *place = Some(timeout(HANG, task).await.unwrap().unwrap());
            }
        }
        for (task, buffer) in held.iter().flatten().enumerate() {
            let (length, alignment) = wanted(task);
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % alignment), (length, 0));
        }
        assert!(waits.await.unwrap().is_ok());
        assert_eq!((calls.load(Relaxed), pool.usage().regions), (2, 3));
    });
}

#[test]
fn all_waiters_get_the_error_of_a_failed_growth() {
    run(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let (pool, gate, waits) = stopped(&provider, &pd).await;
        let held = pool.allocate(REGION).await.unwrap();
        let mut tasks: Vec<_> = (0..100).map(|_| Box::pin(pool.allocate(1000))).collect();
        assert!(tasks.iter_mut().all(|task| poll_once(task).is_pending()));
        provider.refuse(Call::RegisterRegion, ALWAYS);
        let calls = gate.open();
        for task in tasks {
            let error = timeout(HANG, task).await.unwrap().unwrap_err();
            assert_eq!(error.recovery(), Recovery::Resource);
            let PoolError::Memory(Error::Verb(error)) = error else { panic!("{error}") };
            assert_eq!((error.verb, error.errno), ("ibv_reg_mr", Errno::ENOMEM));
        }
        waits.await.unwrap().unwrap_err();
        assert_eq!(calls.load(Relaxed), 3, "one for all, and one for the first waiter");
        provider.refuse(Call::RegisterRegion, 0);
        assert_eq!(pool.allocate(1000).await.unwrap().len(), 1000);
        assert_eq!((held.len(), pool.usage().regions), (REGION, 2));
    });
}

/// A size that is too much for all waiters is enough for some.
#[test]
fn waiters_get_buffers_up_to_the_limit() {
    run(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let (pool, gate, waits) = stopped(&provider, &pd).await;
        let held = pool.allocate(REGION).await.unwrap();
        pool.as_blocking().set_limit(6 * REGION);
        let mut tasks: Vec<_> = (0..10).map(|_| Box::pin(pool.allocate(REGION))).collect();
        assert!(tasks.iter_mut().all(|task| poll_once(task).is_pending()));
        gate.open();
        let mut served = vec![held, waits.await.unwrap().unwrap()];
        for task in tasks {
            match timeout(HANG, task).await.unwrap() {
                Ok(buffer) => served.push(buffer),
                Err(PoolError::Memory(error @ Error::PoolLimit { .. })) => {
                    assert!(error.to_string().contains("set a higher limit"), "{error}");
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((served.len(), pool.usage().registered_bytes), (5, 6 * REGION));
        served.truncate(1);
        assert_eq!(pool.allocate(2 * REGION).await.unwrap().len(), 2 * REGION);
    });
}

/// A future is dropped before it is polled, during the call of the provider, and when its buffer is ready.
#[test]
fn dropped_futures_leave_their_registered_memory_to_others() {
    run(|| async {
        for polls in 0..3 {
            let (pd, provider) = Provider::faulty("soft0");
            let pool = small(&pd);
            let mut gate = Gate::at(&provider);
            let mut dropped = Box::pin(pool.allocate(1000));
            let mut others = [Box::pin(pool.allocate(1000)), Box::pin(pool.allocate(1000))];
            let mut last = Box::pin(pool.allocate(1000));
            if polls > 0 {
                assert!(poll_once(&mut dropped).is_pending());
                gate.reached().await;
                assert!(others.iter_mut().all(|other| poll_once(other).is_pending()));
                assert!(poll_once(&mut last).is_pending());
            }
            if polls < 2 {
                drop(dropped);
                drop(others);
                let calls = gate.open();
                assert_eq!(timeout(HANG, last).await.unwrap().unwrap().len(), 1000);
                assert_eq!((pool.usage().regions, pool.usage().buffers), (1, 0));
                assert_eq!(calls.load(Relaxed), 1, "memory that was registered for others is used");
            } else {
                let calls = gate.open();
                // The last one has its buffer, so the others have theirs.
                let held = timeout(HANG, last).await.unwrap().unwrap();
                assert_eq!(pool.usage().buffers, 4);
                drop((dropped, others));
                assert_eq!((pool.usage().buffers, held.len()), (1, 1000));
                assert_eq!(calls.load(Relaxed), 1);
            }
            drop(pool);
            drop(pd);
            provider.gone().await;
        }
    });
}

/// All futures are dropped before a thread is free.
#[test]
fn nothing_is_registered_for_dropped_futures() {
    let runtime =
        Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let (pd, provider) = Provider::faulty("soft0");
        let pool = small(&pd);
        let (release, released) = channel::<()>();
        let busy = spawn_blocking(move || released.recv_timeout(HANG).is_err());
        let mut dropped = [Box::pin(pool.allocate(1)), Box::pin(pool.allocate(5000))];
        assert!(dropped.iter_mut().all(|one| poll_once(one).is_pending()));
        drop(dropped);
        let held = pool.allocate(1);
        drop(release);
        assert!(timeout(HANG, busy).await.unwrap().unwrap());
        let held = timeout(HANG, held).await.unwrap().unwrap();
        assert_eq!((pool.usage().registered_bytes, held.len(), provider.live()[2]), (REGION, 1, 1));
    });
}

/// Work that was started for a dropped future is finished.
#[test]
fn growing_and_trimming_continue_without_their_futures() {
    run(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let pool = small(&pd);
        let mut gate = Gate::at(&provider);
        let mut grows = Box::pin(pool.grow(10_000));
        assert!(poll_once(&mut grows).is_pending());
        assert_eq!(gate.reached().await, Call::RegisterRegion);
        drop(grows);
        gate.open();
        while pool.usage().regions == 0 {
            yield_now().await;
        }
        let mut gate = Gate::at(&provider);
        let mut trims = Box::pin({
            let pool = pool.clone();
            async move { pool.trim().await }
        });
        assert!(poll_once(&mut trims).is_pending());
        assert_eq!(gate.reached().await, Call::DeregisterRegion);
        drop((trims, pool, pd));
        gate.open();
        provider.gone().await;
    });
}

#[test]
fn without_a_runtime_only_registered_memory_is_available() {
    let pd = domain("soft0");
    let pool = small(&pd);
    for _ in 0..2 {
        let Poll::Ready(Err(error)) = poll_once(&mut Box::pin(pool.allocate(1))) else {
            panic!("no memory is registered")
        };
        assert!(matches!(error, PoolError::NoRuntime), "{error}");
        assert_eq!(error.recovery(), Recovery::Programming);
    }
    assert!(matches!(
        poll_once(&mut Box::pin(pool.trim())),
        Poll::Ready(Err(PoolError::NoRuntime))
    ));
    assert!(matches!(
        poll_once(&mut Box::pin(pool.grow(1))),
        Poll::Ready(Err(PoolError::NoRuntime))
    ));
    pool.as_blocking().grow(1).unwrap();
    assert!(matches!(poll_once(&mut Box::pin(pool.allocate(1))), Poll::Ready(Ok(_))));
    // A runtime that is entered later can be used.
    let runtime = Runtime::new().unwrap();
    assert_eq!(runtime.block_on(pool.allocate(5000)).unwrap().len(), 5000);
}

/// Allocations that wait for a thread of it get an error; those of another runtime continue.
#[test]
fn a_runtime_that_ends_causes_an_error_not_a_panic() {
    let ends = Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap();
    let stays = Runtime::new().unwrap();
    let pool = small(&domain("soft0"));
    let (release, released) = channel::<()>();
    let (tell, told) = channel();
    drop(ends.spawn_blocking(move || {
        tell.send(()).unwrap();
        released.recv_timeout(HANG).is_err()
    }));
    told.recv_timeout(HANG).unwrap();
    let handle = ends.handle().clone();
    let mut first = Box::pin(pool.allocate(1));
    let mut second = Box::pin(pool.allocate(1));
    {
        let _inside = handle.enter();
        assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    }
    let other = stays.spawn({
        let pool = pool.clone();
        let mut other = Box::pin(async move { pool.allocate(100).await });
        let pending = {
            let _inside = stays.enter();
            poll_once(&mut other).is_pending()
        };
        assert!(pending);
        async move { other.await.map(|buffer| buffer.len()) }
    });
    ends.shutdown_background();
    drop(release);
    assert_eq!(
        stays.block_on(async { timeout(HANG, other).await.unwrap() }).unwrap().unwrap(),
        100
    );
    // tokio's thread runs the earlier work, or drops it.
    for waits in [&mut first, &mut second] {
        let answered = poll_fn(|cx| {
            let _inside = handle.enter();
            waits.as_mut().poll(cx)
        });
        let ended = stays.block_on(async { timeout(HANG, answered).await.unwrap() });
        assert!(matches!(ended, Ok(_) | Err(PoolError::NoRuntime)), "{ended:?}");
    }
    let _inside = handle.enter();
    let Poll::Ready(Ok(held)) = poll_once(&mut Box::pin(pool.allocate(REGION / 2))) else {
        panic!("the memory is registered")
    };
    // For a pool that no other task is growing.
    let other = small(pool.as_blocking().pd());
    let ended = poll_once(&mut Box::pin(other.allocate(1)));
    assert!(matches!(ended, Poll::Ready(Err(PoolError::NoRuntime))), "{ended:?}");
    let ended = poll_once(&mut Box::pin(pool.trim()));
    assert!(matches!(ended, Poll::Ready(Err(PoolError::NoRuntime))), "{ended:?}");
    assert_eq!(held.len(), REGION / 2);
}

/// It waits for the call, which holds the pool. The waiting task is gone.
#[test]
fn a_runtime_ends_while_the_provider_is_called() {
    let (pd, provider) = Provider::faulty("soft0");
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let (gate, waits) = runtime.block_on(async {
        let (pool, gate, waits) = stopped(&provider, &pd).await;
        drop((pool, pd));
        (gate, waits)
    });
    let ends = std::thread::spawn(move || drop(runtime));
    gate.open();
    ends.join().unwrap();
    drop(waits);
    provider.assert_gone();
}

/// Each task has its own bytes, although others grow the pool, trim it and drop futures meanwhile.
#[test]
fn tasks_share_a_pool_but_never_a_byte() {
    run(|| async {
        let (pd, provider) = Provider::faulty("softib0");
        let pool = small(&pd);
        let mut tasks = JoinSet::new();
        for task in 0..8_u8 {
            let pool = pool.clone();
            tasks.spawn(async move {
                let mut held: Vec<Buffer> = Vec::new();
                for round in 0..150_usize {
                    let (length, alignment) =
                        ((round * 37 + usize::from(task)) % 3000, 1 << (round % 13));
                    if round % 11 == 0 {
                        let _ = poll_once(&mut Box::pin(pool.allocate(length)));
                        let _ = pool.trim().await.unwrap();
                    }
                    let mut buffer = pool.allocate_aligned(length, alignment).await.unwrap();
                    buffer.fill(task);
                    held.push(buffer);
                    if held.len() > 6 {
                        let old = held.swap_remove(round % 6);
                        assert!(old.iter().all(|&byte| byte == task));
                    }
                }
            });
        }
        tasks.join_all().await;
        drop((pool, pd));
        provider.gone().await;
    });
}
