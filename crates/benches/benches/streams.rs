//! The speed of a stream in one direction, beside TCP by turns: with both ends in one process, and between processes.
//!
//! ```sh
//! cargo bench -p benches --bench streams
//! ```
//! A write has 64 KiB. A read copies at most 64 KiB. The reader of a stream can also take chunks, which are not copied.
//! `RDMA_DEVICE` names a device other than soft0, and `RDMA_TURNS` a number of turns other than 9. The bench prints the
//! median of the turns. For profiles, the argument `one` or `two` selects the number of processes, and `read`, `chunks`
//! or `tcp` selects streams or TCP. The argument `halves` measures the lock of a stream's halves instead.
#![allow(clippy::panic)] // a failing bench reports it

use std::env;
use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rdma_async::Endpoint;
use rdma_async::message::{Options, ReadHalf, Stream, StreamListener, WriteHalf};
use rdma_mem::open_device;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const LENGTH: usize = 64 << 10;
/// The bytes of one turn.
const TURN: usize = 1 << 30;
const ANY: &str = "127.0.0.1:0";

/// The numbers of processes.
const PROCESSES: [&str; 2] = ["one", "two"];
/// Streams that are read by copies, streams that are read by chunks, and TCP.
const WAYS: [&str; 3] = ["read", "chunks", "tcp"];

