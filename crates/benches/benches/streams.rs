//! The speed of a stream in one direction, beside TCP by turns: with both ends in one process, and between processes.
//!
//! ```sh
//! cargo bench -p benches --bench streams
//! ```
//! A write has 64 KiB, and a read takes at most 64 KiB. `RDMA_DEVICE` names a device other than soft0, and `RDMA_TURNS`
//! a number of turns other than 9. The bench prints the median of the turns. For profiles, the argument `one` or `two`
//! selects the number of processes, and `rdma` or `tcp` selects streams or TCP.
#![allow(clippy::panic)] // a failing bench reports it

use std::env;
use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rdma_async::Endpoint;
use rdma_async::message::Options;
use rdma_mem::open_device;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const LENGTH: usize = 64 << 10;
/// The bytes of one turn.
const TURN: usize = 1 << 30;
const ANY: &str = "127.0.0.1:0";

/// The argument of the process that reads.
const SERVE: &str = "--serve";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let runtime = Runtime::new().unwrap_or_else(|error| panic!("{error}"));
    let outcome = runtime.block_on(async {
        if arguments.iter().any(|argument| argument == SERVE) {
            let [rdma, tcp] = serve().await?;
            writeln!(stdout(), "{rdma}\n{tcp}")?;
            return std::future::pending().await;
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

/// Reads from clients that connect by RDMA or by TCP. Returns both addresses.
async fn serve() -> Outcome<[String; 2]> {
    let rdma = endpoint()?.listen_for_streams(ANY, Options::new()).await?;
    let tcp = TcpListener::bind(ANY).await?;
    let addresses = [rdma.local_addr().to_string(), tcp.local_addr()?.to_string()];
    tokio::spawn(async move {
        while let Ok(client) = rdma.accept().await {
            tokio::spawn(sink(client));
        }
    });
    tokio::spawn(async move {
        while let Ok((client, _)) = tcp.accept().await {
            tokio::spawn(sink(client));
        }
    });
    Ok(addresses)
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

/// Returns the speed of a turn in GB/s.
async fn turn(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Outcome<f64> {
    let (bytes, begin) = (vec![7; LENGTH], Instant::now());
    for _ in 0..TURN / LENGTH {
        stream.write_all(&bytes).await?;
    }
    stream.read_u8().await?;
    Ok(TURN as f64 / begin.elapsed().as_secs_f64() / 1e9)
}

async fn compare(arguments: &[String]) -> Outcome<()> {
    let turns = env::var("RDMA_TURNS").ok().and_then(|turns| turns.parse().ok());
    let turns: usize = turns.unwrap_or(9);
    // A name without its counterpart selects.
    let selects = |name: &str, other: &str| {
        let is_named = |name: &str| arguments.iter().any(|argument| argument == name);
        is_named(name) || !is_named(other)
    };
    let mut processes = Vec::new();
    if selects("one", "two") {
        processes.push(("one process", None, serve().await?));
    }
    if selects("two", "one") {
        let mut command = Command::new(env::current_exe()?);
        let mut server = Running(command.arg(SERVE).stdout(Stdio::piped()).spawn()?);
        let addresses = server.addresses()?;
        processes.push(("two processes", Some(server), addresses));
    }
    let endpoint = endpoint()?;
    for (name, _server, [rdma, tcp]) in processes {
        let mut rdma = endpoint.connect_stream(rdma.as_str(), Options::new()).await?;
        let mut tcp = TcpStream::connect(tcp.as_str()).await?;
        let mut speeds = [Vec::new(), Vec::new()];
        let (with_rdma, with_tcp) = (selects("rdma", "tcp"), selects("tcp", "rdma"));
        let (own, other, done) = tokio::spawn(async move {
            for _ in 0..turns {
                if with_rdma {
                    speeds[0].push(turn(&mut rdma).await?);
                }
                if with_tcp {
                    speeds[1].push(turn(&mut tcp).await?);
                }
            }
            let [own, other] = speeds.each_mut().map(|speeds| median(speeds));
            Outcome::Ok((own, other, rdma))
        })
        .await??;
        drop(done);
        writeln!(stdout(), "{name:14} {own:6.2} GB/s, TCP {other:6.2}, ratio {:5.2}", own / other)?;
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
    fn addresses(&mut self) -> Outcome<[String; 2]> {
        let said = self.0.stdout.take().ok_or("it was piped")?;
        let mut lines = BufReader::new(said).lines();
        let mut next = || Outcome::Ok(lines.next().ok_or("it has failed")??);
        Ok([next()?, next()?])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
