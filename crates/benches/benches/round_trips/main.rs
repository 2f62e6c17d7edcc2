//! The time of a message and its answer between two processes. Some loops post the receive of the answer too late, some
//! post it first, and some use TCP.
//!
//! ```sh
//! cargo bench -p benches --bench round_trips
//! ```
//! `RDMA_DEVICE` names a device other than soft0, and `RDMA_ROUNDS` a number of round trips other than 2,000. The
//! median of nine runs is printed, and the processor time of both processes for a round trip. A name as an argument
//! (`blocking`) selects the lines that contain it.
#![allow(clippy::panic)] // a failing bench reports it

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write, stdout};
use std::mem::swap;
use std::process::{self, Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdma_async::message::{Messages, Options};
use rdma_async::{Connection, ConnectionOptions, Driver, Endpoint, Pool};
use rdma_channel::{Channel, ChannelListener, Wait, prelude::*};
use rdma_mem::{ProtectionDomain, open_device};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

mod short;

use self::short::Way;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const LENGTH: usize = 64;
const RUNS: usize = 9;
const ANY: &str = "127.0.0.1:0";

/// A pair of programs: the server answers each message with the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// Sends, and then posts the receive of the answer.
    Naive(Wait),
    /// Posts the receive first.
    Ahead(Wait),
    AsyncNaive,
    AsyncAhead,
    /// The server and the client of docs/async.md.
    Page,
    Stream,
    /// Messages, each with an answer that is another message.
    Messages,
    /// Requests and replies.
    Calls,
    Tcp,
    /// A message of this length, with a short answer.
    Long(usize),
    /// The same over TCP.
    LongTcp(usize),
    /// A message of 8 bytes, and the same as an answer.
    Short(Way),
    /// 16 connections, each with one message and its answer at a time. The times are those of one of them.
    Streams,
    /// The same over TCP.
    StreamsTcp,
}

/// The number of connections of [`Program::Streams`].
const STREAMS: u32 = 16;

/// The length of the longest message that is sent in frames by default.
const EAGER: usize = 256 << 10;

const PROGRAMS: [(&str, Program); 25] = [
    ("blocking, naive", Program::Naive(Wait::SpinThenSleep)),
    ("blocking, ahead", Program::Ahead(Wait::SpinThenSleep)),
    ("sleeping, naive", Program::Naive(Wait::Sleep)),
    ("sleeping, ahead", Program::Ahead(Wait::Sleep)),
    ("async, naive", Program::AsyncNaive),
    ("async, ahead", Program::AsyncAhead),
    ("the page's echo", Program::Page),
    ("stream", Program::Stream),
    ("messages", Program::Messages),
    ("calls", Program::Calls),
    ("tokio over TCP", Program::Tcp),
    ("8 B, tokio over TCP", Program::Short(Way::Tcp)),
    ("8 B, async, asleep", Program::Short(Way::Async)),
    ("8 B, blocking, asleep", Program::Short(Way::Blocking(Wait::Sleep))),
    ("8 B, async, spinning", Program::Short(Way::AsyncSpinning)),
    ("8 B, blocking, spinning", Program::Short(Way::Blocking(Wait::Spin))),
    ("16 streams", Program::Streams),
    ("16 over TCP", Program::StreamsTcp),
    ("long, 4088 B", Program::Long(4088)),
    ("long, 4089 B", Program::Long(4089)),
    ("long, eager", Program::Long(EAGER)),
    ("long, eager + 1", Program::Long(EAGER + 1)),
    ("long, 1 MiB", Program::Long(1 << 20)),
    ("long, 10 MiB", Program::Long(10 << 20)),
    ("long, 10 MiB TCP", Program::LongTcp(10 << 20)),
];

/// The prefix of the argument of the process that answers.
const SERVE: &str = "--serve=";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().find_map(|argument| argument.strip_prefix(SERVE)) {
        // It ends with the connection, when the other process has finished.
        Some(name) => drop(serve(name)),
        None => run_all(arguments.iter().find(|argument| !argument.starts_with('-')))
            .unwrap_or_else(|error| panic!("{error}")),
    }
}

