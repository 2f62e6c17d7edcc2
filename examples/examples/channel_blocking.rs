//! Blocking operations: each one returns when it has completed, so there is only one at a time.
//! First, a message is sent between two threads or two processes. Then a thread waits for a message
//! that only the same thread could send, until the time limit ends the wait.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rdma::prelude::*;
use rdma_examples::ends::{Ends, OtherEnd};
use rdma_examples_common::{Failure, program};

/// Sends a message to another end, which then waits for one that no thread can send, until a time
/// limit. The ends are two threads, or two processes. In that case, the receiver listens, and the
/// sender connects.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, default_value_t = 500)]
    #[arg(help = "The limit of the receive without a sender, in milliseconds")]
    limit: u64,
    #[command(flatten)]
    ends: Ends,
}

/// The time limit for the message. Without it, a receive would not notice that the peer has ended.
const ARRIVAL: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let limit = Duration::from_millis(arguments.limit);
    arguments.ends.run(
        |context, sender| {
            let message = receive(context, sender)?;
            let (alone, afterwards) = alone(&context.allocate_pd()?, limit)?;
            sender.finish()?;
            Ok(format!("from the other end: {message}\nalone: {alone}\nafterwards: {afterwards}"))
        },
        send,
    )
}

/// Receives a message from the other end, and returns its text.
fn receive(context: &Context, sender: &OtherEnd) -> Result<String, Failure> {
    let pd = context.allocate_pd()?;
    let mut channel = sender.connect(pd.create_channel().receive_timeout(ARRIVAL).build()?)?;
    sender.ready()?;
    let mut buf = [0; 64];
    let mr = pd.register_local_mr_slice(&buf)?;
    let buffer = &mut [mr.scatter_element(&mut buf)];
    let length = channel.receive(ReceiveWorkRequest::new(buffer))?.scattered_bytes();
    Ok(String::from_utf8_lossy(&buf[..length.unwrap_or(0)]).into_owned())
}

/// Sends a message. Returns when it has arrived and the other end has finished.
fn send(context: &Context, receiver: &mut OtherEnd) -> Result<String, Failure> {
    let pd = context.allocate_pd()?;
    let mut channel = receiver.connect(pd.create_channel().build()?)?;
    receiver.ready()?;
    let buf = *b"hello";
    let mr = pd.register_local_mr_slice(&buf)?;
    channel.send(SendWorkRequest::new(&[mr.gather_element(&buf)]))?;
    receiver.finish()?;
    Ok("sent".into())
}

/// Waits for a message on the only thread that could send it. Returns the error that ended the
/// wait, and the error of a send after it.
fn alone(pd: &ProtectionDomain, limit: Duration) -> Result<(String, String), Failure> {
    let prepared = Channel::builder().pd(pd).receive_timeout(limit).build()?;
    let endpoint = prepared.endpoint();
    let mut channel = prepared.handshake(endpoint)?;

    let mut buf = [0; 64];
    let mr = pd.register_local_mr_slice(&buf)?;
    let received = channel.receive(ReceiveWorkRequest::new(&mut [mr.scatter_element(&mut buf)]));
    let alone = match received {
        Err(alone @ TransportError::Timeout { .. }) => alone,
        Err(error) => return Err(error.into()),
        Ok(_) => return Err("a message arrived that was never sent".into()),
    };
    let sent = channel.send(SendWorkRequest::new(&[mr.gather_element(&buf)]));
    let afterwards = match sent {
        Err(afterwards @ TransportError::Closed { .. }) => afterwards,
        Err(error) => return Err(error.into()),
        Ok(_) => return Err("the channel still sends, although it should be closed".into()),
    };
    Ok((alone.to_string(), afterwards.to_string()))
}
