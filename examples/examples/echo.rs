//! A server that sends each message back over a channel. The ends are two threads or two processes.
//!
//! The server's buffers circulate: each receives a message, sends it back, and then receives the
//! next one.

use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma::prelude::*;
use rdma_examples_common::out_of_band::{OutOfBand, Peer};
use rdma_examples_common::reach::check_reach;
use rdma_examples_common::{Failure, print, program};

/// Sends messages to a server, which sends them back. The server is a thread, or another process
/// with the same size
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, default_value_t = 4096, help = "The largest length of a message, in bytes")]
    size: usize,
    #[arg(long, default_value_t = 1000, help = "The number of messages")]
    messages: u32,
    #[command(flatten)]
    peer: Peer,
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help = "For the other process")]
    wait: u64,
}

/// The number of receives that the server keeps posted.
const ROOMS: usize = 4;
/// The immediate data of the last message. Other messages have none.
const GOODBYE: u32 = 0;

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let wait = Duration::from_secs(arguments.wait);
    let pd = open_device(&arguments.device)?.allocate_pd()?;
    let prepare = || pd.create_channel().receive_timeout(wait).build();
    let begin = Instant::now();
    let count = match arguments.peer.meet(wait)? {
        Some(other) => with_process(arguments, prepare()?, other)?,
        None => {
            let (client, server) = (prepare()?, prepare()?);
            let (client_end, server_end) = (client.endpoint(), server.endpoint());
            let (mut client, mut server) =
                (client.handshake(server_end)?, server.handshake(client_end)?);
            thread::scope(|threads| {
                let (ready, is_ready) = mpsc::channel();
                let answers =
                    threads.spawn(move || serve(&mut server, arguments, || Ok(ready.send(())?)));
                if is_ready.recv().is_ok() {
                    ask(&mut client, arguments)?;
                }
                answers.join().map_err(|_| "the server panicked")?
            })?
        }
    };
    let Arguments { device, .. } = arguments;
    Ok(format!("{device}: {count} messages in {:.3} s", begin.elapsed().as_secs_f64()))
}

fn with_process(
    arguments: &Arguments,
    prepared: PreparedChannel,
    other: OutOfBand,
) -> Result<u32, Failure> {
    let (own, wait) = (prepared.endpoint(), Duration::from_secs(arguments.wait));
    let peer = exchange(other.stream(), &own, wait)?;
    check_reach(&arguments.device, &own, &peer)?;
    let mut channel = prepared.handshake(peer)?;
    let ready = || {
        confirm(other.stream(), wait)?;
        print("connected")?;
        Ok(())
    };
    let count = if other.listens() {
        serve(&mut channel, arguments, ready)?
    } else {
        ready()?;
        ask(&mut channel, arguments)?
    };
    other.finish(wait)?;
    Ok(count)
}

/// Sends messages of increasing length and compares the answers. Then sends a goodbye.
fn ask(channel: &mut Channel, arguments: &Arguments) -> Result<u32, Failure> {
    let (size, wait) = (arguments.size, Duration::from_secs(arguments.wait));
    let pd = channel.pd().clone();
    let region = || pd.allocate_region(size.max(1));
    let (mut source, mut target) = (region()?, region()?);
    let (mut from, mut to) = (Some(source.as_slice_mut()), Some(target.as_slice_mut()));
    channel
        .scope(|s| {
            for number in 0..arguments.messages {
                let (Some(mut data), Some(room)) = (from.take(), to.take()) else { break };
                let length = number as usize % (size + 1);
                data[..length].fill(number.to_le_bytes()[0]);
                let answer = s.receive_into(room)?;
                let data = Prefix::new(data, length).map_err(|_| "too long")?;
                let sent = s.send_from(data)?;
                let data = sent.done(wait)?.0.into_whole();
                let (arrived, success) = answer.done(wait)?;
                if success.scattered_bytes() != Some(length) || arrived[..length] != data[..length]
                {
                    return Err(format!("the answer to message {number} differs from it").into());
                }
                (from, to) = (Some(data), Some(arrived));
            }
            s.post_send(SendWorkRequest::only_immediate(GOODBYE))?.spin_poll()?;
            Ok::<_, Failure>(arguments.messages)
        })
        .map_err(Failure::from)
}

/// Sends each message back, until the client's goodbye arrives. Calls `ready` when messages can
/// arrive.
fn serve(
    channel: &mut Channel,
    arguments: &Arguments,
    ready: impl FnOnce() -> Result<(), Failure>,
) -> Result<u32, Failure> {
    let (size, wait) = (arguments.size.max(1), Duration::from_secs(arguments.wait));
    let mut memory = channel.pd().allocate_region(ROOMS * size)?;
    channel
        .scope(|s| {
            let rooms = memory.as_slice_mut().into_chunks(size).take(ROOMS);
            let mut ring = s.receive_ring(rooms)?;
            ready()?;
            let mut count = 0;
            loop {
                // While this message is answered from its buffer, the other receives stay posted.
                let message = ring.next(wait)?;
                if message.immediate_data() == Some(GOODBYE) {
                    break;
                }
                let (arrived, length) = message.take();
                let answer = Prefix::new(arrived, length).map_err(|_| "too long")?;
                let sent = s.send_from(answer)?;
                ring.give_back(sent.done(wait)?.0.into_whole());
                count += 1;
            }
            s.close(); // no message will arrive for the remaining receives
            Ok::<_, Failure>(count)
        })
        .map_err(Failure::from)
}
