//! Operations and buffers of a pool allocate no memory once their connection has been used: awaited, posted, dropped,
//! and waiting for a slot. Neither do streams, their halves, or messages in one frame, in several, or lent, also if
//! their pool was full. The test has its own `main`, because the threads of the usual harness allocate, too.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::IoSlice;
use std::iter;

use rdma_async::message::{Messages, Options, ReadHalf, Stream, WriteHalf};
use rdma_async::{Connection, Driver, Endpoint, Pool};
use rdma_mem::{AccessFlags, Buffer, Context, RemoteMemoryRegion, open_device};
use rdma_qp::MaxRnrRetries;
use rdma_qp::prelude::*;
use test_support::alloc_counter::{CountingAllocator, Rounds};
use test_support::program::await_threads;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _,
};
use tokio::join;
use tokio::task::yield_now;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The number of requests that a queue holds.
const DEPTH: u32 = 4;

/// Lengths of messages in one frame and in several, up to more than the peer's credit.
const IN_FRAMES: [usize; 5] = [32 << 10, (32 << 10) + 1, 80_000, 128 << 10, 1 << 20];

/// The receiver copies the first message from its frame, and keeps the frame of the second one. The sender copies the
/// rest of the third one, and the whole fourth one.
const BETWEEN_FULL_POOLS: [usize; 4] = [100, 20_000, 200_000, 2 << 20];

/// Lengths of messages that are posted without waiting. If more than ten arrive while the peer fetches the long one,
/// their list grows on the heap, and shrinks again.
const POSTS: [usize; 8] = [1 << 20, 8, 100, 20_000, 8, 8, 80_000, 8];

struct Rig {
    one: Connection,
    other: Connection,
    board: RemoteMemoryRegion,
    pool: Pool,
    /// More than fit into a queue.
    buffers: Vec<Buffer>,
}

impl Rig {
    fn take(&mut self) -> Buffer {
        self.buffers.pop().unwrap()
    }

    async fn awaited(&mut self) {
        let buffer = self.take();
        let buffer = self.one.write(buffer, self.board).await.unwrap();
        let buffer = self.one.read(buffer, self.board).into_owned(&self.one).await.unwrap();
        self.buffers.push(buffer);
        self.one.fetch_add(self.board, 1).await.unwrap();
    }

    async fn posted(&mut self) {
        let (into, from) = (self.take(), self.take());
        let receive = self.other.receive(into).post().await.unwrap();
        self.buffers.push(self.one.send(from).try_post().unwrap().await.unwrap());
        self.buffers.push(receive.await.unwrap().memory);
    }

    /// More than the queue holds, so the last ones wait for the first ones.
    async fn waiting(&mut self) {
        let (one, board) = (self.one.clone(), self.board);
        let write = |buffer| {
            let one = one.clone();
            async move { one.write(buffer, board).await.unwrap() }
        };
        let [a, b, c, d, e, f] = [(); 6].map(|()| self.take());
        let done = join!(write(a), write(b), write(c), write(d), write(e), write(f));
        self.buffers.extend([done.0, done.1, done.2, done.3, done.4, done.5]);
    }

    /// From registered memory.
    async fn allocated(&mut self) {
        let one = self.pool.allocate(100).await.unwrap();
        let page = self.pool.allocate_aligned(5000, 4096).await.unwrap();
        let other = self.pool.clone().allocate(0).await.unwrap();
        assert_eq!(self.pool.usage().buffers, 11);
        drop((one, page, other));
    }

    /// A message for a dropped receive.
    async fn dropped(&mut self) {
        let (into, from) = (self.take(), self.take());
        drop(self.other.receive(into).try_post().unwrap());
        self.buffers.push(self.one.send(from).await.unwrap());
        let memory = loop {
            match self.other.take_unclaimed() {
                Some(received) => break received.memory.unwrap(),
                None => yield_now().await,
            }
        };
        self.buffers.push(memory.into_inner());
    }
}

/// Returns the ends of a connection for messages.
async fn connect([client, server]: [&Endpoint; 2], options: Options) -> [Messages; 2] {
    let listener = server.listen_for_messages("127.0.0.1:0", options).await.unwrap();
    let client = client.connect_messages(listener.local_addr(), options);
    let (client, server) = join!(client, listener.accept());
    [client.unwrap(), server.unwrap()]
}

/// Returns options with which all messages are sent in frames, and the credit is 128 KiB.
fn in_frames() -> Options {
    Options::new().offer_bytes(0).window_bytes(128 << 10)
}

