//! One end lends a board of memory to the other, which writes records there and counts them. The owner
//! finds them on the board, without a request or a completion of its own.

use std::sync::atomic::Ordering::Acquire;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_channel::{Channel, PreparedChannel, prelude::*};
use rdma_mem::{
    AccessFlags, GatherList, OwnedRegion, RegionMemory, RemoteMemoryRegion, ScatterList,
};
use rdma_qp::{AtomicWorkRequest, WriteWorkRequest};

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
                    return Err("nothing comes from the writer".into());
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

fn prepare(device: &str) -> Result<PreparedChannel, Failure> {
    let pd = rdma_mem::open_device(device)?.allocate_pd()?;
    Ok(pd.create_channel().access(ACCESS).build()?)
}

/// A channel, and the memory that its requests use.
struct Writer {
    channel: Channel,
    record: OwnedRegion,
    before: OwnedRegion,
}

impl Writer {
    fn new(channel: Channel) -> Result<Self, Failure> {
        let pd = channel.pd();
        let (record, before) = (pd.allocate_region(RECORD)?, pd.allocate_region(8)?);
        Ok(Self { channel, record, before })
    }

    /// Writes a record and counts it: requests of a channel are executed in order.
    fn put(&mut self, board: RemoteMemoryRegion, n: usize) -> Result<(), Failure> {
        let (text, place) = (n.to_string(), RECORDS + n * RECORD);
        self.record.fill(0);
        self.record[..text.len()].copy_from_slice(text.as_bytes());
        let data = GatherList::from([self.record.as_slice()]);
        let place = board.slice(place..place + RECORD).ok_or("the board is too short")?;
        let count = board.typed::<u64>(COUNT).ok_or("the board is too short")?;
        let mut before = ScatterList::from([self.before.as_slice_mut()]);
        let write = WriteWorkRequest::from_list(&data, place);
        let count = AtomicWorkRequest::fetch_and_add(&mut before, count, 1);
        self.channel.batch_timeout([write.into(), count.into()], LIMIT)?;
        Ok(())
    }
}
