//! One publisher and many readers. While the publisher's memory is open to the readers, they read
//! it without involving the publisher. Afterwards, only the publisher can access it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use clap::builder::NonEmptyStringValueParser;
use rdma::aio::{ConnectionOptions, Descriptor, Driver, Incoming, Listener, Region};
use rdma::prelude::*;
use rdma_examples_common::{Failure, print, program, warn};
use tokio::task::JoinSet;

/// A board that readers read by RDMA, for a limited time
#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, value_name = "ADDRESS", help = "Publish the board to readers that connect here")]
    listen: Option<String>,
    #[arg(long, value_name = "ADDRESS", conflicts_with = "listen", help = "Read this board")]
    connect: Option<String>,
    /// Close the board when this number of readers have read it
    #[arg(long, default_value_t = 3)]
    readers: usize,
    /// Close the board after this number of milliseconds in any case
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    time: u64,
    /// The text on the board
    #[arg(long, default_value = "no trains today", value_parser = NonEmptyStringValueParser::new())]
    text: String,
}

/// The time that must be left when a read begins.
const MARGIN: Duration = Duration::from_millis(1);

fn main() -> ExitCode {
    program(|arguments| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(run(arguments))
    })
}

async fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { device, listen, connect, readers, .. } = arguments;
    let context = open_device(device)?;
    let pd = context.allocate_pd()?;
    let driver = Driver::spawn(&context)?;
    if let Some(address) = connect {
        return read(&driver, &pd, address).await;
    }
    let address = listen.as_deref().unwrap_or("127.0.0.1:0");
    let listener = driver.listen(address, ConnectionOptions::new(&pd)).await?;
    let address = listener.local_addr().to_string();
    if listen.is_some() {
        print(&format!("listening on {address}"))?;
        return publish(listener, &pd, arguments).await;
    }
    let mut tasks = JoinSet::new();
    for _ in 0..*readers {
        let (driver, pd, address) = (driver.clone(), pd.clone(), address.clone());
        tasks.spawn(async move { read(&driver, &pd, &address).await });
    }
    let said = publish(listener, &pd, arguments).await?;
    while let Some(text) = tasks.join_next().await {
        print(&format!("a reader has read: {}", text??))?;
    }
    Ok(format!("{device}: {said}"))
}

/// Opens the board until all readers have read it, or until the time is over.
async fn publish(
    listener: Listener,
    pd: &ProtectionDomain,
    arguments: &Arguments,
) -> Result<String, Failure> {
    let Arguments { readers, time, text, .. } = arguments;
    let mut board = Region::allocate(pd, text.len())?;
    board.copy_from_slice(text.as_bytes());
    let (may, time) = (AccessFlags::new().with_remote_read(), Duration::from_millis(*time));
    let mut have_read = 0;
    let reserved = board.reserve(may, time, async |descriptor| {
        let mut tasks = JoinSet::new();
        while have_read < *readers {
            tokio::select! {
                reader = listener.incoming() => drop(tasks.spawn(show(reader?, descriptor))),
                Some(done) = tasks.join_next() => match done? {
                    Ok(()) => have_read += 1,
                    Err(error) => warn(format_args!("a reader: {error}")),
                },
            }
        }
        Ok::<_, Failure>(())
    });
    let reserved = reserved.await?;
    reserved.value.unwrap_or(Ok(()))?;
    let bytes = reserved.region.len();
    Ok(format!("{have_read} have read the board, and its {bytes} bytes are closed again"))
}

/// Sends a reader the descriptor of the board, and waits until the reader has read the board.
async fn show(reader: Incoming, board: Descriptor) -> Result<(), Failure> {
    reader.accept(&board.to_bytes())?.receive_imm().await?;
    Ok(())
}

/// Connects to a publisher and returns the text on its board.
async fn read(driver: &Driver, pd: &ProtectionDomain, address: &str) -> Result<String, Failure> {
    let asked = Instant::now();
    let (publisher, told) = driver.connect(address, ConnectionOptions::new(pd)).await?;
    let told = (*told).try_into().map_err(|_| "the process that listens there has no board")?;
    // At this end, the time starts before the publisher sends the descriptor. So it ends at this
    // end before it ends at the publisher.
    let board = Descriptor::from_bytes(told).asked_at(asked);
    let board = board.remote(MARGIN).ok_or("the board is closed: publish it with more `--time`")?;
    let pool = BufferPool::new(pd);
    let text = publisher.read(pool.allocate(board.length())?, board).await?;
    publisher.send_with_imm(pool.allocate(0)?, 0).await?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
