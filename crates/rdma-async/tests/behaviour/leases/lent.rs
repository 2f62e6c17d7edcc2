//! Memory that one end lends to the other.

use std::task::Poll;
use std::time::{Duration, Instant};

use rdma_async::{LeaseEnd, LeaseError};
use rdma_mem::{AccessFlags, CommonMemory};

use crate::leases::*;

#[test]
fn memory_is_usable_only_until_it_is_returned() {
    run(|| async {
        for device in DEVICES {
            for length in [100, LARGE] {
                let host = Host::new(device);
                let (lender, borrower) = pair(&host).await;
                let lease = lender.lend(region(&host, length), READ | WRITE, HANG).await.unwrap();
                let borrowed = borrower.receive_lease().await.unwrap();
                assert_eq!((borrowed.len(), borrowed.access()), (length, READ | WRITE));
                assert!(borrowed.remaining() <= HANG);
                let part = borrowed.slice(10..14).unwrap();
                assert!(borrowed.slice(10..length + 1).is_none());
                part.write(host.buffer(b"word")).await.unwrap();
                let read = part.read(host.pool.allocate(4).unwrap()).await.unwrap();
                assert_eq!(*read, *b"word");
                let key = borrowed.remote();
                drop((borrowed, part));
                let ended = timeout(HANG, lease).await.unwrap().unwrap();
                assert!(!ended.is_handed_over);
                assert_eq!(
                    (ended.end, &ended.region[9..14]),
                    (LeaseEnd::Returned, &b"\x01word"[..])
                );
                is_closed(&host, &borrower, key, &ended.region).await;
            }
        }
    });
}

/// The device copies the memory of leases itself, also through packets. The memory stays mapped while a request can use
/// it.
#[test]
fn memory_that_is_lent_or_borrowed_takes_no_guarded_copy() {
    const DEVICE: &str = "softleasecopies0";
    rdma_soft::Builder::new(DEVICE).force_wire().install().unwrap();
    run(|| async {
        let host = Host::new(DEVICE);
        let (lender, borrower) = pair(&host).await;
        let lease = lender.lend(region(&host, LARGE), READ | WRITE, HANG).await.unwrap();
        let lent = borrower.receive_lease().await.unwrap();
        let own = borrower.borrow(LARGE, READ | WRITE, HANG).await.unwrap();
        for memory in [&lent, &own] {
            memory.write(host.pool.allocate(LARGE).unwrap()).await.unwrap();
            memory.read(host.pool.allocate(4096).unwrap()).await.unwrap();
        }
        own.hand_over();
        lender.receive_region().await.unwrap();
        drop(lent);
        lease.await.unwrap();
        let device = rdma_soft::SoftDevice::find(DEVICE).unwrap();
        assert_eq!(device.counters().guarded_copies, 0);
    });
}

#[test]
fn atomic_operations_and_immediate_data_reach_lent_memory() {
    run(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        let rights = WRITE | AccessFlags::new().with_remote_atomic();
        let mut memory = region(&host, 16);
        memory.fill(0);
        let lease = lender.lend(memory, rights, HANG).await.unwrap();
        let borrowed = borrower.receive_lease().await.unwrap();
        assert_eq!(borrowed.fetch_add(5).await.unwrap(), 0);
        assert_eq!(borrowed.compare_and_swap(5, 7).await.unwrap(), 5);
        let told = lender.receive_imm().post().await.unwrap();
        borrowed.slice(8..16).unwrap().write_with_imm(host.buffer(b"the word"), 9).await.unwrap();
        assert_eq!(told.await.unwrap(), Some(9));
        drop(borrowed);
        let region = lease.await.unwrap().region;
        assert_eq!((&region[..8], &region[8..]), (&7_u64.to_ne_bytes()[..], &b"the word"[..]));
    });
}

/// Several leases at once. An operation without the right ends the connection, and with it the leases.
#[test]
fn each_lease_has_its_own_key_and_rights() {
    run(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        let lend = async |access| {
            let lease = lender.lend(region(&host, 64), access, HANG).await.unwrap();
            (lease, borrower.receive_lease().await.unwrap())
        };
        let ((read_lease, to_read), (write_lease, to_write)) =
            (lend(READ).await, lend(WRITE).await);
        assert_ne!(to_read.remote().rkey(), to_write.remote().rkey());
        to_read.read(host.pool.allocate(64).unwrap()).await.unwrap();
        to_write.write(host.buffer(&[2; 64])).await.unwrap();
        let failed = to_write.read(host.pool.allocate(64).unwrap()).await.unwrap_err();
        assert!(failed.to_string().contains("remote access"), "{failed}");
        // The lender notices it through its own request.
        lender.receive_imm().await.unwrap_err();
        for lease in [read_lease, write_lease] {
            let ended = timeout(HANG, lease).await.unwrap().unwrap();
            assert_eq!(ended.end, LeaseEnd::Disconnected);
        }
    });
}

