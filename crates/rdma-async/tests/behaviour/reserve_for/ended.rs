//! Connections that end while memory is open to their peers.

use std::future::pending;
use std::time::Duration;

use rdma_async::{
    CloseReason, Descriptor, Driver, ReserveError, Reserved, ReservedEnd, TransportError,
};
use tokio::sync::oneshot;

use crate::common::provider::Call;
use crate::common::{DEVICES, HANG, Pair, domain, poll_once, run};
use crate::reserve_for::{WRITE, held, is_closed, probed, region};

/// The way in which the connection ends.
#[derive(Clone, Copy, Debug)]
enum By {
    Close,
    Shutdown,
    /// A request of the connection that fails.
    Failure,
}

#[test]
fn a_reservation_ends_with_the_connection() {
    run(|| async {
        for device in DEVICES {
            for by in [By::Close, By::Shutdown, By::Failure] {
                let pair = Pair::new(device);
                let (tell, told) = oneshot::channel();
                let open =
                    region(&pair.pd, 64).reserve_for(&pair.one, WRITE, HANG, async |descriptor| {
                        tell.send(descriptor.remote(Duration::ZERO).unwrap()).unwrap();
                        pending::<()>().await;
                    });
                let end = async {
                    let key = told.await.unwrap();
                    match by {
                        By::Close => pair.one.close().unwrap(),
                        By::Shutdown => pair.driver.clone().shutdown().await,
                        By::Failure => {
                            let beyond = pair.one.write(pair.buffer(&[0; 8]), key);
                            drop(beyond.await.unwrap_err());
                        }
                    }
                    key
                };
                let (open, key) = tokio::join!(open, end);
                let Reserved { region, value, end, .. } = open.unwrap();
                assert_eq!((value, end), (None, ReservedEnd::Disconnected), "{device}, {by:?}");
                assert_eq!(*region, [1; 64]);
                // It can be opened to another peer, and the old key is invalid there.
                let driver = Driver::spawn(pair.pd.context()).unwrap();
                let again = Pair::of(driver, pair.pd.clone(), |builder| builder);
                let open = region.reserve_for(&again.one, WRITE, HANG, async |_| ()).await.unwrap();
                is_closed(&again, key, &open.region).await;
            }
        }
    });
}

/// It ends everything that this connection has opened to that peer.
#[test]
fn a_refused_access_ends_all_reservations_for_the_peer() {
    run(|| async {
        for device in DEVICES {
            let pair = Pair::new(device);
            let [one, two] = [(); 2].map(|()| region(&pair.pd, 64));
            let (is_open, opened) = oneshot::channel();
            let waits = two.reserve_for(&pair.one, WRITE, HANG, async |_| {
                is_open.send(()).unwrap();
                pending::<()>().await;
            });
            let mut told = None;
            let fails = async {
                opened.await.unwrap();
                one.reserve_for(&pair.one, WRITE, HANG, async |descriptor: Descriptor| {
                    let receive = pair.one.receive_imm().post().await.unwrap();
                    let key = descriptor.remote(Duration::ZERO).unwrap();
                    told = Some(key);
                    // The peer has no right to read.
                    let read = pair.other.read(pair.buffer(&[0; 64]), key).await.unwrap_err();
                    assert!(read.to_string().contains("remote access"), "{read}");
                    receive.await.map(drop)
                })
                .await
            };
            let (fails, waits) = tokio::join!(fails, waits);
            let (fails, waits) = (fails.unwrap(), waits.unwrap());
            assert_eq!(waits.end, ReservedEnd::Disconnected);
            // The task's own error arrives first, unless the task is late and sees both.
            match fails.end {
                ReservedEnd::Done => {
                    let failed = fails.value.unwrap().unwrap_err().error;
                    let is_known = matches!(
                        failed,
                        TransportError::WorkError(_) | TransportError::Closed { .. }
                    );
                    assert!(is_known, "{failed}");
                }
                end => assert_eq!(end, ReservedEnd::Disconnected),
            }
            assert_eq!((&*fails.region, &*waits.region), ([1; 64].as_slice(), [1; 64].as_slice()));
            let again = Pair::of(pair.driver.clone(), pair.pd.clone(), |builder| builder);
            is_closed(&again, told.unwrap(), &fails.region).await;
        }
    });
}

