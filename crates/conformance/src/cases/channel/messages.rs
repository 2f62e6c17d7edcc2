//! Cases for messages, calls and streams: between threads, between tasks, and between a thread and a task.

use std::future::Future;
use std::io::{self, Read as _, Write as _};
use std::thread;

use rdma_async::{Endpoint, message as async_message};
use rdma_channel::message::{MessageError, Messages, Options};
use rdma_channel::{BufferPool, prelude::*};
use rdma_mem::{Context, open_device};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::case::cases;
use crate::device::Device;

cases![
    messages_and_calls_pass_between_threads,
    a_stream_carries_all_bytes_between_threads,
    messages_and_calls_pass_between_tasks,
    a_stream_carries_all_bytes_between_tasks,
    long_messages_are_lent_between_threads,
    a_thread_and_a_task_lend_long_messages_to_each_other,
];

const ANY: &str = "127.0.0.1:0";

/// The length of a message that is lent. In frames, it would not fit into the window after another message.
const LENT: usize = 200_000;

/// Some lengths: of one frame, of two, and of messages that are lent if the device has windows.
const LENGTHS: [usize; 5] = [8, 40_000, 150_000, LENT, 0];

/// Longer messages than by default are sent in frames.
fn options() -> Options {
    Options::new().eager_bytes(64 << 10).window_bytes(128 << 10)
}

/// The memory that messages need besides that of the ends. A pool that must grow sends in frames meanwhile.
const MEMORY: usize = 4 * LENT;

/// Returns true if long messages are lent: the device confines a peer to the range of a window of type 2.
fn lends(device: &Device) -> bool {
    device.has_windows_of_type_2() && !device.differs("window-bounds")
}

/// Bytes that differ from their neighbours.
fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251).to_le_bytes()[0]).collect()
}

fn open(device: &Device) -> Context {
    open_device(&**device).unwrap()
}

/// Calls the peer until each request was answered with its own bytes, and finishes.
fn call_all(end: &Messages) -> Result<(), MessageError> {
    for length in LENGTHS {
        end.send(&bytes(length))?;
        assert!(*end.call(&bytes(length))? == bytes(length)[..], "{length}");
    }
    end.finish()?;
    assert!(end.receive()?.is_none());
    Ok(())
}

/// Answers each request with its bytes, until the peer has finished.
fn answer_all(end: &Messages) -> Result<(), MessageError> {
    let mut lengths = LENGTHS.into_iter();
    while let Some(message) = end.receive()? {
        if message.is_request() {
            let answer = message.to_vec();
            message.reply(&answer)?;
        } else {
            assert!(*message == bytes(lengths.next().unwrap())[..]);
        }
    }
    assert!(lengths.next().is_none());
    end.finish()
}

fn messages_and_calls_pass_between_threads(device: &Device) {
    let pd = open(device).allocate_pd().unwrap();
    let pool = BufferPool::new(&pd);
    let mut listener = pd.create_channel().listen_for_messages(ANY, &pool, options()).unwrap();
    let address = listener.local_addr();
    thread::scope(|threads| {
        threads.spawn(|| answer_all(&listener.accept().unwrap()).unwrap());
        let server = pd.create_channel().connect_messages(address, &pool, options()).unwrap();
        call_all(&server).unwrap();
    });
}

/// Sends a short and a long message, and then answers a request. The peer receives the messages only after the answer.
fn lend(end: &Messages) {
    let request = end.receive().unwrap().unwrap();
    end.send(b"short").unwrap();
    end.send(&bytes(LENT)).unwrap();
    request.reply(b"both were sent").unwrap();
}

/// Lets the peer [lend](lend) a message.
fn borrow(end: &Messages) {
    assert_eq!(*end.call(b"lend").unwrap(), *b"both were sent");
    assert_eq!(*end.receive().unwrap().unwrap(), *b"short");
    assert!(*end.receive().unwrap().unwrap() == bytes(LENT)[..]);
}

fn long_messages_are_lent_between_threads(device: &Device) {
    device.needs(lends(device), "the device has no memory windows of type 2");
    let pd = open(device).allocate_pd().unwrap();
    let pool = BufferPool::new(&pd);
    let mut listener = pd.create_channel().listen_for_messages(ANY, &pool, options()).unwrap();
    let address = listener.local_addr();
    pool.grow(MEMORY).unwrap();
    thread::scope(|threads| {
        threads.spawn(|| {
            let client = listener.accept().unwrap();
            lend(&client);
            borrow(&client);
            client.finish().unwrap();
        });
        let server = pd.create_channel().connect_messages(address, &pool, options()).unwrap();
        borrow(&server);
        lend(&server);
        server.finish().unwrap();
    });
}