/// Leases of overlapping parts, to several peers: each is separate, and the end of one does not affect the others.
#[test]
fn parts_of_one_memory_are_lent_to_several() {
    run(|| async {
        for device in DEVICES {
            let host = Host::new(device);
            let (lender, borrower) = pair(&host).await;
            let (second, other) = pair(&host).await;
            let common = CommonMemory::new(region(&host, 8192).into_memory().unwrap());
            let all = lender.lend_part(&common, 0..8192, READ, HANG).await.unwrap();
            let line = lender.lend_part(&common, 64..128, WRITE, HANG).await.unwrap();
            let others = second.lend_part(&common, 100..200, READ | WRITE, HANG).await.unwrap();
            let to_read = borrower.receive_lease().await.unwrap();
            let to_write = borrower.receive_lease().await.unwrap();
            let to_both = other.receive_lease().await.unwrap();
            assert_eq!([&to_read, &to_write, &to_both].map(|lent| lent.len()), [8192, 64, 100]);
            to_write.write(host.buffer(&[2; 64])).await.unwrap();
            let read = to_both.slice(0..30).unwrap().read(host.pool.allocate(30).unwrap());
            assert_eq!(read.await.unwrap()[..], [[2; 28].as_slice(), &[1; 2]].concat());
            // One ends, and the others continue.
            let late = to_write.remote();
            drop(to_write);
            drop(timeout(HANG, line).await.unwrap().unwrap());
            to_both.write(host.buffer(&[3; 100])).await.unwrap();
            let read = to_read.slice(99..201).unwrap().read(host.pool.allocate(102).unwrap());
            assert_eq!(read.await.unwrap()[..], [[2].as_slice(), &[3; 100], &[1]].concat());
            let common = common.try_into_memory().unwrap_err();
            // A refused operation ends its connection and its leases, but not those of the other peer.
            let failed = borrower.write(host.buffer(b"late"), late.slice(0..4).unwrap());
            failed.await.unwrap_err();
            lender.receive_imm().await.unwrap_err();
            assert_eq!(timeout(HANG, all).await.unwrap().unwrap().end, LeaseEnd::Disconnected);
            to_both.write(host.buffer(&[4; 100])).await.unwrap();
            drop(to_both);
            drop(timeout(HANG, others).await.unwrap().unwrap());
            let memory = common.try_into_memory().unwrap();
            assert_eq!(memory[64..201], [[2; 36].as_slice(), &[4; 100], &[1]].concat());
        }
    });
}

#[test]
#[should_panic(expected = "0..65 is not within 64 bytes")]
fn no_part_is_lent_beyond_the_end() {
    run(|| async {
        let host = Host::new("soft0");
        let (lender, _borrower) = pair(&host).await;
        let common = CommonMemory::new(region(&host, 64).into_memory().unwrap());
        let _ = lender.lend_part(&common, 0..65, READ, HANG).await;
    });
}

/// It does not end early, and ends soon after its time. The borrower notices that by its own clock.
#[test]
fn a_lease_ends_with_its_time() {
    run(|| async {
        for (device, length) in [("soft0", 64), ("softib0", LARGE)] {
            let host = Host::new(device);
            let (lender, borrower) = pair(&host).await;
            let begin = Instant::now();
            let ends = (&lender, &borrower);
            let (lease, borrowed) = lend_for(A_SECOND, (&host, length), ends).await;
            let ended = timeout(HANG, lease).await.unwrap().unwrap();
            assert!(begin.elapsed() >= A_SECOND);
            assert_eq!(ended.end, LeaseEnd::TimeOver);
            assert_eq!(borrowed.remaining(), Duration::ZERO);
            let late = borrowed.write(host.buffer(b"late")).await.unwrap_err();
            assert_eq!((late.memory.unwrap().len(), reason(&late.error)), (4, LeaseEnd::TimeOver));
            // Nothing was posted, so the connection continues.
            host.talk(&lender, &borrower, b"as before").await;
            is_closed(&host, &borrower, borrowed.remote(), &ended.region).await;
        }
    });
}