/// The invalidation is then flushed.
#[test]
fn an_unnoticed_failure_leaves_no_open_memory() {
    run(|| async {
        for device in DEVICES {
            let pair = Pair::new(device);
            let open =
                region(&pair.pd, 64).reserve_for(&pair.one, WRITE, HANG, async |descriptor| {
                    let key = descriptor.remote(Duration::ZERO).unwrap();
                    pair.other.read(pair.buffer(&[0; 64]), key).await.unwrap_err();
                    key
                });
            let Reserved { region, value, end, .. } = open.await.unwrap();
            assert_eq!((*region == [1; 64], end), (true, ReservedEnd::Done));
            let again = Pair::of(pair.driver.clone(), pair.pd.clone(), |builder| builder);
            is_closed(&again, value.unwrap(), &region).await;
        }
    });
}

/// The new queue pair continues; it never had the key.
#[test]
fn a_reservation_ends_with_its_epoch() {
    run(|| async {
        let pd = domain("soft0");
        let driver = Driver::spawn(pd.context()).unwrap();
        let (pair, _listener) = Pair::by_address(driver, pd).await;
        for sees in [false, true] {
            let (tell, told) = oneshot::channel();
            let (again, mut renewed) = oneshot::channel();
            let open =
                region(&pair.pd, 64).reserve_for(&pair.one, WRITE, HANG, async |descriptor| {
                    tell.send(descriptor.remote(Duration::ZERO).unwrap()).unwrap();
                    if sees {
                        (&mut renewed).await.unwrap();
                    } else {
                        pending::<()>().await;
                    }
                });
            let renew = async {
                let key = told.await.unwrap();
                let (one, other) = tokio::join!(pair.one.reconnect(), pair.other.reconnect());
                let epochs = (one.unwrap(), other.unwrap());
                let _ = again.send(());
                (key, epochs)
            };
            let (open, (key, _)) = tokio::join!(open, renew);
            let Reserved { region, end, .. } = open.unwrap();
            assert_eq!((end, pair.one.closed()), (ReservedEnd::Disconnected, None));
            pair.assert_works().await;
            let open = region.reserve_for(&pair.one, WRITE, HANG, async |_| ()).await.unwrap();
            assert_eq!((open.end, pair.one.closed()), (ReservedEnd::Done, None));
            let another = Pair::of(pair.driver.clone(), pair.pd.clone(), |builder| builder);
            is_closed(&another, key, &open.region).await;
        }
    });
}

#[test]
fn a_closed_connection_opens_nothing() {
    run(|| async {
        let (pair, provider) = Pair::faulty("soft0");
        for _ in 0..2 {
            pair.one.close().unwrap();
            let f = async |_| panic!("the memory was not opened");
            let refused = region(&pair.pd, 8).reserve_for(&pair.one, WRITE, HANG, f).await;
            let ReserveError::NotOpened { region, error } = refused.unwrap_err() else { panic!() };
            assert_eq!(*region, [1; 8]);
            let asked = CloseReason::Asked;
            assert!(matches!(*error, TransportError::Closed { reason, .. } if reason == asked));
            assert_eq!(provider.posted(), 0);
        }
    });
}

/// Requests that are outstanding when the connection is closed end with it.
#[test]
fn closing_during_a_bind_or_an_invalidation_returns_the_memory() {
    run(|| async {
        for closes in [false, true] {
            let (pair, provider) = Pair::faulty(held("softheld6"));
            probed(&pair).await;
            let mut open =
                Box::pin(region(&pair.pd, 64).reserve_for(&pair.one, WRITE, HANG, async |_| ()));
            assert!(poll_once(&mut open).is_pending());
            if closes {
                pair.release(u32::MAX);
                assert!(poll_once(&mut open).is_pending());
            }
            assert_eq!(provider.lent(), 1);
            pair.one.close().unwrap();
            let region = match open.await {
                Ok(done) => done.region,
                Err(ReserveError::NotOpened { region, .. }) if !closes => region,
                Err(error) => panic!("{error}"),
            };
            assert_eq!((&*region, provider.live()[6]), ([1; 64].as_slice(), 0));
            provider.assert_kept();
        }
    });
}

/// Like a window, it ends with the connection.
#[test]
fn a_registration_ends_with_the_connection() {
    run(|| async {
        let (pair, provider) = Pair::faulty("soft0");
        provider.refuse(Call::AllocateWindow, 1);
        let (tell, told) = oneshot::channel();
        let open = region(&pair.pd, 64).reserve_for(&pair.one, WRITE, HANG, async |_| {
            tell.send(()).unwrap();
            pending::<()>().await;
        });
        let close = async {
            told.await.unwrap();
            pair.one.close().unwrap();
        };
        let (open, ()) = tokio::join!(open, close);
        assert_eq!(open.unwrap().end, ReservedEnd::Disconnected);
    });
}
