//! Local memory: allocated repeatedly, in any domain and of any kind, and sizes beyond the device.

use rdma_async::prelude::*;
use rdma_async::{ConnectionOptions, Region, TransportError};
use rdma_mem::{BufferPool, HugePageSize, RegionMemory};
use rdma_qp::prelude::*;
use rdma_qp::{Error, PostErrorKind, QueuePairBuilder};
use rdma_soft::{Builder, Limits};

use crate::parity::{DEVICES, LONG, Pair, READ, WRITE, ends, run};

/// A long-running program uses only as much memory as it has at a time.
#[test]
fn memory_can_be_allocated_and_sent_repeatedly() {
    run(|| async {
        for device in DEVICES {
            let pair = Pair::new(device);
            for round in 0..300_u32 {
                let receive = pair.other.receive(pair.pool.allocate(1000).unwrap());
                let receive = receive.post().await.unwrap();
                pair.one.send(pair.buffer(&round.to_ne_bytes())).await.unwrap();
                let received = receive.await.unwrap();
                assert_eq!(received.memory[..received.length], round.to_ne_bytes());
            }
            let usage = pair.pool.usage();
            assert_eq!((usage.buffers, usage.regions), (0, 1));
            assert!(pair.pool.trim() > 0);
            assert_eq!(pair.pool.usage().regions, 0);
        }
    });
}

/// A buffer works only with connections of its own domain.
#[test]
fn a_buffer_of_another_domain_is_refused_and_returned() {
    run(|| async {
        let pair = Pair::new("soft0");
        let pool = BufferPool::new(&pair.pd.context().allocate_pd().unwrap());
        let send = pair.one.send(pool.allocate(8).unwrap()).await.unwrap_err();
        let into = pair.one.receive(pool.allocate(8).unwrap()).post().await.unwrap_err();
        for failed in [send, into] {
            let TransportError::PostError(error) = &failed.error else { panic!("{failed}") };
            assert_eq!(
                (error.kind(), failed.memory.unwrap().len()),
                (PostErrorKind::WrongDomain, 8)
            );
        }
        assert_eq!(pool.usage().buffers, 0);
        pair.assert_works().await;
    });
}

/// From the heap, from a file, and in huge pages if there are some; of an odd length.
#[test]
fn memory_of_every_kind_is_lent() {
    run(|| async {
        for device in DEVICES {
            let pair = ends(device).await;
            let length = 20_001;
            let kinds = [
                RegionMemory::allocate(length),
                RegionMemory::memfd(length),
                RegionMemory::huge_pages(length, HugePageSize::MIB2),
            ];
            let mut lent = 0;
            for mut memory in kinds.into_iter().flatten() {
                memory[length - 1] = 5;
                let region = Region::of(&pair.pd, memory);
                let lease = pair.one.lend(region, READ | WRITE, LONG).await.unwrap();
                let borrowed = pair.other.receive_lease().await.unwrap();
                let end = borrowed.slice(length - 2..length).unwrap();
                assert_eq!(pair.bytes_of(&end).await, [0, 5]);
                end.write(pair.buffer(&[6, 7])).await.unwrap();
                drop((borrowed, end));
                let memory = lease.await.unwrap().region.into_memory().unwrap();
                assert_eq!((memory.len(), &memory[length - 2..]), (length, &[6, 7][..]));
                lent += 1;
            }
            assert!(lent >= 2);
        }
    });
}

/// A message of many packets, and more bytes than a pool registers at a time.
#[test]
fn large_memory_is_sent_and_written() {
    run(|| async {
        for (device, length) in [("soft0", 40 << 20), (DEVICES[1], 3 << 20)] {
            let pair = ends(device).await;
            let mut message = pair.pool.allocate(length).unwrap();
            for (n, chunk) in (0_u8..=255).cycle().zip(message.chunks_mut(4096)) {
                chunk.fill(n);
            }
            let message = message.freeze();
            let receive = pair.other.receive(pair.pool.allocate(length).unwrap());
            let receive = receive.post().await.unwrap();
            pair.one.send(message.clone()).await.unwrap();
            let received = receive.await.unwrap();
            assert!(received.length == length && *received.memory == *message);
            let region = Region::allocate(&pair.pd, length).unwrap();
            let lease = pair.other.lend(region, WRITE, LONG).await.unwrap();
            let borrowed = pair.one.receive_lease().await.unwrap();
            borrowed.write(message.clone()).await.unwrap();
            drop(borrowed);
            assert!(*lease.await.unwrap().region == *message);
        }
    });
}

type Knob = for<'a> fn(QueuePairBuilder<'a>) -> QueuePairBuilder<'a>;

/// For clients and listeners: the error names the value that is too large, and nothing else changes.
#[test]
fn sizes_beyond_the_device_are_refused_when_connecting() {
    run(|| async {
        const MOST: u32 = u32::MAX;
        let knobs: [(&str, Knob); 4] = [
            ("max_send_wr", |qp| qp.max_send_wr(MOST)),
            ("max_recv_wr", |qp| qp.max_recv_wr(MOST)),
            ("max_send_sge", |qp| qp.max_send_sge(MOST)),
            ("max_recv_sge", |qp| qp.max_recv_sge(MOST)),
        ];
        let pair = Pair::new("soft0");
        let listener =
            pair.driver.listen("127.0.0.1:0", ConnectionOptions::new(&pair.pd)).await.unwrap();
        for (knob, too_large) in knobs {
            let wrong = || too_large(pair.pd.create_qp());
            let refused = pair.driver.prepare(wrong()).unwrap_err();
            assert!(refused.to_string().contains(knob), "{refused}");
            let options = ConnectionOptions::from(wrong());
            let refused = pair.driver.connect(listener.local_addr(), options.clone()).await;
            let refused = refused.unwrap_err();
            assert!(refused.to_string().contains(knob), "{refused}");
            let refused = pair.driver.listen("127.0.0.1:0", options).await.unwrap_err();
            assert!(refused.to_string().contains(knob), "{refused}");
        }
        let connect = pair.driver.connect(listener.local_addr(), ConnectionOptions::new(&pair.pd));
        let (one, other) = tokio::join!(connect, listener.accept());
        let (one, other) = (one.unwrap().0, other.unwrap());
        let receive = other.receive(pair.buffer(&[0; 8])).post().await.unwrap();
        one.send(pair.buffer(b"goes on")).await.unwrap();
        assert_eq!(receive.await.unwrap().memory[..7], *b"goes on");
    });
}

/// The limit of the device is higher, but a WR ID has 16 bits for the requests of both queues.
#[test]
fn a_queue_has_at_most_32768_requests() {
    run(|| async {
        const MOST: u32 = 1 << 15;
        let name = "soft-large-queues";
        let _ = Builder::new(name).limits(Limits::default().max_qp_wr(2 * MOST)).install();
        let Pair { driver, pd, .. } = Pair::new(name);
        let knobs: [(&str, Knob, Knob); 2] = [
            ("max_send_wr", |qp| qp.max_send_wr(MOST), |qp| qp.max_send_wr(MOST + 1)),
            ("max_recv_wr", |qp| qp.max_recv_wr(MOST), |qp| qp.max_recv_wr(MOST + 1)),
        ];
        for (knob, largest, too_large) in knobs {
            driver.prepare(largest(pd.create_qp())).unwrap();
            let refused = driver.prepare(too_large(pd.create_qp())).unwrap_err();
            let Error::TooLarge { knob: of, most: MOST, .. } = refused else { panic!("{refused}") };
            assert_eq!(of, knob);
        }
    });
}
