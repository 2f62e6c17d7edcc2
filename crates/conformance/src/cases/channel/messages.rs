//! Cases for messages, calls and streams: between threads, between tasks, and between a thread and a task.

use std::future::Future;
use std::io::{self, Read as _, Write as _};
use std::thread;

use rdma_async::Endpoint;
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
    a_thread_and_a_task_lend_long_messages_to_each_other,
];

const ANY: &str = "127.0.0.1:0";

/// Some lengths: of one frame, of two, and of messages that are lent.
const LENGTHS: [usize; 5] = [8, 40_000, 150_000, 200_000, 0];

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
    let (pool, options) = (BufferPool::new(&pd), Options::new());
    let mut listener = pd.create_channel().listen_for_messages(ANY, &pool, options).unwrap();
    let address = listener.local_addr();
    thread::scope(|threads| {
        threads.spawn(|| answer_all(&listener.accept().unwrap()).unwrap());
        let server = pd.create_channel().connect_messages(address, &pool, options).unwrap();
        call_all(&server).unwrap();
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

fn messages_and_calls_pass_between_tasks(device: &Device) {
    run(device, |endpoint| async move {
        let listener = endpoint.listen_for_messages(ANY, Options::new()).await.unwrap();
        let server = endpoint.connect_messages(listener.local_addr(), Options::new());
        let (server, client) = tokio::join!(server, listener.accept());
        let (server, client) = (server.unwrap(), client.unwrap());
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
async fn answer(end: &rdma_async::message::Messages) {
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

fn a_thread_and_a_task_lend_long_messages_to_each_other(device: &Device) {
    let pd = open(device).allocate_pd().unwrap();
    let pool = BufferPool::new(&pd);
    run(device, |endpoint| async move {
        let listener = endpoint.listen_for_messages(ANY, Options::new()).await.unwrap();
        let address = listener.local_addr();
        let calls = tokio::task::spawn_blocking(move || {
            let server = pd.create_channel().connect_messages(address, &pool, Options::new());
            call_all(&server.unwrap()).unwrap();
        });
        answer(&listener.accept().await.unwrap()).await;
        calls.await.unwrap();
    });
}
