//! Cases for memory that an asynchronous connection lends. The peer has access only during the
//! lease, and only with the lease's rights. Afterwards the owner has the memory exclusively.

use std::collections::HashSet;
use std::future::pending;
use std::time::{Duration, Instant};

use rdma_async::{Connection, LeaseEnd, Region, RemoteMemoryRegion, ReservedEnd, TransportError};
use rdma_mem::AccessFlags;

use super::async_connections::{BOUND, Ends, is_refused, run};
use crate::case::cases;
use crate::device::Device;

cases![
    memory_that_is_lent_is_open_until_it_is_given_back,
    a_lease_ends_with_its_time,
    memory_that_was_asked_for_is_given_with_what_was_written,
    a_lease_ends_with_its_queue_pair,
    a_lease_grants_no_more_than_its_rights,
    memory_that_is_open_for_a_time_is_closed_behind_it,
    no_key_comes_again_soon,
];

const READ: AccessFlags = AccessFlags::new().with_remote_read();
const WRITE: AccessFlags = AccessFlags::new().with_remote_write();

fn filled(ends: &Ends) -> Region {
    let mut region = Region::allocate(&ends.pd, 64).unwrap();
    region.fill(1);
    region
}

/// Checks that a write by the peer is now refused and changes nothing.
async fn expect_closed(ends: &Ends, by: &Connection, key: RemoteMemoryRegion, region: &Region) {
    let before = region.to_vec();
    let late = by.write(ends.buffer(b"late"), key.slice(0..4).unwrap()).await.unwrap_err();
    assert!(is_refused(&late.error), "{late}");
    assert_eq!(**region, *before);
}

fn expect_over(error: &TransportError, why: LeaseEnd) {
    let is_over = matches!(error, TransportError::LeaseOver { reason, .. } if *reason == why);
    assert!(is_over, "{error}");
}

fn memory_that_is_lent_is_open_until_it_is_given_back(device: &Device) {
    run(device, |ends| async move {
        let lease = ends.server.lend(filled(&ends), READ | WRITE, BOUND).await.unwrap();
        let lent = ends.client.receive_lease().await.unwrap();
        assert_eq!((lent.len(), lent.access()), (64, READ | WRITE));
        let (key, half) = (lent.remote(), lent.slice(8..12).unwrap());
        let word = half.write(ends.buffer(b"word")).await.unwrap();
        let read = lent.read(ends.room()).await.unwrap();
        assert_eq!((&read[..8], &read[8..12]), (&[1; 8][..], &word[..]));
        drop((lent, half));
        let ended = lease.await.unwrap();
        assert_eq!(ended.end, LeaseEnd::Returned);
        assert_eq!(*ended.region, *read);
        ends.talk().await;
        expect_closed(&ends, &ends.client, key, &ended.region).await;
    });
}

fn a_lease_ends_with_its_time(device: &Device) {
    run(device, |ends| async move {
        let (mut time, mut region) = (Duration::from_millis(50), filled(&ends));
        // The lease time is doubled until this device can transfer the lease before it ends.
        let (lent, region) = loop {
            let begin = Instant::now();
            let mut lease = ends.server.lend(region, WRITE, time).await.unwrap();
            let taken = tokio::select! {
                taken = ends.client.receive_lease() => Ok(taken.unwrap()),
                ended = &mut lease => Err(ended.unwrap()),
            };
            let (lent, ended) = match taken {
                Ok(lent) => (Some(lent), lease.await.unwrap()),
                Err(ended) => (None, ended),
            };
            assert_eq!(ended.end, LeaseEnd::TimeOver);
            assert!(begin.elapsed() >= time);
            if let Some(lent) = lent {
                break (lent, ended.region);
            }
            (time, region) = (time * 2, ended.region);
        };
        // The borrower knows that the lease has ended, and the connection continues.
        let over = lent.write(ends.buffer(b"over")).await.unwrap_err();
        assert_eq!(*over.memory.unwrap(), *b"over");
        expect_over(&over.error, LeaseEnd::TimeOver);
        ends.talk().await;
        assert_eq!(*region, [1; 64]);
        expect_closed(&ends, &ends.client, lent.remote(), &region).await;
    });
}

