//! Blocking operations: one at a time, each returns when it is done. With two channels on two threads a message
//! arrives; a receive on the thread that would have to send cannot be answered, and ends by its limit.

use std::thread;
use std::time::Duration;

use clap::Parser;
use rdma_channel::{Channel, TransportError, prelude::*};
use rdma_mem::{ProtectionDomain, open_device};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

/// Sends a message from one thread to another, then waits in vain for one of its own.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, default_value_t = 500, help = "How long a receive may take, in milliseconds")]
    limit: u64,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    run(&Arguments::parse()).map(|text| print!("{text}"))
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { device, limit } = arguments;
    rdma_soft::install();
    let pd = open_device(device)?.allocate_pd()?;
    let message = two_threads(&pd)?;
    let (alone, afterwards) = one_thread(&pd, Duration::from_millis(*limit))?;
    Ok(format!("two threads: {message}\none thread: {alone}\nafterwards: {afterwards}\n"))
}

/// One thread receives what the other one sends.
fn two_threads(pd: &ProtectionDomain) -> Result<String, Failure> {
    let (here, there) = (pd.create_channel().build()?, pd.create_channel().build()?);
    let (here_end, there_end) = (here.endpoint(), there.endpoint());
    let (mut here, mut there) = (here.handshake(there_end)?, there.handshake(here_end)?);
    thread::scope(|threads| {
        let receiver = threads.spawn(|| -> Result<String, TransportError> {
            let mut buf = [0; 64];
            let mr = pd.register_local_mr_slice(&buf)?;
            let buffer = &mut [mr.scatter_element(&mut buf)];
            let length = there.receive(ReceiveWorkRequest::new(buffer))?.scattered_bytes();
            Ok(String::from_utf8_lossy(&buf[..length.unwrap_or(0)]).into_owned())
        });
        let buf = *b"from another thread";
        let mr = pd.register_local_mr_slice(&buf)?;
        here.send(SendWorkRequest::new(&[mr.gather_element(&buf)]))?;
        Ok(receiver.join().map_err(|_| "the receiver panicked")??)
    })
}

/// The only thread that could send waits for a message: says how that ends, and how the send after it.
fn one_thread(pd: &ProtectionDomain, limit: Duration) -> Result<(String, String), Failure> {
    let prepared = Channel::builder().pd(pd).receive_timeout(limit).build()?;
    let endpoint = prepared.endpoint();
    let mut channel = prepared.handshake(endpoint)?;

    let mut buf = [0; 64];
    let mr = pd.register_local_mr_slice(&buf)?;
    let received = channel.receive(ReceiveWorkRequest::new(&mut [mr.scatter_element(&mut buf)]));
    let Err(alone @ TransportError::Timeout { .. }) = received else {
        return Err(format!("a message from nobody: {received:?}").into());
    };
    let sent = channel.send(SendWorkRequest::new(&[mr.gather_element(&buf)]));
    let Err(afterwards @ TransportError::Closed(_)) = sent else {
        return Err(format!("the channel should be closed: {sent:?}").into());
    };
    Ok((alone.to_string(), afterwards.to_string()))
}
