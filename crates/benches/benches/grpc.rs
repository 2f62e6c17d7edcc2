//! The time of a unary call of gRPC between two processes that sleep between their messages, over RDMA and over TCP by
//! turns.
//!
//! ```sh
//! cargo bench -p benches --bench grpc
//! ```
//! `RDMA_DEVICE` names a device other than soft0, and `RDMA_ROUNDS` a number of calls other than 20,000. `rdma` or `tcp`
//! as an argument selects one of both, for profiles.
#![allow(clippy::panic)] // a failing bench reports it

use std::env;
use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use greeter::MyGreeter;
use greeter::proto::HelloRequest;
use greeter::proto::greeter_client::GreeterClient;
use greeter::proto::greeter_server::GreeterServer;
use hdrhistogram::Histogram;
use rdma_mem::open_device;
use rdma_tonic::{Connector, Endpoint, Incoming, Options};
use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint as To, Server};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The number of calls of one turn.
const TURN: u32 = 200;
/// The calls of the first turns are not measured.
const UNMEASURED: u32 = 5;
const LENGTH: usize = 64;
const ANY: &str = "127.0.0.1:0";

/// The argument of the process that answers.
const SERVE: &str = "--serve";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let runtime = Runtime::new().unwrap_or_else(|error| panic!("{error}"));
    let work = async {
        if arguments.iter().any(|argument| argument == SERVE) {
            return tokio::spawn(serve()).await?;
        }
        let selected = arguments.into_iter().find(|argument| !argument.starts_with('-'));
        tokio::spawn(compare(selected)).await?
    };
    runtime.block_on(work).unwrap_or_else(|error| panic!("{error}"));
}

fn endpoint() -> Outcome<Endpoint> {
    rdma_soft::install();
    let device = env::var("RDMA_DEVICE").unwrap_or_else(|_| "soft0".to_owned());
    Ok(Endpoint::new(&open_device(&device)?)?)
}

/// Serves both kinds of clients until this process is killed.
async fn serve() -> Outcome<()> {
    let server = || Server::builder().add_service(GreeterServer::new(MyGreeter));
    let rdma = Incoming::bind(&endpoint()?, ANY, Options::new()).await?;
    let tcp = TcpIncoming::bind(ANY.parse()?)?.with_nodelay(Some(true));
    writeln!(stdout(), "{}\n{}", rdma.local_addr(), tcp.local_addr()?)?;
    let rdma = server().serve_with_incoming(rdma);
    tokio::try_join!(rdma, server().serve_with_incoming(tcp))?;
    Ok(())
}

async fn compare(selected: Option<String>) -> Outcome<()> {
    let rounds = env::var("RDMA_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let rounds: u32 = rounds.unwrap_or(20_000);
    let mut command = Command::new(env::current_exe()?);
    let mut server = Running(command.arg(SERVE).stdout(Stdio::piped()).spawn()?);
    let [rdma, tcp] = server.addresses()?;
    let connector = Connector::new(&endpoint()?, Options::new());
    let rdma = To::from_shared(rdma)?.connect_with_connector(connector).await?;
    let tcp = To::from_shared(tcp)?.connect().await?;
    let mut ways = vec![("rdma", Way::new(rdma)?), ("tcp", Way::new(tcp)?)];
    ways.retain(|(name, _)| selected.as_ref().is_none_or(|selected| selected == name));
    for turn in 0..UNMEASURED + rounds.div_ceil(TURN) {
        for (_, way) in &mut ways {
            way.call(turn >= UNMEASURED).await?;
        }
    }
    let mut earlier: Option<[f64; 2]> = None;
    for (name, way) in &ways {
        let micros = [0.5, 0.99].map(|part| way.times.value_at_quantile(part) as f64 / 1000.0);
        writeln!(stdout(), "{name:5} p50 {:8.2} us   p99 {:8.2} us", micros[0], micros[1])?;
        if let Some([median, late]) = earlier.replace(micros) {
            let (median, late) = (median / micros[0], late / micros[1]);
            writeln!(stdout(), "ratio p50 {median:8.2}      p99 {late:8.2}")?;
        }
    }
    Ok(())
}

/// A client and the times of its calls in nanoseconds.
struct Way {
    client: GreeterClient<Channel>,
    times: Histogram<u64>,
}

impl Way {
    fn new(channel: Channel) -> Outcome<Self> {
        Ok(Self { client: GreeterClient::new(channel), times: Histogram::new(3)? })
    }

    /// Makes the calls of one turn.
    async fn call(&mut self, measured: bool) -> Outcome<()> {
        for _ in 0..TURN {
            let request = HelloRequest { name: "a".repeat(LENGTH) };
            let begin = Instant::now();
            self.client.say_hello(request).await?;
            if measured {
                self.times.record(u64::try_from(begin.elapsed().as_nanos())?)?;
            }
        }
        Ok(())
    }
}

/// The process that answers.
struct Running(Child);

impl Running {
    fn addresses(&mut self) -> Outcome<[String; 2]> {
        let said = self.0.stdout.take().ok_or("it was piped")?;
        let mut lines = BufReader::new(said).lines();
        let mut next = || Outcome::Ok(format!("http://{}", lines.next().ok_or("it has failed")??));
        Ok([next()?, next()?])
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
