//! Clients send messages to a server whose queue pairs share a receive queue: 16 receives are
//! enough for all clients.
#![allow(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use rdma::device::AsyncEventSource;
use rdma::prelude::*;
use rdma::qp::{CompletionQueue, PollSlot, SharedReceiveQueue};
use rdma_examples::ends::{Ends, OtherEnd, until};
use rdma_examples_common::{Failure, program};

/// Clients send numbers to a server with a shared receive queue, which adds them up. Each client is
/// a thread, or a process. In that case, the server listens for the given number of clients, and
/// each of them connects.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(help = "The number of clients of the server")]
    clients: u16,
    #[arg(long, default_value_t = 1000, help = "The number of messages that each client sends")]
    messages: u32,
    #[command(flatten)]
    ends: Ends,
}

/// The number of receives, each of eight bytes.
const RECEIVES: usize = 16;
/// The queue is refilled when fewer receives than this are left.
const LIMIT: u32 = 8;

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { clients, messages, ends } = arguments;
    let line = |line: String| format!("{}: {line}", ends.device());
    ends.run_many(
        (*clients).into(),
        |context, clients| serve(context, clients).map(line),
        |context, server| send(context, server, *messages).map(line),
    )
}

/// Serves each client with a separate queue pair. All queue pairs use the same receive queue and
/// the same completion queue.
fn serve(context: &Context, clients: &mut [OtherEnd]) -> Result<String, Failure> {
    let (cq, pd) = (CompletionQueue::create(context, 64)?, context.allocate_pd()?);
    let board = pd.allocate_shared_region(8 * RECEIVES, AccessFlags::new().with_local_write())?;
    let srq = pd.create_srq().max_wr(u32::try_from(RECEIVES)?).max_sge(1).build()?;
    let (mut connected, mut total) = (Vec::new(), 0);
    for client in &mut *clients {
        let prepared = pd.create_qp().send_cq(&cq).recv_cq(&cq).srq(&srq).build()?;
        connected.push(client.connect_queue_pair(prepared)?);
        total += client.hear()?; // the number of messages that the client will send
    }
    clients.iter().try_for_each(OtherEnd::ready)?;
    let (sum, fills) = receive(&cq, &srq, &board, clients, total)?;
    clients.iter().try_for_each(OtherEnd::finish)?;
    Ok(format!("{total} messages, their sum is {sum}, filled {fills} times"))
}

/// Receives `total` messages. Returns the sum of the numbers in them, and how often the queue was
/// filled.
fn receive(
    cq: &CompletionQueue,
    srq: &SharedReceiveQueue,
    board: &SharedRegion,
    clients: &[OtherEnd],
    messages: u64,
) -> Result<(u64, u32), Failure> {
    let events = cq.context().async_events()?;
    let reached = AsyncEventSource::SharedReceiveQueue(srq.id());
    let (mut free, mut low): (Vec<usize>, _) = ((0..RECEIVES).collect(), true);
    let (mut sum, mut fills) = (0, 0);
    for _ in 0..messages {
        let id = until(clients, || {
            low |= events.try_get_event()?.is_some_and(|event| event.source == reached);
            if low && free.len() >= LIMIT as usize {
                // No event is missed if the limit is set first, and then at least `LIMIT` receives
                // are posted.
                srq.set_limit(LIMIT)?;
                for place in free.drain(..) {
                    let mut room = [board.element(8 * place..8 * (place + 1))?.into()];
                    // SAFETY: SAFETY.md F8: the region is freed after the queue, and its bytes are
                    // read only when this receive has completed.
                    unsafe { srq.post_receive(ReceiveWorkRequest::new(&mut room), place as u64) }?;
                }
                (low, fills) = (false, fills + 1);
            }
            next(cq)
        })?;
        let (place, mut number) = (usize::try_from(id)?, [0; 8]);
        board.read(8 * place, &mut number)?;
        sum += u64::from_le_bytes(number);
        free.push(place);
    }
    Ok((sum, fills))
}

/// Sends the numbers from 1 to `messages`, one at a time. No region is needed, because posting
/// copies the bytes inline.
fn send(context: &Context, server: &mut OtherEnd, messages: u32) -> Result<String, Failure> {
    let (cq, pd) = (CompletionQueue::create(context, 64)?, context.allocate_pd()?);
    // By default, a send is retried without a limit if it finds no receive. This is needed here,
    // because other clients may have consumed all receives.
    let prepared = pd.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
    let qp = server.connect_queue_pair(prepared)?;
    server.tell(messages.into())?;
    server.ready()?;
    for number in 1..=u64::from(messages) {
        let bytes = number.to_le_bytes();
        let data = [InlineElement::new(&bytes)];
        // SAFETY: SAFETY.md F12: the request has only inline data.
        unsafe { qp.post_send(SendWorkRequest::inline(&data), number) }?;
        server.until(|| next(&cq))?;
    }
    server.finish()?;
    Ok(format!("sent {messages} messages"))
}

/// Returns the ID of the next completed request, if one has completed.
fn next(cq: &CompletionQueue) -> Result<Option<u64>, Failure> {
    let Some(done) = cq.poll(&mut [PollSlot::default()])?.next() else { return Ok(None) };
    Ok(done.result().map(|_| Some(done.wr_id()))?)
}
