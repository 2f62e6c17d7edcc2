//! A message goes to and fro between two threads, on a reliable connection.
#![allow(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_mem::{OwnedRegion, open_device};
use rdma_qp::{
    CompletionChannel, CompletionQueue, PollSlot, PreparedQueuePair, QueuePair, ReceiveWorkRequest,
    SendWorkRequest, prelude::*,
};

/// Sends a message to and fro between two threads, and says how long it takes.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, default_value_t = 64, help = "How long the message is, in bytes")]
    size: usize,
    #[arg(long, default_value_t = 1000, help = "How often it goes to and fro")]
    iterations: u32,
    #[arg(long, help = "Sleep on a completion channel until something completes")]
    events: bool,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A queue pair, and the memory that its requests use, which is freed after it.
struct End {
    qp: QueuePair,
    outgoing: OwnedRegion,
    incoming: OwnedRegion,
    in_flight: u32,
}

fn main() -> Result<(), Failure> {
    println!("{}", run(&Arguments::parse())?);
    Ok(())
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { device, size, iterations: n, .. } = arguments;
    rdma_soft::install();
    let (ping, pong) = (prepare(arguments)?, prepare(arguments)?);
    let (ping_end, pong_end) = (ping.endpoint(), pong.endpoint());
    let mut ping = End::new(ping.handshake(pong_end)?, *size)?;
    let mut pong = End::new(pong.handshake(ping_end)?, *size)?;
    let begin = Instant::now();
    thread::scope(|threads| {
        let mut answer = || pong.wait().and_then(|()| pong.receive()).and_then(|()| pong.send());
        let answers = threads.spawn(move || (0..*n).try_for_each(|_| answer()));
        let mut ask = || ping.send().and_then(|()| ping.wait()).and_then(|()| ping.receive());
        (0..*n).try_for_each(|_| ask())?;
        answers.join().map_err(|_| "the other thread panicked")?
    })?;
    let micros = begin.elapsed().as_secs_f64() * 1e6 / f64::from((*n).max(1));
    Ok(format!("{device}: {n} times {size} bytes, {micros:.2} us to and fro"))
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

impl End {
    fn new(qp: QueuePair, size: usize) -> Result<Self, Failure> {
        let (outgoing, incoming) = (qp.pd().allocate_region(size)?, qp.pd().allocate_region(size)?);
        let mut end = Self { qp, outgoing, incoming, in_flight: 0 };
        end.receive()?; // before the peer sends
        Ok(end)
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let mut room = self.incoming.get_mut(0, self.outgoing.len()).ok_or("too short")?;
        let elements = &mut [room.scatter_element()];
        self.in_flight += 1;
        // SAFETY: SAFETY.md F8: nothing looks at `incoming` before `wait`.
        Ok(unsafe { self.qp.post_receive(ReceiveWorkRequest::new(elements), 1) }?)
    }

    fn send(&mut self) -> Result<(), Failure> {
        let data = self.outgoing.get_ref(0, self.outgoing.len()).ok_or("too short")?;
        self.in_flight += 1;
        // SAFETY: SAFETY.md F8: nothing writes `outgoing`.
        Ok(unsafe { self.qp.post_send(SendWorkRequest::new(&[data.gather_element()]), 2) }?)
    }

    /// Takes completions until nothing is in flight.
    fn wait(&mut self) -> Result<(), Failure> {
        let (cq, mut slots) = (self.qp.recv_cq(), [PollSlot::default(); 4]);
        let (begin, limit) = (Instant::now(), Duration::from_secs(10));
        while self.in_flight > 0 {
            let mut done = cq.poll(&mut slots)?;
            if let (true, Some(channel)) = (done.is_empty(), cq.channel()) {
                cq.req_notify(false)?;
                done = cq.poll(&mut slots)?; // what came in between sends no event
                if done.is_empty() {
                    channel.get_event_timeout(limit)?; // sleeps
                }
            }
            if done.is_empty() && begin.elapsed() > limit {
                return Err("the other side is silent".into());
            }
            for completion in done {
                completion.result()?;
                self.in_flight -= 1;
            }
        }
        Ok(())
    }
}
