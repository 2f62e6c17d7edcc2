//! Tasks that wait for the same event: each event wakes one of them, in the order of their waits.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use rdma_async::message::Options;
use tokio::task::{LocalSet, yield_now};

use super::rig::{endpoint, messages, short};
use crate::common::{Count, DEVICES, poll_for, poll_once, run_in_one_thread};

/// The number of calls, and of tasks that wait.
const CALLS: usize = 100;

/// Counts the polls of a future.
async fn counted<T>(polls: Rc<Cell<usize>>, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    poll_fn(|cx| {
        polls.set(polls.get() + 1);
        future.as_mut().poll(cx)
    })
    .await
}

/// If the end of each call woke all tasks, a task would be polled 50 times on average.
#[test]
fn the_end_of_a_call_wakes_one_of_the_tasks_that_wait_to_call() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), Options::new().calls(1)).await;
            let (client, polls, tasks) =
                (Rc::new(client), Rc::<Cell<_>>::default(), LocalSet::new());
            for _ in 0..CALLS {
                let (client, polls) = (Rc::clone(&client), Rc::clone(&polls));
                tasks.spawn_local(async move {
                    counted(polls, client.call(b"")).await.unwrap();
                });
            }
            let serve = async {
                for _ in 0..CALLS {
                    server.receive().await.unwrap().unwrap().reply(b"").await.unwrap();
                }
            };
            tokio::join!(tasks, serve);
            assert!(polls.get() < 10 * CALLS, "{}", polls.get());
        });
    }
}

/// If each request woke all tasks, a task would be polled 50 times on average.
#[test]
fn a_message_wakes_one_of_the_tasks_that_receive() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), Options::new()).await;
            let (server, polls, tasks) =
                (Rc::new(server), Rc::<Cell<_>>::default(), LocalSet::new());
            for _ in 0..CALLS {
                let (server, polls) = (Rc::clone(&server), Rc::clone(&polls));
                tasks.spawn_local(async move {
                    let request = counted(polls, server.receive()).await.unwrap().unwrap();
                    request.reply(b"").await.unwrap();
                });
            }
            let call = async {
                for _ in 0..CALLS {
                    client.call(b"").await.unwrap();
                }
            };
            tokio::join!(tasks, call);
            assert!(polls.get() < 10 * CALLS, "{}", polls.get());
        });
    }
}

#[test]
fn a_reply_wakes_no_task_that_receives() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), Options::new()).await;
            let (client, polls, tasks) =
                (Rc::new(client), Rc::<Cell<_>>::default(), LocalSet::new());
            let (receiver, of_receiver) = (Rc::clone(&client), Rc::clone(&polls));
            tasks.spawn_local(async move {
                assert!(counted(of_receiver, receiver.receive()).await.unwrap().is_some());
            });
            let call = async {
                for _ in 0..CALLS {
                    client.call(b"").await.unwrap();
                }
            };
            let serve = async {
                for _ in 0..CALLS {
                    server.receive().await.unwrap().unwrap().reply(b"").await.unwrap();
                }
                server.send(b"").await.unwrap();
            };
            tokio::join!(tasks, call, serve);
            assert!(polls.get() < CALLS / 10, "{}", polls.get());
        });
    }
}

/// Otherwise a call that is dropped at this moment would stop all later calls.
#[test]
fn a_task_that_was_woken_and_leaves_wakes_the_next_one() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), Options::new().calls(1)).await;
            let call = |of: &'static [u8]| Box::pin(client.call(of));
            let (mut first, mut second, mut third) = (call(b"1"), call(b"2"), call(b"3"));
            let counts = [(); 3].map(|()| Arc::<Count>::default());
            let wakers = counts.each_ref().map(|count| Waker::from(Arc::clone(count)));
            let woken = |at: usize| counts[at].0.load(Ordering::Relaxed);
            let request = tokio::select! {
                called = &mut first => unreachable!("{called:?}"),
                request = server.receive() => request.unwrap().unwrap(),
            };
            assert!(poll_for(&mut second, &wakers[1]).is_pending());
            assert!(poll_for(&mut third, &wakers[2]).is_pending());
            request.reply(b"").await.unwrap();
            while poll_for(&mut first, &wakers[0]).is_pending() {
                yield_now().await;
            }
            assert_eq!((woken(1), woken(2)), (1, 0));
            drop(second);
            assert_eq!(woken(2), 1);
            let serve = async {
                let request = server.receive().await.unwrap().unwrap();
                assert_eq!(*request, *b"3");
                request.reply(b"").await.unwrap();
            };
            let (called, ()) = tokio::join!(third, serve);
            called.unwrap();
        });
    }
}

/// Otherwise a flush would never end while other tasks send.
#[test]
fn a_flush_does_not_wait_for_messages_that_begin_later() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), short()).await;
            // The server has memory for a part of each.
            client.post(&[1; 5000]).await.unwrap();
            let mut flush = Box::pin(client.flush());
            assert!(poll_once(&mut flush).is_pending());
            let mut later = Box::pin(client.send(&[2; 5000]));
            assert!(poll_once(&mut later).is_pending());
            assert_eq!(server.receive().await.unwrap().unwrap().len(), 5000);
            flush.await.unwrap();
            assert!(poll_once(&mut later).is_pending());
            let (sent, received) = tokio::join!(later, server.receive());
            sent.unwrap();
            assert_eq!(received.unwrap().unwrap().len(), 5000);
            client.flush().await.unwrap();
        });
    }
}