/// Sends messages of a length in frames, between pools that were full at first.
async fn between_full_pools(context: &Context, length: usize) {
    let endpoints = [(); 2].map(|()| Endpoint::new(context).unwrap());
    let [client, server] = connect(endpoints.each_ref(), in_frames()).await;
    // The first bytes prepare the connection.
    let (sent, first) = join!(client.send(b"first"), server.receive());
    assert!(sent.is_ok() && first.unwrap().is_some());
    let pools = endpoints.each_ref().map(|endpoint| endpoint.pool().as_blocking());
    let kept = pools.map(|pool| {
        let sizes = (6..23).rev().map(|power| 1 << power);
        let fill = |size| iter::from_fn(move || pool.try_allocate(size).unwrap());
        sizes.flat_map(fill).collect::<Vec<_>>()
    });
    let bytes = vec![7; length];
    for round in ALLOCATOR.rounds(format!("{length} between full pools")) {
        if round < 100 {
            // Lets the pools grow, in a task and on a thread.
            yield_now().await;
            await_threads();
            yield_now().await;
        }
        let (sent, received) = join!(client.send(&bytes), server.receive());
        sent.unwrap();
        assert!(*received.unwrap().unwrap() == *bytes);
    }
    drop(kept);
}

/// Returns both ends of a stream.
async fn connect_streams(endpoint: &Endpoint) -> [Stream; 2] {
    let options = Options::new();
    let listener = endpoint.listen_for_streams("127.0.0.1:0", options).await.unwrap();
    let client = endpoint.connect_stream(listener.local_addr(), options);
    let (client, server) = join!(client, listener.accept());
    [client.unwrap(), server.unwrap()]
}

/// Writes all bytes, from several slices at once.
async fn write_slices(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) {
    let (first, rest) = bytes.split_at(100);
    let (second, third) = rest.split_at(rest.len() / 2);
    let mut slices = &mut [first, &[], second, third].map(IoSlice::new)[..];
    while !slices.is_empty() {
        let written = writer.write_vectored(slices).await.unwrap();
        IoSlice::advance_slices(&mut slices, written);
    }
    writer.flush().await.unwrap();
}

/// Reads these bytes where they arrived.
async fn read_in_place(reader: &mut (impl AsyncBufRead + Unpin), mut expected: &[u8]) {
    while !expected.is_empty() {
        let arrived = reader.fill_buf().await.unwrap();
        let (piece, rest) = expected.split_at(arrived.len());
        assert!(arrived == piece);
        reader.consume(piece.len());
        expected = rest;
    }
}

/// Both ends of streams, and of connections for messages.
struct Talk {
    streams: [Stream; 2],
    halves: [(ReadHalf, WriteHalf); 2],
    messages: [Messages; 2],
    /// With the options of [`in_frames`].
    frames: [Messages; 2],
}

impl Talk {
    async fn new(endpoint: &Endpoint) -> Self {
        let streams = connect_streams(endpoint).await;
        let halves = connect_streams(endpoint).await.map(Stream::into_split);
        let endpoints = [endpoint; 2];
        let messages = connect(endpoints, Options::new()).await;
        let frames = connect(endpoints, in_frames()).await;
        Self { streams, halves, messages, frames }
    }

    /// An echo over the stream, in which either end waits for the other.
    async fn stream(&mut self) {
        let [client, server] = &mut self.streams;
        let echo = async {
            let mut text = [0; 100];
            server.read_exact(&mut text).await.unwrap();
            server.write_all(&text).await.unwrap();
        };
        let ask = async {
            client.write_all(&[7; 100]).await.unwrap();
            let chunk = client.read_chunk().await.unwrap().unwrap();
            assert_eq!(*chunk, [7; 100]);
        };
        join!(echo, ask);
    }

    /// The same bytes in both directions, in many frames.
    async fn slices(&mut self, bytes: &[u8]) {
        let [client, server] = &mut self.streams;
        join!(write_slices(client, bytes), read_in_place(server, bytes));
        join!(write_slices(server, bytes), read_in_place(client, bytes));
    }

    /// The same, at once, from the halves of a stream. One end sends back the chunks that arrive.
    async fn halves(&mut self, bytes: &[u8]) {
        let [(reader, writer), (server_reader, server_writer)] = &mut self.halves;
        let echo = async {
            let mut echoed = 0;
            while echoed < bytes.len() {
                let chunk = server_reader.read_chunk().await.unwrap().unwrap();
                server_writer.write_all(&chunk).await.unwrap();
                echoed += chunk.len();
            }
        };
        join!(echo, write_slices(writer, bytes), read_in_place(reader, bytes));
    }

