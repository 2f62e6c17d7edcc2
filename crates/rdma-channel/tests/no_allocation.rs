//! Operations allocate no memory and make no system call, in any form. Streams allocate no memory, nor do messages, in
//! one frame, in several, or lent, also if their pool was full. The test has its own `main`, because the threads of the
//! usual harness allocate, too.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{self, BufRead as _, IoSlice, Write as _};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdma_channel::message::{Messages, Options, ReadHalf, Stream, WriteHalf};
use rdma_channel::{Channel, InFlight, ScopedPendingWork, TransportError, Wait, prelude::*};
use rdma_mem::{
    AccessFlags, BufferPool, GatherList, OwnedRegion, ProtectionDomain, ScatterList, SharedRegion,
    SliceMut,
};
use rdma_qp::{
    AtomicWorkRequest, MaxRnrRetries, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest,
    WriteWorkRequest,
};
use rdma_soft::{Builder, Schedule};
use test_support::alloc_counter::CountingAllocator;
use test_support::program::{await_threads, is_emulated, this_program};
use test_support::system_calls::{end_at_first_system_call, first_system_call};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const SECONDS: Duration = Duration::from_secs(20);
const DEPTH: usize = 16;
const LENGTH: usize = 8;
const LATE: &str = "late0";
/// The receiver copies the first message from its frame, and keeps the frame of the second one. The sender copies the
/// rest of the third one, and the whole fourth one.
const BETWEEN_FULL_POOLS: [usize; 4] = [100, 20_000, 200_000, 2 << 20];
/// Lengths of messages that are posted without waiting. If more than ten arrive while the peer fetches the long one,
/// their list grows on the heap, and shrinks again.
const POSTS: [usize; 8] = [1 << 20, 8, 100, 20_000, 8, 8, 80_000, 8];
/// The number of bytes of a stream in a round.
const STREAMED: usize = 1 << 20;

type Outcome = Result<(), TransportError>;
type Work = fn(&mut Rig) -> Outcome;

/// A channel to itself, another to it and back, and their memory.
struct Rig {
    looped: Channel,
    here: Channel,
    there: Channel,
    source: OwnedRegion,
    target: OwnedRegion,
    board: SharedRegion,
}

impl Rig {
    fn new(device: &str) -> Self {
        let pd = rdma_mem::open_device(device).unwrap().allocate_pd().unwrap();
        let access = AccessFlags::new()
            .with_local_write()
            .with_remote_read()
            .with_remote_write()
            .with_remote_atomic();
        // A message may arrive before its receive is posted.
        let patient = MaxRnrRetries::unlimited();
        let prepare = || pd.create_channel().access(access).max_rnr_retries(patient).build();
        let prepare = || prepare().unwrap();
        let (looped, here, there) = (prepare(), prepare(), prepare());
        let (itself, here_end, there_end) = (looped.endpoint(), here.endpoint(), there.endpoint());
        let region = |pd: &ProtectionDomain| pd.allocate_region(DEPTH * LENGTH).unwrap();
        Self {
            looped: looped.handshake(itself).unwrap(),
            here: here.handshake(there_end).unwrap(),
            there: there.handshake(here_end).unwrap(),
            source: region(&pd),
            target: region(&pd),
            board: pd.allocate_shared_region(DEPTH * LENGTH, access).unwrap(),
        }
    }
}

const WORK: [(&str, Work); 7] = [
    ("blocking", blocking),
    ("a scope of one", scope_of_one),
    ("a scope of many", scope_of_many),
    ("rented", rented),
    ("handles that are dropped", unasked),
    ("batches", batches),
    ("refusals", refusals),
];

/// Environment variable of a child: the work that it does. The kernel stops its first system call.
const FILTERED: &str = "RDMA_TEST_FILTERED";

