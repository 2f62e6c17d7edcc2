//! Time limits of operations. The tests stop the runtime's clock: it advances when no task can run.

use std::future::IntoFuture;
use std::pin::pin;
use std::time::Duration;

use rdma_async::message::Options;
use rdma_async::{CloseReason, ConnectionOptions, Endpoint, Failed, Kind, Op, TransportError};
use rdma_connect::Operation;
use rdma_mem::{AccessFlags, open_device};
use rdma_qp::prelude::*;
use tokio::runtime::Builder;
use tokio::time::{advance, pause, timeout};

use crate::common::host::Host;
use crate::common::{DEFERRED, install, nearly_endless, run_in_one_thread};
use crate::operations::{DEVICES, HELD, Pair, poll_once, run};

const TIME: Duration = Duration::from_millis(100);

/// Checks that the operation has timed out and the device still has its memory.
#[track_caller]
fn assert_late<B>(failed: &Failed<B>, kind: Operation, time: Duration) {
    assert!(failed.memory.is_none(), "the device may use it");
    let TransportError::Timeout { operation, timeout, peer: Some(_) } = failed.error else {
        panic!("{failed}")
    };
    assert_eq!((operation, timeout), (kind, time));
}

/// Checks that the operation times out in each form.
async fn times_out<K: Kind>(kind: Operation, op: impl Fn() -> Op<'static, K>) {
    let late = |outcome: Result<K::Output, Failed<K::Memory>>| match outcome {
        Ok(_) => panic!("the device has not executed it"),
        Err(failed) => assert_late(&failed, kind, TIME),
    };
    late(op().within(TIME).await);
    late(op().try_post().unwrap_or_else(|failed| panic!("{failed}")).within(TIME).await);
}

#[test]
fn each_kind_times_out_and_leaves_its_memory_to_the_device() {
    run_in_one_thread(|| async {
        let pair = Pair::with(HELD, |builder| builder.max_send_wr(32));
        pause();
        let to = pair.board.remote().slice(0..8).unwrap();
        let of = &pair.one;
        let text = || pair.buffer(b"the word");
        times_out(Operation::Receive, || of.receive(text()).into_owned(of)).await;
        times_out(Operation::Receive, || of.receive_imm().into_owned(of)).await;
        times_out(Operation::Send, || of.send(text()).into_owned(of)).await;
        times_out(Operation::Send, || of.send_with_imm(text(), 1).into_owned(of)).await;
        times_out(Operation::Write, || of.write(text(), to).into_owned(of)).await;
        times_out(Operation::Write, || of.write_with_imm(text(), to, 1).into_owned(of)).await;
        times_out(Operation::Read, || of.read(text(), to).into_owned(of)).await;
        times_out(Operation::Atomic, || of.fetch_add(to, 1).into_owned(of)).await;
        times_out(Operation::Atomic, || of.compare_and_swap(to, 0, 1).into_owned(of)).await;
        assert_eq!((pair.buffers(), of.closed()), (6 * 2, None));
    });
}

/// The next operation needs the only slot: it shows that the late one has completed, and that the connection works.
#[test]
fn memory_of_a_late_operation_returns_when_it_has_completed() {
    run_in_one_thread(|| async {
        let pair = Pair::with(HELD, |builder| builder.max_send_wr(1));
        pause();
        let to = pair.board.remote().slice(0..8).unwrap();
        let late = pair.one.write(pair.buffer(b"was late"), to).within(TIME).await;
        assert_late(&late.unwrap_err(), Operation::Write, TIME);
        assert_eq!((pair.buffers(), pair.one.closed()), (1, None));
        let read = pair.released(pair.one.read(pair.buffer(&[0; 8]), to).into_future()).await;
        assert_eq!(*read.unwrap(), *b"was late");
        assert_eq!(pair.buffers(), 0);
    });
}

