//! Providers that refuse, and windows that do not keep peers within their bounds.

use std::future::pending;
use std::time::Duration;

use rdma_async::{CloseReason, ReserveError, Reserved, ReservedEnd};
use rdma_channel::Operation;
use rdma_mem::Errno;

use crate::common::provider::{ALWAYS, Call, Post};
use crate::common::{HANG, Pair, in_a_process_of_its_own, run};
use crate::reserve_for::{WRITE, is_closed, is_closed_soon, probed, region};

/// Checks that anyone with the key reaches the memory, like a registration.
async fn is_for_all(pair: &Pair, refuse: impl FnOnce()) {
    let another = Pair::of(pair.driver.clone(), pair.pd.clone(), |builder| builder);
    refuse();
    let open = region(&pair.pd, 64).reserve_for(&pair.one, WRITE, HANG, async |descriptor| {
        let key = descriptor.remote(Duration::ZERO).unwrap();
        another.other.write(another.buffer(b"word"), key.slice(0..4).unwrap()).await.unwrap();
        key
    });
    let Reserved { region, value, end, .. } = open.await.unwrap();
    assert_eq!((&region[..4], end), (b"word".as_slice(), ReservedEnd::Done));
    is_closed(pair, value.unwrap(), &region).await;
}

#[test]
fn unbounded_windows_fall_back_to_a_registration() {
    run(|| async {
        let (pair, provider) = Pair::faulty("soft0");
        is_for_all(&pair, || provider.have_unbounded_windows()).await;
        assert_eq!(provider.live()[6], 0);
        provider.assert_kept();
    });
}

#[test]
fn a_failed_probe_falls_back_to_a_registration() {
    run(|| async {
        for call in [Call::AllocateWindow, Call::RegisterRegion, Call::DeallocateWindow] {
            let (pair, provider) = Pair::faulty("soft0");
            is_for_all(&pair, || provider.refuse(call, 1)).await;
            assert_eq!(provider.live()[6], 0);
        }
    });
}

#[test]
fn rights_beyond_a_window_fall_back_to_a_registration() {
    run(|| async {
        let (pair, provider) = Pair::faulty("soft0");
        let access = WRITE.with_relaxed_ordering();
        let open = region(&pair.pd, 64).reserve_for(&pair.one, access, HANG, async |_| {
            assert_eq!(provider.live()[6], 0);
        });
        assert_eq!(open.await.unwrap().end, ReservedEnd::Done);
    });
}

#[test]
fn memory_that_cannot_be_opened_is_returned() {
    run(|| async {
        for call in [Call::AllocateWindow, Call::RegisterRegion] {
            let (pair, provider) = Pair::faulty("soft0");
            probed(&pair).await;
            provider.refuse(call, 1);
            let f = async |_| panic!("the memory was not opened");
            let refused = region(&pair.pd, 64).reserve_for(&pair.one, WRITE, HANG, f).await;
            let ReserveError::NotOpened { region, error } = refused.unwrap_err() else { panic!() };
            assert!(error.to_string().contains("ENOMEM"), "{error}");
            assert_eq!(*region, [1; 64]);
            // It can be opened later.
            let open = region.reserve_for(&pair.one, WRITE, HANG, async |_| ()).await.unwrap();
            assert_eq!(open.region.into_memory().unwrap().len(), 64);
        }
    });
}

#[test]
fn a_refused_or_doubtful_bind_returns_the_memory() {
    run(|| async {
        for post in [Post::Refused(Errno::EINVAL), Post::Doubtful, Post::DoubtfulAndRefused] {
            let (pair, provider) = Pair::faulty("soft0");
            probed(&pair).await;
            provider.next_posts([post]);
            let f = async |_| pending::<()>().await;
            let region = match region(&pair.pd, 64).reserve_for(&pair.one, WRITE, HANG, f).await {
                // The bind was executed, and its queue pair is gone.
                Ok(open) if post == Post::Doubtful => {
                    assert_eq!(open.end, ReservedEnd::Disconnected);
                    open.region
                }
                Err(ReserveError::NotOpened { region, .. }) if post != Post::Doubtful => region,
                outcome => panic!("{outcome:?}"),
            };
            assert_eq!((&*region, provider.lent()), ([1; 64].as_slice(), 0));
            let is_doubtful = post != Post::Refused(Errno::EINVAL);
            let doubt = CloseReason::Doubtful { operation: Operation::Bind };
            assert_eq!(pair.one.closed(), is_doubtful.then_some(doubt));
            let again = Pair::of(pair.driver.clone(), pair.pd.clone(), |builder| builder);
            region.reserve_for(&again.one, WRITE, HANG, async |_| ()).await.unwrap();
            provider.assert_kept();
        }
    });
}