/// The time may be over while an operation waits for a slot.
#[test]
fn the_time_is_checked_when_a_request_is_posted() {
    run(|| async {
        let host = Host::new("soft0");
        let qp = host.pd.create_qp().access(all()).max_send_wr(1);
        let qp = qp.max_rnr_retries(MaxRnrRetries::unlimited());
        let (lender, borrower) = pair_with(&host, qp.into()).await;
        // It is outstanding, because the peer has no receive for it.
        let send = borrower.send(host.buffer(b"first")).post().await.unwrap();
        let (_lease, _lent, write) = loop {
            let (lease, lent) = lend_for(A_SECOND, (&host, 64), (&lender, &borrower)).await;
            let mut write = Box::pin(lent.write(host.buffer(b"second")).into_future());
            match poll_once(&mut write) {
                Poll::Pending => break (lease, lent, write),
                // On a busy machine, the time may already be over.
                Poll::Ready(late) => {
                    assert_eq!(reason(&late.unwrap_err().error), LeaseEnd::TimeOver)
                }
            }
        };
        tokio::time::sleep(A_SECOND).await;
        let receive = lender.receive(host.pool.allocate(8).unwrap()).await.unwrap();
        assert_eq!(receive.length, 5);
        send.await.unwrap();
        let late = timeout(HANG, write).await.unwrap().unwrap_err();
        assert_eq!(
            (&**late.memory.as_ref().unwrap(), reason(&late.error)),
            (&b"second"[..], LeaseEnd::TimeOver)
        );
        assert!(late.to_string().contains("its time is up"), "{late}");
    });
}

#[test]
fn a_margin_is_left_for_the_request() {
    run(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair_with(&host, options(&host).lease_margin(HANG)).await;
        let _lease = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
        let borrowed = borrower.receive_lease().await.unwrap();
        let late = borrowed.write(host.buffer(b"late")).try_post().unwrap_err();
        assert_eq!(reason(&late.error), LeaseEnd::TimeOver);
        let late = borrowed.write(host.buffer(b"late")).post().await.unwrap_err();
        assert_eq!(reason(&late.error), LeaseEnd::TimeOver);
    });
}

#[test]
fn the_shortest_and_the_longest_time_work() {
    run(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        let none = lender.lend(region(&host, 64), WRITE, Duration::ZERO).await.unwrap();
        let ended = timeout(HANG, none).await.unwrap().unwrap();
        assert_eq!(ended.end, LeaseEnd::TimeOver);
        let all = lender.lend(ended.region, WRITE, Duration::MAX).await.unwrap();
        // A lease that ended before it was received is skipped.
        let borrowed = timeout(HANG, borrower.receive_lease()).await.unwrap().unwrap();
        assert!(borrowed.remaining() > Duration::from_secs(1 << 40));
        borrowed.write(host.buffer(b"word")).await.unwrap();
        drop(borrowed);
        assert_eq!(all.await.unwrap().region[..4], *b"word");
        // The same for borrowed memory.
        let limits = LeaseLimits::new(WRITE).longest(Duration::MAX);
        let (asker, _lender) = pair_with(&host, options(&host).lease_limits(limits)).await;
        let none = asker.borrow(64, WRITE, Duration::ZERO).await.unwrap();
        let late = none.write(host.buffer(b"late")).try_post().unwrap_err();
        assert_eq!(reason(&late.error), LeaseEnd::TimeOver);
        // The longest time, and times near the limit of this machine's clock.
        for less in [0, 1, 1 << 32, u64::MAX / 2, u64::MAX / 2 + 1] {
            let time = Duration::new(u64::MAX - less, 999_999_999);
            let all = asker.borrow(64, WRITE, time).await.unwrap();
            assert!(all.remaining() > Duration::from_secs(1 << 40));
            all.write(host.buffer(b"word")).await.unwrap();
        }
        // The same for lent memory.
        let (lender, borrower) = pair(&host).await;
        // A timer is rounded up to a whole millisecond.
        for micros in [0, 50, 200, 500, 900, 2000] {
            let time = nearly_endless(micros);
            let lease = lender.lend(region(&host, 64), WRITE, time).await.unwrap();
            let lent = timeout(HANG, borrower.receive_lease()).await.unwrap().unwrap();
            lent.write(host.buffer(b"word")).await.unwrap();
            drop(lent);
            assert_eq!(timeout(HANG, lease).await.unwrap().unwrap().end, LeaseEnd::Returned);
        }
        // And a margin that exceeds any time.
        let options = options(&host).lease_margin(Duration::MAX);
        let (borrower, lender) = pair_with(&host, options).await;
        let _lease = lender.lend(region(&host, 64), WRITE, Duration::MAX).await.unwrap();
        let never = borrower.receive_lease().await.unwrap();
        let late = never.write(host.buffer(b"late")).try_post().unwrap_err();
        assert_eq!(reason(&late.error), LeaseEnd::TimeOver);
    });
}