/// No task has polled the completion queue since.
#[test]
fn a_request_that_has_completed_when_the_time_is_over_is_not_late() {
    run_in_one_thread(|| async {
        let pair = Pair::new(HELD);
        pause();
        let to = pair.board.remote().slice(0..8).unwrap();
        for posts_first in [false, true] {
            let write = pair.one.write(pair.buffer(b"the word"), to);
            let mut write = Box::pin(match posts_first {
                false => write.within(TIME),
                true => write.try_post().unwrap().within(TIME),
            });
            assert!(poll_once(&mut write).is_pending());
            pair.release(1);
            advance(2 * TIME).await;
            assert_eq!(*write.await.unwrap(), *b"the word");
        }
        let write = pair.one.write(pair.buffer(b"the word"), to).try_post().unwrap();
        pair.release(1);
        assert_eq!(*write.within(Duration::ZERO).await.unwrap(), *b"the word");
    });
}

#[test]
fn a_message_for_a_late_receive_is_kept_in_order() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::new(device);
            for _ in 0..2 {
                let late = pair.other.receive(pair.buffer(&[0; 8])).within(Duration::ZERO).await;
                assert_late(&late.unwrap_err(), Operation::Receive, Duration::ZERO);
            }
            let receive = pair.other.receive(pair.buffer(&[0; 8])).post().await.unwrap();
            for text in [b"one_", b"two_", b"tri_"] {
                pair.one.send(pair.buffer(text)).await.unwrap();
            }
            // Messages arrive in order, so the others have arrived, too.
            assert_eq!(receive.within(Duration::MAX).await.unwrap().bytes(), b"tri_");
            for text in [b"one_", b"two_"] {
                let kept = pair.other.take_unclaimed().unwrap();
                assert_eq!((&kept.memory.unwrap()[..4], kept.length), (&text[..], 4));
            }
            assert!(pair.other.take_unclaimed().is_none());
        });
    }
}

#[test]
fn an_operation_that_waits_for_a_slot_times_out_with_its_memory() {
    run_in_one_thread(|| async {
        let pair = Pair::with(HELD, |builder| builder.max_send_wr(1));
        pause();
        let to = pair.board.remote().slice(0..8).unwrap();
        let write = || pair.one.write(pair.buffer(b"the word"), to);
        let first = write().post().await.unwrap();
        let mut next = Box::pin(write().into_future());
        assert!(poll_once(&mut next).is_pending());
        for limit in [TIME, Duration::ZERO] {
            let late = write().within(limit).await.unwrap_err();
            let TransportError::Timeout { operation, timeout, .. } = late.error else {
                panic!("{late}")
            };
            assert_eq!((operation, timeout), (Operation::Write, limit));
            assert_eq!(*late.memory.unwrap(), *b"the word");
        }
        // It holds no slot: the next waiter gets it.
        let (first, next) = pair.released(async { tokio::join!(first, next) }).await;
        drop((first.unwrap(), next.unwrap()));
        assert_eq!((pair.buffers(), pair.one.closed()), (0, None));
    });
}

#[test]
fn a_connection_that_ends_before_the_time_is_over_returns_the_memory() {
    run_in_one_thread(|| async {
        let pair = Pair::new(HELD);
        pause();
        let mut receive = pin!(pair.one.receive(pair.buffer(&[0; 8])).within(TIME));
        assert!(poll_once(&mut receive).is_pending());
        pair.one.close().unwrap();
        advance(2 * TIME).await;
        let failed = receive.await.unwrap_err();
        let TransportError::Closed { reason, .. } = failed.error else { panic!("{failed}") };
        assert_eq!((reason, failed.memory.unwrap().len()), (CloseReason::Asked, 8));
    });
}

/// Dropped before its time is over, and after.
#[test]
fn a_limited_operation_that_is_dropped_returns_its_memory_when_it_has_completed() {
    run_in_one_thread(|| async {
        let pair = Pair::new(HELD);
        pause();
        let to = pair.board.remote().slice(0..8).unwrap();
        for waits in [Duration::ZERO, 2 * TIME] {
            let write = pair.one.write(pair.buffer(b"the word"), to).within(TIME);
            let mut write = Box::pin(write);
            assert!(poll_once(&mut write).is_pending());
            advance(waits).await;
            drop(write);
            assert_eq!(pair.buffers(), 1);
            pair.assert_given_back().await;
        }
    });
}