fn main() {
    rdma_soft::install();
    if let Ok(name) = std::env::var(FILTERED) {
        let work = WORK.iter().find(|work| work.0 == name);
        return without_system_calls(work.map_or(call_the_kernel, |work| work.1));
    }
    Builder::new(LATE).schedule(Schedule::Deferred { seed: 7 }).install().unwrap();
    for device in ["soft0", LATE] {
        let mut rig = Rig::new(device);
        start_timer(&mut rig);
        await_threads();
        for (name, work) in WORK {
            for round in 0..200 {
                let before = ALLOCATOR.allocations();
                work(&mut rig).unwrap();
                let allocated = ALLOCATOR.allocations() - before;
                // The first rounds may fill the pools of the device and the runtime.
                assert!(
                    round < 20 || allocated == 0,
                    "{device}, {name}: {allocated} allocations in round {round}"
                );
            }
        }
        let strays = [&rig.looped, &rig.here, &rig.there].map(Channel::stray_completions);
        assert_eq!(strays, [0; 3], "{device}");
        across_threads(rig);
    }
    for wait in [Wait::Spin, Wait::Sleep] {
        messages(wait, Options::new());
        // The longest messages need more than the peer's credit.
        messages(wait, in_frames());
        posts(wait, Options::new());
        posts(wait, in_frames());
        streams(wait);
        for length in BETWEEN_FULL_POOLS {
            between_full_pools(wait, length);
        }
    }
    println!("no allocation: ok");
    if is_emulated() {
        return println!("system calls: skipped, the emulator refuses filters");
    }
    let first = |name| first_system_call(this_program().env(FILTERED, name));
    assert_eq!(first("a call").map(i64::from), Some(libc::SYS_getppid), "the filter sees none");
    for (name, _) in WORK {
        assert_eq!(first(name), None, "{name}: the number of the first system call");
    }
    println!("no system call: ok");
}

fn without_system_calls(work: Work) {
    let mut rig = Rig::new("soft0");
    // The first rounds fill the pools, like above.
    (0..20).for_each(|_| work(&mut rig).unwrap());
    end_at_first_system_call(|| (0..20).for_each(|_| work(&mut rig).unwrap()));
}

fn call_the_kernel(_: &mut Rig) -> Outcome {
    let _ = rustix::process::getppid();
    Ok(())
}

/// Starts the thread of a device that defers its work, which allocates. While no thread polls, only that thread
/// executes this request.
fn start_timer(rig: &mut Rig) {
    let word = rig.board.atomic_u64(0).unwrap();
    let remote = rig.board.remote().slice(0..8).unwrap();
    rig.looped
        .scope(|s| {
            let handle = s.fetch_add(remote, 1)?;
            while word.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            handle.wait(SECONDS)?;
            Ok::<_, TransportError>(())
        })
        .unwrap();
}

/// Performs each operation except a receive.
fn blocking(rig: &mut Rig) -> Outcome {
    let Rig { looped, here, there, source, target, board } = rig;
    let list = GatherList::from([source.as_slice()]);
    looped.write(WriteWorkRequest::from_list(&list, board.remote()))?;
    let mut room = ScatterList::from([target.as_slice_mut()]);
    looped.read(ReadWorkRequest::from_list(&mut room, board.remote()))?;
    let word = board.remote().slice(0..8).unwrap();
    let mut result = ScatterList::from([target.get_mut(0, 8).unwrap()]);
    looped.atomic(AtomicWorkRequest::compare_and_swap(&mut result, word, 0, 1))?;
    looped.atomic(AtomicWorkRequest::fetch_and_add(&mut result, word, 1))?;
    here.scope(|s| {
        let mut room = ScatterList::from([target.as_slice_mut()]);
        s.post_receive(ReceiveWorkRequest::from_list(&mut room))?;
        there.send(SendWorkRequest::from_list(&list))?;
        Ok::<_, TransportError>(())
    })
    .map_err(unwrap_scope)
}

/// Performs blocking sends, and blocking receives on another thread.
fn across_threads(rig: Rig) {
    const MESSAGES: usize = 400;
    let Rig { mut here, mut there, .. } = rig;
    let receiver = thread::spawn(move || {
        let mut counts = [0; MESSAGES];
        // The first event of a completion channel creates a list, whenever a channel first sleeps.
        let _ = there.arm().unwrap();
        there.receive(ReceiveWorkRequest::only_immediate()).unwrap();
        let _ = there.arm().unwrap();
        for count in &mut counts {
            there.receive(ReceiveWorkRequest::only_immediate()).unwrap();
            *count = ALLOCATOR.allocations();
        }
        counts
    });
    let _ = here.arm().unwrap();
    here.send(SendWorkRequest::only_immediate(1)).unwrap();
    let _ = here.arm().unwrap();
    for _ in 0..MESSAGES {
        here.send(SendWorkRequest::only_immediate(1)).unwrap();
    }
    let counts = receiver.join().unwrap();
    // At first, devices and threads allocate what they need.
    assert_eq!(counts[MESSAGES - 1] - counts[MESSAGES / 2], 0, "between threads");
}

