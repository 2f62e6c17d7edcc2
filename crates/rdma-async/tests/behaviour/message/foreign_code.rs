//! Code of the program that a session runs, and that calls the same session: wakers, and subscribers of events.

use std::any::Any;
use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;

use rdma_async::message::{MessageError, OperationError, Options};
use rdma_async::{ConnectionOptions, Endpoint};
use rdma_mem::BufferPool;
use test_support::events::{Event, Hears};
use test_support::program::in_own_process;
use tokio::io::AsyncReadExt as _;
use tokio::task::yield_now;

use super::rig::{endpoint, messages, stream_and_peer, streams};
use crate::common::host::Host;
use crate::common::provider::{ALWAYS, Call, Provider};
use crate::common::{HANG, in_a_process_of_its_own, poll_for, poll_once, run_in_one_thread};

/// The waker of a task that owns something, as the tasks of simple executors own their future.
struct Owner(#[allow(dead_code)] Box<dyn Any + Send + Sync>);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

fn owner(owned: impl Any + Send + Sync) -> Waker {
    Waker::from(Arc::new(Owner(Box::new(owned))))
}

/// Runs a test in its own thread, because a deadlock blocks the thread.
fn run_or_hang<F: Future<Output = ()>>(test: impl Fn() -> F + Send + 'static) {
    let (done, is_done) = channel();
    thread::spawn(move || {
        run_in_one_thread(test);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(HANG).expect("the session waits for its own lock, or the test has failed");
}

#[test]
fn a_replaced_waker_may_drop_another_half_of_the_stream() {
    run_or_hang(|| async {
        let (client, mut server) = streams(&endpoint("soft0"), Options::new()).await;
        let (mut reader, writer) = client.into_split();
        let waker = owner(writer);
        assert!(poll_for(&mut pin!(reader.read_chunk()), &waker).is_pending());
        drop(waker);
        assert!(poll_once(&mut pin!(reader.read_chunk())).is_pending());
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0, "the writer was dropped");
    });
}

#[test]
fn the_waker_of_a_dropped_call_may_drop_a_request() {
    run_or_hang(|| async {
        let (client, server) = messages(&endpoint("soft0"), Options::new()).await;
        let mut asks = Box::pin(server.call(b"a question to the client"));
        let request = tokio::select! {
            request = client.receive() => request.unwrap().unwrap(),
            answer = &mut asks => panic!("{answer:?}"),
        };
        let waker = owner(request);
        let mut call = Box::pin(client.call(b"a question to the server"));
        assert!(poll_for(&mut call, &waker).is_pending());
        drop(waker);
        drop(call);
        let error = asks.await.unwrap_err();
        let refused = OperationError::Refused;
        assert!(
            matches!(error, MessageError::Operation { error, .. } if error == refused),
            "{error}"
        );
    });
}

/// Runs in its own process, because `tracing` remembers that an event had no subscriber.
#[test]
fn a_subscriber_may_drop_a_half_of_the_stream_whose_error_is_reported() {
    let name =
        "message::foreign_code::a_subscriber_may_drop_a_half_of_the_stream_whose_error_is_reported";
    in_own_process(name, || run_or_hang(reported));
}

async fn reported() {
    let host = Host::new("soft0");
    let (victim, peer) = stream_and_peer(&host, Options::new()).await;
    let (mut reader, writer) = victim.into_split();
    let owned = Arc::new(Mutex::new(Some(writer)));
    let dropped = Arc::clone(&owned);
    let hears = Hears(move |event: Event| {
        if event.target.starts_with("rdma_connect::messaging") {
            let writer = dropped.lock().unwrap().take();
            drop(writer);
        }
    });
    let _guard = tracing::subscriber::set_default(hears);
    for _ in 0..4 {
        drop(peer.receive(host.pool.allocate(4096).unwrap()).try_post().unwrap());
    }
    peer.send(host.buffer(b"certainly not a frame")).await.unwrap();
    reader.read_u8().await.unwrap_err();
    assert!(owned.lock().unwrap().is_none(), "an event has reported the error");
}

/// Drops a request of the connection while it frees memory for long messages, and this call to the device fails.
async fn leaked(refused: Call) {
    let (pd, provider) = Provider::faulty("soft0");
    let endpoint = Endpoint::with_options(&pd, ConnectionOptions::new(&pd)).unwrap();
    let options = Options::new().frame_bytes(1024).eager_bytes(1024);
    let (client, server) = messages(&endpoint, options).await;
    let mut asks = Box::pin(server.call(b"a question"));
    let request = tokio::select! {
        request = client.receive() => request.unwrap().unwrap(),
        answer = &mut asks => panic!("{answer:?}"),
    };
    let owned = Arc::new(Mutex::new(Some(request)));
    let dropped = Arc::clone(&owned);
    let hears = Hears(move |event: Event| {
        if event.target.starts_with("rdma_mem") {
            let request = dropped.lock().unwrap().take();
            drop(request);
        }
    });
    // The last buffer of this pool deregisters its region.
    let buffer = BufferPool::new(&pd).allocate(5000).unwrap();
    let _guard = tracing::subscriber::set_default(hears);
    provider.refuse(refused, ALWAYS);
    let (sent, received) = tokio::join!(client.send_buffer(buffer), server.receive());
    sent.unwrap();
    assert_eq!(received.unwrap().unwrap().len(), 5000);
    if refused == Call::DeallocateWindow {
        drop(asks);
        drop(server);
        assert!(client.receive().await.unwrap().is_none());
        client.finish().await.unwrap();
        drop(client);
    }
    while owned.lock().unwrap().is_some() {
        yield_now().await;
    }
}

/// Each runs in its own process, because the objects are leaked.
#[test]
fn a_subscriber_may_drop_a_request_when_a_window_is_leaked() {
    let name = "message::foreign_code::a_subscriber_may_drop_a_request_when_a_window_is_leaked";
    in_a_process_of_its_own(name, || run_or_hang(|| leaked(Call::DeallocateWindow)));
}

#[test]
fn a_subscriber_may_drop_a_request_when_a_region_is_leaked() {
    let name = "message::foreign_code::a_subscriber_may_drop_a_request_when_a_region_is_leaked";
    in_a_process_of_its_own(name, || run_or_hang(|| leaked(Call::DeregisterRegion)));
}