/// They need no timer: the runtime has none.
#[test]
fn no_limit_and_a_zero_limit_need_no_timer() {
    Builder::new_current_thread().enable_io().build().unwrap().block_on(async {
        let pair = Pair::new(HELD);
        let to = pair.board.remote().slice(0..8).unwrap();
        let late = pair.one.read(pair.buffer(&[0; 8]), to).within(Duration::ZERO).await;
        assert_late(&late.unwrap_err(), Operation::Read, Duration::ZERO);
        let mut endless = Box::pin(pair.one.read(pair.buffer(&[0; 8]), to).within(Duration::MAX));
        assert!(poll_once(&mut endless).is_pending());
        pair.release(2);
        endless.await.unwrap();
    });
}

#[test]
fn the_longest_limit_works() {
    run(|| async {
        let pair = Pair::new(HELD);
        for micros in [0, 1, 1_000, 1_000_000] {
            let receive = pair.one.receive(pair.buffer(&[0; 8])).within(nearly_endless(micros));
            assert!(poll_once(&mut Box::pin(receive)).is_pending());
        }
    });
}

#[test]
fn the_limit_of_a_connection_applies_to_operations_without_one() {
    run_in_one_thread(|| async {
        let host = Host::new("soft0");
        let options = || host.options().operation_timeout(TIME);
        let listener = host.driver.listen("127.0.0.1:0", options()).await.unwrap();
        let connect = host.driver.connect(listener.local_addr(), options());
        let (client, server) = tokio::join!(connect, listener.accept());
        let ((client, _), server) = (client.unwrap(), server.unwrap());
        let more = || host.pd.create_qp();
        let (more, _other) = tokio::join!(
            client.connect_additional(1, more()),
            server.connect_additional(1, more())
        );
        let more = more.unwrap();
        pause();
        for of in [&client, &server, &more] {
            let receive = || of.receive(host.buffer(&[0; 8]));
            assert_late(&receive().await.unwrap_err(), Operation::Receive, TIME);
            let posted = receive().post().await.unwrap();
            assert!(timeout(3 * TIME, posted).await.is_err(), "a posted one has no limit");
            let late = receive().within(2 * TIME).await.unwrap_err();
            assert_late(&late, Operation::Receive, 2 * TIME);
            assert!(timeout(3 * TIME, receive().within(Duration::MAX)).await.is_err());
            let mut ring = of.receive_ring([host.buffer(&[0; 8])]).unwrap();
            assert!(timeout(3 * TIME, ring.next()).await.is_err());
            assert_eq!(of.closed(), None);
        }
        // Four receives were late, and their messages are kept.
        for text in [b"1", b"2", b"3", b"4"] {
            client.send(host.buffer(text)).await.unwrap();
            let kept = server.take_unclaimed().unwrap();
            assert_eq!(kept.memory.unwrap()[..kept.length], *text);
        }
    });
}

/// The connection stays open after the limit, so a WRITE beside messages would be reported as lost although it is not.
#[test]
fn the_limit_of_a_connection_does_not_apply_to_writes_beside_messages() {
    run_in_one_thread(|| async {
        install();
        let pd = open_device(DEFERRED).unwrap().allocate_pd().unwrap();
        let limited = ConnectionOptions::new(&pd).operation_timeout(Duration::ZERO);
        let endpoint = Endpoint::with_options(&pd, limited).unwrap();
        let options = Options::new();
        let listener = endpoint.listen_for_messages("127.0.0.1:0", options).await.unwrap();
        let connect = endpoint.connect_messages(listener.local_addr(), options);
        let (client, _server) = tokio::try_join!(connect, listener.accept()).unwrap();
        let access = AccessFlags::new().with_local_write().with_remote_write();
        let board = pd.allocate_shared_region(64, access).unwrap();
        for round in 1..100 {
            let mut buffer = endpoint.allocate(64).await.unwrap();
            buffer.fill(round);
            drop(client.write(buffer, 0..64, board.remote()).await.unwrap());
            let mut found = [0; 64];
            board.read(0, &mut found).unwrap();
            assert_eq!(found, [round; 64]);
        }
    });
}
