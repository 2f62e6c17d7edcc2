//! Two clients send to one server, whose queue pairs share a receive queue: 16 receives for everybody.
#![allow(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_mem::{AccessFlags, AsyncEventSource, InlineElement, SharedRegion, open_device};
use rdma_qp::{
    CompletionQueue, MaxRnrRetries, PollSlot, QueuePair, ReceiveWorkRequest, SendWorkRequest,
    SharedReceiveQueue, prelude::*,
};

/// Two clients send numbers to a server with a shared receive queue, which adds them up.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
    #[arg(long, default_value_t = 1000, help = "How many messages each client sends")]
    messages: u32,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How many receives there are, of eight bytes each.
const RECEIVES: usize = 16;
/// The queue is refilled when fewer are left.
const LIMIT: u32 = 8;

fn main() -> Result<(), Failure> {
    run(&Arguments::parse()).map(|line| println!("{line}"))
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { device, messages } = arguments;
    rdma_soft::install();
    let context = open_device(device)?;
    let (cq, pd) = (CompletionQueue::create(&context, 64)?, context.allocate_pd()?);
    let board = pd.allocate_shared_region(8 * RECEIVES, AccessFlags::new().with_local_write())?;
    let srq = pd.create_srq().max_wr(u32::try_from(RECEIVES)?).max_sge(1).build()?;
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let client_cq = CompletionQueue::create(&context, 64)?;
        // As long as it takes: the others may have taken every receive.
        let client = pd.create_qp().max_rnr_retries(MaxRnrRetries::unlimited()).max_inline_data(8);
        let client = client.send_cq(&client_cq).recv_cq(&client_cq).build()?;
        let server = pd.create_qp().send_cq(&cq).recv_cq(&cq).srq(&srq).build()?;
        let (client_end, server_end) = (client.endpoint(), server.endpoint());
        servers.push(server.handshake(client_end)?);
        clients.push(client.handshake(server_end)?);
    }
    let total = 2 * messages;
    thread::scope(|threads| {
        let send = |qp| threads.spawn(move || send(&qp, *messages));
        let sending: Vec<_> = clients.into_iter().map(send).collect();
        let served = serve(&cq, &srq, &board, total);
        sending
            .into_iter()
            .try_for_each(|client| client.join().map_err(|_| "a client panicked")?)?;
        let (sum, fills) = served?;
        Ok(format!("{device}: {total} messages, their sum is {sum}, filled {fills} times"))
    })
}

/// Receives so many messages; says what their numbers sum up to, and how often the queue was filled.
fn serve(
    cq: &CompletionQueue,
    srq: &SharedReceiveQueue,
    board: &SharedRegion,
    mut left: u32,
) -> Result<(u64, u32), Failure> {
    let events = cq.context().async_events()?;
    let reached = AsyncEventSource::SharedReceiveQueue(srq.id());
    let (mut free, mut low): (Vec<usize>, _) = ((0..RECEIVES).collect(), true);
    let (mut sum, mut fills, mut heard) = (0, 0, Instant::now());
    while left > 0 {
        if low && free.len() >= LIMIT as usize {
            // In this order, and as many as the limit, no event is missed whatever comes in between.
            srq.set_limit(LIMIT)?;
            for place in free.drain(..) {
                let mut room = [board.element(8 * place..8 * (place + 1))?.into()];
                // SAFETY: SAFETY.md F8: the region goes after the queue, and is read when this is done.
                unsafe { srq.post_receive(ReceiveWorkRequest::new(&mut room), place as u64) }?;
            }
            (low, fills) = (false, fills + 1);
        }
        if let Some(id) = next(cq, heard)? {
            heard = Instant::now();
            let (place, mut number) = (usize::try_from(id)?, [0; 8]);
            board.read(8 * place, &mut number)?;
            sum += u64::from_le_bytes(number);
            free.push(place);
            left -= 1;
        }
        low |= events.try_get_event()?.is_some_and(|event| event.source == reached);
    }
    Ok((sum, fills))
}

/// Sends the numbers from 1 on, one at a time, without a region: they are copied when they are posted.
fn send(qp: &QueuePair, messages: u32) -> Result<(), Failure> {
    for number in 1..=u64::from(messages) {
        let bytes = number.to_le_bytes();
        let data = [InlineElement::new(&bytes)];
        // SAFETY: SAFETY.md F12: inline data, which is all that it has.
        unsafe { qp.post_send(SendWorkRequest::inline(&data), number) }?;
        let posted = Instant::now();
        while next(qp.send_cq(), posted)?.is_none() {}
    }
    Ok(())
}

/// The number of a request that is done, if there is one; an error if none was for too long.
fn next(cq: &CompletionQueue, since: Instant) -> Result<Option<u64>, Failure> {
    match cq.poll(&mut [PollSlot::default()])?.next() {
        Some(done) => Ok(done.result().map(|_| Some(done.wr_id()))?),
        None if since.elapsed() > Duration::from_secs(10) => {
            Err("nothing comes from the other side".into())
        }
        None => Ok(None),
    }
}
