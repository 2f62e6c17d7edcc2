//! Posts that are refused, and posts in doubt.

use std::sync::{Arc, Mutex};

use rdma_async::{CloseReason, TransportError};
use rdma_mem::Errno;

use crate::common::kinds::{Kind, WAYS, Way};
use crate::common::provider::{ALWAYS, Call, Post};
use crate::common::{HELD, Pair, poll_once, run};
use crate::provider::DEVICES;

/// The only slot of each queue is free again, and the connection continues.
#[test]
fn a_refused_request_returns_its_memory_and_frees_its_slot() {
    for device in DEVICES {
        run(|| async move {
            let (pair, provider) =
                Pair::faulty_with(device, |builder| builder.max_send_wr(1).max_recv_wr(1));
            for (kind, way) in Kind::ALL.into_iter().flat_map(|kind| WAYS.map(|way| (kind, way))) {
                for errno in [Errno::EINVAL, Errno::ENOMEM] {
                    provider.next_posts([Post::Refused(errno)]);
                    let (error, bytes) = kind.begin(&pair, way).await.unwrap();
                    let TransportError::PostError(refused) = error else { panic!("{error}") };
                    assert_eq!((refused.operation, bytes), (kind.operation(), kind.bytes()));
                    assert!(refused.to_string().contains(errno.name().unwrap()), "{refused}");
                    assert_eq!((pair.buffers(), pair.one.closed()), (0, None));
                }
            }
            pair.assert_works().await;
            provider.assert_kept();
        });
    }
}

/// Whether or not the device has the request, the queue pair is destroyed before its memory, and that of other
/// outstanding requests, is returned.
#[test]
fn a_request_in_doubt_keeps_its_memory_until_its_queue_pair_is_destroyed() {
    for (device, how) in [
        ("soft0", Post::DoubtfulAndRefused),
        (HELD, Post::DoubtfulAndRefused),
        (HELD, Post::Doubtful),
    ] {
        for (kind, way) in Kind::ALL.into_iter().flat_map(|kind| WAYS.map(|way| (kind, way))) {
            run(|| async move {
                let (pair, provider) = Pair::faulty(device);
                let mut awaited = pair.one.receive(pair.buffer(&[1; 8])).post().await.unwrap();
                assert!(poll_once(&mut awaited).is_pending());
                drop(pair.one.receive(pair.buffer(&[2; 8])).post().await.unwrap());
                let seen = Arc::new(Mutex::new(Vec::new()));
                provider.at_destroy({
                    let (seen, pool) = (Arc::clone(&seen), pair.pool.clone());
                    move || seen.lock().unwrap().push(pool.usage().buffers)
                });
                provider.next_posts([how]);
                let (error, bytes) = kind.begin(&pair, way).await.unwrap();
                assert_eq!(bytes, kind.bytes());
                let doubt = CloseReason::Doubtful { operation: kind.operation() };
                assert_doubt(&error, doubt);
                assert_eq!(*seen.lock().unwrap(), [2 + usize::from(bytes > 0)], "once, before");
                assert_eq!(pair.one.closed(), Some(doubt));
                let failed = awaited.await.unwrap_err();
                assert_doubt(&failed.error, doubt);
                drop(failed);
                assert_eq!((pair.buffers(), provider.lent()), (0, 0));
                let later = pair.one.send(pair.buffer(&[3; 8])).await.unwrap_err();
                assert_doubt(&later.error, doubt);
                provider.assert_kept();
            });
        }
    }
}

fn assert_doubt(error: &TransportError, doubt: CloseReason) {
    assert!(
        matches!(error, TransportError::Closed { reason, .. } if *reason == doubt),
        "{error}, but expected {doubt}"
    );
}

/// A request that was executed during its post succeeds, although the provider has denied it.
#[test]
fn a_request_in_doubt_that_has_completed_succeeds() {
    run(|| async {
        let (pair, provider) = Pair::faulty("soft0");
        provider.next_posts([Post::Doubtful]);
        let remote = pair.board.remote().slice(0..8).unwrap();
        assert_eq!(*pair.one.write(pair.buffer(b"the word"), remote).await.unwrap(), *b"the word");
        let doubt = CloseReason::Doubtful { operation: rdma_channel::Operation::Write };
        assert_eq!(pair.one.closed(), Some(doubt));
        provider.assert_kept();
    });
}

/// It then ends by its completion, or when the queue pair is finally destroyed.
#[test]
fn a_request_in_doubt_whose_queue_pair_stays_keeps_its_memory() {
    for (how, completes) in [(Post::Doubtful, true), (Post::Doubtful, false)]
        .into_iter()
        .chain([(Post::DoubtfulAndRefused, false)])
    {
        run(|| async move {
            let (pair, provider) = Pair::faulty(HELD);
            provider.next_posts([how]);
            provider.refuse(Call::DestroyQueuePair, ALWAYS);
            let mut write = Kind::Write.begin(&pair, Way::Awaited);
            assert!(poll_once(&mut write).is_pending());
            assert_eq!((pair.buffers(), provider.lent()), (1, 1));
            pair.one.close().unwrap_err();
            assert!(poll_once(&mut write).is_pending());
            if completes {
                assert!(pair.released(write).await.is_none());
            } else {
                provider.refuse(Call::DestroyQueuePair, 0);
                pair.one.close().unwrap();
                let (error, bytes) = write.await.unwrap();
                assert!(matches!(error, TransportError::Closed { .. }), "{error}");
                assert_eq!(bytes, 8);
            }
            assert_eq!((pair.buffers(), provider.lent()), (0, 0));
            provider.refuse(Call::DestroyQueuePair, 0);
            drop(pair);
            provider.gone().await;
        });
    }
}

/// The words of atomic operations are registered with the first one.
#[test]
fn words_that_cannot_be_registered_fail_only_their_operation() {
    for (kind, way) in [Kind::CompareAndSwap, Kind::FetchAdd]
        .into_iter()
        .flat_map(|kind| WAYS.map(|way| (kind, way)))
    {
        run(|| async move {
            let (pair, provider) = Pair::faulty("soft0");
            let before = provider.live();
            provider.refuse(Call::RegisterRegion, 2);
            for _ in 0..2 {
                let (error, _) = kind.begin(&pair, way).await.unwrap();
                assert!(matches!(error, TransportError::IbvError(_)), "{error}");
                assert!(error.to_string().contains("ENOMEM"), "{error}");
                assert_eq!((pair.one.closed(), provider.live()), (None, before));
            }
            assert!(kind.begin(&pair, way).await.is_none());
            pair.assert_works().await;
        });
    }
}
