//! Connections and drivers that end.

use std::thread;
use std::time::Duration;

use rdma_async::Driver;
use rdma_channel::{CloseReason, TransportError};
use rdma_mem::RemoteMemoryRegion;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::operations::{DEVICES, HELD, Pair, all, domain, poll_once, run};

#[test]
fn closing_ends_outstanding_operations_and_returns_their_memory() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let receive = pair.other.receive(pair.buffer(&[6; 8])).post().await.unwrap();
            let connection = pair.other.clone();
            let waits = tokio::spawn(async move {
                let second = connection.pd().clone();
                let buffer = rdma_mem::BufferPool::new(&second).allocate(8).unwrap();
                connection.receive(buffer).await.unwrap_err().error
            });
            tokio::task::yield_now().await;
            pair.other.close().unwrap();
            let failed = receive.await.unwrap_err();
            let closed = TransportError::Closed {
                reason: CloseReason::Asked,
                peer: pair.other.peer(),
                event: None,
            };
            assert_eq!(failed.to_string(), closed.to_string());
            assert_eq!(failed.memory.as_ref().unwrap().len(), 8);
            assert!(matches!(
                waits.await.unwrap(),
                TransportError::Closed { reason: CloseReason::Asked, .. }
            ));
            let later = pair.other.send(pair.buffer(&[1])).await.unwrap_err();
            assert!(matches!(
                later.error,
                TransportError::Closed { reason: CloseReason::Asked, .. }
            ));
        });
    }
}

#[test]
fn a_refused_request_fails_and_closes_its_connection() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let nowhere = RemoteMemoryRegion::new(0x1000, 8, 0x1234_5678);
            let failed = pair.one.write(pair.buffer(&[1; 8]), nowhere).await.unwrap_err();
            assert!(failed.to_string().contains("the RDMA write with QPN"), "{failed}");
            assert!(matches!(failed.error, TransportError::WorkError(_)), "{failed}");
            let later = pair.one.send(failed.memory.unwrap()).await.unwrap_err();
            assert!(later.to_string().contains("since an RDMA write failed"), "{later}");
            assert!(matches!(pair.one.closed(), Some(CloseReason::Work { .. })));
        });
    }
}

#[test]
fn operations_end_when_the_driver_does() {
    for device in DEVICES.into_iter().chain([HELD]) {
        run(|| async move {
            let pair = Pair::new(device);
            let receive = pair.other.receive(pair.buffer(&[6; 8])).post().await.unwrap();
            pair.driver.clone().shutdown().await;
            let failed = receive.await.unwrap_err();
            assert!(matches!(
                failed.error,
                TransportError::Closed { reason: CloseReason::Destroyed, .. }
            ));
            drop(failed);
            assert_eq!(pair.buffers(), 0);
        });
    }
}

/// The runtime and the driver's task end first.
#[test]
fn operations_end_when_the_runtime_does() {
    for device in DEVICES.into_iter().chain([HELD]) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (pair, mut receive) = runtime.block_on(async {
            let pair = Pair::new(device);
            let op = pair.other.receive(pair.buffer(&[6; 8]));
            let receive = op.into_owned(&pair.other).post().await.unwrap();
            (pair, receive)
        });
        assert!(poll_once(&mut receive).is_pending());
        drop(runtime);
        let std::task::Poll::Ready(Err(failed)) = poll_once(&mut receive) else {
            panic!("the operation has not failed")
        };
        assert!(matches!(failed.error, TransportError::Closed { .. }), "{failed}");
        assert_eq!(failed.memory.as_ref().unwrap().len(), 8);
        drop(failed);
        assert_eq!(pair.buffers(), 0);
    }
}

