//! One end lends a board of memory to the other, which writes records there and counts them. The owner
//! finds them on the board, without a request or a completion of its own.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Acquire;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_mem::{AccessFlags, OwnedRegion, RegionMemory, RemoteMemoryRegion, ScatterList};
use rdma_qp::{
    AtomicWorkRequest, CompletionQueue, PollSlot, PreparedQueuePair, QueuePair, WriteWorkRequest,
    prelude::*,
};

/// Writes records into memory of another end, which reads them where they are.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, default_value_t = 100, help = "How many records")]
    records: usize,
}

const ACCESS: AccessFlags =
    AccessFlags::new().with_local_write().with_remote_write().with_remote_atomic();
const LIMIT: Duration = Duration::from_secs(10);
/// At the beginning of the board, how many records there are; the records behind it.
const COUNT: usize = 0;
const RECORDS: usize = 64;
const RECORD: usize = 32;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    println!("{}", run(&Arguments::parse())?);
    Ok(())
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { device, records } = arguments;
    rdma_soft::install();
    let (owner, writer) = (prepare(device)?, prepare(device)?);
    let (owner_end, writer_end) = (owner.endpoint(), writer.endpoint());
    let (owner, writer) = (owner.handshake(writer_end)?, writer.handshake(owner_end)?);
    // A file in memory, so that other processes of this machine could look on, too.
    let memory = RegionMemory::memfd(RECORDS + records * RECORD)?;
    let board = owner.pd().register_shared(memory, ACCESS).map_err(|(_, error)| error)?;
    let remote = board.remote(); // what a writer on another machine would be sent
    let mut sum = 0;
    thread::scope(|threads| {
        let mut writer = Writer::new(writer)?;
        let writing = threads.spawn(move || (0..*records).try_for_each(|n| writer.put(remote, n)));
        for n in 0..*records {
            let (count, begin) = (board.atomic_u64(COUNT)?, Instant::now());
            while count.load(Acquire) <= n as u64 {
                if begin.elapsed() > LIMIT {
                    return Err("the writer is silent".into());
                }
                thread::yield_now();
            }
            let (place, mut record) = (RECORDS + n * RECORD, [0; RECORD]);
            board.read(place, &mut record)?;
            sum += std::str::from_utf8(&record)?.trim_end_matches('\0').parse::<u64>()?;
            board.write(place, b"seen")?;
        }
        writing.join().map_err(|_| "the writer panicked")?
    })?;
    // Nobody else reaches the memory any more: plain bytes.
    let memory = board.close().map_err(|(_, error)| error)?;
    let seen = memory[RECORDS..].chunks(RECORD).filter(|record| record.starts_with(b"seen"));
    Ok(format!("{device}: {} of {records} records, sum {sum}", seen.count()))
}

fn prepare(device: &str) -> Result<PreparedQueuePair, Failure> {
    let context = rdma_mem::open_device(device)?;
    let cq = CompletionQueue::create(&context, 4)?;
    let pd = context.allocate_pd()?;
    let builder = pd.create_qp().send_cq(&cq).recv_cq(&cq).access(ACCESS);
    Ok(builder.max_send_wr(2).max_recv_wr(2).build()?)
}

/// A queue pair, and the memory that its requests use, which is freed after it.
struct Writer {
    qp: QueuePair,
    record: OwnedRegion,
    before: OwnedRegion,
}

impl Writer {
    fn new(qp: QueuePair) -> Result<Self, Failure> {
        let (record, before) = (qp.pd().allocate_region(RECORD)?, qp.pd().allocate_region(8)?);
        Ok(Self { qp, record, before })
    }

    /// Writes a record and counts it: requests of a queue pair are executed in order.
    fn put(&mut self, board: RemoteMemoryRegion, n: usize) -> Result<(), Failure> {
        let (text, place) = (n.to_string(), RECORDS + n * RECORD);
        self.record.fill(0);
        self.record[..text.len()].copy_from_slice(text.as_bytes());
        let data = [self.record.as_slice().gather_element()];
        let place = board.slice(place..place + RECORD).ok_or("the board is too short")?;
        let count = board.typed::<u64>(COUNT).ok_or("the board is too short")?;
        let mut before = ScatterList::from([self.before.as_slice_mut()]);
        // SAFETY: SAFETY.md F8: nothing writes the record before both are done.
        unsafe { self.qp.post_write(WriteWorkRequest::new(&data, place), 1) }?;
        // SAFETY: SAFETY.md F8: nothing looks at `before` before both are done.
        unsafe { self.qp.post_atomic(AtomicWorkRequest::fetch_and_add(&mut before, count, 1), 2) }?;
        let (begin, mut done, mut slots) = (Instant::now(), 0, [PollSlot::default(); 2]);
        while done < 2 && begin.elapsed() < LIMIT {
            for completion in self.qp.send_cq().poll(&mut slots)? {
                completion.result()?;
                done += 1;
            }
        }
        if done == 2 { Ok(()) } else { Err("the board's owner is silent".into()) }
    }
}