/// The argument of the process that reads.
const SERVE: &str = "--serve";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let runtime = Runtime::new().unwrap_or_else(|error| panic!("{error}"));
    let outcome = runtime.block_on(async {
        if arguments.iter().any(|argument| argument == SERVE) {
            writeln!(stdout(), "{}", serve().await?.join("\n"))?;
            return std::future::pending().await;
        }
        if arguments.iter().any(|argument| argument == "halves") {
            return compare_halves().await;
        }
        compare(&arguments).await
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

fn endpoint() -> Outcome<Endpoint> {
    rdma_soft::install();
    let device = env::var("RDMA_DEVICE").unwrap_or_else(|_| "soft0".to_owned());
    Ok(Endpoint::new(&open_device(&device)?)?)
}

/// Reads from clients in each of the [`WAYS`]. Returns the addresses.
async fn serve() -> Outcome<[String; 3]> {
    let endpoint = endpoint()?;
    let streams = endpoint.listen_for_streams(ANY, Options::new()).await?;
    let chunks = endpoint.listen_for_streams(ANY, Options::new()).await?;
    let tcp = TcpListener::bind(ANY).await?;
    let addresses = [streams.local_addr(), chunks.local_addr(), tcp.local_addr()?];
    tokio::spawn(async move {
        while let Ok(client) = streams.accept().await {
            tokio::spawn(sink(client));
        }
    });
    tokio::spawn(async move {
        while let Ok(client) = chunks.accept().await {
            tokio::spawn(sink_of_chunks(client));
        }
    });
    tokio::spawn(async move {
        while let Ok((client, _)) = tcp.accept().await {
            tokio::spawn(sink(client));
        }
    });
    Ok(addresses.map(|address| address.to_string()))
}

/// Reads, and acknowledges each turn with a byte.
async fn sink(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Outcome<()> {
    let (mut buffer, mut received) = (vec![0; LENGTH], 0);
    loop {
        received += match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            length => length,
        };
        if received == TURN {
            stream.write_u8(0).await?;
            received = 0;
        }
    }
}

/// Does the same with chunks. Their bytes stay where they arrived.
async fn sink_of_chunks(mut stream: Stream) -> Outcome<()> {
    let mut received = 0;
    while let Some(chunk) = stream.read_chunk().await? {
        received += chunk.len();
        drop(chunk);
        if received == TURN {
            stream.write_u8(0).await?;
            received = 0;
        }
    }
    Ok(())
}

/// Returns the speed of a turn in GB/s.
async fn turn(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Outcome<f64> {
    let (bytes, begin) = (vec![7; LENGTH], Instant::now());
    for _ in 0..TURN / LENGTH {
        stream.write_all(&bytes).await?;
    }
    stream.read_u8().await?;
    Ok(TURN as f64 / begin.elapsed().as_secs_f64() / 1e9)
}

fn turns() -> usize {
    env::var("RDMA_TURNS").ok().and_then(|turns| turns.parse().ok()).unwrap_or(9)
}

/// Sends in both directions at once, with one stream whose halves are in different tasks, and with a stream for each
/// direction. Both take the same tasks and bytes, so the difference is the lock that halves share. Each end has its own
/// endpoint, as in two programs, or both have the same one, and so the same completion queue.
async fn compare_halves() -> Outcome<()> {
    let [endpoint, other] = [endpoint()?, endpoint()?];
    compare_halves_of("two endpoints", &endpoint, &other).await?;
    compare_halves_of("one endpoint", &endpoint, &endpoint).await
}

async fn compare_halves_of(case: &str, endpoint: &Endpoint, peer: &Endpoint) -> Outcome<()> {
    let listener = peer.listen_for_streams(ANY, Options::new()).await?;
    let mut speeds = [const { Vec::new() }; 2];
    for _ in 0..turns() {
        for (shared, speeds) in [true, false].into_iter().zip(&mut speeds) {
            let [one, at_one] = halves(endpoint, &listener).await?;
            let [other, at_other] = halves(endpoint, &listener).await?;
            // Halves that are not used stay open until the end of this block.
            let forth = (one.1, at_one.0);
            let back = if shared { (at_one.1, one.0) } else { (at_other.1, other.0) };
            speeds.push(both_ways(forth, back).await?);
        }
    }
    let [shared, own] = speeds.map(|mut speeds| median(&mut speeds));
    let ratio = shared / own;
    writeln!(
        stdout(),
        "{case}: halves {shared:6.2} GB/s, streams of their own {own:6.2}, ratio {ratio:5.2}"
    )?;
    Ok(())
}

/// Connects a stream. Returns the halves of both ends.
async fn halves(
    endpoint: &Endpoint,
    listener: &StreamListener,
) -> Outcome<[(ReadHalf, WriteHalf); 2]> {
    let connect = endpoint.connect_stream(listener.local_addr(), Options::new());
    let (client, server) = tokio::try_join!(connect, listener.accept())?;
    Ok([client.into_split(), server.into_split()])
}

/// Returns the speed of two directions together in GB/s.
async fn both_ways(forth: (WriteHalf, ReadHalf), back: (WriteHalf, ReadHalf)) -> Outcome<f64> {
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for (mut writer, mut reader) in [forth, back] {
        tasks.spawn(async move {
            let bytes = vec![7; LENGTH];
            for _ in 0..TURN / LENGTH {
                writer.write_all(&bytes).await?;
            }
            // An end would stop the other direction's halves from sharing anything.
            Outcome::Ok(Some(writer))
        });
        tasks.spawn(async move {
            let mut buffer = vec![0; LENGTH];
            let mut left = TURN;
            while left > 0 {
                match reader.read(&mut buffer).await? {
                    0 => return Err("the stream has ended early".into()),
                    length => left -= length,
                }
            }
            Ok(None)
        });
    }
    let mut writers = Vec::new();
    while let Some(outcome) = tasks.join_next().await {
        writers.push(outcome??);
    }
    Ok(2.0 * TURN as f64 / begin.elapsed().as_secs_f64() / 1e9)
}

async fn compare(arguments: &[String]) -> Outcome<()> {
    let turns = turns();
    // Without a name of a group, all of the group are selected.
    let selects = |name: &str, group: &[&str]| {
        let mut named = arguments.iter().filter(|argument| group.contains(&argument.as_str()));
        let first = named.next();
        first.is_none_or(|first| first == name || named.any(|other| other == name))
    };
    let mut processes = Vec::new();
    if selects("one", &PROCESSES) {
        processes.push(("one process", None, serve().await?));
    }
    if selects("two", &PROCESSES) {
        let mut command = Command::new(env::current_exe()?);
        let mut server = Running(command.arg(SERVE).stdout(Stdio::piped()).spawn()?);
        let addresses = server.addresses()?;
        processes.push(("two processes", Some(server), addresses));
    }
    let endpoint = endpoint()?;
    let selected = WAYS.map(|way| selects(way, &WAYS));
    for (name, _server, [streams, chunks, tcp]) in processes {
        let mut streams = endpoint.connect_stream(streams.as_str(), Options::new()).await?;
        let mut chunks = endpoint.connect_stream(chunks.as_str(), Options::new()).await?;
        let mut tcp = TcpStream::connect(tcp.as_str()).await?;
        let mut speeds = [const { Vec::new() }; 3];
        let speeds = tokio::spawn(async move {
            for _ in 0..turns {
                for (way, speeds) in speeds.iter_mut().enumerate().filter(|(way, _)| selected[*way])
                {
                    speeds.push(match way {
                        0 => turn(&mut streams).await?,
                        1 => turn(&mut chunks).await?,
                        _ => turn(&mut tcp).await?,
                    });
                }
            }
            Outcome::Ok(speeds.each_mut().map(|speeds| median(speeds)))
        })
        .await??;
        let [read, chunks, tcp] = speeds;
        let ratios = [read / tcp, chunks / tcp];
        writeln!(
            stdout(),
            "{name:14} {read:6.2} GB/s, by chunks {chunks:6.2}, TCP {tcp:6.2}, ratios {:5.2} and {:5.2}",
            ratios[0],
            ratios[1]
        )?;
    }
    Ok(())
}

fn median(speeds: &mut [f64]) -> f64 {
    speeds.sort_by(f64::total_cmp);
    speeds.get(speeds.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The process that reads.
struct Running(Child);

impl Running {
    fn addresses(&mut self) -> Outcome<[String; 3]> {
        let said = self.0.stdout.take().ok_or("it was piped")?;
        let mut lines = BufReader::new(said).lines();
        let mut next = || Outcome::Ok(lines.next().ok_or("it has failed")??);
        Ok([next()?, next()?, next()?])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
