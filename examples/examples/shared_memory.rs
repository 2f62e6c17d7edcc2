//! One end shares a board of memory. The other end writes records there and counts them. The owner
//! finds them on the board, without any request or completion of its own.

use std::process::ExitCode;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use clap::Parser;
use rdma::memory::RegionMemory;
use rdma::prelude::*;
use rdma_examples::ends::{Ends, OtherEnd};
use rdma_examples_common::{Failure, program};

/// Writes records to the memory of another end, which reads them in place. The ends are two
/// threads, or two processes. In that case, the owner of the memory listens, and the writer
/// connects.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, default_value_t = 100, help = "The number of records in the owner's memory")]
    records: usize,
    #[command(flatten)]
    ends: Ends,
}

const ACCESS: AccessFlags =
    AccessFlags::new().with_local_write().with_remote_write().with_remote_atomic();
const LIMIT: Duration = Duration::from_secs(10);
/// The offset of the record count on the board.
const COUNT: usize = 0;
/// The offset of the first record on the board.
const RECORDS: usize = 64;
/// The size of a record, in bytes.
const RECORD: usize = 32;

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { records, ends } = arguments;
    let line = |line: String| format!("{}: {line}", ends.device());
    ends.run(
        |context, writer| own(context, writer, *records).map(line),
        |context, owner| write(context, owner).map(line),
    )
}

/// Shares the board, and reads each record as soon as the writer has counted it.
fn own(context: &Context, writer: &mut OtherEnd, records: usize) -> Result<String, Failure> {
    let channel = writer.connect(prepare(context)?)?;
    // The memory is a file, so other processes of this machine could map it too.
    let length = records.checked_mul(RECORD).and_then(|bytes| bytes.checked_add(RECORDS));
    let memory = RegionMemory::memfd(
        length.ok_or("this many records need more memory than can be addressed")?,
    )?;
    let board = channel.pd().register_shared(memory, ACCESS).map_err(|(_, error)| error)?;
    writer.lend(board.remote())?;
    writer.ready()?;
    let (count, mut sum) = (board.atomic_u64(COUNT)?, 0);
    for n in 0..records {
        writer.until(|| Ok((count.load(Acquire) > n as u64).then_some(())))?;
        let (place, mut record) = (RECORDS + n * RECORD, [0; RECORD]);
        board.read(place, &mut record)?;
        sum += std::str::from_utf8(&record)?.trim_end_matches('\0').parse::<u64>()?;
        board.write(place, b"seen")?;
    }
    writer.finish()?;
    // No peer can access the memory any more, so its bytes can be read as a slice.
    let memory = board.close().map_err(|(_, error)| error)?;
    let seen = memory[RECORDS..].chunks(RECORD).filter(|record| record.starts_with(b"seen"));
    Ok(format!("{} of {records} records, sum {sum}", seen.count()))
}

/// Writes as many records as fit on the board.
fn write(context: &Context, owner: &mut OtherEnd) -> Result<String, Failure> {
    let channel = owner.connect(prepare(context)?)?;
    let board = owner.borrow()?;
    owner.ready()?;
    let records = board.length().saturating_sub(RECORDS) / RECORD;
    let mut writer = Writer::new(channel)?;
    (0..records).try_for_each(|n| writer.put(board, n))?;
    owner.finish()?;
    Ok(format!("wrote {records} records"))
}

fn prepare(context: &Context) -> Result<PreparedChannel, Failure> {
    Ok(context.allocate_pd()?.create_channel().access(ACCESS).build()?)
}

/// A channel and the memory that its requests use.
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

    /// Writes a record and then counts it. The order is certain, because the requests of a channel
    /// are executed in order.
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
        self.channel.within(LIMIT).batch([write.into(), count.into()])?;
        Ok(())
    }
}
