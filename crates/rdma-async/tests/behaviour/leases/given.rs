//! Memory that one end borrows from the other, and hands over to the program there.

use std::time::Duration;

#[cfg(feature = "serde")]
use rdma_async::BufferExt;
use rdma_async::{LeaseEnd, LeaseError};

use crate::leases::*;

#[test]
fn a_borrower_gets_its_own_memory() {
    run(|| async {
        for device in DEVICES {
            for length in [1, 100, LARGE] {
                let host = Host::new(device);
                let (asker, lender) = pair(&host).await;
                let borrowed = asker.borrow(length, READ | WRITE, HANG / 2).await.unwrap();
                assert!(borrowed.len() == length && borrowed.remaining() <= HANG / 2);
                let zero = borrowed.read(host.pool.allocate(length).unwrap()).await.unwrap();
                assert!(zero.iter().all(|&byte| byte == 0));
                let mut bytes = zero;
                bytes.fill(3);
                borrowed.write(bytes).await.unwrap();
                let key = borrowed.remote();
                borrowed.hand_over();
                let region = timeout(HANG, lender.receive_region()).await.unwrap().unwrap();
                assert!(region.len() == length && region.iter().all(|&byte| byte == 3));
                let late = asker.read(host.pool.allocate(1).unwrap(), key.slice(0..1).unwrap());
                let failed = timeout(HANG, late).await.unwrap().unwrap_err();
                assert!(failed.to_string().contains("remote access"), "{failed}");
            }
        }
    });
}

#[test]
fn borrowed_memory_has_the_requested_alignment() {
    run(|| async {
        let host = Host::new("soft0");
        let (asker, _lender) = pair(&host).await;
        for shift in 0..=21 {
            let borrowed = asker.borrow_aligned(10, 1 << shift, READ, SHORT).await.unwrap();
            assert!(borrowed.remote().address().is_multiple_of(1 << shift));
        }
    });
}

#[cfg(feature = "serde")]
#[test]
fn a_value_of_any_structure_is_written_and_read_back() {
    use rdma_async::ValueExt;
    type Table = std::collections::BTreeMap<String, Vec<Option<u64>>>;
    run(|| async {
        let host = Host::new("soft0");
        let (asker, lender) = pair(&host).await;
        let table = Table::from([("one".into(), vec![Some(1), None]), ("none".into(), vec![])]);
        let mut buffer = host.pool.allocate(64).unwrap();
        let length = buffer.put_value(&table).unwrap();
        let borrowed = asker.borrow(length, WRITE, HANG / 2).await.unwrap();
        borrowed.write(buffer.slice(0..length)).await.unwrap();
        borrowed.hand_over();
        let region = lender.receive_region().await.unwrap();
        assert_eq!(region.value::<Table>().unwrap(), table);
    });
}

/// Dropped memory is freed, and its key is no longer valid.
#[test]
fn dropped_memory_is_freed() {
    run(|| async {
        let host = Host::new("soft0");
        let limits = LeaseLimits::new(WRITE).regions_per_peer(1);
        let (asker, _lender) = pair_with(&host, options(&host).lease_limits(limits)).await;
        // This includes memory that another thread closes.
        for _ in 0..10 {
            drop(asker.borrow(LARGE, WRITE, HANG / 2).await.unwrap());
        }
        let mut keys = Vec::new();
        for _ in 0..10 {
            let borrowed = asker.borrow(64, WRITE, HANG / 2).await.unwrap();
            let clone = borrowed.clone();
            drop(borrowed);
            clone.write(host.buffer(b"word")).await.unwrap();
            keys.push(clone.remote());
        }
        let last = keys.pop().unwrap();
        assert!(keys.iter().all(|key| key.rkey() != last.rkey()));
        let mut asker = asker;
        let mut _lender = _lender;
        for key in keys {
            let late = asker.write(host.buffer(b"late"), key.slice(0..4).unwrap()).await;
            assert!(late.unwrap_err().to_string().contains("remote access"));
            (asker, _lender) = pair(&host).await;
        }
    });
}

/// The memory of an ended lease is freed, whether or not the borrower has dropped it.
#[test]
fn borrowed_memory_is_closed_when_its_time_is_over() {
    run(|| async {
        let host = Host::new("soft0");
        let limits = LeaseLimits::new(WRITE).regions_per_peer(1);
        let (asker, lender) = pair_with(&host, options(&host).lease_limits(limits)).await;
        let borrowed = asker.borrow(64, WRITE, A_SECOND).await.unwrap();
        let kept = borrowed.clone();
        tokio::time::sleep(A_SECOND).await;
        // It is handed over too late, and does not arrive.
        borrowed.hand_over();
        drop(kept);
        loop {
            match asker.borrow(64, WRITE, HANG / 2).await {
                Ok(_) => break,
                Err(LeaseError::Denied(_)) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(error) => panic!("{error}"),
            }
        }
        let mut none = Box::pin(lender.receive_region());
        assert!(timeout(SOON, none.as_mut()).await.is_err());
    });
}

/// The borrower then refuses to post, and the device refuses a request that is posted directly.
#[test]
fn borrowed_memory_cannot_be_written_after_its_time() {
    run(|| async {
        let host = Host::new("soft0");
        let (asker, lender) = pair(&host).await;
        let asked = asker.borrow(64, WRITE, A_SECOND).await.unwrap();
        tokio::time::sleep(asked.remaining()).await;
        let late = asked.write(host.buffer(b"late")).await.unwrap_err();
        assert_eq!(
            (reason(&late.error), &*late.memory.unwrap()),
            (LeaseEnd::TimeOver, &b"late"[..])
        );
        // Nothing was posted, so the connection continues.
        host.talk(&asker, &lender, b"as before").await;
        until_closed(&host, &asker, asked.remote()).await;
    });
}

/// Memory that the program has lent is returned by its lease, not by `receive_region`.
#[test]
fn handed_over_memory_returns_to_its_lender() {
    run(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        let lease = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
        let borrowed = borrower.receive_lease().await.unwrap();
        let kept = borrowed.clone();
        borrowed.hand_over();
        let late = kept.write(host.buffer(b"late")).await.unwrap_err();
        assert!(late.to_string().contains("returned"), "{late}");
        drop(kept);
        let ended = timeout(HANG, lease).await.unwrap().unwrap();
        assert_eq!((ended.end, ended.is_handed_over), (LeaseEnd::Returned, true));
        assert!(timeout(SOON, lender.receive_region()).await.is_err());
    });
}

/// They arrive in the order of the handovers.
#[test]
fn each_handed_over_region_arrives_once() {
    run(|| async {
        let host = Host::new("soft0");
        let (asker, lender) = pair(&host).await;
        for number in 0..64 {
            let borrowed = asker.borrow(1, WRITE, HANG / 2).await.unwrap();
            borrowed.write(host.buffer(&[number])).await.unwrap();
            borrowed.hand_over();
        }
        // They count until they are received.
        let full = asker.borrow(1, WRITE, HANG / 2).await.unwrap_err();
        assert!(matches!(full, LeaseError::Denied(_)), "{full}");
        for number in 0..64 {
            let region = timeout(HANG, lender.receive_region()).await.unwrap().unwrap();
            assert_eq!(*region, [number]);
        }
        drop(asker.borrow(1, WRITE, HANG / 2).await.unwrap());
        assert!(timeout(SOON, lender.receive_region()).await.is_err());
    });
}