    /// Messages in flight together: a long one, lent or in frames, and short ones after it.
    async fn posts(&mut self, bytes: &[u8]) {
        for [client, server] in [&self.messages, &self.frames] {
            let post = async {
                for message in POSTS.map(|length| &bytes[..length]) {
                    client.post(message).await.unwrap();
                }
                client.flush().await.unwrap();
            };
            let receive = async {
                for message in POSTS.map(|length| &bytes[..length]) {
                    assert!(*server.receive().await.unwrap().unwrap() == *message);
                }
            };
            join!(post, receive);
        }
    }

    /// Sixteen messages that wait for futures, and then sixteen futures that wait for messages. The lists of both have
    /// their largest size in each round.
    async fn crowd(&mut self) {
        let [client, server] = &self.messages;
        let receive = || async { assert_eq!(server.receive().await.unwrap().unwrap().len(), 8) };
        let pair = || async { join!(receive(), receive()) };
        let four = || async { join!(pair(), pair()) };
        let send = || async {
            for _ in 0..16 {
                client.post(&[7; 8]).await.unwrap();
            }
            client.flush().await.unwrap();
        };
        send().await;
        join!(four(), four(), four(), four());
        join!(four(), four(), four(), four(), send());
    }

    /// A message that is lent, and its memory, which is lent in turn.
    async fn long_messages(&mut self, bytes: &[u8]) {
        let [client, server] = &self.messages;
        let echo = async {
            let message = server.receive().await.unwrap().unwrap();
            server.send_buffer(message.into_buffer().await.unwrap()).await.unwrap();
        };
        let ask = async {
            client.send(bytes).await.unwrap();
            assert_eq!(client.receive().await.unwrap().unwrap().len(), bytes.len());
        };
        join!(echo, ask);
    }

    /// A message in frames, and the same one back, over a connection with its own options.
    async fn in_frames(&mut self, bytes: &[u8]) {
        let [client, server] = &self.frames;
        let echo = async {
            let message = server.receive().await.unwrap().unwrap();
            server.send(&message).await.unwrap();
        };
        let ask = async {
            client.send(bytes).await.unwrap();
            assert_eq!(*client.receive().await.unwrap().unwrap(), *bytes);
        };
        join!(echo, ask);
    }

    /// A message and a call.
    async fn messages(&mut self) {
        let [client, server] = &self.messages;
        let serve = async {
            assert_eq!(server.receive().await.unwrap().unwrap().len(), 100);
            server.receive().await.unwrap().unwrap().reply(b"answer").await.unwrap();
        };
        let ask = async {
            client.send(&[7; 100]).await.unwrap();
            assert_eq!(*client.call(b"question").await.unwrap(), *b"answer");
        };
        join!(serve, ask);
    }
}

fn main() {
    rdma_soft::install();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // When the budget of a task is spent, tokio allocates memory to run it later.
    runtime.block_on(tokio::task::unconstrained(async {
        let context = open_device("soft0").unwrap();
        let pd = context.allocate_pd().unwrap();
        let access = AccessFlags::new().with_local_write().with_remote_write();
        let access = access.with_remote_read().with_remote_atomic();
        let driver = Driver::spawn(&context).unwrap();
        let prepare = || {
            let qp = pd.create_qp().access(access).max_rnr_retries(MaxRnrRetries::unlimited());
            driver.prepare(qp.max_send_wr(DEPTH).max_recv_wr(DEPTH)).unwrap()
        };
        let (one, other) = (prepare(), prepare());
        let (at_one, at_other) = (one.endpoint(), other.endpoint());
        let board = pd.allocate_shared_region(8, access).unwrap();
        let pool = Pool::new(&pd);
        let mut rig = Rig {
            one: one.handshake(at_other).unwrap(),
            other: other.handshake(at_one).unwrap(),
            board: board.remote(),
            buffers: (0..8).map(|_| pool.as_blocking().allocate(8).unwrap()).collect(),
            pool,
        };
        let mut talk = Talk::new(&Endpoint::new(&context).unwrap()).await;
        let long = vec![7; 1 << 20];
        // The first rounds register the words of atomic operations, and grow the lists.
        for _ in ALLOCATOR.rounds("operations and messages") {
            rig.awaited().await;
            rig.posted().await;
            rig.waiting().await;
            rig.dropped().await;
            rig.allocated().await;
            talk.stream().await;
            talk.slices(&long).await;
            talk.halves(&long).await;
            talk.posts(&long).await;
            talk.messages().await;
            talk.crowd().await;
            talk.long_messages(&long).await;
            for length in IN_FRAMES {
                talk.in_frames(&long[..length]).await;
            }
        }
        assert_eq!(rig.buffers.len(), 8);
        for length in BETWEEN_FULL_POOLS {
            between_full_pools(&context, length).await;
        }
    }));
    println!(
        "no allocation in {} rounds of 11 operations, 3 buffers, 6 transfers over streams and 63 messages",
        Rounds::QUIET
    );
}
