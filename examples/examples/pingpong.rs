//! Sends a message back and forth on a reliable connection, between two threads or two processes.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma::prelude::*;
use rdma::qp::{CompletionChannel, CompletionQueue, PreparedQueuePair};
use rdma_examples_common::end::End;
use rdma_examples_common::out_of_band::{OutOfBand, Peer};
use rdma_examples_common::reach::check_reach;
use rdma_examples_common::{Failure, print, program};

/// Sends a message back and forth, and prints the time per round trip. The ends are two threads, or
/// two processes that are started with the same size and iterations.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, default_value_t = 64, help = "The length of the message, in bytes")]
    size: usize,
    #[arg(long, default_value_t = 1000, help = "The number of round trips")]
    iterations: u32,
    #[arg(long, help = "Sleep on a completion channel until something completes")]
    events: bool,
    #[command(flatten)]
    peer: Peer,
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help = "For the other process")]
    wait: u64,
}

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { device, size, iterations: n, .. } = arguments;
    let prepared = prepare(arguments)?;
    let time = match arguments.peer.meet(Duration::from_secs(arguments.wait))? {
        Some(other) => with_process(arguments, prepared, other)?,
        None => with_thread(arguments, prepared)?,
    };
    let micros = time.as_secs_f64() * 1e6 / f64::from((*n).max(1));
    Ok(format!("{device}: {n} times {size} bytes, {micros:.2} us per round trip"))
}

/// Runs both ends in this process. They only need each other's endpoint.
fn with_thread(arguments: &Arguments, ping: PreparedQueuePair) -> Result<Duration, Failure> {
    let Arguments { size, iterations: n, .. } = arguments;
    let pong = prepare(arguments)?;
    let (ping_end, pong_end) = (ping.endpoint(), pong.endpoint());
    let mut ping = End::connect(ping, pong_end, *size)?;
    let mut pong = End::connect(pong, ping_end, *size)?;
    let begin = Instant::now();
    thread::scope(|threads| {
        let answers = threads.spawn(|| pong.answer(*n));
        ping.ask(*n)?;
        answers.join().map_err(|_| "the other thread panicked")?
    })?;
    Ok(begin.elapsed())
}

/// Runs one end in this process. The endpoints are exchanged over a socket.
fn with_process(
    arguments: &Arguments,
    prepared: PreparedQueuePair,
    other: OutOfBand,
) -> Result<Duration, Failure> {
    let Arguments { device, size, iterations: n, .. } = arguments;
    let (own, wait) = (prepared.endpoint(), Duration::from_secs(arguments.wait));
    let peer = exchange(other.stream(), &own, wait)?;
    check_reach(device, &own, &peer)?;
    let mut end = End::connect(prepared, peer, *size)?;
    confirm(other.stream(), wait)?; // then the peer is ready for the first message too
    print("connected")?;
    let begin = Instant::now();
    if other.listens() { end.answer(*n) } else { end.ask(*n) }?;
    let time = begin.elapsed();
    other.finish(wait)?;
    Ok(time)
}

fn prepare(arguments: &Arguments) -> Result<PreparedQueuePair, Failure> {
    let context = open_device(&arguments.device)?;
    let cq = match arguments.events {
        true => CompletionQueue::create_with_channel(&CompletionChannel::create(&context)?, 4, 0)?,
        false => CompletionQueue::create(&context, 4)?,
    };
    let pd = context.allocate_pd()?;
    Ok(pd.create_qp().send_cq(&cq).recv_cq(&cq).max_send_wr(2).max_recv_wr(2).build()?)
}