/// Returns options with which all messages are sent in frames, and the credit is 128 KiB.
fn in_frames() -> Options {
    Options::new().offer_bytes(0).window_bytes(128 << 10)
}

/// Sends messages of a length in frames, between pools that were full at first.
fn between_full_pools(wait: Wait, length: usize) {
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let pools = [(); 2].map(|()| BufferPool::new(&pd));
    let channel = || pd.create_channel().wait(wait);
    let mut listener =
        channel().listen_for_messages("127.0.0.1:0", &pools[1], in_frames()).unwrap();
    let address = listener.local_addr();
    let server = thread::spawn(move || {
        let client: Messages = listener.accept().unwrap();
        while let Some(message) = client.receive().unwrap() {
            // One round follows another.
            assert_eq!(message.len(), length);
            client.send(&[]).unwrap();
        }
    });
    let client = channel().connect_messages(address, &pools[0], in_frames()).unwrap();
    let bytes = vec![7; length];
    let mut kept = Vec::new();
    for round in ALLOCATOR.rounds(format!("{wait:?}, {length} between full pools")) {
        client.send(&bytes).unwrap();
        assert!(client.receive().unwrap().unwrap().is_empty());
        if round == 0 {
            // After the connection has allocated what it needs.
            for pool in &pools {
                let sizes = (6..23).rev().map(|power| 1 << power);
                let fill = |size| iter::from_fn(move || pool.try_allocate(size).unwrap());
                kept.extend(sizes.flat_map(fill));
            }
        }
    }
    client.finish().unwrap();
    server.join().unwrap();
}

/// Connects to a thread that serves the other end.
fn connect(
    pool: &BufferPool,
    wait: Wait,
    options: Options,
    serve: impl FnOnce(Messages) + Send + 'static,
) -> (Messages, JoinHandle<()>) {
    let channel = || pool.pd().create_channel().wait(wait);
    let mut listener = channel().listen_for_messages("127.0.0.1:0", pool, options).unwrap();
    let address = listener.local_addr();
    let server = thread::spawn(move || serve(listener.accept().unwrap()));
    let client = channel().connect_messages(address, pool, options).unwrap();
    (client, server)
}

/// Sends messages of several lengths to a thread that sends them back.
fn messages(wait: Wait, options: Options) {
    const LENGTHS: [usize; 7] =
        [8, 20_000, 32 << 10, (32 << 10) + 1, 256 << 10, (256 << 10) + 1, 1 << 20];
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let pool = BufferPool::new(&pd);
    let (client, server) = connect(&pool, wait, options, |client| {
        while let Some(message) = client.receive().unwrap() {
            client.send(&message).unwrap();
        }
    });
    let bytes = vec![7; 1 << 20];
    for _ in ALLOCATOR.rounds(format!("{wait:?}, {options:?}")) {
        for length in LENGTHS {
            client.send(&bytes[..length]).unwrap();
            assert_eq!(*client.receive().unwrap().unwrap(), bytes[..length]);
        }
    }
    client.finish().unwrap();
    server.join().unwrap();
}

/// Posts messages without waiting for each, writes to a region, and then calls the peer's thread.
fn posts(wait: Wait, options: Options) {
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let board = pd.allocate_shared_region(4096, access).unwrap();
    let pool = BufferPool::new(&pd);
    let (client, server) = connect(&pool, wait, options, |client| {
        while let Some(message) = client.receive().unwrap() {
            if message.is_request() {
                message.reply(b"all").unwrap();
            }
        }
    });
    let bytes = vec![7; 1 << 20];
    for _ in ALLOCATOR.rounds(format!("{wait:?}, {options:?}, posts")) {
        for length in POSTS {
            client.post(&bytes[..length]).unwrap();
        }
        client.flush().unwrap();
        let buffer = pool.allocate(4096).unwrap();
        drop(client.write(buffer, 0..4096, board.remote()).wait().unwrap());
        assert_eq!(*client.call(b"?").unwrap(), *b"all");
    }
    client.finish().unwrap();
    server.join().unwrap();
}