fn memory_that_was_asked_for_is_given_with_what_was_written(device: &Device) {
    run(device, |ends| async move {
        let asked = ends.client.borrow(64, WRITE, BOUND).await.unwrap();
        let key = asked.remote();
        asked.slice(4..8).unwrap().write(ends.buffer(b"word")).await.unwrap();
        asked.hand_over();
        let region = ends.server.receive_region().await.unwrap();
        assert_eq!((&region[..4], &region[4..8]), (&[0; 4][..], &b"word"[..]));
        assert_eq!(region[8..], [0; 56]);
        expect_closed(&ends, &ends.client, key, &region).await;
    });
}

fn a_lease_ends_with_its_queue_pair(device: &Device) {
    run(device, |ends| async move {
        let lease = ends.server.lend(filled(&ends), WRITE, BOUND).await.unwrap();
        let lent = ends.client.receive_lease().await.unwrap();
        lent.write(ends.room()).await.unwrap();
        let (one, other) = tokio::join!(ends.client.reconnect(), ends.server.reconnect());
        assert_eq!(one.unwrap(), other.unwrap());
        let ended = lease.await.unwrap();
        assert_eq!(ended.end, LeaseEnd::Disconnected);
        let over = lent.write(ends.buffer(b"over")).await.unwrap_err();
        expect_over(&over.error, LeaseEnd::Disconnected);
        let again = ends.server.lend(ended.region, WRITE, BOUND).await.unwrap();
        drop(ends.client.receive_lease().await.unwrap());
        let region = again.await.unwrap().region;
        expect_closed(&ends, &ends.client, lent.remote(), &region).await;
    });
}

fn a_lease_grants_no_more_than_its_rights(device: &Device) {
    run(device, |ends| async move {
        let lease = ends.server.lend(filled(&ends), READ, BOUND).await.unwrap();
        let lent = ends.client.receive_lease().await.unwrap();
        lent.read(ends.room()).await.unwrap();
        let refused = lent.write(ends.buffer(b"word")).await.unwrap_err();
        assert!(is_refused(&refused.error), "{refused}");
        drop(lent);
        assert_eq!(*lease.await.unwrap().region, [1; 64]);
    });
}

fn memory_that_is_open_for_a_time_is_closed_behind_it(device: &Device) {
    run(device, |ends| async move {
        let time = Duration::from_millis(50);
        let begin = Instant::now();
        let mut key = None;
        let reserved = filled(&ends).reserve(WRITE, time, async |descriptor| {
            key = descriptor.remote(Duration::ZERO);
            pending::<()>().await;
        });
        let reserved = reserved.await.unwrap();
        assert!(begin.elapsed() >= time && reserved.end == ReservedEnd::TimeOver);
        expect_closed(&ends, &ends.client, key.unwrap(), &reserved.region).await;
    });
}

/// Reserves memory more often than a key's low byte has values. The contract does not forbid
/// reusing keys early, so devices of unknown kinds skip the case.
fn no_key_comes_again_soon(device: &Device) {
    device.needs(!device.is_other(), "a device may use keys again at once");
    run(device, |ends| async move {
        let (mut region, mut keys) = (filled(&ends), HashSet::new());
        for number in 0..300 {
            let open = region.reserve(WRITE, BOUND, async |descriptor| {
                descriptor.remote(Duration::ZERO).unwrap()
            });
            let reserved = open.await.unwrap();
            let key = reserved.value.unwrap().rkey();
            assert!(keys.insert(key), "{key:?} is reused after {number} others");
            region = reserved.region;
        }
    });
}
