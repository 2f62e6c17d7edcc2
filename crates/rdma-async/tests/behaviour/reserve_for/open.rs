//! The access of a peer while memory is open, and after that.

use std::future::pending;
use std::time::{Duration, Instant};

use rdma_async::{ReserveError, Reserved, ReservedEnd};
use rdma_mem::{AccessFlags, RemoteMemoryRegion};
use rdma_soft::SoftDevice;

use crate::common::{DEFERRED, DEVICES, HANG, Pair, domain, run};
use crate::reserve_for::{SHORT, WRITE, held, is_closed, own_released, probed, region};

/// A length that another thread registers.
const LARGE: usize = 3 << 20;

#[test]
fn a_peer_can_write_only_until_the_function_returns() {
    run(|| async {
        for device in DEVICES {
            for length in [100, LARGE] {
                let pair = Pair::new(device);
                let open = region(&pair.pd, length);
                let open = open.reserve_for(&pair.one, WRITE, HANG, async |descriptor| {
                    assert!(descriptor.remaining() <= HANG && descriptor.len() == length);
                    let key = descriptor.remote(Duration::ZERO).unwrap();
                    let to = key.slice(10..14).unwrap();
                    pair.other.write(pair.buffer(b"word"), to).await.unwrap();
                    key
                });
                let Reserved { region, value, end, .. } = open.await.unwrap();
                assert_eq!((&region[10..14], region[14]), (b"word".as_slice(), 1), "{device}");
                assert_eq!(end, ReservedEnd::Done);
                is_closed(&pair, value.unwrap(), &region).await;
            }
        }
    });
}

/// The registration and the window are reused, with a new key each time.
#[test]
fn a_region_can_be_opened_repeatedly() {
    run(|| async {
        let (pair, provider) = Pair::faulty("soft0");
        let mut open = region(&pair.pd, 64);
        let (mut keys, mut objects) = (Vec::new(), None);
        for round in 0..300_u16 {
            let reserved = open.reserve_for(&pair.one, WRITE, HANG, async |descriptor| {
                let key = descriptor.remote(Duration::ZERO).unwrap();
                let byte = pair.buffer(&[round.to_le_bytes()[0]]);
                pair.other.write(byte, key.slice(0..1).unwrap()).await.unwrap();
                key.rkey()
            });
            let Reserved { region, value, .. } = reserved.await.unwrap();
            assert_eq!(region[0], round.to_le_bytes()[0]);
            open = region;
            keys.push(value.unwrap());
            assert_eq!(*objects.get_or_insert(provider.live()), provider.live());
        }
        assert_eq!(provider.live()[6], 1);
        keys.truncate(255);
        keys.sort_unstable_by_key(|key| key.get());
        keys.dedup();
        assert_eq!(keys.len(), 255, "a key was reused");
        // Then to all peers, and to one again.
        let all = open.reserve(WRITE, HANG, async |_| ()).await.unwrap();
        assert_eq!(provider.live()[6], 0);
        let one = all.region.reserve_for(&pair.one, WRITE, HANG, async |_| ()).await.unwrap();
        let memory = one.region.into_memory().unwrap();
        assert_eq!((memory[63], provider.live()[6]), (1, 0));
    });
}

#[test]
fn the_owner_can_change_the_memory_between_reservations() {
    run(|| async {
        let pair = Pair::new("soft0");
        let mut open = region(&pair.pd, 8);
        let read = AccessFlags::new().with_remote_read();
        for round in 2..5 {
            open.fill(round);
            let reserved = open.reserve_for(&pair.one, read, HANG, async |descriptor| {
                let key = descriptor.remote(Duration::ZERO).unwrap();
                pair.other.read(pair.buffer(&[0; 8]), key).await.unwrap().to_vec()
            });
            let Reserved { region, value, .. } = reserved.await.unwrap();
            assert_eq!(value.unwrap(), [round; 8]);
            open = region;
        }
    });
}

/// Any other holder of the key is refused, even in the same domain.
#[test]
fn the_key_works_only_for_that_peer() {
    run(|| async {
        for device in DEVICES {
            let pair = Pair::new(device);
            let another = Pair::of(pair.driver.clone(), pair.pd.clone(), |builder| builder);
            let open =
                region(&pair.pd, 64).reserve_for(&pair.one, WRITE, HANG, async |descriptor| {
                    let key = descriptor.remote(Duration::ZERO).unwrap();
                    let refused =
                        another.other.write(pair.buffer(&[9; 64]), key).await.unwrap_err();
                    assert!(refused.to_string().contains("remote access"), "{refused}");
                    // The memory is open nevertheless.
                    pair.other.write(pair.buffer(b"mine"), key.slice(0..4).unwrap()).await.unwrap();
                });
            let Reserved { region, .. } = open.await.unwrap();
            assert_eq!((&region[..4], &region[4..]), (b"mine".as_slice(), [1; 60].as_slice()));
        }
    });
}