#[test]
fn the_lender_can_revoke_a_lease() {
    run(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        let lease = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
        let borrowed = borrower.receive_lease().await.unwrap();
        lease.revoke();
        let ended = timeout(HANG, lease).await.unwrap().unwrap();
        assert_eq!(ended.end, LeaseEnd::Revoked);
        // The borrower is notified; until then the device refuses its requests.
        let next = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
        let other = borrower.receive_lease().await.unwrap();
        let late = borrowed.write(host.buffer(b"late")).await.unwrap_err();
        assert_eq!(reason(&late.error), LeaseEnd::Revoked);
        // Its other lease continues.
        other.write(host.buffer(b"word")).await.unwrap();
        drop((other, borrowed));
        assert_eq!(next.await.unwrap().end, LeaseEnd::Returned);
        // A lease that is revoked before it was received does not wait for the program.
        let lease = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
        lease.revoke();
        lease.await.unwrap();
        let mut none = Box::pin(borrower.receive_lease());
        assert!(timeout(SOON, none.as_mut()).await.is_err());
        let _lease = lender.lend(region(&host, 65), WRITE, HANG).await.unwrap();
        assert_eq!(timeout(HANG, none).await.unwrap().unwrap().len(), 65);
    });
}

/// A dropped lease continues until its end, and its memory is freed.
#[test]
fn a_dropped_lease_continues() {
    run(|| async {
        let host = Host::new("soft0");
        let (lender, borrower) = pair(&host).await;
        let borrowed = loop {
            drop(lender.lend(region(&host, 64), WRITE, SOME_SECONDS).await.unwrap());
            // On a busy machine, it may be over before it is received.
            if let Ok(borrowed) = timeout(SOME_SECONDS, borrower.receive_lease()).await {
                break borrowed.unwrap();
            }
        };
        borrowed.write(host.buffer(b"word")).await.unwrap();
        until_closed(&host, &borrower, borrowed.remote()).await;
    });
}

#[test]
fn memory_that_cannot_be_lent_is_returned() {
    run(|| async {
        let host = Host::new("soft0");
        let (by_hand, _other) = host.pair_by_hand();
        let refused = by_hand.lend(region(&host, 64), READ, HANG).await.unwrap_err();
        assert!(matches!(refused.error, LeaseError::NoControl), "{refused}");
        assert_eq!(refused.region.unwrap().len(), 64);
        assert!(matches!(by_hand.receive_lease().await, Err(LeaseError::NoControl)));
        assert!(matches!(by_hand.borrow(8, READ, HANG).await, Err(LeaseError::NoControl)));
        // The queue pair of `ConnectionOptions::new` grants its peer no atomic operations.
        let (one, other) = host.pair().await;
        let atomic = AccessFlags::new().with_remote_atomic();
        let refused = one.lend(region(&host, 64), atomic, HANG).await.unwrap_err();
        assert!(matches!(refused.error, LeaseError::NotGranted { .. }), "{refused}");
        assert!(refused.to_string().contains(".access(…)"), "{refused}");
        let wrong = AccessFlags::from_bits_retain(1 << 30);
        one.close().unwrap();
        for access in [READ, wrong] {
            let refused = one.lend(region(&host, 64), access, HANG).await.unwrap_err();
            assert!(matches!(refused.error, LeaseError::Closed(Some(_))), "{refused}");
            assert!(refused.region.is_some());
        }
        let closed = other.receive_lease().await.unwrap_err();
        assert!(matches!(closed, LeaseError::Closed(_)), "{closed}");
    });
}

/// The refusal also ends the connection: the lender learns of whichever is first.
#[test]
fn a_failed_read_is_not_an_ordinary_return() {
    run(|| async {
        for device in DEVICES {
            let host = Host::new(device);
            let (lender, borrower) = pair(&host).await;
            let lease = lender.lend(region(&host, 64), WRITE, HANG).await.unwrap();
            let borrowed = borrower.receive_lease().await.unwrap();
            let failed = borrowed.read(host.pool.allocate(64).unwrap()).await.unwrap_err();
            assert_refused(&failed.error);
            drop(borrowed);
            let ended = timeout(HANG, lease).await.unwrap().unwrap();
            let ends = [LeaseEnd::BorrowerFailed, LeaseEnd::Disconnected];
            assert!(ends.contains(&ended.end) && !ended.is_handed_over, "{}", ended.end);
        }
    });
}