#[test]
fn a_refused_or_doubtful_invalidation_leaves_no_open_memory() {
    run(|| async {
        for post in [Post::Refused(Errno::EINVAL), Post::Doubtful, Post::DoubtfulAndRefused] {
            let (pair, provider) = Pair::faulty("soft0");
            probed(&pair).await;
            let open =
                region(&pair.pd, 64).reserve_for(&pair.one, WRITE, HANG, async |descriptor| {
                    provider.next_posts([post]);
                    descriptor.remote(Duration::ZERO).unwrap()
                });
            let Reserved { region, value, .. } = open.await.unwrap();
            // The outcome of an executed invalidation is known.
            assert_eq!(provider.live()[6], usize::from(post == Post::Doubtful));
            let again = Pair::of(pair.driver.clone(), pair.pd.clone(), |builder| builder);
            is_closed(&again, value.unwrap(), &region).await;
            provider.assert_kept();
        }
    });
}

/// Memory that a peer may still reach is not returned.
#[test]
fn memory_that_cannot_be_closed_is_not_returned() {
    in_a_process_of_its_own(
        "reserve_for::faults::memory_that_cannot_be_closed_is_not_returned",
        || run(not_closed),
    );
}

async fn not_closed() {
    for (times, left) in [(1, 0), (ALWAYS, 1)] {
        let (pair, provider) = Pair::faulty("soft0");
        probed(&pair).await;
        let regions = provider.live()[2];
        let mut seen = None;
        let open = region(&pair.pd, 64).reserve_for(&pair.one, WRITE, HANG, async |descriptor| {
            seen = descriptor.remote(Duration::ZERO);
            // Refused once while closing, and once on drop.
            provider.refuse(Call::DeallocateWindow, times);
            provider.next_posts([Post::Refused(Errno::EINVAL)]);
        });
        let refused = open.await.unwrap_err();
        assert!(matches!(refused, ReserveError::NotRevoked(_)), "{refused}");
        assert_eq!((provider.live()[2] - regions, provider.live()[6]), (left, left));
        if left == 0 {
            is_closed_soon(&pair, seen.unwrap()).await;
        } else {
            // Only the peer can still use it.
            let to = seen.unwrap().slice(0..4).unwrap();
            pair.other.write(pair.buffer(b"word"), to).await.unwrap();
        }
    }
}

/// The same for a dropped future.
#[test]
fn memory_that_cannot_be_closed_is_never_freed() {
    in_a_process_of_its_own(
        "reserve_for::faults::memory_that_cannot_be_closed_is_never_freed",
        || run(never_freed),
    );
}

async fn never_freed() {
    let (pair, provider) = Pair::faulty("soft0");
    probed(&pair).await;
    let regions = provider.live()[2];
    let (tell, told) = tokio::sync::oneshot::channel();
    let open = region(&pair.pd, 64).reserve_for(&pair.one, WRITE, HANG, async |descriptor| {
        tell.send(descriptor.remote(Duration::ZERO).unwrap()).unwrap();
        provider.refuse(Call::DeallocateWindow, ALWAYS);
        pending::<()>().await;
    });
    let key = tokio::select! {
        _ = open => panic!("the reservation has not ended"),
        key = told => key.unwrap(),
    };
    assert_eq!((provider.live()[2] - regions, provider.live()[6]), (1, 1));
    pair.other.write(pair.buffer(b"word"), key.slice(0..4).unwrap()).await.unwrap();
}

#[test]
fn memory_that_the_provider_keeps_remains_a_region() {
    run(|| async {
        let (pair, provider) = Pair::faulty("soft0");
        for call in [Call::DeallocateWindow, Call::DeregisterRegion] {
            let open = region(&pair.pd, 64).reserve_for(&pair.one, WRITE, HANG, async |_| ());
            let region = open.await.unwrap().region;
            provider.refuse(call, 1);
            let (region, error) = region.into_memory().unwrap_err();
            assert!(error.to_string().contains("EBUSY"), "{error}");
            provider.refuse(call, 1);
            // The next call opens it to all peers.
            let f = async |_| panic!("the memory was not opened");
            let refused = region.reserve(WRITE, HANG, f).await.unwrap_err();
            let ReserveError::NotOpened { region, .. } = refused else { panic!("{refused}") };
            let open = region.reserve_for(&pair.one, WRITE, HANG, async |_| ()).await.unwrap();
            assert_eq!(open.region.into_memory().unwrap()[..], [1; 64]);
        }
    });
}
