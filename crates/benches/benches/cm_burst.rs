//! Connections by rdma_cm that are made and ended at once, like those of `cmtime` in librdmacm. Two processes pass each
//! phase with all connections before the next one.
//!
//! ```sh
//! cargo bench -p benches --bench cm_burst                              # on soft0
//! cargo bench -p benches --bench cm_burst -- --device rxe0             # through the kernel's rdma_cm
//! ```
#![allow(clippy::panic)] // a failing bench panics

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdma_cm::{EventChannel, Listener};
use rdma_mem::ProtectionDomain;
use rdma_qp::{CompletionQueue, PreparedQueuePair, prelude::*};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The argument of the server's process.
const SERVER: &str = "--server";
/// The argument before the name of the device.
const DEVICE: &str = "--device";
/// The connections, as many as those of `cmtime` by default.
const COUNT: usize = 100;
/// The limit of a step, which is only reached if the other process has failed.
const LIMIT: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let place = arguments.iter().position(|argument| argument == DEVICE);
    let device = place.and_then(|place| arguments.get(place + 1).cloned());
    let device = device.unwrap_or_else(|| "soft0".to_owned());
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let outcome = match (has(SERVER), has("--bench")) {
        (true, _) => be_server(&device),
        (false, true) => be_client(&device),
        // `cargo test --benches` only checks that it starts.
        (false, false) => Ok(()),
    };
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// The objects of one end.
struct Node {
    channel: EventChannel,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Node {
    fn new(device: &str) -> Outcome<Self> {
        rdma_soft::install();
        let context = rdma_mem::open_device(device)?;
        let (pd, cq) = (context.allocate_pd()?, CompletionQueue::create(&context, 16)?);
        Ok(Self { channel: EventChannel::open(&context)?, pd, cq })
    }

    fn queue_pair(&self) -> Result<PreparedQueuePair, rdma_qp::Error> {
        let builder = self.pd.create_qp().send_cq(&self.cq).recv_cq(&self.cq);
        builder.max_send_wr(1).max_recv_wr(1).max_send_sge(1).max_recv_sge(1).build()
    }
}

/// Accepts the connections, and waits until the client has ended them.
fn be_server(device: &str) -> Outcome<()> {
    let node = Node::new(device)?;
    let listener = Listener::bind(&node.channel, "localhost:0")?;
    println!("{}", listener.local_address().port());
    let mut accepted = Vec::with_capacity(COUNT);
    for _ in 0..COUNT {
        let request = listener.incoming(LIMIT)?;
        accepted.push(request.prepare(node.queue_pair()?)?.accept(b"")?);
    }
    let mut held = Vec::with_capacity(COUNT);
    for accepting in accepted {
        held.push(accepting.wait(LIMIT)?);
    }
    for connection in &held {
        connection.wait(LIMIT)?;
    }
    Ok(())
}

fn be_client(device: &str) -> Outcome<()> {
    let mut server = Command::new(env::current_exe()?);
    server.args([SERVER, DEVICE, device]).stdout(Stdio::piped());
    let mut server = server.spawn()?;
    let mut port = String::new();
    BufReader::new(server.stdout.take().ok_or("no standard output")?).read_line(&mut port)?;
    let address = ("localhost", port.trim().parse()?);

    let node = Node::new(device)?;
    let mut resolved = Vec::with_capacity(COUNT);
    for _ in 0..COUNT {
        resolved.push((node.channel.resolve(address)?, node.queue_pair()?));
    }
    let begin = Instant::now();
    let mut connecting = Vec::with_capacity(COUNT);
    for (resolved, queue_pair) in resolved {
        connecting.push(resolved.connect(queue_pair, b"")?);
    }
    let mut held = Vec::with_capacity(COUNT);
    for connecting in connecting {
        held.push(connecting.wait(LIMIT)?.establish()?);
    }
    report("connect", begin);

    let begin = Instant::now();
    let mut ending = Vec::with_capacity(COUNT);
    for connection in held {
        ending.push(connection.disconnect(b"")?);
    }
    for ending in ending {
        ending.wait(LIMIT)?;
    }
    report("disconnect", begin);
    let status = server.wait()?;
    if status.success() { Ok(()) } else { Err(format!("the server: {status}").into()) }
}

/// Prints the time of a phase of all connections.
fn report(phase: &str, begin: Instant) {
    println!("{phase}: {:.1} ms for {COUNT}", begin.elapsed().as_secs_f64() * 1e3);
}
