//! Closed holes, by number. Tests of the features that close them cover the others: `docs/parity.md`.

use rdma_async::prelude::*;
use rdma_async::{ConnectionOptions, Driver, LeaseEnd, LeaseLimits, Region, TransportError};
use rdma_mem::{Errno, RemoteMemoryRegion};

use crate::common::provider::{Post, Provider};
use crate::parity::{DEVICES, HANG, LONG, Pair, READ, WRITE, domain, ends, ends_with, run};

/// H15: nothing of a lease is kept after it has ended, nor anything that it needs.
#[test]
fn ended_leases_keep_no_memory() {
    run(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let pair = ends_with(pd, LeaseLimits::new(READ | WRITE)).await;
        let before = provider.live();
        for _ in 0..20 {
            let asked = pair.one.borrow(4096, WRITE, LONG).await.unwrap();
            asked.write(pair.buffer(&[1; 4096])).await.unwrap();
            asked.hand_over();
            drop(pair.other.receive_region().await.unwrap());
            let lease = pair.one.lend(pair.region(&[0; 4096]), READ, LONG).await.unwrap();
            drop(pair.other.receive_lease().await.unwrap());
            drop(lease.await.unwrap());
        }
        let _ = pair.pool.trim();
        assert_eq!(provider.live(), before, "as many regions as at the beginning");
        let last = pair.one.borrow(64, READ, LONG).await.unwrap();
        let lease = pair.one.lend(pair.region(&[0; 64]), READ, LONG).await.unwrap();
        // In any order.
        drop(pair);
        drop((lease, last));
        provider.gone().await;
    });
}

/// H16: a key opens only its own memory, not the adjacent memory.
#[test]
fn a_key_opens_no_adjacent_memory() {
    run(|| async {
        for device in DEVICES {
            for by_request in [false, true] {
                let pair = ends(device).await;
                let mut lent = Vec::new();
                let mut leases = Vec::new();
                for _ in 0..8 {
                    lent.push(if by_request {
                        pair.one.borrow(100, READ | WRITE, LONG).await.unwrap()
                    } else {
                        let region = pair.region(&[1; 100]);
                        leases.push(pair.other.lend(region, READ | WRITE, LONG).await.unwrap());
                        pair.one.receive_lease().await.unwrap()
                    });
                }
                let of = |n: usize| lent[n].remote();
                let key = of(3).rkey();
                let tries = [of(2), of(4), of(0)].map(|other| other.address());
                let own = of(3).address();
                for address in tries.into_iter().chain([own + 100, own + 99, own - 1]) {
                    let further = Pair::of(pair.driver.clone(), pair.pd.clone(), |qp| qp);
                    let aims = RemoteMemoryRegion::new(address, 2, key);
                    let failed = further.one.write(pair.buffer(&[9; 2]), aims).await.unwrap_err();
                    assert!(failed.to_string().contains("remote access"), "{device}: {failed}");
                }
                let was = u8::from(!by_request);
                for memory in &lent {
                    assert_eq!(pair.bytes_of(memory).await, [was; 100]);
                }
                drop(lent);
                for lease in leases {
                    assert_eq!(*lease.await.unwrap().region, [1; 100]);
                }
            }
        }
    });
}

/// H19: a request that the device refuses leaves no trace: its memory is returned, and the lease continues.
#[test]
fn a_refused_request_leaves_lent_memory_as_it_was() {
    run(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let pair = ends_with(pd, LeaseLimits::new(READ | WRITE)).await;
        let lease = pair.other.lend(pair.region(&[1; 8]), READ | WRITE, LONG).await.unwrap();
        let memory = pair.one.receive_lease().await.unwrap();
        // More than there are slots.
        for _ in 0..40 {
            provider.next_posts([Post::Refused(Errno::EINVAL)]);
            let failed = memory.write(pair.buffer(b"the word")).await.unwrap_err();
            assert!(matches!(failed.error, TransportError::PostError(_)), "{failed}");
            assert_eq!(*failed.memory.unwrap(), *b"the word");
        }
        memory.write(pair.buffer(b"the next")).await.unwrap();
        assert_eq!(pair.buffers(), 0);
        drop(memory);
        let ended = lease.await.unwrap();
        assert_eq!((ended.end, &*ended.region), (LeaseEnd::Returned, &b"the next"[..]));
        provider.assert_kept();
    });
}

