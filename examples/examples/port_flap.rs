//! A client whose port goes down from time to time, as with a loose cable. Each time, its connection
//! ends with an error that names the port. The client waits for the event that reports the port as
//! active, reconnects, and repeats the question that has no answer yet.
//!
//! Both ends are in one process. A fault of the client's software device takes the port down.

use std::convert::Infallible;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rdma::aio::{Connection, Endpoint, Listener, ReconnectPolicy};
use rdma::prelude::*;
use rdma::soft::Builder;
use rdma_examples_common::{Failure, program};
use tokio::time::sleep;

/// Keeps a client and a server connected while the client's port flaps
#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value_t = 2, help = "The number of times that the port goes down")]
    flaps: u32,
}

/// The client's port is down for a tenth of each period.
const FAULTS: &str = "port_flap=1s";
/// The time between two questions.
const PAUSE: Duration = Duration::from_millis(5);
/// The maximum number of attempts. The port may go down again during each.
const ATTEMPTS: u32 = 1000;
/// The first and the longest time between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));
const POLICY: ReconnectPolicy =
    ReconnectPolicy::new().attempts(ATTEMPTS).pauses(PAUSES.0, PAUSES.1);

fn main() -> ExitCode {
    program(|arguments| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(run(arguments))
    })
}

async fn run(arguments: &Arguments) -> Result<String, Failure> {
    Builder::new("flapping0").faults(FAULTS.parse()?).install()?;
    let server = Endpoint::new(&open_device("soft0")?)?;
    let listener = server.listen("127.0.0.1:0").await?;
    let client = Endpoint::new(&open_device("flapping0")?)?;
    let (at_client, at_server) = connect(&client, &listener).await?;
    let mut executed = 0;
    let report = tokio::select! {
        report = ask(&client, &at_client, arguments.flaps) => report?,
        Err(error) = answer(&server, &at_server, &mut executed) => return Err(error),
    };
    Ok(format!("{report}, and {executed} were executed"))
}

/// Connects both ends. Tries again if the port is down at that moment.
async fn connect(
    client: &Endpoint,
    listener: &Listener,
) -> Result<(Connection, Connection), Failure> {
    let mut attempts = 0;
    loop {
        let at_client = client.connect(listener.local_addr());
        match tokio::try_join!(at_client, listener.accept()) {
            Err(_) if attempts < ATTEMPTS => attempts += 1,
            ends => return Ok(ends?),
        }
        sleep(PAUSES.1).await;
    }
}

/// Asks numbered questions until the port has gone down this many times and one more is answered.
async fn ask(endpoint: &Endpoint, server: &Connection, flaps: u32) -> Result<String, Failure> {
    let (mut answered, mut reconnects, mut report) = (0, 0, String::new());
    loop {
        let empty = endpoint.allocate(0).await?;
        match question(server, empty, answered + 1).await {
            Ok(()) => {
                answered += 1;
                if reconnects >= flaps {
                    return Ok(format!("{report}{answered} questions were answered"));
                }
                sleep(PAUSE).await;
            }
            Err(failed) => {
                // The failed operation was only flushed. The connection has the reason.
                let reason = server.closed().ok_or(failed)?;
                // This waits for the event that the port is active, and then connects.
                let epoch = server.reconnect_by(&POLICY).await?;
                report += &format!("{reason}: reconnected, epoch {epoch}\n");
                reconnects += 1;
            }
        }
    }
}

/// Sends a question, which is only a number, and waits for its answer.
async fn question(server: &Connection, empty: Buffer, number: u32) -> Result<(), TransportError> {
    let answer = server.receive_imm().post().await?;
    server.send_with_imm(empty, number).await?;
    answer.await?;
    Ok(())
}

/// Answers questions. Reconnects whenever the client has lost the connection.
async fn answer(
    endpoint: &Endpoint,
    client: &Connection,
    executed: &mut u32,
) -> Result<Infallible, Failure> {
    loop {
        let empty = endpoint.allocate(0).await?;
        if serve(client, empty, executed).await.is_err() {
            client.reconnect_by(&POLICY).await?;
        }
    }
}

/// Executes one question and sends its answer.
async fn serve(
    client: &Connection,
    empty: Buffer,
    executed: &mut u32,
) -> Result<(), TransportError> {
    let number = client.receive_imm().await?.unwrap_or(0);
    // The client repeats a question if it has lost the answer. It is not executed again.
    if number == *executed + 1 {
        *executed = number;
    }
    client.send_with_imm(empty, number).await?;
    Ok(())
}