#[test]
fn a_manual_driver_polls_and_sleeps_on_its_file() {
    for device in DEVICES {
        let pd = domain(device);
        let (driver, mut manual) = Driver::manual(pd.context()).unwrap();
        let pair = Pair::of(driver, pd, |builder| builder.access(all()));
        let mut receive = pair.other.receive(pair.buffer(&[0; 8])).try_post().unwrap();
        assert!(poll_once(&mut receive).is_pending());
        assert_eq!(manual.arm().unwrap(), 0);
        let sender = pair.one.clone();
        let message = pair.buffer(b"good day");
        let other = thread::spawn(move || {
            thread::sleep(Duration::from_millis(1));
            drop(sender.send(message).try_post().unwrap());
        });
        let mut files = [PollFd::new(&manual, PollFlags::IN)];
        let limit = Timespec::try_from(crate::operations::HANG).unwrap();
        assert_eq!(poll(&mut files, Some(&limit)).unwrap(), 1, "it is woken");
        other.join().unwrap();
        let received = loop {
            manual.poll();
            if let std::task::Poll::Ready(received) = poll_once(&mut receive) {
                break received.unwrap();
            }
        };
        assert_eq!(*received.memory, *b"good day");
    }
}

/// Both are about to destroy its queue pair.
#[test]
fn a_connection_is_dropped_while_its_driver_ends() {
    for device in DEVICES {
        run(|| async move {
            for _ in 0..20 {
                let Pair { one, other, board, pool, pd, driver } = Pair::new(device);
                for _ in 0..8 {
                    drop(other.receive(pool.allocate(64).unwrap()).post().await.unwrap());
                }
                let sender = thread::spawn(move || drop((one, other)));
                driver.shutdown().await;
                sender.join().unwrap();
                // The task may still have to release what the connection left to it.
                while pool.usage().buffers > 0 {
                    tokio::task::yield_now().await;
                }
                drop((board, pd));
            }
        });
    }
}

/// The last clones are dropped in any order.
#[test]
fn parts_are_dropped_in_any_order() {
    for device in DEVICES {
        for order in 0..4 {
            run(|| async move {
                let Pair { one, other, board, pool, pd, driver } = Pair::new(device);
                let receive = {
                    let op = other.receive(pool.allocate(8).unwrap());
                    op.into_owned(&other).post().await.unwrap()
                };
                match order {
                    0 => drop((receive, one, other, board, pool, pd, driver)),
                    1 => drop((driver, pd, pool, board, other, one, receive)),
                    2 => drop((pool, receive, driver, other, pd, one, board)),
                    _ => drop((one, board, driver, other, receive, pd, pool)),
                }
            });
        }
    }
}

#[test]
fn a_message_that_arrived_before_the_close_is_received() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            let receive = pair.other.receive(pair.buffer(&[0; 4])).post().await.unwrap();
            // It was acknowledged, but its completion was not polled.
            pair.one.send(pair.buffer(b"last")).await.unwrap();
            pair.other.close().unwrap();
            assert_eq!(*receive.await.unwrap().memory, *b"last");
        });
    }
}

#[test]
fn dropped_operations_release_their_memory_when_the_connection_closes() {
    run(|| async {
        let pair = Pair::new(HELD);
        drop(pair.other.receive(pair.buffer(&[0; 4])).post().await.unwrap());
        assert_eq!(pair.buffers(), 1);
        pair.other.close().unwrap();
        assert_eq!(pair.buffers(), 0);
    });
}

#[test]
fn a_manual_driver_can_be_shut_down() {
    let pd = domain("soft0");
    let (driver, manual) = Driver::manual(pd.context()).unwrap();
    let pair = Pair::of(driver, pd, |builder| builder);
    let mut receive = pair.other.receive(pair.buffer(&[0; 8])).try_post().unwrap();
    let ends = pair.driver.clone().shutdown();
    assert!(poll_once(&mut Box::pin(ends)).is_ready());
    let std::task::Poll::Ready(Err(failed)) = poll_once(&mut receive) else {
        panic!("the operation has not failed")
    };
    assert!(matches!(failed.error, TransportError::Closed { .. }), "{failed}");
    drop(manual);
}

#[test]
fn a_queue_pair_whose_receives_are_shared_is_refused() {
    use rdma_qp::prelude::*;
    let pd = domain("soft0");
    let (driver, _manual) = Driver::manual(pd.context()).unwrap();
    let srq = pd.create_srq().max_wr(4).build().unwrap();
    let refused = driver.prepare(pd.create_qp().srq(&srq)).unwrap_err();
    assert!(refused.to_string().contains("without `srq`"), "{refused}");
}