/// H26: dropped memory is returned, whether or not the drop is within a runtime.
#[test]
fn memory_dropped_outside_of_a_runtime_is_returned() {
    run(|| async {
        let pair = ends("soft0").await;
        let lease = pair.other.lend(pair.region(&[1; 8]), WRITE, LONG).await.unwrap();
        let memory = pair.one.receive_lease().await.unwrap();
        let clone = memory.clone();
        std::thread::spawn(move || drop(clone)).join().unwrap();
        memory.write(pair.buffer(b"the word")).await.unwrap();
        std::thread::spawn(move || drop(memory)).join().unwrap();
        let ended = lease.await.unwrap();
        assert_eq!((ended.end, &*ended.region), (LeaseEnd::Returned, &b"the word"[..]));
    });
}

/// H26: when the runtime has ended, the memory returns to the lender at once, rather than when its time is over.
#[test]
fn memory_that_outlives_its_runtime_is_returned() {
    let lenders = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let borrowers = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pd = domain("soft0");
    let options = || ConnectionOptions::new(&pd);
    let listener = lenders.block_on(async {
        let driver = Driver::spawn(pd.context()).unwrap();
        driver.listen("127.0.0.1:0", options()).await.unwrap()
    });
    let address = listener.local_addr();
    let accepts = lenders.spawn(async move { listener.accept().await.unwrap() });
    let borrower = borrowers.block_on(async {
        let driver = Driver::spawn(pd.context()).unwrap();
        driver.connect(address, options()).await.unwrap().0
    });
    let lender = lenders.block_on(accepts).unwrap();
    let region = Region::allocate(&pd, 8).unwrap();
    let lease = lenders.block_on(lender.lend(region, WRITE, HANG * 60)).unwrap();
    let borrowed = borrowers.block_on(borrower.receive_lease()).unwrap();
    drop(borrowers);
    drop((borrowed, borrower));
    let ended = lenders.block_on(async { tokio::time::timeout(HANG, lease).await });
    assert_eq!(ended.unwrap().unwrap().end, LeaseEnd::Disconnected);
}

/// H29: messages and immediate data may have any value.
#[test]
fn zeros_are_a_valid_message_and_immediate_value() {
    run(|| async {
        for device in DEVICES {
            let pair = Pair::new(device);
            for length in [0, 1, 64] {
                let receive = || pair.other.receive(pair.buffer(&[1; 64])).post();
                let (plain, numbered) = (receive().await.unwrap(), receive().await.unwrap());
                let zeros = || pair.buffer(&[0; 64]).slice(0..length);
                pair.one.send(zeros()).await.unwrap();
                pair.one.send_with_imm(zeros(), 0).await.unwrap();
                for (receive, number) in [(plain, None), (numbered, Some(0))] {
                    let received = receive.await.unwrap();
                    assert_eq!((received.length, received.immediate), (length, number));
                    assert!(received.memory[..length].iter().all(|&byte| byte == 0));
                    assert_eq!(received.memory[length..], [1; 64][length..]);
                }
                // And a write with immediate data, which puts no bytes into the receive.
                let told = receive().await.unwrap();
                let to = pair.board.remote().slice(0..length).unwrap();
                pair.one.write_with_imm(zeros(), to, 0).await.unwrap();
                let told = told.await.unwrap();
                assert_eq!((told.immediate, &told.memory[..]), (Some(0), &[1; 64][..]));
            }
        }
    });
}