/// Writes slices with one half of a stream to a thread that sends them back, and reads them with the other half.
fn streams(wait: Wait) {
    let pd = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
    let (pool, options) = (BufferPool::new(&pd), Options::new());
    let channel = || pd.create_channel().wait(wait);
    let mut listener = channel().listen_for_streams("127.0.0.1:0", &pool, options).unwrap();
    let address = listener.local_addr();
    let server = thread::spawn(move || {
        let mut client: Stream = listener.accept().unwrap();
        while let Some(chunk) = client.read_chunk().unwrap() {
            client.write_all(&chunk).unwrap();
        }
        client.shutdown().unwrap();
    });
    let (reader, writer) = channel().connect_stream(address, &pool, options).unwrap().into_split();
    let is_enough = Arc::new(AtomicBool::new(false));
    let writer = thread::spawn({
        let is_enough = Arc::clone(&is_enough);
        move || write_slices(writer, &is_enough)
    });
    read_in_place(reader, wait, &is_enough);
    writer.join().unwrap();
    server.join().unwrap();
}

/// Writes many frames in each round, from several slices at once, until the reader has read enough.
fn write_slices(mut writer: WriteHalf, is_enough: &AtomicBool) {
    let bytes = vec![7; STREAMED];
    let (first, rest) = bytes.split_at(100);
    let (second, third) = rest.split_at(STREAMED / 2);
    while !is_enough.load(Ordering::Relaxed) {
        let mut slices = &mut [first, &[], second, third].map(IoSlice::new)[..];
        while !slices.is_empty() {
            let written = writer.write_vectored(slices).unwrap();
            IoSlice::advance_slices(&mut slices, written);
        }
        writer.flush().unwrap();
    }
    writer.shutdown().unwrap();
}

/// Reads bytes where they arrived, until the rounds are enough, and then the rest.
fn read_in_place(mut reader: ReadHalf, wait: Wait, is_enough: &AtomicBool) {
    let bytes = vec![7; STREAMED];
    for _ in ALLOCATOR.rounds(format!("{wait:?}, streams")) {
        let mut expected = &bytes[..];
        while !expected.is_empty() {
            let arrived = reader.fill_buf().unwrap();
            let count = arrived.len().min(expected.len());
            let (piece, rest) = expected.split_at(count);
            assert!(arrived[..count] == *piece);
            reader.consume(count);
            expected = rest;
        }
    }
    is_enough.store(true, Ordering::Relaxed);
    let rest = io::copy(&mut reader, &mut io::sink()).unwrap();
    assert_eq!(rest % STREAMED as u64, 0);
}

fn unwrap_scope(error: rdma_channel::ScopeError) -> TransportError {
    match error {
        rdma_channel::ScopeError::ClosureError(error) => error,
        other => panic!("{other}"),
    }
}

fn scope_of_one(rig: &mut Rig) -> Outcome {
    let Rig { looped, source, target, board, .. } = rig;
    let list = GatherList::from([source.as_slice()]);
    looped.manual_scope(|s| {
        let write = WriteWorkRequest::from_list(&list, board.remote());
        s.post_write(write)?.spin_poll()?;
        Ok::<_, TransportError>(())
    })?;
    looped.manual_scope(|s| {
        let mut room = ScatterList::from([target.get_mut(0, 8).unwrap()]);
        let word = board.remote().slice(0..8).unwrap();
        s.post_atomic(AtomicWorkRequest::fetch_and_add(&mut room, word, 1))?.spin_poll()?;
        Ok::<_, TransportError>(())
    })
}