fn run_all(selected: Option<&String>) -> Outcome<()> {
    let rounds = env::var("RDMA_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let rounds: u32 = rounds.unwrap_or(2000);
    for (name, program) in PROGRAMS {
        if selected.is_some_and(|part| !name.contains(part.as_str())) {
            continue;
        }
        let rounds = program.rounds(rounds);
        let mut server = Server::start(name)?;
        let address = server.address()?;
        let before = server.processor_time()?;
        let mut times = program.ask(&address, rounds)?;
        let all_rounds = rounds * u32::try_from(RUNS)?;
        let processor = (server.processor_time()? - before).as_secs_f64() * 1e6;
        times.sort();
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(rounds.max(1));
        let (least, median) = (micros(times[0]), micros(times[times.len() / 2]));
        let processor = processor / f64::from(all_rounds.max(1));
        writeln!(
            stdout(),
            "{name:23} {median:8.2} us a round trip ({least:.2} at best), {processor:.2} us of processor time"
        )?;
    }
    Ok(())
}

/// The process that answers.
struct Server(Child);

impl Server {
    fn start(name: &str) -> Outcome<Self> {
        let mut command = Command::new(env::current_exe()?);
        let child = command.arg(format!("{SERVE}{name}")).stdout(Stdio::piped()).spawn()?;
        Ok(Self(child))
    }

    fn address(&mut self) -> Outcome<String> {
        let said = self.0.stdout.take().ok_or("it was piped")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Server {
    /// Returns the processor time of this process and the other one, which the kernel counts in units of 10 ms.
    fn processor_time(&self) -> Outcome<Duration> {
        let mut time = Duration::ZERO;
        for pid in [process::id(), self.0.id()] {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
            let (_, fields) = stat.rsplit_once(')').ok_or("no name")?;
            // The fields `utime` and `stime`.
            for field in fields.split_whitespace().skip(11).take(2) {
                time += Duration::from_millis(10) * field.parse()?;
            }
        }
        Ok(time)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn domain() -> Outcome<ProtectionDomain> {
    rdma_soft::install();
    let device = env::var("RDMA_DEVICE").unwrap_or_else(|_| "soft0".to_owned());
    Ok(open_device(&device)?.allocate_pd()?)
}

fn say(address: impl std::fmt::Display) -> Outcome<()> {
    writeln!(stdout(), "{address}")?;
    Ok(stdout().flush()?)
}

fn serve(name: &str) -> Outcome<()> {
    let program = PROGRAMS.into_iter().find(|(known, _)| *known == name);
    let (_, program) = program.ok_or("no such program")?;
    match program {
        Program::Naive(wait) | Program::Ahead(wait) => {
            let pd = domain()?;
            let mut listener: ChannelListener = pd.create_channel().wait(wait).listen(ANY)?;
            say(listener.local_addr())?;
            let channel = listener.accept()?;
            if program == Program::Naive(wait) { answer(channel) } else { answer_ahead(channel) }
        }
        Program::AsyncNaive | Program::AsyncAhead | Program::Page => {
            Runtime::new()?.block_on(async {
                let pd = domain()?;
                let driver = Driver::spawn(pd.context())?;
                let listener = driver.listen(ANY, ConnectionOptions::new(&pd)).await?;
                say(listener.local_addr())?;
                let (connection, pool) = (listener.accept().await?, Pool::new(&pd));
                tokio::spawn(async move {
                    match program {
                        Program::AsyncNaive => answer_async(connection, pool).await,
                        _ => echo(connection, pool).await,
                    }
                })
                .await?
            })
        }
        Program::Tcp | Program::StreamsTcp => Runtime::new()?.block_on(async {
            let listener = TcpListener::bind(ANY).await?;
            say(listener.local_addr()?)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                tokio::spawn(echo_bytes(stream));
            }
        }),
        Program::LongTcp(length) => Runtime::new()?.block_on(async {
            let listener = TcpListener::bind(ANY).await?;
            say(listener.local_addr()?)?;
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(answer_long_bytes(stream, length)).await?
        }),
        Program::Stream | Program::Streams => Runtime::new()?.block_on(async {
            let endpoint = Endpoint::new(domain()?.context())?;
            let listener = endpoint.listen_for_streams(ANY, Options::new()).await?;
            say(listener.local_addr())?;
            loop {
                tokio::spawn(echo_bytes(listener.accept().await?));
            }
        }),
        Program::Messages | Program::Calls | Program::Long(_) => Runtime::new()?.block_on(async {
            let endpoint = Endpoint::new(domain()?.context())?;
            let listener = endpoint.listen_for_messages(ANY, Options::new()).await?;
            say(listener.local_addr())?;
            tokio::spawn(echo_messages(listener.accept().await?)).await?
        }),
        Program::Short(way) => short::serve(way),
    }
}

async fn echo_messages(client: Messages) -> Outcome<()> {
    let mut answer = [0; LENGTH];
    while let Some(message) = client.receive().await? {
        answer.copy_from_slice(&message[..LENGTH]);
        if message.is_request() {
            message.reply(&answer).await?;
        } else {
            client.send(&answer).await?;
        }
    }
    Ok(())
}

/// Answers each message of this length.
async fn answer_long_bytes(mut stream: TcpStream, length: usize) -> Outcome<()> {
    let mut message = vec![0; length];
    loop {
        stream.read_exact(&mut message).await?;
        stream.write_all(&message[..LENGTH]).await?;
    }
}

async fn echo_bytes(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Outcome<()> {
    let mut message = [0; LENGTH];
    loop {
        stream.read_exact(&mut message).await?;
        stream.write_all(&message).await?;
    }
}

fn answer(mut channel: Channel) -> Outcome<()> {
    let mut buffer = channel.pd().allocate_region(LENGTH)?;
    loop {
        channel.receive_into(&mut buffer)?;
        channel.send_from(&buffer)?;
    }
}

fn answer_ahead(mut channel: Channel) -> Outcome<()> {
    let mut here = channel.pd().allocate_region(LENGTH)?;
    let mut there = channel.pd().allocate_region(LENGTH)?;
    channel.receive_into(&mut here)?;
    loop {
        channel.exchange_from(&here, &mut there)?;
        swap(&mut here, &mut there);
    }
}

async fn answer_async(connection: Connection, pool: Pool) -> Outcome<()> {
    let mut buffer = pool.allocate(LENGTH).await?;
    loop {
        buffer = connection.receive(buffer).await?.memory;
        buffer = connection.send(buffer).await?;
    }
}

async fn echo(connection: Connection, pool: Pool) -> Outcome<()> {
    let rooms = [pool.allocate(4096).await?, pool.allocate(4096).await?];
    let mut ring = connection.receive_ring(rooms)?;
    loop {
        let message = ring.next().await?;
        let mut answer = pool.allocate(message.len()).await?;
        answer.copy_from_slice(&message);
        drop(message);
        connection.send(answer).await?;
    }
}

impl Program {
    /// Returns the number of round trips in a run. Fewer of long messages suffice.
    fn rounds(self, rounds: u32) -> u32 {
        match self {
            Self::Long(length) | Self::LongTcp(length) => {
                rounds.min(u32::try_from((256 << 20) / length).unwrap_or(rounds))
            }
            _ => rounds,
        }
    }

    /// Returns a question.
    fn question(self) -> Vec<u8> {
        match self {
            Self::Long(length) | Self::LongTcp(length) => vec![7; length],
            _ => vec![0; LENGTH],
        }
    }

    /// Returns the times of several runs of `rounds` round trips.
    fn ask(self, address: &str, rounds: u32) -> Outcome<Vec<Duration>> {
        match self {
            Self::Naive(wait) | Self::Ahead(wait) => {
                let pd = domain()?;
                let (mut channel, _) = pd.create_channel().wait(wait).connect(address)?;
                let from = pd.allocate_region(LENGTH)?;
                let mut into = pd.allocate_region(LENGTH)?;
                let mut round = || -> Outcome<()> {
                    if self == Self::Naive(wait) {
                        channel.send_from(&from)?;
                        channel.receive_into(&mut into)?;
                    } else {
                        channel.exchange_from(&from, &mut into)?;
                    }
                    Ok(())
                };
                let mut run = || {
                    let begin = Instant::now();
                    (0..rounds).try_for_each(|_| round())?;
                    Ok(begin.elapsed())
                };
                (0..RUNS).map(|_| run()).collect()
            }
            Self::AsyncNaive | Self::AsyncAhead | Self::Page => {
                let address = address.to_owned();
                Runtime::new()?.block_on(async move {
                    let pd = domain()?;
                    let driver = Driver::spawn(pd.context())?;
                    let (connection, _) =
                        driver.connect(address.as_str(), ConnectionOptions::new(&pd)).await?;
                    let pool = Pool::new(&pd);
                    tokio::spawn(async move { self.ask_async(&connection, &pool, rounds).await })
                        .await?
                })
            }
            Self::Tcp | Self::LongTcp(_) => {
                let address = address.to_owned();
                Runtime::new()?.block_on(async move {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    tokio::spawn(ask_bytes(stream, rounds, self.question())).await?
                })
            }
            Self::Short(way) => short::ask(way, address, rounds),
            Self::Streams | Self::StreamsTcp => {
                Runtime::new()?.block_on(self.ask_streams(address, rounds / STREAMS))
            }
            Self::Stream => {
                let address = address.to_owned();
                Runtime::new()?.block_on(async move {
                    let endpoint = Endpoint::new(domain()?.context())?;
                    let stream = endpoint.connect_stream(address, Options::new()).await?;
                    tokio::spawn(ask_bytes(stream, rounds, self.question())).await?
                })
            }
            Self::Messages | Self::Calls | Self::Long(_) => {
                let address = address.to_owned();
                Runtime::new()?.block_on(async move {
                    let endpoint = Endpoint::new(domain()?.context())?;
                    let server = endpoint.connect_messages(address, Options::new()).await?;
                    tokio::spawn(async move { self.ask_messages(&server, rounds).await }).await?
                })
            }
        }
    }

    async fn ask_streams(self, address: &str, rounds: u32) -> Outcome<Vec<Duration>> {
        let endpoint = Endpoint::new(domain()?.context())?;
        let mut tasks = JoinSet::new();
        for _ in 0..STREAMS {
            if self == Self::StreamsTcp {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                tasks.spawn(ask_bytes(stream, rounds, self.question()));
            } else {
                let stream = endpoint.connect_stream(address, Options::new()).await?;
                tasks.spawn(ask_bytes(stream, rounds, self.question()));
            }
        }
        let mut times = Vec::new();
        while let Some(of_stream) = tasks.join_next().await {
            times = of_stream??;
        }
        Ok(times)
    }

    async fn ask_messages(self, server: &Messages, rounds: u32) -> Outcome<Vec<Duration>> {
        let (question, mut times) = (self.question(), Vec::new());
        for _ in 0..RUNS {
            let begin = Instant::now();
            for _ in 0..rounds {
                if self == Self::Calls {
                    drop(server.call(&question).await?);
                } else {
                    server.send(&question).await?;
                    drop(server.receive().await?);
                }
            }
            times.push(begin.elapsed());
        }
        Ok(times)
    }

    async fn ask_async(
        self,
        connection: &Connection,
        pool: &Pool,
        rounds: u32,
    ) -> Outcome<Vec<Duration>> {
        let (mut times, mut question) = (Vec::new(), pool.allocate(LENGTH).await?);
        let rooms = [pool.allocate(LENGTH).await?, pool.allocate(LENGTH).await?];
        let mut ring = match self {
            Self::AsyncAhead => Some(connection.receive_ring(rooms)?),
            _ => None,
        };
        for _ in 0..RUNS {
            let begin = Instant::now();
            for _ in 0..rounds {
                match (self, &mut ring) {
                    (_, Some(ring)) => {
                        question = connection.send(question).await?;
                        drop(ring.next().await?);
                    }
                    (Self::AsyncNaive, None) => {
                        question = connection.send(question).await?;
                        drop(connection.receive(pool.allocate(LENGTH).await?).await?);
                    }
                    (_, None) => {
                        let room = pool.allocate(4096).await?;
                        let answer = connection.receive(room).post().await?;
                        question = connection.send(question).await?;
                        drop(answer.await?);
                    }
                }
            }
            times.push(begin.elapsed());
        }
        Ok(times)
    }
}

async fn ask_bytes(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    rounds: u32,
    question: Vec<u8>,
) -> Outcome<Vec<Duration>> {
    let (mut answer, mut times) = ([0; LENGTH], Vec::new());
    for _ in 0..RUNS {
        let begin = Instant::now();
        for _ in 0..rounds {
            stream.write_all(&question).await?;
            stream.read_exact(&mut answer).await?;
        }
        times.push(begin.elapsed());
    }
    Ok(times)
}