/// Each right alone, and none: all other operations are refused, and change nothing.
#[test]
fn a_peer_has_only_the_granted_rights() {
    async fn does(pair: &Pair, what: usize, at: RemoteMemoryRegion) -> bool {
        match what {
            0 => pair.other.read(pair.buffer(&[0; 8]), at).await.is_ok(),
            1 => pair.other.write(pair.buffer(&[1; 8]), at).await.is_ok(),
            _ => pair.other.fetch_add(at, 0).await.is_ok(),
        }
    }
    run(|| async {
        let none = AccessFlags::new();
        let rights = [none.with_remote_read(), WRITE, none.with_remote_atomic(), none];
        for (given, access) in rights.into_iter().enumerate() {
            for access in [access, access.with_local_write()] {
                for what in 0..3 {
                    let pair = Pair::new("soft0");
                    let open = region(&pair.pd, 8);
                    let open = open.reserve_for(&pair.one, access, HANG, async |descriptor| {
                        does(&pair, what, descriptor.remote(Duration::ZERO).unwrap()).await
                    });
                    let Reserved { region, value, .. } = open.await.unwrap();
                    assert_eq!(value, Some(what == given), "{access}, {what}");
                    assert_eq!(*region, [1; 8]);
                }
            }
        }
    });
}

#[test]
fn a_reservation_ends_with_its_time() {
    run(|| async {
        for device in DEVICES {
            let pair = Pair::new(device);
            let begin = Instant::now();
            let mut seen = None;
            let open =
                region(&pair.pd, 64).reserve_for(&pair.one, WRITE, SHORT, async |descriptor| {
                    seen = descriptor.remote(Duration::ZERO);
                    pending::<()>().await;
                });
            let Reserved { region, value, end, .. } = open.await.unwrap();
            assert!(begin.elapsed() >= SHORT && value.is_none());
            assert_eq!(end, ReservedEnd::TimeOver);
            is_closed(&pair, seen.unwrap(), &region).await;
        }
    });
}

#[test]
fn the_shortest_and_the_longest_time_work() {
    run(|| async {
        let pair = Pair::new("soft0");
        let never = async |_| pending::<()>().await;
        let none = region(&pair.pd, 8).reserve_for(&pair.one, WRITE, Duration::ZERO, never);
        let none = none.await.unwrap();
        assert_eq!((none.value, none.end), (None, ReservedEnd::TimeOver));
        let all = none.region.reserve_for(&pair.one, WRITE, Duration::MAX, async |descriptor| {
            descriptor.remote(Duration::from_secs(1 << 40)).is_some()
        });
        assert_eq!(all.await.unwrap().value, Some(true));
    });
}

/// A peer that receives no message keeps no memory open: the end does not wait for earlier requests.
#[test]
fn an_idle_peer_does_not_keep_memory_open() {
    run(|| async {
        for device in DEVICES {
            let pair = Pair::new(device);
            let mut half_way = None;
            let open =
                region(&pair.pd, 64).reserve_for(&pair.one, WRITE, SHORT, async |descriptor| {
                    // There is no receive for it.
                    half_way = Some(pair.one.send(pair.buffer(b"told")).post().await.unwrap());
                    pending::<()>().await;
                    descriptor
                });
            let Reserved { region, end, .. } = open.await.unwrap();
            assert_eq!((end, pair.one.closed()), (ReservedEnd::TimeOver, None), "{device}");
            // The connection continues.
            let receive = pair.other.receive(pair.buffer(&[0; 4])).post().await.unwrap();
            assert_eq!(receive.await.unwrap().memory[..], *b"told");
            half_way.unwrap().await.unwrap();
            let again = region.reserve_for(&pair.one, WRITE, HANG, async |_| ()).await.unwrap();
            assert_eq!(*again.region, [1; 64]);
        }
    });
}

/// The progress of a write when the time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Posted,
    Half,
}

/// A write that is outstanding when the time is over has completed by then, or never does, or stays half done.
#[test]
fn an_outstanding_write_changes_nothing_later() {
    run(|| async {
        let held = held("softheld1");
        for (device, way) in [(held, Way::Posted), (held, Way::Half), (DEFERRED, Way::Posted)] {
            let pair = Pair::new(device);
            probed(&pair).await;
            let soft = SoftDevice::find(device).unwrap();
            let mut on_its_way = None;
            let open = region(&pair.pd, 64);
            let open = open.reserve_for(&pair.one, WRITE, SHORT, async |descriptor| {
                let key = descriptor.remote(Duration::ZERO).unwrap();
                let write = pair.other.write(pair.buffer(&[7; 64]), key);
                on_its_way = Some(write.post().await.unwrap());
                assert!(way == Way::Posted || soft.release_half(pair.other.qpn()));
                pending::<()>().await;
            });
            let Reserved { region, end, .. } = own_released(&pair, open).await.unwrap();
            assert_eq!(end, ReservedEnd::TimeOver);
            let before = region.to_vec();
            let half = [[7; 32], [1; 32]].concat();
            match way {
                Way::Half => assert_eq!(before, half),
                Way::Posted if device == DEFERRED => {
                    assert!(before == [1; 64] || before == [7; 64], "only a part was written");
                }
                // The device has not released it.
                Way::Posted => assert_eq!(before, [1; 64]),
            }
            let outcome = pair.released(on_its_way.unwrap()).await;
            assert_eq!(*region, *before, "the memory changed after it was exclusive again");
            if device != DEFERRED {
                let failed = outcome.unwrap_err();
                assert!(failed.to_string().contains("remote access"), "{failed}");
            }
        }
    });
}

#[test]
fn a_region_of_another_domain_is_returned() {
    run(|| async {
        let pair = Pair::new("soft0");
        let f = async |_| panic!("the memory was not opened");
        let other = region(&domain("soft0"), 8).reserve_for(&pair.one, WRITE, HANG, f);
        let refused = other.await.unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("a different protection domain") && text.contains("connection.pd()"));
        let ReserveError::WrongDomain { region } = refused else { panic!("{refused}") };
        assert_eq!(*region, [1; 8]);
    });
}