/// Posts as many requests as the queues can hold, and one more, which waits for a free slot.
fn scope_of_many(rig: &mut Rig) -> Outcome {
    let Rig { looped, source, target, board, .. } = rig;
    looped.manual_scope(|s| {
        let mut rest = target.as_slice_mut();
        let mut pending: [Option<(ScopedPendingWork<'_>, ScopedPendingWork<'_>)>; DEPTH] =
            Default::default();
        for (i, place) in pending.iter_mut().enumerate() {
            let (slot, after) = rest.split_at(LENGTH);
            rest = after;
            let mut room = ScatterList::from([slot]);
            let arrival = s.post_receive(ReceiveWorkRequest::from_list(&mut room))?;
            let list = GatherList::from([source.get_ref(i * LENGTH, LENGTH).unwrap()]);
            *place = Some((arrival, s.post_send(SendWorkRequest::from_list(&list))?));
        }
        // Polls in reverse order, so that each poll finds a completion of another request.
        for (arrival, sending) in pending.iter().rev().flatten() {
            assert_eq!(arrival.spin_poll()?.scattered_bytes(), Some(LENGTH));
            sending.wait(SECONDS)?;
            assert!(sending.poll().is_some_and(|result| result.is_ok()));
        }
        let list = GatherList::from([source.as_slice()]);
        let write = WriteWorkRequest::from_list(&list, board.remote());
        pending = Default::default();
        let (first, second) = (s.post_write(write.signaled(false))?, s.post_write(write)?);
        second.spin_poll()?;
        first.spin_poll()?;
        drop(pending);
        Ok::<_, TransportError>(())
    })
}

fn rented(rig: &mut Rig) -> Outcome {
    let Rig { looped, source, target, board, .. } = rig;
    looped.manual_scope(|s| {
        let mut rest = target.as_slice_mut();
        let mut pending: [Option<InFlight<'_, SliceMut<'_>>>; DEPTH] = Default::default();
        for (i, place) in pending.iter_mut().enumerate() {
            let (slot, after) = rest.split_at(LENGTH);
            rest = after;
            let remote = board.remote().slice(i * LENGTH..(i + 1) * LENGTH).unwrap();
            *place = Some(s.read_into(slot, remote)?);
        }
        for handle in pending.into_iter().rev().flatten() {
            handle.wait(SECONDS).unwrap().result?;
        }
        let mut from = source.as_slice_mut();
        for _ in 0..4 {
            let sent = s.write_from(from, board.remote())?;
            from = sent.wait(SECONDS).unwrap().buf;
        }
        Ok::<_, TransportError>(())
    })
}

/// Drops the handles, so that the scope ends the requests.
fn unasked(rig: &mut Rig) -> Outcome {
    let Rig { looped, source, board, .. } = rig;
    let list = GatherList::from([source.as_slice()]);
    looped
        .scope(|s| {
            for _ in 0..2 * DEPTH {
                s.post_write(WriteWorkRequest::from_list(&list, board.remote()))?;
            }
            Ok::<_, TransportError>(())
        })
        .map_err(unwrap_scope)
}

fn batches(rig: &mut Rig) -> Outcome {
    let Rig { looped, source, board, .. } = rig;
    let list = GatherList::from([source.as_slice()]);
    let write = WriteWorkRequest::from_list(&list, board.remote());
    looped.batch([write.signaled(false).into(), write.into()])?;
    looped.manual_scope(|s| {
        for handle in s.post_batch([write.signaled(false).into(), write.into()])?.iter().rev() {
            handle.spin_poll()?;
        }
        Ok::<_, TransportError>(())
    })
}

/// Posts repeatedly to full queues. Other refusals allocate what they name.
fn refusals(rig: &mut Rig) -> Outcome {
    let Rig { looped, target, .. } = rig;
    looped.manual_scope(|s| {
        let mut pending: [Option<ScopedPendingWork<'_>>; DEPTH] = Default::default();
        for place in &mut pending {
            *place = Some(s.post_receive(ReceiveWorkRequest::only_immediate())?);
        }
        let full = s.receive_into(target.as_slice_mut()).unwrap_err();
        assert!(matches!(full.error, TransportError::WouldBlock) && full.buf.is_some());
        for work in pending.iter().flatten() {
            s.post_send(SendWorkRequest::only_immediate(1))?.spin_poll()?;
            work.spin_poll()?;
        }
        Ok::<_, TransportError>(())
    })
}
