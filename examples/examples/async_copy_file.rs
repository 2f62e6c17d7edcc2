//! Copies a file over a connection, using futures. The ends are two tasks or two processes.
//!
//! The receiver keeps a few receives posted, and writes each message to the file. The sender keeps
//! equally many sends outstanding. The last message has immediate data, and contains the checksum
//! of all bytes. The new file gets its name only when it is complete.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma::aio::{BufferExt, BufferSlice, Connection, ConnectionOptions, Driver, Posted, SendOut};
use rdma::prelude::*;
use rdma_examples_common::{Failure, print, program};
use tempfile::NamedTempFile;
use tokio::time::timeout;

/// Copies a file over a connection: give SOURCE and DESTINATION, or one of them to each process.
#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(
        long,
        value_name = "ADDRESS",
        help = "Receive the file DESTINATION from a process that connects here"
    )]
    listen: Option<String>,
    #[arg(
        long,
        value_name = "ADDRESS",
        conflicts_with = "listen",
        help = "Send the file SOURCE to this process"
    )]
    connect: Option<String>,
    #[arg(required = true, num_args = 1..=2, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// The length of a message, in bytes.
const MESSAGE: usize = 1 << 16;
/// The maximum number of outstanding messages.
const DEPTH: usize = 8;
/// The time limit for one message to or from the other end.
const PATIENCE: Duration = Duration::from_secs(30);
/// The immediate data of the last message.
const LAST: u32 = 1;
/// The immediate data of the answer if the file is complete.
const OK: u32 = 0;
/// The immediate data of the answer if the checksum does not match.
const NOT_OK: u32 = 1;

fn main() -> ExitCode {
    program(|arguments| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(run(arguments))
    })
}

async fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { device, listen, connect, files } = arguments;
    let context = open_device(device)?;
    let pd = context.allocate_pd()?;
    let driver = Driver::spawn(&context)?;
    let options = ConnectionOptions::new(&pd);
    let pool = BufferPool::new(&pd);
    let begin = Instant::now();
    let copied = match (listen, connect, files.as_slice()) {
        (Some(address), None, [to]) => {
            let listener = driver.listen(address, options).await?;
            print(&format!("listening on {}", listener.local_addr()))?;
            receive(&listener.accept().await?, &pool, to).await?
        }
        (None, Some(address), [from]) => {
            let (connection, _) = driver.connect(address, options).await?;
            send(&connection, &pool, from).await?
        }
        (None, None, [from, to]) => {
            let listener = driver.listen("127.0.0.1:0", options.clone()).await?;
            let connect = driver.connect(listener.local_addr(), options);
            let (client, server) = tokio::join!(connect, listener.accept());
            let (client, server) = (client?.0, server?);
            tokio::try_join!(send(&client, &pool, from), receive(&server, &pool, to))?.0
        }
        (None, None, _) => {
            return Err(
                "give SOURCE and DESTINATION, or one of them with --connect or --listen".into()
            );
        }
        _ => return Err("with --listen or --connect, give one file".into()),
    };
    Ok(format!("{device}: {copied} bytes in {:.3} s", begin.elapsed().as_secs_f64()))
}

/// Sends the file. Returns when the other end has confirmed that it is complete.
async fn send(connection: &Connection, pool: &BufferPool, from: &Path) -> Result<u64, Failure> {
    let named = |error| format!("{}: {error}", from.display());
    let mut file = File::open(from).map_err(named)?;
    // This receive is for the receiver's verdict. Posting it first delays nothing.
    let verdict = connection.receive_imm().post().await?;
    let (mut copied, mut sum) = (0, crc32fast::Hasher::new());
    let mut sent: VecDeque<Posted<'_, SendOut<BufferSlice>>> = VecDeque::new();
    loop {
        // When a send has completed, its buffer is used for the next message.
        let mut buffer = match sent.pop_front() {
            Some(oldest) if sent.len() + 1 == DEPTH => {
                timeout(PATIENCE, oldest).await??.into_inner()
            }
            Some(oldest) => {
                sent.push_front(oldest);
                pool.allocate(MESSAGE)?
            }
            None => pool.allocate(MESSAGE)?,
        };
        let length = tokio::task::block_in_place(|| file.read(&mut buffer)).map_err(named)?;
        if length == 0 {
            break;
        }
        sum.update(&buffer[..length]);
        copied += length as u64;
        sent.push_back(connection.send(buffer.slice(0..length)).post().await?);
    }
    let mut last = pool.allocate(4)?;
    last.copy_from_slice(&sum.finalize().to_le_bytes());
    timeout(PATIENCE, connection.send_with_imm(last, LAST).into_future()).await??;
    match timeout(PATIENCE, verdict).await?? {
        Some(OK) => Ok(copied),
        _ => Err("the other end received something else than was sent".into()),
    }
}

/// Receives a file. It gets its name only when it is complete.
async fn receive(connection: &Connection, pool: &BufferPool, to: &Path) -> Result<u64, Failure> {
    let named = |error| format!("{}: {error}", to.display());
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(named)?;
    let mut receives = VecDeque::new();
    for _ in 0..DEPTH {
        receives.push_back(connection.receive(pool.allocate(MESSAGE)?).post().await?);
    }
    let (mut copied, mut sum) = (0, crc32fast::Hasher::new());
    while let Some(next) = receives.pop_front() {
        let received = timeout(PATIENCE, next).await??;
        let message = &received.memory[..received.length];
        if received.immediate == Some(LAST) {
            let is_whole = message == sum.finalize().to_le_bytes();
            if is_whole {
                file.persist(to).map_err(|error| named(error.error))?;
            }
            let verdict = if is_whole { OK } else { NOT_OK };
            timeout(PATIENCE, connection.send_with_imm(pool.allocate(0)?, verdict).into_future())
                .await??;
            break;
        }
        tokio::task::block_in_place(|| file.write_all(message)).map_err(named)?;
        sum.update(message);
        copied += received.length as u64;
        receives.push_back(connection.receive(received.memory).post().await?);
    }
    Ok(copied)
}