fn a_stream_carries_all_bytes_between_threads(device: &Device) {
    let pd = open(device).allocate_pd().unwrap();
    let (pool, options) = (BufferPool::new(&pd), Options::new());
    let mut listener = pd.create_channel().listen_for_streams(ANY, &pool, options).unwrap();
    let address = listener.local_addr();
    thread::scope(|threads| {
        threads.spawn(|| {
            let (mut reader, mut writer) = listener.accept().unwrap().into_split();
            io::copy(&mut reader, &mut writer).unwrap();
            writer.shutdown().unwrap();
        });
        let stream = pd.create_channel().connect_stream(address, &pool, options).unwrap();
        let (mut reader, mut writer) = stream.into_split();
        threads.spawn(move || {
            writer.write_all(&bytes(100_000)).unwrap();
            writer.shutdown().unwrap();
        });
        let mut echo = Vec::new();
        reader.read_to_end(&mut echo).unwrap();
        assert!(echo == bytes(100_000));
    });
}

/// Runs a test with an endpoint of the device.
fn run<F: Future<Output = ()>>(device: &Device, test: impl FnOnce(Endpoint) -> F) {
    let context = open(device);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().worker_threads(2).build().unwrap();
    runtime.block_on(async { test(Endpoint::new(&context).unwrap()).await });
}

/// Both ends of a connection for messages.
async fn ends(endpoint: &Endpoint) -> (async_message::Messages, async_message::Messages) {
    let listener = endpoint.listen_for_messages(ANY, options()).await.unwrap();
    let server = endpoint.connect_messages(listener.local_addr(), options());
    let (server, client) = tokio::join!(server, listener.accept());
    (server.unwrap(), client.unwrap())
}

fn messages_and_calls_pass_between_tasks(device: &Device) {
    run(device, |endpoint| async move {
        let (server, client) = ends(&endpoint).await;
        let calls = async {
            for length in LENGTHS {
                server.send(&bytes(length)).await.unwrap();
                assert!(*server.call(&bytes(length)).await.unwrap() == bytes(length)[..]);
            }
            server.finish().await.unwrap();
        };
        tokio::join!(calls, answer(&client));
    });
}

/// Answers each request with its bytes, until the peer has finished.
async fn answer(end: &async_message::Messages) {
    let mut lengths = LENGTHS.into_iter();
    while let Some(message) = end.receive().await.unwrap() {
        if message.is_request() {
            let answer = message.to_vec();
            message.reply(&answer).await.unwrap();
        } else {
            assert!(*message == bytes(lengths.next().unwrap())[..]);
        }
    }
    assert!(lengths.next().is_none());
    end.finish().await.unwrap();
}

fn a_stream_carries_all_bytes_between_tasks(device: &Device) {
    run(device, |endpoint| async move {
        let listener = endpoint.listen_for_streams(ANY, Options::new()).await.unwrap();
        let client = endpoint.connect_stream(listener.local_addr(), Options::new());
        let (client, server) = tokio::join!(client, listener.accept());
        let (mut reader, mut writer) = server.unwrap().into_split();
        let echoes = async {
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let (mut reader, mut writer) = client.unwrap().into_split();
        let writes = async {
            writer.write_all(&bytes(100_000)).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let mut echo = Vec::new();
        let (_, _, read) = tokio::join!(echoes, writes, reader.read_to_end(&mut echo));
        read.unwrap();
        assert!(echo == bytes(100_000));
    });
}

/// Like [`lend`], by a task.
async fn lend_by_a_task(end: &async_message::Messages) {
    let request = end.receive().await.unwrap().unwrap();
    end.send(b"short").await.unwrap();
    end.send(&bytes(LENT)).await.unwrap();
    request.reply(b"both were sent").await.unwrap();
}

/// Like [`borrow`], by a task.
async fn borrow_by_a_task(end: &async_message::Messages) {
    assert_eq!(*end.call(b"lend").await.unwrap(), *b"both were sent");
    assert_eq!(*end.receive().await.unwrap().unwrap(), *b"short");
    assert!(*end.receive().await.unwrap().unwrap() == bytes(LENT)[..]);
}

fn a_thread_and_a_task_lend_long_messages_to_each_other(device: &Device) {
    let lends = lends(device);
    let pd = open(device).allocate_pd().unwrap();
    let pool = BufferPool::new(&pd);
    run(device, |endpoint| async move {
        let listener = endpoint.listen_for_messages(ANY, options()).await.unwrap();
        let address = listener.local_addr();
        endpoint.pool().grow(MEMORY).await.unwrap();
        pool.grow(MEMORY).unwrap();
        let calls = tokio::task::spawn_blocking(move || {
            let server = pd.create_channel().connect_messages(address, &pool, options());
            let server = server.unwrap();
            if lends {
                borrow(&server);
                lend(&server);
            }
            call_all(&server).unwrap();
        });
        let client = listener.accept().await.unwrap();
        if lends {
            lend_by_a_task(&client).await;
            borrow_by_a_task(&client).await;
        }
        answer(&client).await;
        calls.await.unwrap();
    });
}
