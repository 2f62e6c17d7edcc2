//! A server lends memory to a client twice. The client borrows memory and writes its question to
//! it. Then the server lends memory that contains the answer, and the client reads it.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::builder::NonEmptyStringValueParser;
use rdma::aio::{Connection, ConnectionOptions, Driver, EndedLease, LeaseEnd, LeaseLimits, Region};
use rdma::prelude::*;
use rdma_examples_common::{Failure, print, program};
use tokio::time::timeout;

/// A client writes a text to memory that a server lends, and reads it in capitals from other lent
/// memory
#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, value_name = "ADDRESS", help = "Answer a client that connects here")]
    listen: Option<String>,
    #[arg(long, value_name = "ADDRESS", conflicts_with = "listen", help = "Ask this server")]
    connect: Option<String>,
    /// The text that the client sends
    #[arg(long, default_value = "hello", value_parser = NonEmptyStringValueParser::new())]
    text: String,
}

/// The duration of a lease, and the time limit for each wait for the other end.
const TIME: Duration = Duration::from_secs(10);
const READ: AccessFlags = AccessFlags::new().with_remote_read();
const WRITE: AccessFlags = AccessFlags::new().with_remote_write();

fn main() -> ExitCode {
    program(|arguments| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(run(arguments))
    })
}

async fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { device, listen, connect, text } = arguments;
    let context = open_device(device)?;
    let pd = context.allocate_pd()?;
    let driver = Driver::spawn(&context)?;
    if let Some(address) = connect {
        let (client, _) = driver.connect(address, ConnectionOptions::new(&pd)).await?;
        return ask(client, &pd, text).await;
    }
    // Clients may borrow memory to write to, up to a megabyte in total.
    let limits = LeaseLimits::new(WRITE).in_total(1 << 20).longest(TIME);
    let options = ConnectionOptions::new(&pd).lease_limits(limits);
    let listener = driver.listen(listen.as_deref().unwrap_or("127.0.0.1:0"), options).await?;
    let address = listener.local_addr();
    if listen.is_some() {
        print(&format!("listening on {address}"))?;
        return answer(&listener.accept().await?, &pd).await;
    }
    let connect = driver.connect(address, ConnectionOptions::new(&pd));
    let (client, server) = tokio::join!(connect, listener.accept());
    let ((client, _), server) = (client?, server?);
    let (answer, answered) = tokio::try_join!(ask(client, &pd, text), answer(&server, &pd))?;
    Ok(format!("{device}: {answer}, {answered}"))
}

/// Writes the text to memory borrowed from the server, and reads the answer from memory that the
/// server lends.
async fn ask(server: Connection, pd: &ProtectionDomain, text: &str) -> Result<String, Failure> {
    let pool = BufferPool::new(pd);
    let question = server.borrow(text.len(), WRITE, TIME).await?;
    let mut bytes = pool.allocate(text.len())?;
    bytes.copy_from_slice(text.as_bytes());
    question.write(bytes).await?;
    question.hand_over();
    let answer = timeout(TIME, server.receive_lease()).await??;
    let bytes = answer.read(pool.allocate(answer.len())?).await?;
    // Dropping the answer returns its memory to the server.
    drop(answer);
    server.disconnect(TIME).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Receives the memory to which the client has written its text. Then lends the client other
/// memory, which contains the answer.
async fn answer(client: &Connection, pd: &ProtectionDomain) -> Result<String, Failure> {
    let question = timeout(TIME, client.receive_region()).await??;
    let capitals = String::from_utf8_lossy(&question).to_uppercase();
    let mut answer = Region::allocate(pd, capitals.len())?;
    answer.copy_from_slice(capitals.as_bytes());
    let EndedLease { region, end, .. } = client.lend(answer, READ, TIME).await?.await?;
    match end {
        LeaseEnd::Returned => Ok(format!("{} bytes came back", region.len())),
        end => Err(format!("the client has not returned the answer: {end}").into()),
    }
}
